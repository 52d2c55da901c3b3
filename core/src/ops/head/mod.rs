//! The output head with its loss.

mod head_loss;

pub use head_loss::{HeadGrad, HeadLoss};
