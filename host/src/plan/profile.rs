//! The device that a configuration names, as far as memory is concerned.

use capful_core::device::Single;

use crate::config::{Config, ConfigError, Device, Gradients, Precision};
use crate::device::cpu::CpuProfile;
use crate::device::{AnyProfile, cuda};

/// The profile of the device that `config` names.
///
/// # Errors
/// A device that does not exist, or a precision that the device does not have.
pub fn profile(config: &Config) -> Result<AnyProfile, ConfigError> {
    let precision = match config.precision {
        Precision::F32 => cuda::Precision::F32,
        Precision::Bf16 => cuda::Precision::Bf16,
        Precision::Fp8 => cuda::Precision::Fp8,
    };
    Ok(match config.device()? {
        Device::Reference => AnyProfile::Reference(Single),
        Device::Cpu => AnyProfile::Cpu(CpuProfile { threads: config.threads }),
        Device::Cuda(gpu) => {
            let bf16_gradients = config.gradients == Gradients::Bf16;
            AnyProfile::Cuda { gpu, profile: cuda::CudaProfile { precision, bf16_gradients } }
        }
    })
}
