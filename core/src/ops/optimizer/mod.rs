//! Updates of parameters, the norm for clipping, and the averages of parameters.

mod adamw;
mod adamw_factored;
mod average;
mod blend_momentum;
mod cut;
mod factored;
mod lion;
mod masters;
mod matrix_momentum;
mod matrix_move;
mod moved;
mod orthogonalise;
mod piece_norms;
mod row_factors;
mod sgd;
mod squared_norm;

pub use adamw::{AdamW, AdamWFactors};
pub use adamw_factored::AdamWFactored;
pub use average::{Average, Exchange};
pub use blend_momentum::BlendMomentum;
pub use cut::Cut;
pub use factored::{EmbedUpdate, FactoredUpdate};
pub use lion::Lion;
pub use matrix_momentum::MatrixMomentum;
pub use matrix_move::{MatrixFactors, MatrixMove};
pub use moved::{ByElement, Factors, Moved};
pub use orthogonalise::Orthogonalise;
pub use piece_norms::{PieceNorms, SumNorms};
pub use row_factors::RowFactors;
pub use sgd::Sgd;
pub use squared_norm::SquaredNorm;
