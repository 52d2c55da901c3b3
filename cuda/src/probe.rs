//! Describes the available and missing parts, before any GPU is opened.

use cust::context::Context;
use cust::device::{Device, DeviceAttribute};

use super::description::{Description, Gpu};
use super::error::CudaError;
use super::product::blas;
use super::profile::Precision;

/// The CUDA version that the embedded code needs of the driver, in the numbering of cuDriverGetVersion.
const NEEDED: i32 = 13_000;

fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Loads the driver and reads its version.
fn driver() -> Result<(String, String), CudaError> {
    let library = capful_driver::load().map_err(|why| CudaError::NoDriver(why.to_owned()))?;
    cust::init(cust::CudaFlags::empty()).map_err(|e| match e {
        cust::error::CudaError::NoDevice => CudaError::NoCard,
        other => CudaError::start("cuInit")(other),
    })?;
    let mut number = 0;
    // SAFETY: a pointer to one integer.
    CudaError::check("cuDriverGetVersion", unsafe { cust::sys::cuDriverGetVersion(&mut number) })?;
    if number < NEEDED {
        return Err(CudaError::OldDriver { found: version(number), needed: "13.0" });
    }
    Ok((version(number), library.to_owned()))
}

/// The driver's properties of a GPU.
pub(super) fn gpu(device: Device) -> Result<Gpu, CudaError> {
    let attribute = |a| device.get_attribute(a).map_err(CudaError::of("cuDeviceGetAttribute"));
    let major = attribute(DeviceAttribute::ComputeCapabilityMajor)?;
    let minor = attribute(DeviceAttribute::ComputeCapabilityMinor)?;
    let code = runs_as(capful_kernels::TARGETS, (major, minor));
    Ok(Gpu {
        name: device.name().map_err(CudaError::of("cuDeviceGetName"))?,
        capability: (major, minor),
        bytes: device.total_memory().map_err(CudaError::of("cuDeviceTotalMem"))? as u64,
        multiprocessors: attribute(DeviceAttribute::MultiprocessorCount)?,
        bf16: code >= 80,
        early: code >= 90 && capful_driver::has("cuLaunchKernelEx"),
        warpgroups: (major, minor) == (9, 0) && capful_kernels::TARGETS.split_whitespace().any(|t| t == "90a"),
    })
}

/// An attribute that cust has no name for.
pub(super) fn attribute(device: Device, which: cust::sys::CUdevice_attribute) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: a pointer to one integer.
    let code = unsafe { cust::sys::cuDeviceGetAttribute(&mut value, which, device.as_raw()) };
    CudaError::check("cuDeviceGetAttribute", code).map(|()| value)
}

/// Whether the blocks of a grid can wait for each other.
pub(super) fn waits(device: Device) -> Result<bool, CudaError> {
    let can = attribute(device, cust::sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)?;
    Ok(can != 0 && capful_driver::has("cuLaunchKernelEx"))
}

/// The most bytes of shared memory that a block may have.
pub(super) fn shared(device: Device) -> Result<u64, CudaError> {
    let most = cust::sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    Ok(u64::try_from(attribute(device, most)?).unwrap_or(0))
}

/// The architecture of the code among `targets` that a GPU runs, as in 90; 0 if none fits. Machine code runs on its
/// own generation, PTX on every later one, and code for an architecture ending in `a` on that GPU only.
fn runs_as(targets: &str, (major, minor): (i32, i32)) -> i32 {
    let gpu = 10 * major + minor;
    let fits = |target: &str| {
        let (ptx, rest) = target.strip_prefix("ptx").map_or((false, target), |rest| (true, rest));
        let number: i32 = rest.trim_end_matches('a').parse().ok()?;
        let same = if rest.ends_with('a') { number == gpu } else { ptx || number / 10 == major };
        (same && number <= gpu).then_some(number)
    };
    targets.split_whitespace().filter_map(fits).max().unwrap_or(0)
}

/// The GPU of this number.
///
/// # Errors
/// No driver, an outdated driver, no such GPU, or a GPU that cannot run the embedded code.
pub(super) fn find(ordinal: u32) -> Result<Device, CudaError> {
    driver()?;
    let gpus = Device::num_devices().map_err(CudaError::of("cuDeviceGetCount"))?;
    if gpus == 0 {
        return Err(CudaError::NoCard);
    }
    if ordinal >= gpus {
        return Err(CudaError::NoSuchCard { asked: ordinal, gpus });
    }
    let device = Device::get_device(ordinal).map_err(CudaError::of("cuDeviceGet"))?;
    let Gpu { name, capability: (major, minor), .. } = gpu(device)?;
    if (major, minor) < (7, 5) {
        return Err(CudaError::OldCard { name, major, minor });
    }
    Ok(device)
}

/// Whether GPU `ordinal` can be opened and supports `precision`.
///
/// # Errors
/// No driver, an outdated driver, no such GPU, or a GPU that cannot run the embedded code; fp8 without a GPU or a
/// library that supports it.
pub fn require(ordinal: u32, precision: Precision) -> Result<(), CudaError> {
    let device = find(ordinal)?;
    if precision != Precision::Fp8 {
        return Ok(());
    }
    let Gpu { name, capability: (major, minor), .. } = gpu(device)?;
    if (major, minor) < (8, 9) {
        return Err(CudaError::NoFp8 { name, major, minor });
    }
    blas::open().map(drop).map_err(CudaError::NoFp8Library)
}

/// The GPUs of this machine; empty without a driver. Opens no GPU.
pub fn gpus() -> Vec<Gpu> {
    if driver().is_err() {
        return Vec::new();
    }
    Device::devices().into_iter().flatten().flatten().filter_map(|device| gpu(device).ok()).collect()
}

/// Free bytes of GPU `ordinal`, after subtracting the memory that opening the GPU takes; the GPU is closed again.
///
/// # Errors
/// As [`require`]; an error of the driver.
pub fn free(ordinal: u32) -> Result<u64, CudaError> {
    let _context = Context::new(find(ordinal)?).map_err(CudaError::start("cuDevicePrimaryCtxRetain"))?;
    let (free, _) = cust::memory::mem_get_info().map_err(CudaError::of("cuMemGetInfo"))?;
    Ok(free as u64)
}

/// The machine as seen by the CUDA device. Opens no GPU.
pub fn describe() -> Description {
    let missing = blas::open().err().map(|why| blas::warning(&why)).into_iter().collect();
    let driver = driver().map_err(|e| e.to_string());
    Description { driver, gpus: gpus(), targets: capful_kernels::TARGETS, missing }
}

#[cfg(test)]
mod tests {
    use super::runs_as;

    #[test]
    fn a_gpu_runs_the_nearest_code_that_fits() {
        let all = "75 80 86 89 90a ptx75 ptx100 ptx120";
        for (gpu, code) in [
            ((7, 5), 75),
            ((8, 0), 80),
            ((8, 6), 86),
            ((8, 7), 86),
            ((9, 0), 90),
            ((10, 0), 100),
            ((10, 3), 100),
            ((12, 0), 120),
        ] {
            assert_eq!(runs_as(all, gpu), code, "{gpu:?}");
        }
        assert_eq!(runs_as("ptx75 90a", (8, 6)), 75);
        assert_eq!(runs_as("90a", (8, 6)), 0);
        assert_eq!(runs_as("80 ptx75", (9, 0)), 75);
    }
}
