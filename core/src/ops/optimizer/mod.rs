//! Updates of parameters, and the norm that they are clipped by.

mod adamw;
mod factored;
mod lion;
mod moved;
mod piece_norms;
mod sgd;
mod squared_norm;

pub use adamw::{AdamW, AdamWFactors};
pub use factored::{EmbedUpdate, FactoredUpdate};
pub use lion::Lion;
pub use moved::{ByElement, Factors, Moved};
pub use piece_norms::{PieceNorms, SumNorms};
pub use sgd::Sgd;
pub use squared_norm::SquaredNorm;
