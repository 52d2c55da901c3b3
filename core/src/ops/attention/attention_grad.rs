//! The gradient of causal attention, with probabilities recomputed from the scores' logarithmic sum.

use super::attention::rows_fit;
use super::documents::Documents;
use super::heads::Heads;
use super::pattern::Pattern;
use super::rotary::Rotary;
use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::ops::math::{axpy, dot};
use crate::views;

/// With P the probabilities, dP = out_grad · vᵀ and D_i = out_grad_i · out_i (Dao et al. 2022): `dv = Pᵀ · out_grad`,
/// `dS = P ∘ (dP − D)`, `dq = dS · k / √size`, `dk = dSᵀ · q / √size`; then dq and dk are rotated back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionGrad {
    /// [batch, seq_len, width].
    pub qkv: Region,
    /// [batch, seq_len, queries · size].
    pub out: Region,
    /// [batch, queries, seq_len].
    pub log_sum: Region,
    /// [batch, seq_len, queries · size].
    pub out_grad: Region,
    /// [batch, seq_len, width].
    pub qkv_grad: Region,
    /// The order of the heads in a row.
    pub heads: Heads,
    /// The keys that a query sees.
    pub pattern: Pattern,
    /// `[batch · seq_len]` u32: the number of tokens of its document before each token, where queries see only their
    /// document.
    pub offsets: Option<Region>,
    /// The rotation that was applied to queries and keys.
    pub rotary: Rotary,
}

impl Operation for AttentionGrad {
    const NAME: &'static str = "attention_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("qkv", self.qkv));
        visit(Operand::read("out", self.out));
        visit(Operand::read("log_sum", self.log_sum).exact());
        visit(Operand::read("out_grad", self.out_grad));
        visit(Operand::read("rotary", self.rotary.table).exact());
        self.offsets.into_iter().for_each(|offsets| visit(Operand::read("offsets", offsets).ids()));
        visit(Operand::write("qkv_grad", self.qkv_grad));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (heads, [_, batch, seq_len, _]) = (&self.heads, self.qkv.shape);
        self.expect(self.qkv.columns() == heads.width(), "qkv")?;
        self.expect(rows_fit(&self.qkv, &self.out, heads.out_width()), "out")?;
        self.expect(rows_fit(&self.qkv, &self.out_grad, heads.out_width()), "out_grad")?;
        self.expect(rows_fit(&self.qkv, &self.qkv_grad, heads.width()), "qkv_grad")?;
        self.expect(self.log_sum.shape == [1, batch, heads.queries, seq_len], "log_sum")?;
        self.expect(self.pattern.fits(), "pattern")?;
        self.expect(Documents::fit(self.offsets, &self.qkv), "offsets")?;
        self.expect(self.rotary.fits() && self.rotary.heads == self.heads, "rotary")
    }

    fn flops(&self) -> u64 {
        // Scores again, dP, dv, dq, dk: five matrix multiplications of `size` multiply-adds for each pair.
        let [_, batch, seq_len, _] = self.qkv.shape;
        count(&[10, batch.into(), self.heads.out_width().into(), self.pattern.active_pairs(seq_len)])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        views!(arena;
            qkv = Some(self.qkv),
            out = Some(self.out),
            log_sum = Some(self.log_sum),
            out_grad = Some(self.out_grad),
            table = Some(self.rotary.table),
            mut qkv_grad = Some(self.qkv_grad),
            offsets = self.offsets,
        );
        let [qkv, out, log_sum, out_grad, table] =
            [qkv.f32()?, out.f32()?, log_sum.f32()?, out_grad.f32()?, table.f32()?];
        let (qkv_grad, documents) = (qkv_grad.f32_mut()?, Documents::new(offsets.u32()?));
        let [_, batch, seq_len, width] = self.qkv.shape.map(|n| n as usize);
        let (heads, size, scale) = (&self.heads, self.heads.size as usize, self.heads.scale());
        qkv_grad.fill(0.0);
        for b in 0..batch {
            let row = |i: usize| &qkv[(b * seq_len + i) * width..][..width];
            for h in 0..heads.queries {
                let (q, k, v) = (heads.query(h), heads.key(heads.key_of(h)), heads.value(heads.key_of(h)));
                for i in 0..seq_len {
                    let at = (b * seq_len + i) * heads.out_width() as usize + h as usize * size;
                    let dout = &out_grad[at..at + size];
                    let mean = dot(dout, &out[at..at + size]);
                    let log_sum = log_sum[(b * heads.queries as usize + h as usize) * seq_len + i];
                    let first = documents.first_seen(b * seq_len + i, i);
                    for j in (first..=i).filter(|&j| self.pattern.sees(i as u32, j as u32)) {
                        let (query, key) = (&row(i)[q..q + size], &row(j)[k..k + size]);
                        let p = libm::expf(dot(query, key) * scale - log_sum);
                        let ds = p * (dot(dout, &row(j)[v..v + size]) - mean) * scale;
                        let grad = |i: usize, part: usize| {
                            let at = (b * seq_len + i) * width + part;
                            at..at + size
                        };
                        axpy(p, dout, &mut qkv_grad[grad(j, v)]);
                        axpy(ds, key, &mut qkv_grad[grad(i, q)]);
                        axpy(ds, query, &mut qkv_grad[grad(j, k)]);
                    }
                }
            }
        }
        for (r, row) in qkv_grad.chunks_exact_mut(width).enumerate() {
            let position = r % self.rotary.positions as usize;
            Rotary::rotate(heads, table, self.rotary.dims() as usize, position, row, true)
                .ok_or(self.misfit("rotary"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;
    use crate::ops::{Attention, PatternKind};

    const PATTERNS: [PatternKind; 4] =
        [PatternKind::Dense, PatternKind::Local, PatternKind::Global, PatternKind::Mixed];

    struct Case {
        forward: Attention,
        backward: AttentionGrad,
    }

    /// For two rows of 9: a document from the previous row, one of one token, and one to the end; and one over the
    /// whole row.
    const OFFSETS: [u32; 18] = [2, 3, 0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    fn case(b: &mut Bench<4096>, kind: PatternKind, documents: bool) -> Case {
        let heads = Heads::grouped(4, 2, 2);
        let t = 9;
        let qkv = b.normal([1, 2, t, heads.width()], 1, 1.0);
        let (out, log_sum) = (b.poison([1, 2, t, 8]), b.poison([1, 2, 4, t]));
        let offsets = documents.then(|| b.ids(&OFFSETS));
        let pattern = Pattern { kind, block: 2, window: 1, stride: 2 };
        let forward = Attention { qkv, out, log_sum, heads, pattern, offsets };
        // Angles of zero, since the rotation has its own test.
        let table = b.values([1, t, 1, 2], &[1.0, 0.0].repeat_into::<18>());
        let (out_grad, qkv_grad) = (b.normal([1, 2, t, 8], 2, 1.0), b.poison([1, 2, t, heads.width()]));
        let rotary = Rotary { table, heads, positions: t };
        let backward = AttentionGrad { qkv, out, log_sum, out_grad, qkv_grad, heads, pattern, offsets, rotary };
        Case { forward, backward }
    }

    trait RepeatInto {
        fn repeat_into<const N: usize>(&self) -> [f32; N];
    }

    impl RepeatInto for [f32; 2] {
        fn repeat_into<const N: usize>(&self) -> [f32; N] {
            core::array::from_fn(|i| self[i % 2])
        }
    }

    #[test]
    fn gradients_of_every_pattern_agree_with_finite_differences() {
        for (kind, documents) in PATTERNS.into_iter().flat_map(|kind| [false, true].map(|documents| (kind, documents)))
        {
            let mut b = Bench::<4096>::new();
            let Case { forward, backward } = case(&mut b, kind, documents);
            b.run(forward);
            b.run(backward);
            b.check_gradient(forward, forward.qkv, backward.qkv_grad, forward.out, backward.out_grad);
        }
    }

    #[test]
    fn an_earlier_outputs_gradient_reaches_no_later_token() {
        for kind in PATTERNS {
            let mut b = Bench::<4096>::new();
            let Case { forward, backward } = case(&mut b, kind, false);
            b.run(forward);
            for i in 0..9 {
                let mut only = [0.0; 144];
                only[i * 8..(i + 1) * 8].fill(1.0);
                b.set(backward.out_grad, &only);
                b.run(backward);
                let width = forward.heads.width() as usize;
                assert!(b.get(backward.qkv_grad)[(i + 1) * width..9 * width].iter().all(|&g| g == 0.0));
                assert!(b.get(backward.qkv_grad)[i * width..(i + 1) * width].iter().any(|&g| g != 0.0));
            }
        }
    }
}
