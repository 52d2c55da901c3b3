//! Causal attention: a task is a tile of queries of one head, which reads its keys step by step with a running softmax
//! (Milakov and Gimelshein 2018; Dao et al. 2022). Blocks of keys that the pattern omits, and keys before the documents
//! of a tile, are never read.

use std::ops::Range;

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Attention, Documents};

use super::tiles::{STEP, TILE, Tiles};
use crate::gemm::{self, Matrix, MatrixMut, Update};
use crate::pool::Parts;
use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// The scratch of a worker, in f32: scores of a tile and a step, a tile of the output, scratch of the matrix
/// multiplications.
struct WorkerScratch {
    scores: usize,
    out: usize,
    product: usize,
}

impl WorkerScratch {
    fn new(op: &Attention) -> WorkerScratch {
        let (size, keys) = (op.heads.size as usize, STEP.min(op.qkv.shape[2] as usize));
        let product = gemm::small_scratch_len(TILE, keys, size).max(gemm::small_scratch_len(TILE, size, keys));
        WorkerScratch { scores: TILE * keys, out: TILE * size, product }
    }

    fn len(&self) -> usize {
        self.scores + self.out + self.product
    }
}

impl OnCpu for Attention {
    fn scratch(&self, profile: &CpuProfile) -> u64 {
        bytes(WorkerScratch::new(self).len() * profile.workers())
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [qkv, mut out, mut log_sum, mut scratch, offsets] =
            arena.views([Some(self.qkv), Some(self.out), Some(self.log_sum), Some(cpu.scratch), self.offsets])?;
        let documents = Documents::new(offsets.u32()?);
        let [_, batch, seq_len, width] = self.qkv.shape.map(|n| n as usize);
        let (heads, size, scale) = (self.heads, self.heads.size as usize, self.heads.scale());
        let (queries, out_width) = (heads.queries as usize, heads.out_width() as usize);
        let (share, tiles) = (WorkerScratch::new(&self), Tiles::new(self.pattern, seq_len));
        let scratch = &mut scratch.f32_mut()?[..share.len() * cpu.pool.threads()];
        let (qkv, out, log_sum) = (qkv.f32()?, Parts::new(out.f32_mut()?), Parts::new(log_sum.f32_mut()?));
        cpu.pool.tasks_with(scratch, batch * queries * tiles.count(), |_, task, scratch| {
            let (pair, tile) = (task / tiles.count(), tiles.tile(task % tiles.count()));
            if tile.is_empty() {
                return;
            }
            let (b, h) = (pair / queries, pair % queries);
            let (scores, scratch) = scratch.split_at_mut(share.scores);
            let (mixed, scratch) = scratch.split_at_mut(share.out);
            let rows = tile.len();
            let mixed = &mut mixed[..rows * size];
            let part = |first: usize, count: usize, column: usize| {
                Matrix::with_strides(&qkv[(b * seq_len + first) * width + column..], count, size, width, 1)
            };
            let key_head = heads.key_of(h as u32);
            let (query, key, value) = (heads.query(h as u32), heads.key(key_head), heads.value(key_head));
            let mut softmax = Softmax { largest: [f32::NEG_INFINITY; TILE], total: [0.0; TILE] };
            let mut update = Update::Overwrite;
            let first_seen = |row: usize| documents.first_seen(b * seq_len + row, row);
            let mut firsts = [0; TILE];
            firsts.iter_mut().zip(tile.clone()).for_each(|(first, row)| *first = first_seen(row));
            tiles.steps(&tile, firsts[0], |keys| {
                let n = keys.len();
                let scores = &mut scores[..rows * n];
                let (q, k) = (part(tile.start, rows, query), part(keys.start, n, key));
                gemm::small(q, k.transposed(), MatrixMut::new(scores, rows, n), Update::Overwrite, scratch);
                softmax.step(scores, keys.clone(), (tile.start, &firsts), scale, mixed);
                let (p, v) = (Matrix::new(scores, rows, n), part(keys.start, n, value));
                gemm::small(p, v, MatrixMut::new(mixed, rows, size), update, scratch);
                update = Update::Accumulate;
            });
            for (r, (row, mixed)) in tile.clone().zip(mixed.chunks_exact(size)).enumerate() {
                let at = (b * seq_len + row) * out_width + h * size;
                // SAFETY: these elements of a row belong to its tile and head, so to this task alone.
                let to = unsafe { out.range(at..at + size) };
                let inverse = 1.0 / softmax.total[r];
                for (to, x) in to.iter_mut().zip(mixed) {
                    *to = x * inverse;
                }
            }
            let at = pair * seq_len + tile.start;
            // SAFETY: as above.
            let log_sum = unsafe { log_sum.range(at..at + rows) };
            for (r, log_sum) in log_sum.iter_mut().enumerate() {
                *log_sum = softmax.largest[r] + libm::logf(softmax.total[r]);
            }
        });
        Ok(())
    }
}

/// The running softmax of a tile's rows: the largest score so far, and the sum of the exponentials relative to it.
struct Softmax {
    largest: [f32; TILE],
    total: [f32; TILE],
}

impl Softmax {
    /// Converts the scores of a step into weights relative to the largest score so far, and rescales `mixed`, the sum
    /// over earlier steps, accordingly. The scores have a row for each query, from the first of `keys` on. Each query
    /// sees keys from its own entry of `firsts` to itself.
    fn step(
        &mut self,
        scores: &mut [f32],
        keys: Range<usize>,
        (query, firsts): (usize, &[usize; TILE]),
        scale: f32,
        mixed: &mut [f32],
    ) {
        let n = keys.len();
        let size = mixed.len() / (scores.len() / n);
        let state = self.largest.iter_mut().zip(&mut self.total);
        vectorise!({
            let rows = scores.chunks_exact_mut(n).zip(mixed.chunks_exact_mut(size));
            for (r, ((row, mixed), (largest, total))) in rows.zip(state).enumerate() {
                let (row, later) = row.split_at_mut((query + r + 1).saturating_sub(keys.start).min(n));
                later.fill(0.0);
                let (before, row) = row.split_at_mut(firsts[r].saturating_sub(keys.start).min(row.len()));
                before.fill(0.0);
                let now = simd::max(row) * scale;
                let now = if now > *largest { now } else { *largest };
                if now > *largest && *largest > f32::NEG_INFINITY {
                    let shrink = simd::exp(*largest - now);
                    *total *= shrink;
                    for x in mixed.iter_mut() {
                        *x *= shrink;
                    }
                }
                *largest = now;
                *total += exponentials(row, scale, now);
            }
        },);
    }
}

/// `row[i] = e^(row[i] · scale − shift)`; the sum of the new row.
#[inline(always)]
fn exponentials(row: &mut [f32], scale: f32, shift: f32) -> f32 {
    for x in row.iter_mut() {
        *x = simd::exp(x.mul_add(scale, -shift));
    }
    simd::fold_pairs(row, row, |sum, x, _| sum + x)
}
