//! The one allocation of a device that computes in main memory.

use capful_core::memory::Region;
use memmap2::MmapMut;

use super::{DeviceError, Storage};

/// Exactly the bytes of a plan, zeroed and page-aligned; pages are touched only when they are used.
#[derive(Debug)]
pub struct Allocation {
    map: MmapMut,
    /// Number of steps begun in this memory: the results of a step stay until the next step begins.
    pub steps: u64,
}

impl Allocation {
    /// Allocates `bytes`, a multiple of 8.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(bytes: u64) -> Result<Allocation, DeviceError> {
        let refused = |e: &dyn std::fmt::Display| {
            DeviceError::Refused(format!("the system refuses an arena of {bytes} bytes ({e}); lower it or free memory"))
        };
        let len = usize::try_from(bytes).map_err(|e| refused(&e))?;
        let map = MmapMut::map_anon(len.max(8)).map_err(|e| refused(&e))?;
        // Huge pages save a tenth of a step's time in address translation; a system without them just ignores the
        // advice.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Allocation { map, steps: 0 })
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// The memory as words, to be divided into views.
    pub fn words(&mut self) -> &mut [u64] {
        bytemuck::cast_slice_mut(&mut self.map)
    }

    /// The first byte, for devices that make views from several threads.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}

impl Storage for Allocation {
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError> {
        let place = self.map.get_mut(region.offset as usize..region.offset as usize + bytes.len());
        let place = place
            .ok_or_else(|| DeviceError::Failed(format!("a region ends at byte {} beyond the arena", region.end())))?;
        place.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let place = self.map.get(region.offset as usize..region.offset as usize + bytes.len());
        let place = place
            .ok_or_else(|| DeviceError::Failed(format!("a region ends at byte {} beyond the arena", region.end())))?;
        bytes.copy_from_slice(place);
        Ok(())
    }
}
