//! The bytes of an image and of its model's arena.

use capful_core::image::{Described, Header};
use capful_core::memory::{Entry, Layout, LayoutError, Role};
use serde::Serialize;

/// The bytes of a model's image, part by part, and of its arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Weights, with their padding.
    pub weights: u64,
    /// Scales of integer weights, with their padding.
    pub scales: u64,
    /// Constant tables, with their padding.
    pub tables: u64,
    /// The vocabulary.
    pub vocabulary: u64,
    /// Header, description, checksum and alignment.
    pub frame: u64,
    /// The key/value cache, a part of the arena.
    pub cache: u64,
    /// The arena.
    pub arena: u64,
}

impl Sizes {
    /// The sizes of a model that decodes `context` tokens, with a vocabulary of this many bytes. The layout is that of
    /// the chip.
    ///
    /// # Errors
    /// A region that cannot be laid out.
    pub fn of<D: Described>(description: &D, context: u32, vocabulary: u64) -> Result<Sizes, LayoutError> {
        let (mut weights, mut scales, mut tables, mut cache) = (0, 0, 0, 0);
        let mut visit = |entry: &Entry| {
            let bytes = entry.bytes + entry.padding;
            match entry.slot.role {
                Role::Weight => weights += bytes,
                Role::Scale => scales += bytes,
                Role::Constant => tables += bytes,
                _ if entry.slot.name == "decode.cache" => cache += bytes,
                _ => {}
            }
        };
        let mut layout = Layout::with_image(&mut visit);
        description.lay_network(&mut layout);
        description.lay_decoding(context, &mut layout);
        let arena = layout.high_water()?;
        let header = Header::of([(D::WORDS * 4) as u64, weights + scales + tables, vocabulary]);
        let whole = header.ok_or(LayoutError::Bytes("the image"))?.bytes;
        let frame = u64::from(whole) - weights - scales - tables - vocabulary;
        Ok(Sizes { weights, scales, tables, vocabulary, frame, cache, arena })
    }

    /// Bytes of the whole image.
    pub fn image(&self) -> u64 {
        self.weights + self.scales + self.tables + self.vocabulary + self.frame
    }
}
