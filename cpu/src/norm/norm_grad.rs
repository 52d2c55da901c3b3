//! The gradient of LayerNorm or RMSNorm: a task takes a block of rows, writes their gradients, and sums the rows' part
//! of the gains' and biases' gradients in scratch; the blocks' sums are then added in block order.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{NormGrad, NormKind};

use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// The least rows of a block, and the most blocks.
const ROWS: usize = 32;
const BLOCKS: usize = 64;
/// Scratch of a block, in rows: the sums of two gains and two biases, the normalised row, the gradient of the
/// normalised row.
const SCRATCH_ROWS: usize = 6;

/// Rows of a block.
fn block_rows(op: &NormGrad) -> usize {
    (op.x.rows() as usize).div_ceil(BLOCKS).max(ROWS)
}

fn scratch_len(op: &NormGrad) -> usize {
    (op.x.rows() as usize).div_ceil(block_rows(op)) * SCRATCH_ROWS * op.x.columns() as usize
}

impl OnCpu for NormGrad {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        bytes(scratch_len(self))
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let second = self.second;
        let (
            [x, stats, gain, out_grad, gain2, out_grad2],
            [x_grad, gain_grad, bias_grad, gain_grad2, bias_grad2, scratch],
        ) = arena.f32s(
            [
                Some(self.x),
                Some(self.stats),
                Some(self.first.gain),
                Some(self.first.out_grad),
                second.map(|s| s.gain),
                second.map(|s| s.out_grad),
            ],
            [
                Some(self.x_grad),
                self.first.gain_grad,
                self.first.bias_grad,
                second.and_then(|s| s.gain_grad),
                second.and_then(|s| s.bias_grad),
                Some(cpu.scratch),
            ],
        )?;
        let (d, rows, kept) = (self.x.columns() as usize, block_rows(&self), self.kind.stats() as usize);
        let scratch = &mut scratch[..scratch_len(&self)];
        let bands = [(x_grad, rows * d), (&mut *scratch, SCRATCH_ROWS * d)];
        cpu.pool.bands(bands, |_, block, [x_grad, scratch]| {
            let (sums, buffers) = scratch.split_at_mut(4 * d);
            sums.fill(0.0);
            let (sums, sums2) = sums.split_at_mut(2 * d);
            let (normal, g) = buffers.split_at_mut(d);
            vectorise!({
                for (r, x_grad) in (block * rows..).zip(x_grad.chunks_exact_mut(d)) {
                    let (at, (mean, scale)) = (r * d..(r + 1) * d, self.kind.moments(&stats[r * kept..]));
                    for (n, x) in normal.iter_mut().zip(&x[at.clone()]) {
                        *n = (x - mean) * scale;
                    }
                    output(normal, &out_grad[at.clone()], gain, sums, |i, through| g[i] = through);
                    if second.is_some() {
                        output(normal, &out_grad2[at.clone()], gain2, sums2, |i, through| g[i] += through);
                    }
                    row(&self, scale, g, normal, x_grad);
                }
            },);
        });
        let parameters = [gain_grad, bias_grad, gain_grad2, bias_grad2];
        for (which, parameter) in parameters.into_iter().enumerate() {
            if !self.accumulate {
                parameter.fill(0.0);
            }
            for block in scratch.chunks_exact(SCRATCH_ROWS * d) {
                simd::add(&block[which * d..][..d], parameter);
            }
        }
        self.copy.map_or(Ok(()), |copy| copy.make(self.x_grad, &mut arena))
    }
}

/// The gradient of a row; `g` is the gradient of its normalised elements.
#[inline(always)]
fn row(op: &NormGrad, scale: f32, g: &[f32], normal: &[f32], to: &mut [f32]) {
    let d = normal.len() as f32;
    let mean_g = match op.kind {
        NormKind::Layer => simd::fold_pairs(g, g, |sum, g, _| sum + g) / d,
        NormKind::Rms => 0.0,
    };
    let mean_gn = simd::dot(g, normal) / d;
    for ((dx, g), n) in to.iter_mut().zip(g).zip(normal) {
        let through = scale * n.mul_add(-mean_gn, g - mean_g);
        *dx = if op.add { *dx + through } else { through };
    }
}

/// One output's part: adds a row to the sums of its gain and bias, and passes `out_grad ∘ gain` to `each`.
#[inline(always)]
fn output(normal: &[f32], out_grad: &[f32], gain: &[f32], sums: &mut [f32], mut each: impl FnMut(usize, f32)) {
    let d = normal.len();
    let (gain_sum, bias_sum) = sums.split_at_mut(d);
    let (out_grad, gain, bias_sum) = (&out_grad[..d], &gain[..d], &mut bias_sum[..d]);
    for i in 0..d {
        gain_sum[i] = out_grad[i].mul_add(normal[i], gain_sum[i]);
        bias_sum[i] += out_grad[i];
        each(i, out_grad[i] * gain[i]);
    }
}
