//! Copying a region, in pieces.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::Carry;

use super::Cpu;

/// Bytes of a task.
const PIECE: usize = 1 << 16;

impl Cpu {
    #[inline(never)]
    pub(super) fn run_carry(&mut self, op: Carry) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [from, mut to] = arena.views([Some(op.from), Some(op.to)])?;
        let from = from.bytes();
        self.pool.chunks(to.bytes_mut()?, PIECE, |_, piece, to| {
            to.copy_from_slice(&from[piece * PIECE..][..to.len()]);
        });
        Ok(())
    }
}
