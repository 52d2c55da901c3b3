//! Checks that every family makes of a configuration.

use super::family::{Capability, Family, MicroBatch, ModelError};
use crate::device::OperationError;
use crate::optimizer::{Group, Updater};

/// Refuses an update that freezes parameters whose gradients `family` always forms, and an update that needs averages
/// or released gradients where the family has none.
pub(super) fn check_updater(family: &impl Family, updater: &Updater) -> Result<(), OperationError> {
    let frozen = Group::ALL.into_iter().filter(|group| updater.freezes(*group)).map(Capability::Frozen);
    let wanted = frozen.chain(updater.averages().then_some(Capability::Averages));
    let wanted = wanted.chain(updater.releases().then_some(Capability::ReleasedGradients));
    let why = wanted.filter_map(|capability| family.lacks(capability)).next();
    why.map_or(Ok(()), |why| Err(OperationError::Unsupported(why)))
}

/// Refuses sizes of 0 and sizes that are too large for a region.
pub(super) fn check_sizes(sizes: &[(&'static str, u32)]) -> Result<(), ModelError> {
    if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        return Err(ModelError::Zero(name));
    }
    check_limits(sizes)
}

/// Refuses sizes for which a sum of a few, such as the three parts of a projection, would exceed the 32 bits of a
/// dimension.
pub(super) fn check_limits(sizes: &[(&'static str, u32)]) -> Result<(), ModelError> {
    match sizes.iter().find(|(_, size)| *size >= 1 << 28) {
        Some((name, _)) => Err(ModelError::TooLarge(name)),
        None => Ok(()),
    }
}

/// The range of a constant.
#[derive(Clone, Copy)]
pub(super) enum Must {
    /// A share or a decay: 0 to 1.
    #[cfg(feature = "neurogen")]
    Share,
    /// Above 0.
    Positive,
    /// 0 or more.
    NotNegative,
    /// A number.
    #[cfg(feature = "neurogen")]
    Finite,
}

pub(super) fn check_constants(constants: &[(&'static str, f32, Must)]) -> Result<(), ModelError> {
    for &(name, value, must) in constants {
        let (good, must) = match must {
            #[cfg(feature = "neurogen")]
            Must::Share => ((0.0..=1.0).contains(&value), "0 to 1"),
            Must::Positive => (value > 0.0 && value.is_finite(), "above 0"),
            Must::NotNegative => (value >= 0.0 && value.is_finite() && value.is_sign_positive(), "at least 0"),
            #[cfg(feature = "neurogen")]
            Must::Finite => (value.is_finite(), "finite"),
        };
        if !good {
            return Err(ModelError::Constant { name, value, must });
        }
    }
    Ok(())
}

/// Whether a model of this context can run the micro-batch.
pub(super) fn check_micro_batch(micro: &MicroBatch, context: u32) -> Result<(), ModelError> {
    let sizes = [
        ("batch-size", micro.batch),
        ("seq-len", micro.seq_len),
        ("chunk", micro.chunk),
        ("block", micro.pattern.block),
        ("stride", micro.pattern.stride),
    ];
    if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(ModelError::Zero(name));
    }
    if micro.seq_len > context {
        return Err(ModelError::Context { seq_len: micro.seq_len, context });
    }
    // A row of every activation belongs to one token.
    match micro.batch.checked_mul(micro.seq_len) {
        Some(_) => Ok(()),
        None => Err(ModelError::TooLarge("a micro-batch")),
    }
}
