//! What every export shares: which known architecture a model is, its tensors made of a checkpoint's, and files that are
//! there whole or not at all.

mod architecture;
mod element;
mod error;
mod place;
mod stored;
mod stream;
mod tensor;

pub use architecture::{Architecture, own_part};
pub use element::Element;
pub use error::ExportError;
pub use place::{Place, Written};
pub use stored::{Kind, Stored};
pub use stream::{Checkpoint, PIECE};
pub use tensor::{Rows, Tensor, Values};
