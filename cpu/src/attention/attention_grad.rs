//! The gradient of causal attention: a task is one key head of one sequence with all its query heads, so that no other
//! task adds to its gradients. Probabilities are recomputed from the logarithmic sums, a tile of queries and a step of
//! keys at a time.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{AttentionGrad, Documents, Heads, Rotary};
use capful_core::views;

use super::tiles::{STEP, TILE, Tiles};
use crate::gemm::{self, Matrix, MatrixMut, Update};
use crate::pool::Parts;
use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// The scratch of a worker, in f32.
#[derive(Clone, Copy)]
struct WorkerScratch {
    /// The gradients of a head's keys; its values take the same size.
    sequence: usize,
    /// The gradient of a tile of queries.
    tile: usize,
    /// Probabilities of a tile and a step; their gradients take the same size.
    scores: usize,
    /// Scratch of the matrix multiplications.
    product: usize,
}

impl WorkerScratch {
    fn new(op: &AttentionGrad) -> WorkerScratch {
        let [size, seq_len] = [op.heads.size, op.qkv.shape[2]].map(|n| n as usize);
        let keys = STEP.min(seq_len);
        let product = [(TILE, keys, size), (TILE, size, keys), (keys, size, TILE)];
        let product = product.map(|(m, n, k)| gemm::small_scratch_len(m, n, k)).into_iter().max();
        WorkerScratch {
            sequence: seq_len * size,
            tile: TILE * size,
            scores: TILE * keys,
            product: product.unwrap_or_default(),
        }
    }

    fn len(&self) -> usize {
        2 * self.sequence + self.tile + 2 * self.scores + self.product
    }
}

impl OnCpu for AttentionGrad {
    fn scratch(&self, profile: &CpuProfile) -> u64 {
        bytes(WorkerScratch::new(self).len() * profile.workers())
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        views!(arena;
            qkv = Some(self.qkv),
            out = Some(self.out),
            log_sum = Some(self.log_sum),
            out_grad = Some(self.out_grad),
            table = Some(self.rotary.table),
            mut qkv_grad = Some(self.qkv_grad),
            mut scratch = Some(cpu.scratch),
            offsets = self.offsets,
        );
        let share = WorkerScratch::new(&self);
        let head = Head {
            op: &self,
            share,
            tiles: Tiles::new(self.pattern, self.qkv.shape[2] as usize),
            documents: Documents::new(offsets.u32()?),
            qkv: qkv.f32()?,
            out: out.f32()?,
            log_sum: log_sum.f32()?,
            out_grad: out_grad.f32()?,
            table: table.f32()?,
            qkv_grad: Parts::new(qkv_grad.f32_mut()?),
        };
        let scratch = &mut scratch.f32_mut()?[..share.len() * cpu.pool.threads()];
        let keys = self.heads.keys as usize;
        cpu.pool.tasks_with(scratch, self.qkv.shape[1] as usize * keys, |_, task, scratch| {
            head.run(task / keys, (task % keys) as u32, scratch);
        });
        Ok(())
    }
}

/// Values that the tasks share.
struct Head<'a> {
    op: &'a AttentionGrad,
    share: WorkerScratch,
    tiles: Tiles,
    documents: Documents<'a>,
    qkv: &'a [f32],
    out: &'a [f32],
    log_sum: &'a [f32],
    out_grad: &'a [f32],
    table: &'a [f32],
    qkv_grad: Parts<'a, f32>,
}

impl Head<'_> {
    /// Computes all gradients of key head `g` of sequence `b` and of its query heads.
    fn run(&self, b: usize, g: u32, scratch: &mut [f32]) {
        let (heads, share) = (&self.op.heads, &self.share);
        let size = heads.size as usize;
        let (key_grad, scratch) = scratch.split_at_mut(share.sequence);
        let (value_grad, scratch) = scratch.split_at_mut(share.sequence);
        key_grad.fill(0.0);
        value_grad.fill(0.0);
        let group = heads.queries / heads.keys;
        for h in g * group..(g + 1) * group {
            for tile in (0..self.tiles.count()).map(|n| self.tiles.tile(n)).filter(|t| !t.is_empty()) {
                self.tile(b, h, tile, key_grad, value_grad, scratch);
            }
        }
        for (row, (dk, dv)) in key_grad.chunks_exact_mut(size).zip(value_grad.chunks_exact(size)).enumerate() {
            self.write(b, row, heads.value(g), dv);
            self.turn_back(b, row, dk);
            self.write(b, row, heads.key(g), dk);
        }
    }

    /// Computes the gradient of a tile of queries of head `h`, and adds to the gradients of its keys and values.
    fn tile(
        &self,
        b: usize,
        h: u32,
        tile: std::ops::Range<usize>,
        key_grad: &mut [f32],
        value_grad: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (op, share, rows) = (self.op, &self.share, tile.len());
        let [_, _, seq_len, width] = op.qkv.shape.map(|n| n as usize);
        let (heads, size, scale) = (&op.heads, op.heads.size as usize, op.heads.scale());
        let (query_grad, scratch) = scratch.split_at_mut(share.tile);
        let (scores, scratch) = scratch.split_at_mut(share.scores);
        let (slopes, scratch) = scratch.split_at_mut(share.scores);
        let query_grad = &mut query_grad[..rows * size];
        let part = |first: usize, count: usize, column: usize| {
            Matrix::with_strides(&self.qkv[(b * seq_len + first) * width + column..], count, size, width, 1)
        };
        let key_head = heads.key_of(h);
        let (query, key, value) = (heads.query(h), heads.key(key_head), heads.value(key_head));
        let out_width = heads.out_width() as usize;
        let out_at = (b * seq_len + tile.start) * out_width + h as usize * size;
        let q = part(tile.start, rows, query);
        let dout = Matrix::with_strides(self.out_grad.get(out_at..).unwrap_or(&[]), rows, size, out_width, 1);
        let log_sum = (b * heads.queries as usize + h as usize) * seq_len + tile.start;
        let log_sum = &self.log_sum[log_sum..log_sum + rows];
        let mut means = [0.0; TILE];
        vectorise!({
            for (r, mean) in means[..rows].iter_mut().enumerate() {
                let at = out_at + r * out_width..out_at + r * out_width + size;
                *mean = simd::dot(&self.out_grad[at.clone()], &self.out[at]);
            }
        },);
        let mut update = Update::Overwrite;
        let first_seen = |row: usize| self.documents.first_seen(b * seq_len + row, row);
        let mut firsts = [0; TILE];
        firsts.iter_mut().zip(tile.clone()).for_each(|(first, row)| *first = first_seen(row));
        self.tiles.steps(&tile, firsts[0], |keys| {
            let n = keys.len();
            let (k, v) = (part(keys.start, n, key), part(keys.start, n, value));
            let (scores, slopes) = (&mut scores[..rows * n], &mut slopes[..rows * n]);
            gemm::small(q, k.transposed(), MatrixMut::new(scores, rows, n), Update::Overwrite, scratch);
            gemm::small(dout, v.transposed(), MatrixMut::new(slopes, rows, n), Update::Overwrite, scratch);
            vectorise!({
                let lines = scores.chunks_exact_mut(n).zip(slopes.chunks_exact_mut(n));
                for (r, ((p, ds), (log_sum, mean))) in lines.zip(log_sum.iter().zip(&means)).enumerate() {
                    let seen = (tile.start + r + 1).saturating_sub(keys.start).min(n);
                    let before = firsts[r].saturating_sub(keys.start).min(seen);
                    p[..before].fill(0.0);
                    ds[..before].fill(0.0);
                    for (p, ds) in p[before..seen].iter_mut().zip(&mut ds[before..seen]) {
                        *p = simd::exp(p.mul_add(scale, -log_sum));
                        *ds = *p * (*ds - mean) * scale;
                    }
                    p[seen..].fill(0.0);
                    ds[seen..].fill(0.0);
                }
            },);
            let (p, ds) = (Matrix::new(scores, rows, n), Matrix::new(slopes, rows, n));
            let own = keys.start * size..keys.end * size;
            let dv = MatrixMut::new(&mut value_grad[own.clone()], n, size);
            gemm::small(p.transposed(), dout, dv, Update::Accumulate, scratch);
            let dk = MatrixMut::new(&mut key_grad[own], n, size);
            gemm::small(ds.transposed(), q, dk, Update::Accumulate, scratch);
            gemm::small(ds, k, MatrixMut::new(query_grad, rows, size), update, scratch);
            update = Update::Accumulate;
        });
        for (row, dq) in tile.zip(query_grad.chunks_exact_mut(size)) {
            self.turn_back(b, row, dq);
            self.write(b, row, query, dq);
        }
    }

    /// Applies the inverse rotation to one head's gradient at row `row` of sequence `b`.
    fn turn_back(&self, b: usize, row: usize, head: &mut [f32]) {
        let rotary = &self.op.rotary;
        let (dims, alone) = (rotary.dims() as usize, Heads::grouped(1, 0, rotary.heads.size));
        let position = (b * self.op.qkv.shape[2] as usize + row) % rotary.positions as usize;
        Rotary::rotate(&alone, self.table, dims, position, head, true).expect("a validated operation's table");
    }

    /// Writes one head's gradient at a row of sequence `b`.
    fn write(&self, b: usize, row: usize, column: usize, values: &[f32]) {
        let [_, _, seq_len, width] = self.op.qkv.shape.map(|n| n as usize);
        let at = (b * seq_len + row) * width + column;
        // SAFETY: the columns of a head in the rows of a sequence belong to a single task, which writes them here and
        // keeps no reference.
        unsafe { self.qkv_grad.range(at..at + values.len()) }.copy_from_slice(values);
    }
}
