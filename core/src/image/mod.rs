//! A trained model as one read-only image, in a chip's flash or in a mapped file, which is used in place.
//!
//! Everything consists of 32-bit little-endian words, and the image begins at a multiple of [`Arena::IMAGE_ALIGNMENT`]
//! bytes:
//!
//! | words | what |
//! | --- | --- |
//! | 2 | [`MAGIC`] |
//! | 1 | [`VERSION`] |
//! | 1 | bytes of the whole image, the checksum included |
//! | 2 each | where description, weights and vocabulary begin, and their bytes: in this order, at multiples of 16, without overlap |
//! | 6 | zero |
//! | | the description ([`Described`]) |
//! | | weights, their scales and constant tables, as [`Layout::with_image`] lays them for decoding; padding is zero |
//! | | the vocabulary ([`Vocabulary`]) |
//! | 1 | CRC-32 of everything before it |
//!
//! [`Image::open`] checks all of it, so that later uses cannot fail because of the image: the checksum detects damage,
//! and every offset, length, size and id is checked in addition, since a forged image can have a valid checksum.

mod checksum;
mod decoder;
mod description;
mod open;
mod vocabulary;

pub use checksum::crc32;
pub use decoder::{DecodeError, Decoder, OnArena};
#[cfg(feature = "neurogen")]
pub use description::SpikingDescription;
pub use description::{Described, Description, WeightType};
#[cfg(feature = "neurogen")]
pub use open::SpikingImage;
pub use open::{Header, Image, ImageError, ImageOf, MAGIC, VERSION};
pub use vocabulary::{TextError, Tokens, Unknown, Vocabulary, VocabularyHeader};

#[cfg(doc)]
use crate::memory::{Arena, Layout};
