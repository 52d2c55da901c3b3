//! The output head with its loss.

mod head_loss;
mod softcap;
