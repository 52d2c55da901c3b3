//! The frame of an image, and the checks before its content is used.

use core::fmt;

use crate::memory::{Arena, Entry, Layout, LayoutError};
use crate::model::ModelError;

#[cfg(feature = "neurogen")]
use super::SpikingDescription;
use super::{Described, Description, Vocabulary, crc32};

/// The first eight bytes, `capful` and two bytes that occur in no text, as words.
pub const MAGIC: [u32; 2] = [u32::from_le_bytes(*b"capf"), u32::from_le_bytes(*b"ul\x1a\n")];

/// The version of the format that this code writes and reads.
pub const VERSION: u32 = 2;

/// Why an image cannot be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ImageError {
    /// It does not begin at a multiple of [`Arena::IMAGE_ALIGNMENT`] bytes.
    Alignment,
    /// It does not begin with [`MAGIC`]: it is no image, or empty.
    Magic,
    /// Its version is not [`VERSION`].
    Version(u32),
    /// The end is missing.
    Truncated {
        /// Bytes that are there.
        found: usize,
        /// Bytes according to its header.
        wanted: usize,
    },
    /// Its bytes have changed since it was written.
    Checksum,
    /// A part lies outside the image, overlaps another one, or is misaligned.
    Part(&'static str),
    /// A family of models that is not supported here.
    Family(u32),
    /// A word of the description without a meaning.
    Word {
        /// The field of the word.
        field: &'static str,
        /// The word.
        word: u32,
    },
    /// The sizes describe no valid model.
    Model(ModelError),
    /// The sizes describe a model that is too large.
    Layout(LayoutError),
    /// The number of weight bytes differs from the model's.
    Weights {
        /// Bytes that are there.
        found: u64,
        /// Bytes of the model.
        wanted: u64,
    },
    /// The vocabulary's tables do not match each other, or the model.
    Vocabulary(&'static str),
}

impl ImageError {
    /// A description of the error without numbers: on a chip, formatting code may take more flash than the operations.
    pub const fn reason(&self) -> &'static str {
        match self {
            ImageError::Alignment => "the image does not begin at a multiple of 16 bytes",
            ImageError::Magic => "there is no image: the first bytes are others",
            ImageError::Version(_) => "the image is of another version; export it again",
            ImageError::Truncated { .. } => "the image was cut off",
            ImageError::Checksum => "the image is damaged: its checksum is another",
            ImageError::Part(_) => "a part of the image lies outside it or at an odd place",
            ImageError::Family(_) => "the image is of a family of models that is not known",
            ImageError::Word { .. } => "the image's description has a word that stands for nothing",
            ImageError::Model(_) => "the image's sizes make no model",
            ImageError::Layout(_) => "the image's model is larger than any memory",
            ImageError::Weights { .. } => "the image's weights are not those of its model",
            ImageError::Vocabulary(_) => "the image's vocabulary does not belong together",
        }
    }
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())?;
        match self {
            ImageError::Version(version) => write!(f, ": {version}, and {VERSION} is read"),
            ImageError::Truncated { found, wanted } => write!(f, ": {found} bytes of {wanted} are there"),
            ImageError::Part(part) => write!(f, ": its {part}"),
            ImageError::Family(family) => write!(f, ": {family}"),
            ImageError::Word { field, word } => write!(f, ": {word} for {field}"),
            ImageError::Model(error) => write!(f, ": {error}"),
            ImageError::Layout(error) => write!(f, ": {error}"),
            ImageError::Weights { found, wanted } => write!(f, ": {found} bytes, not {wanted}"),
            ImageError::Vocabulary(what) => write!(f, ": {what}"),
            ImageError::Alignment | ImageError::Magic | ImageError::Checksum => Ok(()),
        }
    }
}

impl core::error::Error for ImageError {}

/// The header of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole image.
    pub bytes: u32,
    /// Offsets and lengths in bytes of description, weights and vocabulary.
    pub parts: [[u32; 2]; 3],
}

impl Header {
    /// The number of its words.
    pub const WORDS: usize = 16;
    const NAMES: [&'static str; 3] = ["description", "weights", "vocabulary"];

    /// A header for contiguous parts of these lengths; `None` beyond 32 bits.
    pub fn of(lengths: [u64; 3]) -> Option<Header> {
        let mut end = (Self::WORDS * 4) as u64;
        let mut parts = [[0; 2]; 3];
        for (part, length) in parts.iter_mut().zip(lengths) {
            *part = [u32::try_from(end).ok()?, u32::try_from(length).ok()?];
            end = end.checked_add(length)?.checked_next_multiple_of(Arena::IMAGE_ALIGNMENT as u64)?;
        }
        Some(Header { bytes: u32::try_from(end + 4).ok()?, parts })
    }

    /// The words of the header in an image.
    pub fn words(&self) -> [u32; Self::WORDS] {
        let [[a, b], [c, d], [e, f]] = self.parts;
        [MAGIC[0], MAGIC[1], VERSION, self.bytes, a, b, c, d, e, f, 0, 0, 0, 0, 0, 0]
    }

    /// Reads the header of `bytes`, and checks that all the bytes of the image are there.
    fn read(bytes: &[u8]) -> Result<Header, ImageError> {
        let short = |wanted| ImageError::Truncated { found: bytes.len(), wanted };
        let head = bytes.get(..Self::WORDS * 4).ok_or(short(Self::WORDS * 4));
        let Ok(words) = bytemuck::try_cast_slice::<u8, u32>(head?) else { return Err(ImageError::Alignment) };
        let &[first, second, version, length, a, b, c, d, e, f, ref rest @ ..] = words else {
            return Err(ImageError::Magic);
        };
        if [first, second] != MAGIC {
            return Err(ImageError::Magic);
        }
        if version != VERSION {
            return Err(ImageError::Version(version));
        }
        if bytes.len() < length as usize {
            return Err(short(length as usize));
        }
        if rest.iter().any(|word| *word != 0) {
            return Err(ImageError::Part("header"));
        }
        Ok(Header { bytes: length, parts: [[a, b], [c, d], [e, f]] })
    }

    /// The parts of `whole`, which ends with the checksum; they must be in order, aligned, disjoint, and of whole
    /// words.
    fn parts<'a>(&self, whole: &'a [u8]) -> Result<[&'a [u8]; 3], ImageError> {
        let mut least = (Self::WORDS * 4) as u32;
        let mut found = [&[][..]; 3];
        for ((to, [start, length]), name) in found.iter_mut().zip(self.parts).zip(Self::NAMES) {
            let wrong = ImageError::Part(name);
            let placed = start >= least && start.is_multiple_of(Arena::IMAGE_ALIGNMENT as u32);
            if !placed || !length.is_multiple_of(4) {
                return Err(wrong);
            }
            least = start.checked_add(length).ok_or(wrong)?;
            *to = whole.get(start as usize..least as usize).ok_or(wrong)?;
        }
        Ok(found)
    }
}

/// An image of a model with the description `D`, completely checked.
#[derive(Debug, Clone, Copy)]
pub struct ImageOf<'a, D> {
    description: D,
    weights: &'a [u8],
    vocabulary: Vocabulary<'a>,
}

/// A transformer's image.
pub type Image<'a> = ImageOf<'a, Description>;

/// A NeuroGen's image.
#[cfg(feature = "neurogen")]
pub type SpikingImage<'a> = ImageOf<'a, SpikingDescription>;

impl<'a, D: Described> ImageOf<'a, D> {
    /// Opens the image at the beginning of `bytes`; later bytes are ignored. Reads every byte once, and copies none.
    ///
    /// # Errors
    /// An [`ImageError`] for any invalid bytes.
    // Not inlined, so that its stack frame is not part of the caller's.
    #[inline(never)]
    pub fn open(bytes: &'a [u8]) -> Result<ImageOf<'a, D>, ImageError> {
        if !bytes.as_ptr().addr().is_multiple_of(Arena::IMAGE_ALIGNMENT) {
            return Err(ImageError::Alignment);
        }
        let header = Header::read(bytes)?;
        let cut = ImageError::Truncated { found: bytes.len(), wanted: Header::WORDS * 4 + 4 };
        let whole = bytes.get(..header.bytes as usize).ok_or(cut)?;
        let (whole, sum) = whole.split_last_chunk::<4>().ok_or(cut)?;
        if crc32(whole) != u32::from_le_bytes(*sum) {
            return Err(ImageError::Checksum);
        }
        let [description, weights, vocabulary] = header.parts(whole)?;
        let wrong = ImageError::Part("description");
        let words = bytemuck::try_cast_slice::<u8, u32>(description).map_err(|_| wrong)?;
        if let Some(&family) = words.first().filter(|family| **family != D::FAMILY) {
            return Err(ImageError::Family(family));
        }
        let description = D::of(words)?;
        let mut visit = |_: &Entry| {};
        let mut layout = Layout::with_image(&mut visit);
        let network = description.lay_network(&mut layout);
        layout.high_water().map_err(ImageError::Layout)?;
        let (found, wanted) = (weights.len() as u64, layout.image_bytes());
        if found != wanted {
            return Err(ImageError::Weights { found, wanted });
        }
        description.check_tables(&network, weights)?;
        let vocabulary = Vocabulary::open(vocabulary, description.ids())?;
        Ok(ImageOf { description, weights, vocabulary })
    }

    /// The model and its settings.
    pub fn description(&self) -> &D {
        &self.description
    }

    /// Weights and constant tables, as [`Layout::with_image`] lays them.
    pub fn weights(&self) -> &'a [u8] {
        self.weights
    }

    /// The conversion between text and ids.
    pub fn vocabulary(&self) -> &Vocabulary<'a> {
        &self.vocabulary
    }
}
