//! The two control regions: settings are written before a step, results are read after it.

/// Indices into the settings, f32.
pub mod settings {
    /// The learning rate of this step.
    pub const LEARNING_RATE: usize = 0;
    /// 1 − β₁ᵗ at the t-th update.
    pub const CORRECTION1: usize = 1;
    /// 1 − β₂ᵗ at the t-th update.
    pub const CORRECTION2: usize = 2;
    /// The largest global norm of the gradient; infinite where nothing is clipped.
    pub const CLIP: usize = 3;
    /// What each row's loss counts for: 1 / the step's targets.
    pub const LOSS_SCALE: usize = 4;
    /// Number of settings.
    pub const LEN: u64 = 5;
}

/// Indices into the results, f32.
pub mod results {
    /// Σ of the rows' losses times the loss scale, over the micro-batches of a step: nats.
    pub const LOSS: usize = 0;
    /// The squared global norm of the gradient, before clipping.
    pub const SQUARED_NORM: usize = 1;
    /// Number of results.
    pub const LEN: u64 = 2;
}
