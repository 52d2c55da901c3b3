//! Soft capping of logits.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::Softcap;

use crate::simd;
use crate::{Cpu, OnCpu};

/// Elements of a task.
const PIECE: usize = 16_384;

impl OnCpu for Softcap {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([mut x], cap) = (arena.views([Some(self.x)])?, self.cap);
        cpu.pool.chunks(x.f32_mut()?, PIECE, |_, _, x| simd::softcap(x, cap));
        Ok(())
    }
}
