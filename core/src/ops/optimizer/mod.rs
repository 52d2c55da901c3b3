//! Updates of parameters, and the norm that they are clipped by.

mod adamw;
mod factored;
mod piece_norms;
mod squared_norm;

pub use adamw::AdamW;
pub use factored::{EmbedUpdate, FactoredUpdate};
pub use piece_norms::{PieceNorms, SumNorms};
pub use squared_norm::SquaredNorm;
