//! Copies a region, in pieces.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::Carry;

use crate::{Cpu, OnCpu};

/// Bytes of a task.
const PIECE: usize = 1 << 16;

impl OnCpu for Carry {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [from, mut to] = arena.views([Some(self.from), Some(self.to)])?;
        let from = from.bytes();
        cpu.pool.chunks(to.bytes_mut()?, PIECE, |_, piece, to| {
            to.copy_from_slice(&from[piece * PIECE..][..to.len()]);
        });
        Ok(())
    }
}
