//! What a GPU can do, as far as kernels are chosen and cut by it. Tests lower it.

use cust::device::{Device, DeviceAttribute};

use super::error::CudaError;
use super::probe;

/// A GPU's properties.
pub(super) struct Hardware {
    /// The GPU's name.
    pub name: String,
    /// Whether tensor cores multiply bf16.
    pub tensor_cores: bool,
    /// Whether the warpgroup kernels multiply bf16.
    pub warpgroups: bool,
    /// Whether the driver supports tensor maps, which describe matrices to the multiprocessors' tile copies.
    pub tensor_maps: bool,
    /// Whether a kernel is prepared while the kernel before it runs.
    pub early: bool,
    /// Number of blocks that can wait for each other: one on each multiprocessor.
    pub together: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// The most bytes of shared memory of a block.
    pub shared: u64,
    /// Bytes of the last cache.
    pub cache: u64,
}

impl Hardware {
    /// The properties of `device`.
    pub fn of(device: Device) -> Result<Hardware, CudaError> {
        let super::Gpu { name, bf16: tensor_cores, warpgroups, early, multiprocessors, .. } = probe::gpu(device)?;
        let multiprocessors = u32::try_from(multiprocessors).unwrap_or(1).max(1);
        let together = if probe::waits(device)? { multiprocessors } else { 1 };
        let cache =
            device.get_attribute(DeviceAttribute::L2CacheSize).map_err(CudaError::of("cuDeviceGetAttribute"))?;
        Ok(Hardware {
            name,
            tensor_cores,
            warpgroups,
            tensor_maps: capful_driver::has("cuTensorMapEncodeTiled"),
            early,
            together,
            multiprocessors,
            shared: probe::shared(device)?,
            cache: u64::try_from(cache).unwrap_or(0),
        })
    }
}
