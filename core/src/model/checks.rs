//! What a configuration must fulfil, whatever the family.

use super::stage::{ModelError, Stage};

/// Refuses sizes of 0 and sizes that a region cannot have.
pub(super) fn check_sizes(sizes: &[(&'static str, u32)]) -> Result<(), ModelError> {
    if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        return Err(ModelError::Zero(name));
    }
    check_limits(sizes)
}

/// Refuses sizes of which a few together, such as the three parts of a projection, pass the 32 bits of a dimension.
pub(super) fn check_limits(sizes: &[(&'static str, u32)]) -> Result<(), ModelError> {
    match sizes.iter().find(|(_, size)| *size >= 1 << 28) {
        Some((name, _)) => Err(ModelError::TooLarge(name)),
        None => Ok(()),
    }
}

/// What a constant must be.
#[derive(Clone, Copy)]
pub(super) enum Must {
    /// A share or a decay: 0 to 1.
    Share,
    /// Above 0.
    Positive,
    /// A number.
    Finite,
}

pub(super) fn check_constants(constants: &[(&'static str, f32, Must)]) -> Result<(), ModelError> {
    for &(name, value, must) in constants {
        let (good, must) = match must {
            Must::Share => ((0.0..=1.0).contains(&value), "0 to 1"),
            Must::Positive => (value > 0.0 && value.is_finite(), "above 0"),
            Must::Finite => (value.is_finite(), "finite"),
        };
        if !good {
            return Err(ModelError::Constant { name, value, must });
        }
    }
    Ok(())
}

/// Whether a stage is one of a model of this context.
pub(super) fn check_stage(stage: &Stage, context: u32) -> Result<(), ModelError> {
    let sizes = [
        ("batch-size", stage.batch),
        ("seq-len", stage.seq_len),
        ("chunk", stage.chunk),
        ("block", stage.pattern.block),
        ("stride", stage.pattern.stride),
    ];
    if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(ModelError::Zero(name));
    }
    if stage.seq_len > context {
        return Err(ModelError::Context { seq_len: stage.seq_len, context });
    }
    // Tokens are the rows of every activation.
    match stage.batch.checked_mul(stage.seq_len) {
        Some(_) => Ok(()),
        None => Err(ModelError::TooLarge("a micro-batch")),
    }
}
