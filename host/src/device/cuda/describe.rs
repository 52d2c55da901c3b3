//! What is there and what is missing, before anything is opened.

use cust::device::{Device, DeviceAttribute};

use super::blas;
use super::description::{Card, Description};
use super::error::CudaError;

/// The version of CUDA that the embedded code needs of the driver, as cuDriverGetVersion counts.
const NEEDED: i32 = 13_000;

fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Loads the driver and asks for its version.
fn driver() -> Result<(String, String), CudaError> {
    let library = capful_driver::load().map_err(|why| CudaError::NoDriver(why.to_owned()))?;
    cust::init(cust::CudaFlags::empty()).map_err(|e| match e {
        cust::error::CudaError::NoDevice => CudaError::NoCard,
        other => CudaError::of("cuInit")(other),
    })?;
    let mut number = 0;
    // SAFETY: a place for one integer.
    CudaError::check("cuDriverGetVersion", unsafe { cust::sys::cuDriverGetVersion(&mut number) })?;
    if number < NEEDED {
        return Err(CudaError::OldDriver { found: version(number), needed: "13.0" });
    }
    Ok((version(number), library.to_owned()))
}

/// What the driver says of a card.
pub(super) fn card(device: Device) -> Result<Card, CudaError> {
    let attribute = |a| device.get_attribute(a).map_err(CudaError::of("cuDeviceGetAttribute"));
    let major = attribute(DeviceAttribute::ComputeCapabilityMajor)?;
    Ok(Card {
        name: device.name().map_err(CudaError::of("cuDeviceGetName"))?,
        capability: (major, attribute(DeviceAttribute::ComputeCapabilityMinor)?),
        bytes: device.total_memory().map_err(CudaError::of("cuDeviceTotalMem"))? as u64,
        multiprocessors: attribute(DeviceAttribute::MultiprocessorCount)?,
        bf16: major >= 8 && embedded() >= 80,
    })
}

/// The highest compute capability that code is embedded for, as in 90. Built for 75 alone, every card runs as those do.
fn embedded() -> u32 {
    let number = |target: &str| target.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    capful_kernels::TARGETS.split_whitespace().filter_map(number).max().unwrap_or(0)
}

/// The card of this number.
///
/// # Errors
/// No driver, an old one, no such card, or one that the embedded code does not run on.
pub(super) fn find(ordinal: u32) -> Result<Device, CudaError> {
    driver()?;
    let cards = Device::num_devices().map_err(CudaError::of("cuDeviceGetCount"))?;
    if cards == 0 {
        return Err(CudaError::NoCard);
    }
    if ordinal >= cards {
        return Err(CudaError::NoSuchCard { asked: ordinal, cards });
    }
    let device = Device::get_device(ordinal).map_err(CudaError::of("cuDeviceGet"))?;
    let Card { name, capability: (major, minor), .. } = card(device)?;
    if (major, minor) < (7, 5) {
        return Err(CudaError::OldCard { name, major, minor });
    }
    Ok(device)
}

/// Whether card `ordinal` can be opened.
///
/// # Errors
/// No driver, an old one, no such card, or one that the embedded code does not run on.
pub fn require(ordinal: u32) -> Result<(), CudaError> {
    find(ordinal).map(drop)
}

/// The machine as the CUDA device sees it. Opens no card.
pub fn describe() -> Description {
    let driver = driver().map_err(|e| e.to_string());
    let mut cards = Vec::new();
    if driver.is_ok() {
        let devices = Device::devices().into_iter().flatten().flatten();
        cards.extend(devices.filter_map(|device| card(device).ok()));
    }
    let missing = blas::open().err().map(|why| blas::warning(&why)).into_iter().collect();
    Description { driver, cards, targets: capful_kernels::TARGETS, missing }
}
