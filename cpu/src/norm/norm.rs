//! LayerNorm and RMSNorm: a task takes some rows, and computes both outputs of each row while the row is in the nearest
//! cache.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Norm, NormKind};

use crate::simd::{self, vectorise};
use crate::{Cpu, OnCpu};

/// Rows of a task.
const ROWS: usize = 16;

impl OnCpu for Norm {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([x, gain, bias, gain2, bias2], [stats, out, out2]) = arena.f32s(
            [
                Some(self.x),
                Some(self.first.gain),
                self.first.bias,
                self.second.map(|s| s.gain),
                self.second.and_then(|s| s.bias),
            ],
            [Some(self.stats), Some(self.first.out), self.second.map(|s| s.out)],
        )?;
        let d = self.x.columns() as usize;
        let kept = self.kind.stats() as usize;
        let bands = [(stats, ROWS * kept), (out, ROWS * d), (out2, ROWS * d)];
        cpu.pool.bands(bands, |_, band, [stats, out, out2]| {
            let rows = x[band * ROWS * d..].chunks_exact(d).zip(stats.chunks_exact_mut(kept));
            vectorise!({
                for (r, (row, stat)) in rows.enumerate() {
                    let (mean, scale) = normal(row, self.kind, self.eps);
                    self.kind.keep(mean, scale, stat);
                    let at = r * d..(r + 1) * d;
                    affine(row, mean, scale, gain, bias, &mut out[at.clone()]);
                    if let Some(out2) = out2.get_mut(at) {
                        affine(row, mean, scale, gain2, bias2, out2);
                    }
                }
            },);
        });
        self.copy.map_or(Ok(()), |copy| copy.make(self.first.out, &mut arena))
    }
}

/// Mean and 1 / √(variance + eps), or 0 and 1 / √(mean square + eps). Two passes: the variance of centred values is
/// accurate even where the mean is large.
#[inline(always)]
fn normal(row: &[f32], kind: NormKind, eps: f32) -> (f32, f32) {
    let d = row.len() as f32;
    let mean = match kind {
        NormKind::Layer => simd::fold_pairs(row, row, |sum, x, _| sum + x) / d,
        NormKind::Rms => 0.0,
    };
    let squares = simd::fold_pairs(row, row, |sum, x, _| (x - mean).mul_add(x - mean, sum));
    (mean, 1.0 / (squares / d + eps).sqrt())
}

/// Applies the gain and the bias; without a bias where `bias` is empty.
#[inline(always)]
fn affine(row: &[f32], mean: f32, scale: f32, gain: &[f32], bias: &[f32], out: &mut [f32]) {
    if bias.is_empty() {
        for ((o, x), g) in out.iter_mut().zip(row).zip(gain) {
            *o = (x - mean) * scale * g;
        }
        return;
    }
    for ((o, x), (g, b)) in out.iter_mut().zip(row).zip(gain.iter().zip(bias)) {
        *o = ((x - mean) * scale).mul_add(*g, *b);
    }
}
