//! Optimizers: how a parameter learns, what that keeps in memory, and the operations that move it.
//!
//! A family lists its parameters, each with its [`Rule`]. A rule lays its own state and emits its own operations, so that
//! another one touches no family.

mod adamw;
mod factored;
mod in_place;
mod shared;

pub use adamw::{Learning, Moments, Whole, lay};
pub use factored::Factored;
pub use in_place::InPlace;
pub use shared::Shared;

/// How a parameter learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// By AdamW at the end of a step, from a gradient of its own: see [`Moments`].
    AdamW {
        /// Whether it decays. Matrices and embeddings do; biases and gains do not.
        decays: bool,
    },
    /// During the backward pass, without a gradient of its own: see [`Factored`].
    Factored,
    /// During the backward pass, the rows that a batch used: see [`InPlace`].
    InPlace,
    /// By no optimizer: neither gradient nor state is kept. A forward pass may still change it.
    Frozen,
}

/// The constants of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimizer {
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// Added to the denominator.
    pub eps: f32,
    /// Decay of the parameters whose rule decays.
    pub decay: f32,
}
