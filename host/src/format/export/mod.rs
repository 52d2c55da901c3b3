//! The common code of all exports: the model's architecture, its tensors derived from a checkpoint's, and files that
//! exist either completely or not at all.

mod architecture;
mod element;
mod error;
mod pending_output;
mod stored;
mod stream;
mod tensor;

pub use architecture::{Architecture, own_part};
pub use element::Element;
pub use error::ExportError;
pub use pending_output::{PendingOutput, Written};
pub use stored::{Stored, WeightOrBias};
pub use stream::{Checkpoint, PIECE};
pub use tensor::{Rows, Tensor, Values};
