//! The norm of queries and keys (Henry et al. 2020): RMSNorm (Zhang and Sennrich 2019) of each head before it is rotated,
//! with a gain that all query heads share and one of all key heads (Qwen Team 2025, Qwen3).

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::Heads;
use crate::ops::math::dot;

/// `x ← x̂ ∘ gain` with `x̂ = x / √(mean of x² + eps)` for every query and key head x, in place. Values stay unchanged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNorm {
    /// [rows, width].
    pub qkv: Region,
    /// [rows, (queries + keys) · size]: the heads before the norm, queries before keys. For the backward pass.
    pub raw: Option<Region>,
    /// [rows, queries + keys]: 1 / √(mean square + eps) of each head. For the backward pass.
    pub stats: Option<Region>,
    /// `[size]`.
    pub query_gain: Region,
    /// `[size]`.
    pub key_gain: Region,
    /// Added to the mean square.
    pub eps: f32,
    /// The heads of a row.
    pub heads: Heads,
}

impl Operation for QkNorm {
    const NAME: &'static str = "qk_norm";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("qkv", self.qkv));
        self.raw.into_iter().for_each(|r| visit(Operand::write("raw", r)));
        self.stats.into_iter().for_each(|r| visit(Operand::write("stats", r).exact()));
        visit(Operand::read("query_gain", self.query_gain));
        visit(Operand::read("key_gain", self.key_gain));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, heads) = (self.qkv.rows(), &self.heads);
        let fits = |r: Region, columns| r.rows() == rows && r.columns() == columns;
        self.expect(self.qkv.columns() == heads.width(), "qkv")?;
        self.expect(self.raw.is_none_or(|r| fits(r, heads.normed() * heads.size)), "raw")?;
        self.expect(self.stats.is_none_or(|r| fits(r, heads.normed())), "stats")?;
        self.expect(self.raw.is_some() == self.stats.is_some(), "stats")?;
        self.expect(self.query_gain.elements() == u64::from(heads.size), "query_gain")?;
        self.expect(self.key_gain.elements() == u64::from(heads.size), "key_gain")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([query_gain, key_gain], [qkv, raw, stats]) =
            arena.f32s([Some(self.query_gain), Some(self.key_gain)], [Some(self.qkv), self.raw, self.stats])?;
        let (size, normed) = (self.heads.size as usize, self.heads.normed());
        for (r, row) in qkv.chunks_exact_mut(self.qkv.columns() as usize).enumerate() {
            for h in 0..normed {
                let head = &mut row[self.heads.query_or_key(h)..][..size];
                let at = r * normed as usize + h as usize;
                if let Some(raw) = raw.get_mut(at * size..(at + 1) * size) {
                    raw.copy_from_slice(head);
                }
                let scale = 1.0 / libm::sqrtf(dot(head, head) / size as f32 + self.eps);
                if let Some(stat) = stats.get_mut(at) {
                    *stat = scale;
                }
                let gain = if h < self.heads.queries { query_gain } else { key_gain };
                for (x, g) in head.iter_mut().zip(gain) {
                    *x = *x * scale * g;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn heads_are_normalised_as_in_f64_and_values_stay() {
        for heads in [Heads::grouped(4, 2, 5), Heads::interleaved(3, 6)] {
            let mut b = Bench::<2048>::new();
            let (rows, size, width) = (3, heads.size as usize, heads.width() as usize);
            let qkv = b.normal([1, 1, rows, heads.width()], 1, 3.0);
            let mut before = [0.0; 256];
            before[..width * 3].copy_from_slice(b.get(qkv));
            let gains = [2, 3].map(|stream| b.normal([1, 1, 1, heads.size], stream, 1.0));
            let [query_gain, key_gain] = gains;
            let raw = b.poison([1, 1, rows, heads.normed() * heads.size]);
            let stats = b.poison([1, 1, rows, heads.normed()]);
            let norm = QkNorm { qkv, raw: Some(raw), stats: Some(stats), query_gain, key_gain, eps: 0.25, heads };
            b.run(norm);
            for r in 0..3 {
                let mut values = [true; 64];
                for h in 0..heads.normed() {
                    let at = heads.query_or_key(h);
                    values[at..at + size].fill(false);
                    let old = &before[r * width + at..][..size];
                    let place = r * heads.normed() as usize + h as usize;
                    assert_eq!(b.get(raw)[place * size..][..size], *old);
                    let squares: f64 = old.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
                    let scale = 1.0 / libm::sqrt(squares / size as f64 + 0.25);
                    approx::assert_relative_eq!(f64::from(b.get(stats)[place]), scale, max_relative = 1e-6);
                    for (i, old) in old.iter().enumerate() {
                        let gain = b.get(gains[usize::from(h >= heads.queries)])[i];
                        let found = f64::from(b.get(qkv)[r * width + at + i]);
                        let expected = f64::from(*old) * scale * f64::from(gain);
                        approx::assert_relative_eq!(found, expected, epsilon = 2e-6, max_relative = 2e-6);
                    }
                }
                for i in (0..width).filter(|i| values[*i]) {
                    assert_eq!(b.get(qkv)[r * width + i], before[r * width + i]);
                }
            }
            // Without the outputs for the backward pass.
            let after = b.get(qkv)[0];
            b.set(qkv, &before[..width * 3]);
            b.run(QkNorm { raw: None, stats: None, ..norm });
            assert_eq!(b.get(qkv)[0], after);
        }
    }
}
