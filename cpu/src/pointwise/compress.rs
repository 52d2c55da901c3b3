//! Converts activations to blocks of 8 bits and back: pieces on all threads.

use capful_core::compressed::{BLOCK, Block, Code};
use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::{Compress, Expand};

use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

/// Blocks of a task.
const BLOCKS: usize = 128;

impl OnCpu for Compress {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [x, mut out] = arena.views([self.x, self.out].map(Some))?;
        let Some((code, blocks)) = out.coded_mut()? else { return Err(self.misfit("out")) };
        let x = x.f32()?;
        cpu.pool.chunks(blocks, BLOCKS, |_, piece, blocks| {
            x.chunks(BLOCK).skip(piece * BLOCKS).zip(blocks).for_each(|(x, block)| compress(code, x, block));
        });
        Ok(())
    }
}

impl OnCpu for Expand {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [codes, mut out] = arena.views([self.codes, self.out].map(Some))?;
        let Some((code, blocks)) = codes.coded()? else { return Err(self.misfit("codes")) };
        cpu.pool.chunks(out.f32_mut()?, BLOCKS * BLOCK, |_, piece, out| {
            let blocks = blocks.iter().skip(piece * BLOCKS);
            out.chunks_mut(BLOCK).zip(blocks).for_each(|(out, block)| expand(code, block, out));
        });
        Ok(())
    }
}

/// Makes a block of the numbers in `x`, padded with zeros.
fn compress(code: Code, x: &[f32], block: &mut Block) {
    let mut numbers = [0.0; BLOCK];
    numbers[..x.len()].copy_from_slice(x);
    vectorise!({
        code.pack_by(f32::sqrt, &numbers, block);
    },);
}

/// Decodes the first numbers of a block.
fn expand(code: Code, block: &Block, out: &mut [f32]) {
    let mut numbers = [0.0; BLOCK];
    vectorise!({
        code.unpack(block, &mut numbers);
    },);
    out.copy_from_slice(&numbers[..out.len()]);
}
