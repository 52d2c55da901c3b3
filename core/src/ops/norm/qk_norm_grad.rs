//! The gradient of the norm of queries and keys.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::Heads;
use crate::ops::math::sum;

/// With x̂ a normalised head, d the gradient of [`crate::ops::QkNorm`]'s output and g = d ∘ gain: `d ← (g − x̂ mean(g ∘
/// x̂)) / √(mean square + eps)` in place, and for the gains `gain_grad (+)= Σ rows Σ heads d ∘ x̂`. Values' gradients
/// stay unchanged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNormGrad {
    /// [rows, width].
    pub qkv_grad: Region,
    /// [rows, (queries + keys) · size]: the heads before the norm.
    pub raw: Region,
    /// [rows, queries + keys]: 1 / √(mean square + eps) of each head.
    pub stats: Region,
    /// `[size]`.
    pub query_gain: Region,
    /// `[size]`.
    pub key_gain: Region,
    /// `[size]` each: the gradients of the query gain and the key gain, if they learn.
    pub gain_grads: Option<[Region; 2]>,
    /// The heads of a row.
    pub heads: Heads,
    /// Whether to add to the gains' gradients instead of overwriting them.
    pub accumulate: bool,
}

impl Operation for QkNormGrad {
    const NAME: &'static str = "qk_norm_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("qkv_grad", self.qkv_grad));
        visit(Operand::read("raw", self.raw));
        visit(Operand::read("stats", self.stats).exact());
        visit(Operand::read("query_gain", self.query_gain));
        visit(Operand::read("key_gain", self.key_gain));
        for (name, gradient) in
            ["query_gain_grad", "key_gain_grad"].into_iter().zip(self.gain_grads.into_iter().flatten())
        {
            visit(Operand::sum(name, gradient, self.accumulate));
        }
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, heads, size) = (self.qkv_grad.rows(), &self.heads, u64::from(self.heads.size));
        let fits = |r: Region, columns| r.rows() == rows && r.columns() == columns;
        self.expect(self.qkv_grad.columns() == heads.width(), "qkv_grad")?;
        self.expect(fits(self.raw, heads.normed() * heads.size), "raw")?;
        self.expect(fits(self.stats, heads.normed()), "stats")?;
        self.expect(self.query_gain.elements() == size, "query_gain")?;
        self.expect(self.key_gain.elements() == size, "key_gain")?;
        self.expect(self.gain_grads.into_iter().flatten().all(|gradient| gradient.elements() == size), "gain_grads")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([raw, stats, query_gain, key_gain], [qkv_grad, query_gain_grad, key_gain_grad]) = arena.f32s(
            [self.raw, self.stats, self.query_gain, self.key_gain].map(Some),
            [Some(self.qkv_grad), self.gain_grads.map(|g| g[0]), self.gain_grads.map(|g| g[1])],
        )?;
        if !self.accumulate {
            query_gain_grad.fill(0.0);
            key_gain_grad.fill(0.0);
        }
        let (size, normed) = (self.heads.size as usize, self.heads.normed());
        for (r, row) in qkv_grad.chunks_exact_mut(self.qkv_grad.columns() as usize).enumerate() {
            for h in 0..normed {
                let head = &mut row[self.heads.query_or_key(h)..][..size];
                let at = r * normed as usize + h as usize;
                let (raw, scale) = (&raw[at * size..][..size], stats[at]);
                let (gain, gain_grad) = match h < self.heads.queries {
                    true => (query_gain, &mut *query_gain_grad),
                    false => (key_gain, &mut *key_gain_grad),
                };
                let mut lanes = [0.0f32; 8];
                for (i, d) in head.iter().enumerate() {
                    lanes[i % 8] += d * gain[i] * raw[i] * scale;
                    if let Some(sum) = gain_grad.get_mut(i) {
                        *sum += d * raw[i] * scale;
                    }
                }
                let mean = sum(&lanes) / size as f32;
                for (i, d) in head.iter_mut().enumerate() {
                    *d = scale * (*d * gain[i] - raw[i] * scale * mean);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::QkNorm;
    use crate::ops::testing::Bench;

    #[test]
    fn gradients_agree_with_finite_differences() {
        for (heads, accumulate) in [(Heads::grouped(4, 2, 5), false), (Heads::interleaved(3, 4), true)] {
            let mut b = Bench::<4096>::new();
            let (rows, size, width) = (3, heads.size, heads.width());
            let mut x = [0.0; 256];
            let drawn = b.normal([1, 1, rows, width], 1, 2.0);
            let x = &mut x[..drawn.elements() as usize];
            x.copy_from_slice(b.get(drawn));
            let qkv = b.poison([1, 1, rows, width]);
            let [query_gain, key_gain] = [2, 3].map(|stream| b.normal([1, 1, 1, size], stream, 1.0));
            let raw = b.poison([1, 1, rows, heads.normed() * size]);
            let stats = b.poison([1, 1, rows, heads.normed()]);
            let forward = QkNorm { qkv, raw: Some(raw), stats: Some(stats), query_gain, key_gain, eps: 1e-5, heads };
            let weights = b.normal([1, 1, rows, width], 4, 1.0);
            b.set(qkv, x);
            b.run(forward);
            let qkv_grad = b.normal([1, 1, rows, width], 4, 1.0);
            let before = [0.5, -2.0, 1.0, 3.0, 0.25];
            let start = if accumulate { &before[..] } else { &[f32::NAN; 5] };
            let gain_grads = [(); 2].map(|()| b.values([1, 1, 1, size], &start[..size as usize]));
            let [query_gain_grad, key_gain_grad] = gain_grads;
            let gain_grads = Some(gain_grads);
            let learning = QkNormGrad { qkv_grad, raw, stats, query_gain, key_gain, gain_grads, heads, accumulate };
            b.run(learning);
            // Where the gains do not learn, the other results are the same.
            let alone = b.normal([1, 1, rows, width], 4, 1.0);
            b.run(QkNormGrad { qkv_grad: alone, gain_grads: None, ..learning });
            assert_eq!(b.bytes(alone), b.bytes(qkv_grad));
            // The norm is in place, so its input is written again each time.
            let slope = |b: &mut Bench<4096>, region: Option<Region>, i: usize| {
                let mut project = |step: f32| {
                    let mut moved = [0.0; 256];
                    moved[..x.len()].copy_from_slice(x);
                    let kept = region.map(|r| b.get(r)[i]);
                    match region {
                        None => moved[i] += step,
                        Some(r) => {
                            let at = Region { offset: r.offset + 4 * i as u64, shape: [1; 4], ..r };
                            b.set(at, &[kept.unwrap() + step]);
                        }
                    }
                    b.set(qkv, &moved[..x.len()]);
                    b.run(forward);
                    if let (Some(r), Some(kept)) = (region, kept) {
                        b.set(Region { offset: r.offset + 4 * i as u64, shape: [1; 4], ..r }, &[kept]);
                    }
                    b.project(qkv, weights)
                };
                (project(1.0 / 128.0) - project(-1.0 / 128.0)) * 64.0
            };
            for i in 0..x.len() {
                let (slope, found) = (slope(&mut b, None, i), f64::from(b.get(qkv_grad)[i]));
                assert!((found - slope).abs() < 2e-3 * (1.0 + slope.abs()), "element {i}: {found} against {slope}");
            }
            for (gain, grad) in [query_gain, key_gain].into_iter().zip([query_gain_grad, key_gain_grad]) {
                for (i, before) in before.into_iter().take(size as usize).enumerate() {
                    let slope = slope(&mut b, Some(gain), i) + f64::from(if accumulate { before } else { 0.0 });
                    let found = f64::from(b.get(grad)[i]);
                    assert!((found - slope).abs() < 2e-3 * (1.0 + slope.abs()), "gain {i}: {found} against {slope}");
                }
            }
        }
    }
}
