//! The associative memory: each stream's matrix belongs to one task and is processed row by row.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Memory, MemoryGrad, MemoryToken};

use crate::simd::{self, vectorise};
use crate::{Cpu, OnCpu};

impl OnCpu for Memory {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([keys, queries, values, keep, before, before_key], [after, after_key, out]) = arena.f32s(
            [self.keys, self.queries, self.values, self.keep, self.before.matrix, self.before.key].map(Some),
            [self.after.matrix, self.after.key, self.out].map(Some),
        )?;
        let [_, batch, tokens, k] = self.keys.shape.map(|n| n as usize);
        let v = self.values.columns() as usize;
        let share = 1.0 / k as f32;
        let bands = [(after, v * k), (after_key, k), (out, tokens * v)];
        cpu.pool.bands(bands, |_, b, [matrix, after_key, out]| {
            matrix.copy_from_slice(&before[b * v * k..][..v * k]);
            let mut key = &before_key[b * k..][..k];
            for (t, out) in out.chunks_exact_mut(v).enumerate() {
                let row = b * tokens + t;
                let (query, value) = (&queries[row * k..][..k], &values[row * v..][..v]);
                let keep = keep[t * batch + b];
                vectorise!(for ((f, out), &value) in matrix.chunks_exact_mut(k).zip(out).zip(value) {
                    advance(f, self.decay, keep, value, key);
                    *out = simd::dot(f, query) * share;
                });
                key = &keys[row * k..][..k];
            }
            after_key.copy_from_slice(key);
        });
        Ok(())
    }
}

/// Updates a row of F with one more value.
#[inline(always)]
fn advance(f: &mut [f32], decay: f32, keep: f32, value: f32, key: &[f32]) {
    if keep > 0.0 {
        for (f, &key) in f.iter_mut().zip(key) {
            *f = decay.mul_add(*f, value * key);
        }
    } else {
        f.fill(0.0);
    }
}

impl OnCpu for MemoryGrad {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([keys, queries, values, keep, before, before_key, out_grad], [work, keys_grad, queries_grad, values_grad]) =
            arena.f32s(
                [self.keys, self.queries, self.values, self.keep, self.before.matrix, self.before.key, self.out_grad]
                    .map(Some),
                [self.work, self.keys_grad, self.queries_grad, self.values_grad].map(Some),
            )?;
        let [_, _, tokens, k] = self.keys.shape.map(|n| n as usize);
        let v = self.values.columns() as usize;
        let read = [keys, queries, values, keep, before_key, out_grad];
        let (share, decay) = (1.0 / k as f32, self.decay);
        let bands = [(work, v * k), (keys_grad, tokens * k), (queries_grad, tokens * k), (values_grad, tokens * v)];
        cpu.pool.bands(bands, |_, b, [work, keys_grad, queries_grad, values_grad]| {
            work.copy_from_slice(&before[b * v * k..][..v * k]);
            keys_grad.fill(0.0);
            queries_grad.fill(0.0);
            for (t, queries_grad) in queries_grad.chunks_exact_mut(k).enumerate() {
                let MemoryToken { key, value, grad, keep, .. } = self.token(read, b, t);
                vectorise!(for ((f, &value), &grad) in work.chunks_exact_mut(k).zip(value).zip(grad) {
                    advance(f, decay, keep, value, key);
                    simd::axpy(grad * share, f, queries_grad);
                });
            }
            // From here on `work` is the gradient of F.
            work.fill(0.0);
            for t in (0..tokens).rev() {
                let MemoryToken { key, query, value, grad, keep } = self.token(read, b, t);
                let values_grad = &mut values_grad[t * v..][..v];
                let keys_grad = if t > 0 { &mut keys_grad[(t - 1) * k..][..k] } else { &mut [] };
                let rows = work.chunks_exact_mut(k).zip(values_grad).zip(value.iter().zip(grad));
                vectorise!(for ((f, to), (&value, &grad)) in rows {
                    simd::axpy(grad * share, query, f);
                    *to = keep * simd::dot(f, key);
                    simd::axpy(keep * value, &f[..keys_grad.len()], keys_grad);
                    f.iter_mut().for_each(|f| *f *= keep * decay);
                });
            }
        });
        Ok(())
    }
}
