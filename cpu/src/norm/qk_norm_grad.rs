//! The gradient of the norm of queries and keys: a task takes a block of rows, writes their gradients, and sums the
//! rows' part of the gains' gradients in scratch; the blocks' sums are then added in block order.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::QkNormGrad;

use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// The least rows of a block, and the most blocks.
const ROWS: usize = 32;
const BLOCKS: usize = 64;
/// Scratch of a block, in heads: the sums of both gains, the normalised head, the gradient of the normalised head.
const SCRATCH_HEADS: usize = 4;

/// Rows of a block.
fn block_rows(op: &QkNormGrad) -> usize {
    (op.qkv_grad.rows() as usize).div_ceil(BLOCKS).max(ROWS)
}

fn scratch_len(op: &QkNormGrad) -> usize {
    (op.qkv_grad.rows() as usize).div_ceil(block_rows(op)) * SCRATCH_HEADS * op.heads.size as usize
}

impl OnCpu for QkNormGrad {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        bytes(scratch_len(self))
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([raw, stats, query_gain, key_gain], [qkv_grad, query_gain_grad, key_gain_grad, scratch]) = arena.f32s(
            [self.raw, self.stats, self.query_gain, self.key_gain].map(Some),
            [Some(self.qkv_grad), self.gain_grads.map(|g| g[0]), self.gain_grads.map(|g| g[1]), Some(cpu.scratch)],
        )?;
        let (heads, rows, normed) = (self.heads, block_rows(&self), self.heads.normed() as usize);
        let (size, width) = (heads.size as usize, heads.width() as usize);
        let scratch = &mut scratch[..scratch_len(&self)];
        let bands = [(qkv_grad, rows * width), (&mut *scratch, SCRATCH_HEADS * size)];
        cpu.pool.bands(bands, |_, block, [qkv_grad, scratch]| {
            let (sums, buffers) = scratch.split_at_mut(2 * size);
            sums.fill(0.0);
            let (query_sum, key_sum) = sums.split_at_mut(size);
            let (normal, through) = buffers.split_at_mut(size);
            vectorise!({
                for (r, row) in (block * rows..).zip(qkv_grad.chunks_exact_mut(width)) {
                    for h in 0..normed {
                        let (at, head) = (r * normed + h, &mut row[heads.query_or_key(h as u32)..][..size]);
                        let (raw, scale) = (&raw[at * size..][..size], stats[at]);
                        let (gain, sum) = match h < heads.queries as usize {
                            true => (query_gain, &mut *query_sum),
                            false => (key_gain, &mut *key_sum),
                        };
                        one(head, raw, scale, gain, [sum, normal, through]);
                    }
                }
            },);
        });
        for (which, gain_grad) in [query_gain_grad, key_gain_grad].into_iter().enumerate() {
            if !self.accumulate {
                gain_grad.fill(0.0);
            }
            for block in scratch.chunks_exact(SCRATCH_HEADS * size) {
                simd::add(&block[which * size..][..size], gain_grad);
            }
        }
        Ok(())
    }
}

/// One head: adds its part to the sum of its gain, and replaces the gradient of its output by that of its input.
/// `normal` and `through` are buffers for the normalised head and its gradient.
#[inline(always)]
fn one(head: &mut [f32], raw: &[f32], scale: f32, gain: &[f32], [sum, normal, through]: [&mut [f32]; 3]) {
    for ((n, t), ((d, x), (sum, g))) in
        normal.iter_mut().zip(&mut *through).zip(head.iter().zip(raw).zip(sum.iter_mut().zip(gain)))
    {
        *n = x * scale;
        *t = d * g;
        *sum = d.mul_add(*n, *sum);
    }
    let mean = simd::dot(through, normal) / head.len() as f32;
    for ((d, t), n) in head.iter_mut().zip(through).zip(normal) {
        *d = scale * n.mul_add(-mean, *t);
    }
}
