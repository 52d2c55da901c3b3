//! Copying regions. While a graph is recorded, those that follow each other are copied by one kernel.

use capful_core::device::OperationError;
use capful_core::ops::Carry;

use super::device::{Cuda, blocks, threads};

/// REGIONS of carry.cu.
const REGIONS: usize = 16;

/// Mirrors CarryArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct CarryArgs {
    from: [u64; REGIONS],
    to: [u64; REGIONS],
    bytes: [u64; REGIONS],
    wide: [u32; REGIONS],
}

/// Copies that are not queued yet: from, to and how many bytes.
pub(super) type Carries = Vec<[u64; 3]>;

impl Cuda {
    #[inline(never)]
    pub(super) fn run_carry(&mut self, o: Carry) -> Result<(), OperationError> {
        let (from, to, bytes) = (self.address(o.from)?, self.address(o.to)?, o.from.bytes());
        let meets = |a: u64, b: u64, bytes_of_b: u64| a < b + bytes_of_b && b < a + bytes;
        // In one kernel nobody reads or writes what another writes.
        let waits = |&[f, t, n]: &[u64; 3]| meets(from, t, n) || meets(to, f, n) || meets(to, t, n);
        if self.carries.len() == REGIONS || self.carries.iter().any(waits) {
            self.carry_all()?;
        }
        self.carries.push([from, to, bytes]);
        if self.recording { Ok(()) } else { self.carry_all() }
    }
}

impl Cuda {
    /// Queues the copies that wait: before anything else is queued.
    pub(super) fn carry_all(&mut self) -> Result<(), OperationError> {
        if self.carries.is_empty() {
            return Ok(());
        }
        let mut arguments = CarryArgs { from: [0; REGIONS], to: [0; REGIONS], bytes: [0; REGIONS], wide: [0; REGIONS] };
        let (mut most, count) = (0, self.carries.len());
        for (i, [from, to, bytes]) in self.carries.drain(..).enumerate() {
            let wide = (from | to).is_multiple_of(16);
            (arguments.from[i], arguments.to[i], arguments.bytes[i]) = (from, to, bytes);
            arguments.wide[i] = wide.into();
            most = most.max(threads(bytes, if wide { 16 } else { 1 }));
        }
        self.launch("carry", "carry", [blocks(most, 256), count as u32, 1], 256, &arguments)
    }
}
