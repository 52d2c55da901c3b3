//! Updates of parameters, and the gradient norm that limits them.

mod adamw;
mod adamw_factored;
mod average;
mod blend_momentum;
mod factored;
mod matrix_momentum;
mod matrix_move;
mod moved;
mod orthogonalise;
mod row_factors;
mod squared_norm;
