//! Updates of parameters, and the norm that they are clipped by.

mod adamw;
mod factored;
mod lion;
mod moved;
mod sgd;
mod squared_norm;
