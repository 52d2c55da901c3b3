//! Copies regions, and a step's inputs and results. One kernel makes several consecutive copies: copies of regions
//! while a graph is recorded, copies of inputs before the step that reads them.

use capful_core::device::OperationError;
use capful_core::ops::Carry;
use cust::sys;

use crate::OnCuda;
use crate::arguments::CarryArgs;
use crate::device::{Cuda, blocks, threads};

/// REGIONS of carry.cu.
const REGIONS: usize = 16;

/// Copies that are not queued yet, and the kernel that makes them.
pub(crate) struct Carries {
    /// Source address, target address and number of bytes.
    waiting: heapless::Vec<[u64; 3], REGIONS>,
    /// Looked up once, because a step allocates nothing.
    kernel: Option<sys::CUfunction>,
}

impl Carries {
    pub(crate) const fn new() -> Carries {
        Carries { waiting: heapless::Vec::new(), kernel: None }
    }

    /// Drops the waiting copies.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

impl OnCuda for Carry {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let copy = [cuda.address(self.from)?, cuda.address(self.to)?, self.from.bytes()];
        cuda.carry(copy)?;
        if cuda.graphs.recording { Ok(()) } else { cuda.carry_all() }
    }
}

impl Cuda {
    /// Copies `bytes` from one address to another, before anything that is queued later. Pinned memory of the host has
    /// addresses on the GPU too.
    pub(crate) fn carry(&mut self, [from, to, bytes]: [u64; 3]) -> Result<(), OperationError> {
        let meets = |a: u64, b: u64, bytes_of_b: u64| a < b + bytes_of_b && b < a + bytes;
        // In one kernel no copy may read or write bytes that another copy writes.
        let waits = |&[f, t, n]: &[u64; 3]| meets(from, t, n) || meets(to, f, n) || meets(to, t, n);
        if self.deferred.copies.waiting.is_full() || self.deferred.copies.waiting.iter().any(waits) {
            self.carry_all()?;
        }
        self.deferred.copies.waiting.push([from, to, bytes]).map_err(|_| OperationError::Device)
    }

    /// Queues the waiting copies; called before anything else is queued.
    pub(crate) fn carry_all(&mut self) -> Result<(), OperationError> {
        if self.deferred.copies.waiting.is_empty() {
            return Ok(());
        }
        let mut arguments = CarryArgs { from: [0; REGIONS], to: [0; REGIONS], bytes: [0; REGIONS], wide: [0; REGIONS] };
        let mut most = 0;
        for (i, &[from, to, bytes]) in self.deferred.copies.waiting.iter().enumerate() {
            let wide = (from | to).is_multiple_of(16);
            (arguments.from[i], arguments.to[i], arguments.bytes[i]) = (from, to, bytes);
            arguments.wide[i] = wide.into();
            most = most.max(threads(bytes, if wide { 16 } else { 1 }));
        }
        let grid = [blocks(most, 256), self.deferred.copies.waiting.len() as u32, 1];
        self.deferred.copies.waiting.clear();
        let kernel = match self.deferred.copies.kernel {
            Some(kernel) => kernel,
            None => self.kernel("carry", "carry")?,
        };
        self.deferred.copies.kernel = Some(kernel);
        self.launch_kernel("carry", kernel, (grid, 256, 0), &arguments)
    }
}
