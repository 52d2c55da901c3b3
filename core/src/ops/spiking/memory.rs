//! An associative memory of fast weights: each token is stored under the key of the token before it, and read by a
//! query (Schlag, Irie and Schmidhuber 2021; the linear attention of Katharopoulos et al. 2020 with decay).

use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::ops::math::{axpy, dot};

/// A stream's matrix, and the key under which its next value will be stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored {
    /// [B, V, K].
    pub matrix: Region,
    /// [B, K].
    pub key: Region,
}

impl Stored {
    /// Calls `visit` with both regions, as operands made by `operand` with these names.
    fn operands(
        &self,
        operand: fn(&'static str, Region) -> Operand,
        names: [&'static str; 2],
        visit: &mut dyn FnMut(Operand),
    ) {
        visit(operand(names[0], self.matrix).exact());
        visit(operand(names[1], self.key).exact());
    }
}

/// `F_t = k_t (λ F_{t−1} + value_t key_{t−1}ᵀ)` with k = `keep`, `out_t = F_t query_t / K`, in each stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// [B, T, K].
    pub keys: Region,
    /// [B, T, K].
    pub queries: Region,
    /// [B, T, V].
    pub values: Region,
    /// [T, B]: 0 where a document begins.
    pub keep: Region,
    /// F and key before the segment.
    pub before: Stored,
    /// F and key after it.
    pub after: Stored,
    /// λ.
    pub decay: f32,
    /// [B, T, V].
    pub out: Region,
}

fn check<O: Operation>(
    op: &O,
    keys: &Region,
    queries: &Region,
    values: &Region,
    keep: &Region,
    stored: &Stored,
) -> Result<(), OperationError> {
    let ([_, batch, tokens, k], v) = (keys.shape, values.columns());
    op.expect(queries.shape == keys.shape, "queries")?;
    op.expect(values.shape == [1, batch, tokens, v], "values")?;
    op.expect(keep.rows() == tokens && keep.columns() == batch, "keep")?;
    op.expect(stored.matrix.shape == [1, batch, v, k], "matrix")?;
    op.expect(stored.key.rows() == batch && stored.key.columns() == k, "key")
}

/// Advances a stream's F by one token.
fn advance(matrix: &mut [f32], decay: f32, keep: f32, value: &[f32], key: &[f32]) {
    for (row, &v) in matrix.chunks_exact_mut(key.len()).zip(value) {
        for (f, &k) in row.iter_mut().zip(key) {
            *f = if keep > 0.0 { decay * *f + v * k } else { 0.0 };
        }
    }
}

impl Operation for Memory {
    const NAME: &'static str = "memory";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("keys", self.keys).exact());
        visit(Operand::read("queries", self.queries).exact());
        visit(Operand::read("values", self.values).exact());
        visit(Operand::read("keep", self.keep).exact());
        self.before.operands(Operand::read, ["before matrix", "before key"], visit);
        self.after.operands(Operand::write, ["after matrix", "after key"], visit);
        visit(Operand::write("out", self.out).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        check(self, &self.keys, &self.queries, &self.values, &self.keep, &self.before)?;
        check(self, &self.keys, &self.queries, &self.values, &self.keep, &self.after)?;
        self.expect(self.out.shape == self.values.shape, "out")
    }

    fn flops(&self) -> u64 {
        count(&[4, self.keys.elements(), self.values.columns().into()])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([keys, queries, values, keep, before, before_key], [after, after_key, out]) = arena.f32s(
            [self.keys, self.queries, self.values, self.keep, self.before.matrix, self.before.key].map(Some),
            [self.after.matrix, self.after.key, self.out].map(Some),
        )?;
        let [_, batch, tokens, k] = self.keys.shape.map(|n| n as usize);
        let v = self.values.columns() as usize;
        after.copy_from_slice(before);
        for b in 0..batch {
            let matrix = &mut after[b * v * k..][..v * k];
            let mut key = &before_key[b * k..][..k];
            for t in 0..tokens {
                let row = b * tokens + t;
                advance(matrix, self.decay, keep[t * batch + b], &values[row * v..][..v], key);
                let query = &queries[row * k..][..k];
                for (out, row) in out[row * v..][..v].iter_mut().zip(matrix.chunks_exact(k)) {
                    *out = dot(row, query) / k as f32;
                }
                key = &keys[row * k..][..k];
            }
            after_key[b * k..][..k].copy_from_slice(key);
        }
        Ok(())
    }
}

/// The gradients of [`Memory`] within the segment; the memory before the segment counts as constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryGrad {
    /// [B, T, K].
    pub keys: Region,
    /// [B, T, K].
    pub queries: Region,
    /// [B, T, V].
    pub values: Region,
    /// [T, B].
    pub keep: Region,
    /// F and key before the segment.
    pub before: Stored,
    /// λ.
    pub decay: f32,
    /// [B, T, V].
    pub out_grad: Region,
    /// [B, V, K]: F, computed again, then its gradient.
    pub work: Region,
    /// [B, T, K].
    pub keys_grad: Region,
    /// [B, T, K].
    pub queries_grad: Region,
    /// [B, T, V].
    pub values_grad: Region,
}

impl Operation for MemoryGrad {
    const NAME: &'static str = "memory_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("keys", self.keys).exact());
        visit(Operand::read("queries", self.queries).exact());
        visit(Operand::read("values", self.values).exact());
        visit(Operand::read("keep", self.keep).exact());
        self.before.operands(Operand::read, ["before matrix", "before key"], visit);
        visit(Operand::read("out_grad", self.out_grad).exact());
        visit(Operand::write("work", self.work).exact());
        visit(Operand::write("keys_grad", self.keys_grad).exact());
        visit(Operand::write("queries_grad", self.queries_grad).exact());
        visit(Operand::write("values_grad", self.values_grad).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        check(self, &self.keys, &self.queries, &self.values, &self.keep, &self.before)?;
        self.expect(self.out_grad.shape == self.values.shape, "out_grad")?;
        self.expect(self.work.shape == self.before.matrix.shape, "work")?;
        self.expect(self.keys_grad.shape == self.keys.shape, "keys_grad")?;
        self.expect(self.queries_grad.shape == self.keys.shape, "queries_grad")?;
        self.expect(self.values_grad.shape == self.values.shape, "values_grad")
    }

    fn flops(&self) -> u64 {
        count(&[12, self.keys.elements(), self.values.columns().into()])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([keys, queries, values, keep, before, before_key, out_grad], [work, keys_grad, queries_grad, values_grad]) =
            arena.f32s(
                [self.keys, self.queries, self.values, self.keep, self.before.matrix, self.before.key, self.out_grad]
                    .map(Some),
                [self.work, self.keys_grad, self.queries_grad, self.values_grad].map(Some),
            )?;
        let [_, _, tokens, k] = self.keys.shape.map(|n| n as usize);
        let v = self.values.columns() as usize;
        let read = [keys, queries, values, keep, before_key, out_grad];
        work.copy_from_slice(before);
        keys_grad.fill(0.0);
        queries_grad.fill(0.0);
        for (b, work) in work.chunks_exact_mut(v * k).enumerate() {
            for t in 0..tokens {
                let token = self.token(read, b, t);
                advance(work, self.decay, token.keep, token.value, token.key);
                for (f, &grad) in work.chunks_exact(k).zip(token.grad) {
                    axpy(grad / k as f32, f, &mut queries_grad[(b * tokens + t) * k..][..k]);
                }
            }
            // From here on `work` is the gradient of F.
            work.fill(0.0);
            for t in (0..tokens).rev() {
                let (row, token) = (b * tokens + t, self.token(read, b, t));
                let keys_grad = if t > 0 { &mut keys_grad[(row - 1) * k..][..k] } else { &mut [] };
                self.token_back(token, work, keys_grad, &mut values_grad[row * v..][..v]);
            }
        }
        Ok(())
    }
}

/// The data of one token that a [`MemoryGrad`] reads.
#[derive(Debug, Clone, Copy)]
pub struct MemoryToken<'a> {
    /// The key of the token before.
    pub key: &'a [f32],
    /// The token's query.
    pub query: &'a [f32],
    /// The token's value.
    pub value: &'a [f32],
    /// The gradient of the token's output.
    pub grad: &'a [f32],
    /// 0 where it begins a document.
    pub keep: f32,
}

impl MemoryGrad {
    /// Token `t` of stream `b`, from keys, queries, values, keep, key before the segment and out_grad.
    #[inline]
    pub fn token<'a>(&self, read: [&'a [f32]; 6], b: usize, t: usize) -> MemoryToken<'a> {
        let [_, batch, tokens, k] = self.keys.shape.map(|n| n as usize);
        let [keys, queries, values, keep, before_key, out_grad] = read;
        let (v, row) = (self.values.columns() as usize, b * tokens + t);
        MemoryToken {
            key: if t == 0 { &before_key[b * k..][..k] } else { &keys[(row - 1) * k..][..k] },
            query: &queries[row * k..][..k],
            value: &values[row * v..][..v],
            grad: &out_grad[row * v..][..v],
            keep: keep[t * batch + b],
        }
    }

    /// Moves the gradient of F back by one token; `keys_grad` is the gradient of the previous token's key, if it has
    /// one.
    fn token_back(&self, token: MemoryToken<'_>, work: &mut [f32], keys_grad: &mut [f32], values_grad: &mut [f32]) {
        let k = token.key.len();
        for (f, &grad) in work.chunks_exact_mut(k).zip(token.grad) {
            axpy(grad / k as f32, token.query, f);
        }
        for (to, f) in values_grad.iter_mut().zip(work.chunks_exact(k)) {
            *to = token.keep * dot(f, token.key);
        }
        for (f, &value) in work.chunks_exact(k).zip(token.value) {
            for (to, &f) in keys_grad.iter_mut().zip(f) {
                *to += token.keep * (f * value);
            }
        }
        work.iter_mut().for_each(|f| *f *= token.keep * self.decay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    type B = Bench<4096>;

    fn case(b: &mut B) -> (Memory, MemoryGrad) {
        let (keys, queries) = (b.normal([1, 2, 6, 4], 1, 1.0), b.normal([1, 2, 6, 4], 2, 1.0));
        let values = b.normal([1, 2, 6, 3], 3, 1.0);
        let keep = b.values([1, 1, 6, 2], &[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let before = Stored { matrix: b.normal([1, 2, 3, 4], 4, 1.0), key: b.normal([1, 1, 2, 4], 5, 1.0) };
        let after = Stored { matrix: b.poison([1, 2, 3, 4]), key: b.poison([1, 1, 2, 4]) };
        let forward = Memory { keys, queries, values, keep, before, after, decay: 0.9, out: b.poison([1, 2, 6, 3]) };
        let backward = MemoryGrad {
            keys,
            queries,
            values,
            keep,
            before,
            decay: 0.9,
            out_grad: b.normal([1, 2, 6, 3], 6, 1.0),
            work: b.poison([1, 2, 3, 4]),
            keys_grad: b.poison([1, 2, 6, 4]),
            queries_grad: b.poison([1, 2, 6, 4]),
            values_grad: b.poison([1, 2, 6, 3]),
        };
        (forward, backward)
    }

    #[test]
    fn what_is_read_is_the_decayed_sum_over_the_document_in_f64() {
        let mut b = B::new();
        let (op, _) = case(&mut b);
        b.run(op);
        let get = |b: &mut B, r: Region, i: usize| f64::from(b.get(r)[i]);
        // Stream 1: its document begins at token 1, so token 5 reads values 2 … 5 under keys 1 … 4.
        for v in 0..3 {
            let mut expected = 0.0;
            for s in 2..=5 {
                let score: f64 = (0..4)
                    .map(|i| get(&mut b, op.keys, (6 + s - 1) * 4 + i) * get(&mut b, op.queries, (6 + 5) * 4 + i))
                    .sum();
                expected += libm::pow(f64::from(0.9f32), (5 - s) as f64) * score / 4.0
                    * get(&mut b, op.values, (6 + s) * 3 + v);
            }
            approx::assert_relative_eq!(
                get(&mut b, op.out, (6 + 5) * 3 + v),
                expected,
                max_relative = 1e-5,
                epsilon = 1e-6
            );
        }
        // Stream 0 reads the memory from before the segment.
        let first: f64 = (0..4)
            .map(|i| {
                let f = f64::from(0.9f32) * get(&mut b, op.before.matrix, i)
                    + get(&mut b, op.values, 0) * get(&mut b, op.before.key, i);
                f * get(&mut b, op.queries, i)
            })
            .sum();
        approx::assert_relative_eq!(get(&mut b, op.out, 0), first / 4.0, max_relative = 1e-5);
        let last: [f32; 4] = b.get(op.keys)[20..24].try_into().unwrap();
        assert_eq!(b.get(op.after.key)[..4], last);
    }

    #[test]
    fn every_gradient_agrees_with_finite_differences() {
        let mut b = B::new();
        let (forward, backward) = case(&mut b);
        b.run(forward);
        b.run(backward);
        for (input, found) in [
            (forward.keys, backward.keys_grad),
            (forward.queries, backward.queries_grad),
            (forward.values, backward.values_grad),
        ] {
            b.check_gradient(forward, input, found, forward.out, backward.out_grad);
        }
    }
}
