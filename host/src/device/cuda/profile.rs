//! What a precision implies for memory.

use capful_core::device::Profile;
use capful_core::memory::{Dtype, Role};

/// How numbers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single precision everywhere.
    F32,
    /// Weights, activations and their gradients in bf16; masters, moments and the parameters' gradients in f32.
    /// Sums are always f32.
    Bf16,
}

/// The memory of a step on the CUDA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaProfile {
    /// How numbers are kept.
    pub precision: Precision,
}

impl Profile for CudaProfile {
    fn dtype(&self, role: Role) -> Dtype {
        match role {
            Role::Batch => Dtype::U32,
            Role::Weight | Role::Saved | Role::Work if self.precision == Precision::Bf16 => Dtype::Bf16,
            _ => Dtype::F32,
        }
    }
}
