//! Updates of parameters, the gradient norm that limits them, and averages of parameters.

mod adamw;
mod adamw_factored;
mod average;
mod blend_momentum;
mod factored;
mod lion;
mod matrix_momentum;
mod matrix_move;
mod moved;
mod orthogonalise;
mod row_factors;
mod sgd;
mod squared_norm;
