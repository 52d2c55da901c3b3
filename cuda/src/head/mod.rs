//! The output head with its loss.

mod head_folded;
mod head_fused;
mod head_loss;
mod softcap;
