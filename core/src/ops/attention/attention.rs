//! Causal attention over a fused projection, dense or block-sparse, without a matrix of probabilities.

use super::documents::Documents;
use super::heads::Heads;
use super::pattern::Pattern;
use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::ops::math::{axpy, dot};

/// `out_i = Σ_j softmax_j(q_i · k_j / √size) v_j` over the j ≤ i that the pattern sees, and that are in the same
/// document where there are offsets, for each row and head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// [batch, seq_len, width], with queries and keys already rotated.
    pub qkv: Region,
    /// [batch, seq_len, queries · size].
    pub out: Region,
    /// [batch, queries, seq_len]: ln Σ_j exp(score), for the backward pass.
    pub log_sum: Region,
    /// The order of the heads in a row.
    pub heads: Heads,
    /// The keys that a query sees.
    pub pattern: Pattern,
    /// `[batch · seq_len]` u32: the number of tokens of its document before each token, where queries see only their
    /// document.
    pub offsets: Option<Region>,
}

/// Whether qkv is [batch, seq_len, width] of these heads and `other` is as long and `columns` wide.
pub(crate) fn rows_fit(qkv: &Region, other: &Region, columns: u32) -> bool {
    other.rows() == qkv.rows() && other.columns() == columns
}

impl Operation for Attention {
    const NAME: &'static str = "attention";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("qkv", self.qkv));
        self.offsets.into_iter().for_each(|offsets| visit(Operand::read("offsets", offsets).ids()));
        visit(Operand::write("out", self.out));
        visit(Operand::write("log_sum", self.log_sum).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.qkv.columns() == self.heads.width(), "qkv")?;
        self.expect(rows_fit(&self.qkv, &self.out, self.heads.out_width()), "out")?;
        self.expect(self.pattern.fits(), "pattern")?;
        self.expect(Documents::fit(self.offsets, &self.qkv), "offsets")?;
        let [_, batch, seq_len, _] = self.qkv.shape;
        self.expect(self.log_sum.shape == [1, batch, self.heads.queries, seq_len], "log_sum")
    }

    fn flops(&self) -> u64 {
        // Scores and mixing: two matrix multiplications of `size` multiply-adds for each pair. Documents, not known in
        // advance, reduce the number of pairs.
        let [_, batch, seq_len, _] = self.qkv.shape;
        count(&[4, batch.into(), self.heads.out_width().into(), self.pattern.active_pairs(seq_len)])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [qkv, mut out, mut log_sum, offsets] =
            arena.views([Some(self.qkv), Some(self.out), Some(self.log_sum), self.offsets])?;
        let documents = Documents::new(offsets.u32()?);
        let [_, batch, seq_len, width] = self.qkv.shape.map(|n| n as usize);
        let (heads, size, scale) = (&self.heads, self.heads.size as usize, self.heads.scale());
        let qkv = qkv.f32()?;
        for b in 0..batch {
            let row = |i: usize| &qkv[(b * seq_len + i) * width..][..width];
            for h in 0..heads.queries {
                let (q, k, v) = (heads.query(h), heads.key(heads.key_of(h)), heads.value(heads.key_of(h)));
                for i in 0..seq_len {
                    let query = &row(i)[q..q + size];
                    let first = documents.first_seen(b * seq_len + i, i);
                    let seen = (first..=i).filter(|&j| self.pattern.sees(i as u32, j as u32));
                    let score = |j: usize| dot(query, &row(j)[k..k + size]) * scale;
                    let largest = seen.clone().map(score).fold(f32::NEG_INFINITY, |a, s| if s > a { s } else { a });
                    let at = (b * seq_len + i) * heads.out_width() as usize + h as usize * size;
                    let out = &mut out.f32_mut()?[at..at + size];
                    out.fill(0.0);
                    let mut total = 0.0;
                    for j in seen {
                        let weight = libm::expf(score(j) - largest);
                        total += weight;
                        axpy(weight, &row(j)[v..v + size], out);
                    }
                    out.iter_mut().for_each(|o| *o /= total);
                    log_sum.f32_mut()?[(b * heads.queries as usize + h as usize) * seq_len + i] =
                        largest + libm::logf(total);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::PatternKind;
    use crate::ops::testing::Bench;

    pub const PATTERNS: [PatternKind; 4] =
        [PatternKind::Dense, PatternKind::Local, PatternKind::Global, PatternKind::Mixed];

    /// For two rows of 11: a document from the previous row, two of one token, one that ends with a block; and a
    /// document that covers the whole row and began before it.
    const OFFSETS: [u32; 22] = [5, 6, 7, 0, 0, 0, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

    #[test]
    fn every_pattern_agrees_with_dense_masked_attention_in_f64() {
        for (kind, offsets) in
            PATTERNS.into_iter().flat_map(|kind| [None, Some(OFFSETS)].map(|offsets| (kind, offsets)))
        {
            let mut b = Bench::<4096>::new();
            let heads = Heads::grouped(4, 2, 3);
            let (batch, t) = (2u32, 11u32);
            let qkv = b.normal([1, batch, t, heads.width()], 1, 1.0);
            let (out, log_sum) = (b.poison([1, batch, t, 12]), b.poison([1, batch, 4, t]));
            let pattern = Pattern { kind, block: 3, window: 1, stride: 2 };
            let laid = offsets.map(|offsets| b.ids(&offsets));
            b.run(Attention { qkv, out, log_sum, heads, pattern, offsets: laid });
            let x = |b: &mut Bench<4096>, row: u32, column: usize| {
                f64::from(b.get(qkv)[(row * heads.width()) as usize + column])
            };
            for (row, h) in (0..batch * t).flat_map(|r| (0..4).map(move |h| (r, h))) {
                let (base, i) = (row / t * t, row % t);
                let mut weights = [0.0; 11];
                for j in 0..t {
                    let dot: f64 = (0..3)
                        .map(|c| x(&mut b, row, heads.query(h) + c) * x(&mut b, base + j, heads.key(h / 2) + c))
                        .sum();
                    // The keys of a query's document reach as far back as the query's offset.
                    let other = offsets.is_some_and(|offsets| j + offsets[row as usize] < i);
                    let masked = j > i || !pattern.sees(i, j) || other;
                    weights[j as usize] = if masked { 0.0 } else { libm::exp(dot / libm::sqrt(3.0)) };
                }
                let total: f64 = weights.iter().sum();
                approx::assert_relative_eq!(
                    f64::from(b.get(log_sum)[((row / t * 4 + h) * t + i) as usize]),
                    libm::log(total),
                    epsilon = 1e-5
                );
                for c in 0..3 {
                    let expected: f64 =
                        (0..t).map(|j| weights[j as usize] / total * x(&mut b, base + j, heads.value(h / 2) + c)).sum();
                    let found = f64::from(b.get(out)[(row * 12 + h * 3) as usize + c]);
                    approx::assert_relative_eq!(found, expected, epsilon = 2e-6, max_relative = 1e-5);
                }
            }
        }
    }

    #[test]
    fn a_pattern_of_blocks_without_positions_is_an_error() {
        let mut b = Bench::<64>::new();
        let heads = Heads::interleaved(1, 2);
        let (qkv, out, log_sum) = (b.poison([1, 1, 3, 6]), b.poison([1, 1, 3, 2]), b.poison([1, 1, 1, 3]));
        for kind in PATTERNS {
            let pattern = Pattern { kind, block: 0, window: 1, stride: 2 };
            let attention = Attention { qkv, out, log_sum, heads, pattern, offsets: None };
            let expected = if kind == PatternKind::Dense { Ok(()) } else { Err(attention.misfit("pattern")) };
            assert_eq!(attention.validate(), expected, "{kind:?}");
            assert_eq!(pattern.sees(1, 0), kind == PatternKind::Dense);
        }
    }

    #[test]
    fn offsets_of_other_positions_are_an_error() {
        let mut b = Bench::<64>::new();
        let heads = Heads::interleaved(1, 2);
        let (qkv, out, log_sum) = (b.poison([1, 1, 3, 6]), b.poison([1, 1, 3, 2]), b.poison([1, 1, 1, 3]));
        for (count, fits) in [(3, true), (2, false), (4, false)] {
            let offsets = Some(b.ids(&[0; 4][..count]));
            let attention = Attention { qkv, out, log_sum, heads, pattern: Pattern::DENSE, offsets };
            let expected = if fits { Ok(()) } else { Err(attention.misfit("offsets")) };
            assert_eq!(attention.validate(), expected);
        }
    }

    #[test]
    fn changing_a_later_token_changes_no_earlier_output() {
        for kind in PATTERNS {
            let mut b = Bench::<4096>::new();
            let heads = Heads::interleaved(2, 4);
            let qkv = b.normal([1, 1, 10, 24], 1, 1.0);
            let (out, log_sum) = (b.poison([1, 1, 10, 8]), b.poison([1, 1, 2, 10]));
            let pattern = Pattern { kind, block: 2, window: 1, stride: 2 };
            let op = Attention { qkv, out, log_sum, heads, pattern, offsets: None };
            b.run(op);
            let before: [f32; 80] = b.get(out).try_into().unwrap();
            for changed in 0..10u32 {
                let row = qkv.slice_rows(changed, 1);
                let was: [f32; 24] = b.get(row).try_into().unwrap();
                b.set(row, &[5.0; 24]);
                b.run(op);
                let at = changed as usize * 8;
                assert_eq!(b.get(out)[..at], before[..at], "{kind:?}: position {changed} reaches back");
                assert_ne!(
                    b.get(out)[at..at + 8],
                    before[at..at + 8],
                    "{kind:?}: position {changed} does not see itself"
                );
                b.set(row, &was);
            }
        }
    }
}
