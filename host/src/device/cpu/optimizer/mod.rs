//! Updates of parameters, and the norm that they are clipped by.

mod adamw;
mod factored;
mod moved;
mod squared_norm;
