//! The memory for generation only: the weights and tables in a read-only image, as in a microcontroller's flash, and an
//! arena.

use capful_base::human_bytes;
use std::fmt::Write as _;

use capful_core::device::{InIntegers, Single};
use capful_core::memory::{Entry, Layout, Role, Space};
use capful_core::model::Family as _;
#[cfg(feature = "neurogen")]
use capful_core::model::Purpose;
use serde::Serialize;

use super::Line;
#[cfg(feature = "neurogen")]
use super::layout::Section;
use super::layout::too_large;
#[cfg(feature = "neurogen")]
use super::program;
use crate::config::{AnyFamily, Config, ConfigError};

/// The memory for decoding token by token, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decoding {
    /// The exact number of the model's parameters.
    pub params: u64,
    /// Number of positions.
    pub context: u32,
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Regions of the image: bytes and paddings add up to `image_bytes`.
    pub image: Vec<Line>,
    /// Regions of the arena.
    pub arena: Vec<Line>,
}

impl Decoding {
    /// Lays out what the model of `config` needs to generate over its whole context, with the configured type of
    /// weights and activations in f32.
    ///
    /// # Errors
    /// A region that is too large for the numbers.
    pub fn of(config: &Config) -> Result<Decoding, ConfigError> {
        let context = config.context();
        let profile = InIntegers { profile: &Single, weights: config.weights };
        let (mut image, mut arena) = (Vec::new(), Vec::new());
        let mut visit = |entry: &Entry| {
            let lines = if entry.place.first.space == Space::Image { &mut image } else { &mut arena };
            lines.push(Line::new(entry, None));
        };
        let mut layout = Layout::with_image(&mut visit);
        match config.family() {
            AnyFamily::Transformer(model) => {
                model.lay_network(&profile, &mut layout);
                model.lay_decoding(context, &profile, &mut layout);
            }
            #[cfg(feature = "neurogen")]
            family @ AnyFamily::NeuroGen(_) => {
                let mut model = program::model(&family);
                model.lay_lasting(&profile, Purpose::Decoding, &mut layout);
                model.lay(Section::Decoding(context), &profile, &mut layout);
            }
        }
        let (arena_bytes, image_bytes) = (layout.high_water().map_err(too_large)?, layout.image_bytes());
        let params = image.iter().filter(|line| line.role == Role::Weight.name()).map(Line::elements).sum();
        Ok(Decoding { params, context, image_bytes, arena_bytes, image, arena })
    }

    /// A table of all regions with the sums, for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "  {} parameters, {} positions", self.params, self.context);
        for (name, lines, bytes) in [("image", &self.image, self.image_bytes), ("arena", &self.arena, self.arena_bytes)]
        {
            for line in lines {
                let (what, Line { name, bytes, padding, .. }) = (line.describe(), line);
                let _ = writeln!(out, "  {name:<58} {what:<26} {bytes:>14} {padding:>8}");
            }
            let _ = writeln!(out, "  {name:<85} {bytes:>14} {:>11}", human_bytes(bytes));
        }
        out
    }
}
