//! The output head with its loss.

mod head_loss;
mod softcap;

pub use head_loss::{HeadGrad, HeadLoss};
pub use softcap::Softcap;
