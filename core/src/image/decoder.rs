//! Decodes tokens with the model of an image.

use core::fmt;

use super::{Described, Description, ImageOf};
use crate::device::{Device, OperationError};
use crate::memory::{Arena, ArenaError, Entry, Layout, LayoutError, Region};

/// Why a token could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DecodeError {
    /// A context of no positions, or of more than the model has.
    Context {
        /// The requested positions.
        asked: u32,
        /// The positions of the model.
        most: u32,
    },
    /// The regions cannot be laid.
    Layout(LayoutError),
    /// The storage is too small.
    Storage {
        /// Its bytes.
        found: u64,
        /// The bytes that are needed.
        needed: u64,
    },
    /// An id that the model does not have.
    Id {
        /// The id.
        id: u32,
        /// The number of the model's ids.
        ids: u32,
    },
    /// Every position of the context is used.
    Full(u32),
    /// An operation failed.
    Operation(OperationError),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Context { asked, most } => {
                write!(f, "a context of {asked} positions was asked for; the model has 1 to {most}")
            }
            DecodeError::Layout(error) => error.fmt(f),
            DecodeError::Storage { found, needed } => write!(f, "{needed} bytes of storage are needed, not {found}"),
            DecodeError::Id { id, ids } => write!(f, "id {id} is outside the model's {ids}"),
            DecodeError::Full(context) => write!(f, "all {context} positions of the context are taken"),
            DecodeError::Operation(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for DecodeError {}

impl From<OperationError> for DecodeError {
    fn from(error: OperationError) -> Self {
        DecodeError::Operation(error)
    }
}

impl From<ArenaError> for DecodeError {
    fn from(error: ArenaError) -> Self {
        DecodeError::Operation(error.into())
    }
}

/// A device whose operands lie in an arena.
pub trait OnArena<'a>: Device {
    /// The operands' arena.
    fn arena(&mut self) -> &mut Arena<'a>;
}

impl<'a> OnArena<'a> for crate::device::Reference<'a> {
    fn arena(&mut self) -> &mut Arena<'a> {
        &mut self.arena
    }
}

/// The regions of an image's model, and the number of tokens that it has read.
#[derive(Debug, Clone, Copy)]
pub struct Decoder<M: Described = Description> {
    description: M,
    network: M::Network,
    decoding: M::Decoding,
    bytes: Result<u64, LayoutError>,
    context: u32,
    position: u32,
}

impl<M: Described> Decoder<M> {
    /// A decoder for up to `context` tokens of the image's model, with two and a half kilobytes of regions. The context
    /// is checked only when the decoder's bytes or arena are requested, so that the decoder is not moved through a
    /// `Result`.
    // Not inlined, so that its stack frame is not part of the caller's.
    #[inline(never)]
    pub fn new(image: &ImageOf<'_, M>, context: u32) -> Decoder<M> {
        let description = *image.description();
        let mut visit = |_: &Entry| {};
        let mut layout = Layout::with_image(&mut visit);
        Decoder {
            network: description.lay_network(&mut layout),
            decoding: description.lay_decoding(context, &mut layout),
            bytes: layout.high_water(),
            description,
            context,
            position: 0,
        }
    }

    /// Bytes of storage that it needs.
    ///
    /// # Errors
    /// [`DecodeError::Context`], [`DecodeError::Layout`].
    pub fn bytes(&self) -> Result<u64, DecodeError> {
        let (asked, most) = (self.context, self.description.context());
        match asked == 0 || asked > most {
            true => Err(DecodeError::Context { asked, most }),
            false => self.bytes.map_err(DecodeError::Layout),
        }
    }

    /// The arena of this decoder, over `storage` and the image that the decoder was made from. The storage's previous
    /// content does not matter.
    ///
    /// # Errors
    /// The errors of [`Decoder::bytes`]; [`DecodeError::Storage`] for storage that is too small.
    pub fn arena<'a>(&self, storage: &'a mut [u64], image: &ImageOf<'a, M>) -> Result<Arena<'a>, DecodeError> {
        let (found, needed) = (storage.len() as u64 * 8, self.bytes()?);
        if found < needed {
            return Err(DecodeError::Storage { found, needed });
        }
        Ok(Arena::with_image(storage, image.weights())?)
    }

    /// Tokens read so far.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Positions left.
    pub fn room(&self) -> u32 {
        self.context - self.position
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.position = 0;
    }

    /// Reads `id` and returns the logits of the next token, `[vocab_size]`, which the caller may change.
    ///
    /// # Errors
    /// [`DecodeError::Id`], [`DecodeError::Full`]; an error of the device.
    pub fn feed<'d, 'a: 'd, D: OnArena<'a>>(
        &mut self,
        device: &'d mut D,
        id: u32,
    ) -> Result<&'d mut [f32], DecodeError> {
        let ids = self.description.ids();
        if id >= ids {
            return Err(DecodeError::Id { id, ids });
        }
        if self.position >= self.context {
            return Err(DecodeError::Full(self.context));
        }
        let (ids, cursor, logits) = M::io(&self.decoding);
        for (region, value) in [(ids, id), (cursor, self.position)] {
            word(device.arena(), region, value)?;
        }
        self.description.decode(device, &self.network, &self.decoding)?;
        self.position += 1;
        let ([], [logits]) = device.arena().f32s([], [Some(logits)])?;
        Ok(logits)
    }
}

/// Writes a region of one word.
fn word(arena: &mut Arena<'_>, region: Region, value: u32) -> Result<(), ArenaError> {
    let [mut view] = arena.views([Some(region)])?;
    view.u32_mut()?.fill(value);
    Ok(())
}
