//! What all devices have in common.
//!
//! - [`Storage`]: reads and writes regions; [`Held`] does so for the part of a shared table that this rank stores
//! - [`Allocation`]: an arena in main memory; [`Reference`]: the core's own loops on it
//! - [`Collectives`]: collectives of ranks, of devices that compute in main memory
//! - [`Overlap`]: which operations of a program run next to what ranks send each other

mod allocation;
mod collectives;
mod overlap;
mod reference;
mod window;

pub use allocation::Allocation;
pub use collectives::Collectives;
pub use overlap::{Assignment, Overlap, Stream};
pub use reference::Reference;
pub use window::{Held, Window};

use std::ops::Range;

use capful_core::device::OperationError;
use capful_core::memory::Region;

/// Why a device does not fulfil a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The device is missing, or smaller than requested; no work was started.
    #[error("{0}")]
    Refused(String),
    /// The device failed during its work.
    #[error("{0}")]
    Failed(String),
}

impl From<OperationError> for DeviceError {
    fn from(error: OperationError) -> Self {
        DeviceError::Failed(error.to_string())
    }
}

/// Storage of regions, on any device.
pub trait Storage {
    /// Writes the region's bytes.
    ///
    /// # Errors
    /// A region beyond the arena, a lost device.
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads the region's bytes, after all queued work.
    ///
    /// # Errors
    /// A region beyond the arena, a lost device.
    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Which of the region's bytes are here: others are neither written nor read. All of them but of tables that ranks
    /// share.
    fn held(&self, region: Region) -> Range<usize> {
        0..region.bytes() as usize
    }
}
