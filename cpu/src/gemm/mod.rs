//! Matrix multiplication in f32: C = A · B or C += A · B, with any strides.
//!
//! - [`product`] divides one matrix multiplication among the threads of a [`Pool`] and passes each finished block of C
//!   to an [epilogue](Block) while it is in cache; [`small`] is for a multiplication inside a task.
//! - **The same bits for every number of threads**: an element of C is a sum over the depth in chunks of fixed length,
//!   first to last; each chunk is summed by fused multiply-adds in order. The chunks depend only on the shape, the kind
//!   of strides and the instruction set.
//! - **No allocation**: packed copies of the operands are made in scratch from the caller, see [`scratch_len`] and
//!   [`small_scratch_len`]. The content of the scratch before and after a call is meaningless.
//!
//! The three matrix multiplications of a linear layer with weight W `[out, in]`, x `[rows, in]`, dy `[rows, out]`, all
//! row-major: `y = x · Wᵀ`, `dx = dy · W`, `dW += dyᵀ · x`:
//!
//! ```
//! use capful_cpu::{gemm::{self, Matrix, MatrixMut, Update}, pool::Pool};
//! let (rows, inputs, outputs) = (2, 3, 2);
//! let mut pool = Pool::new(2);
//! let mut scratch = vec![0.0; gemm::scratch_len(rows, outputs, inputs, pool.threads())];
//! let (x, w, bias) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.0, 1.0, 0.0, 2.0, 0.0], [0.5, -1.0]);
//! let mut y = [f32::NAN; 4];
//! let x = Matrix::new(&x, rows, inputs);
//! let w = Matrix::new(&w, outputs, inputs);
//! let c = MatrixMut::new(&mut y, rows, outputs);
//! gemm::product(&mut pool, x, w.transposed(), c, Update::Overwrite, &mut scratch, |_worker, mut block| {
//!     let cols = block.cols();
//!     for row in block.rows() {
//!         block.row(row).iter_mut().zip(&bias[cols.clone()]).for_each(|(y, b)| *y += b);
//!     }
//! });
//! assert_eq!(y, [4.5, 3.0, 10.5, 9.0]);
//! ```

mod few;
mod kernel;
mod matrix;
mod pack;
mod small;
#[cfg(test)]
mod tests;

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use self::kernel::{Left, MAX_TILE_COLS, MAX_TILE_ROWS, Right, Target};
pub use self::matrix::{Block, Matrix, MatrixMut};
use self::pack::{Panels, Source};
pub use self::small::{small, small_scratch_len};
use super::pool::Pool;
use super::simd;

/// How C's former value is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// C = A · B; C is not read.
    Overwrite,
    /// C += A · B.
    Accumulate,
}

/// Sizes of a phase: at most this many rows of A, columns of B and steps of depth are packed at a time. At most 8 MiB,
/// with B's part of 4 MiB in the nearer caches; the depth is a multiple of every kernel's chunk.
const PHASE_ROWS: usize = 1536;
const PHASE_COLS: usize = 1024;
const PHASE_DEPTH: usize = 1024;
/// A task: a block of C of about this size, so that its part of B stays in the second-level cache.
const BLOCK_ROWS: usize = 96;
const BLOCK_COLS: usize = 256;
/// With fewer blocks than this, blocks have half the size; otherwise many threads would have no work.
const FEW_BLOCKS: usize = 16;
/// A packing task: this many lines by this many steps of depth.
const PACK_LINES: usize = 192;
const PACK_DEPTH: usize = 128;
/// A task of a multiplication of few rows: this many columns.
const FEW_COLS: usize = 64;

/// The scratch that [`product`] needs for C `[m, n]` and depth `k`, in f32: the same for all strides and threads.
pub fn scratch_len(m: usize, n: usize, k: usize, _threads: usize) -> usize {
    let lines = m.min(PHASE_ROWS).next_multiple_of(MAX_TILE_ROWS) + n.min(PHASE_COLS).next_multiple_of(MAX_TILE_COLS);
    2 * LINE + lines * k.min(PHASE_DEPTH)
}

/// Number of f32 in a cache line; each packed operand begins at a cache line.
const LINE: usize = 16;

/// The scratch from its first whole cache line on, divided in two; the second part begins at a cache line too.
fn split_scratch(scratch: &mut [f32], first: usize) -> (&mut [f32], &mut [f32]) {
    let skip = scratch.as_ptr().align_offset(LINE * size_of::<f32>());
    scratch[skip..].split_at_mut(first.next_multiple_of(LINE))
}

/// C = A · B or C += A · B by all threads of the pool.
///
/// `epilogue(worker, block)` is called once for each block of C when it is finished, by the thread that finished it.
/// The blocks cover C; how C is cut depends on the shape only.
///
/// # Panics
/// If the shapes disagree or the scratch is shorter than [`scratch_len`]; with an epilogue's panic.
pub fn product(
    pool: &mut Pool,
    a: Matrix<'_>,
    b: Matrix<'_>,
    c: MatrixMut<'_>,
    update: Update,
    scratch: &mut [f32],
    epilogue: impl Fn(usize, Block<'_>) + Sync,
) {
    product_on(simd::arch(), pool, a, b, c, update, scratch, epilogue);
}

#[allow(clippy::too_many_arguments, reason = "those of `product`, and the instruction set")]
fn product_on(
    arch: Arch,
    pool: &mut Pool,
    a: Matrix<'_>,
    b: Matrix<'_>,
    c: MatrixMut<'_>,
    update: Update,
    scratch: &mut [f32],
    epilogue: impl Fn(usize, Block<'_>) + Sync,
) {
    assert!(a.rows == c.rows && b.cols == c.cols && a.cols == b.rows, "{a:?} · {b:?} → {} × {}", c.rows, c.cols);
    let needed = scratch_len(c.rows, c.cols, a.cols, pool.threads());
    assert!(scratch.len() >= needed, "scratch of {} f32, {needed} needed", scratch.len());
    if c.rows == 0 || c.cols == 0 {
        return;
    }
    arch.dispatch(Product { pool, a, b, c, update, scratch, epilogue });
}

struct Product<'a, E> {
    pool: &'a mut Pool,
    a: Matrix<'a>,
    b: Matrix<'a>,
    c: MatrixMut<'a>,
    update: Update,
    scratch: &'a mut [f32],
    epilogue: E,
}

impl<E: Fn(usize, Block<'_>) + Sync> WithSimd for Product<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.a.rows <= few::MAX_ROWS && self.b.row_stride == 1 && self.a.col_stride == 1 {
            self.few_rows(simd);
        } else {
            self.in_phases(simd);
        }
    }
}

/// A pointer that tasks may capture; every use states what makes it valid.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: only an address; every use has its own reason.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// A method, so that closures capture the whole struct and not the raw pointer in it.
    fn get(self) -> *mut T {
        self.0
    }
}

impl<E: Fn(usize, Block<'_>) + Sync> Product<'_, E> {
    fn few_rows<S: Simd>(self, simd: S) {
        let Self { pool, a, b, c, update, epilogue, .. } = self;
        let target = Shared(c.data.as_mut_ptr());
        pool.tasks(c.cols.div_ceil(FEW_COLS), |worker, task| {
            let cols = task * FEW_COLS..c.cols.min((task + 1) * FEW_COLS);
            simd.vectorize(few::Dots {
                rows: c.rows,
                cols: cols.len(),
                depth: a.cols,
                a: a.data.as_ptr(),
                a_row: a.row_stride,
                b: b.data.as_ptr().wrapping_add(cols.start * b.col_stride),
                b_col: b.col_stride,
                c: target.get().wrapping_add(cols.start),
                c_row: c.row_stride,
                accumulate: update == Update::Accumulate,
            });
            // SAFETY: these columns belong to this task alone.
            epilogue(worker, unsafe { Block::new(target.get(), c.row_stride, 0..c.rows, cols) });
        });
    }

    fn in_phases<S: Simd>(self, simd: S) {
        let Self { pool, a, b, c, update, scratch, epilogue } = self;
        let (tile_rows, tile_cols) = (kernel::tile_rows::<S>(), kernel::tile_cols::<S>());
        let target = Shared(c.data.as_mut_ptr());
        // The kernel reads A in place if A is contiguous along the depth; if it is contiguous along the rows, only when
        // so few columns use it that a copy would not pay.
        let packs_a = a.col_stride != 1 && (a.row_stride != 1 || c.cols > 2 * tile_cols);
        let phase_rows = if packs_a { PHASE_ROWS } else { usize::MAX };
        let (scratch_a, scratch_b) = {
            let a_len = c.rows.min(PHASE_ROWS).next_multiple_of(MAX_TILE_ROWS) * a.cols.min(PHASE_DEPTH);
            let (a, b) = split_scratch(scratch, a_len);
            (Shared(a.as_mut_ptr()), Shared(b.as_mut_ptr()))
        };
        for cols in steps(0..c.cols, PHASE_COLS) {
            // At least one step, so that a multiplication of depth 0 sets C to 0.
            for depths in steps(0..a.cols.max(1), PHASE_DEPTH) {
                let depths = depths.start..depths.end.min(a.cols);
                let (first, last) = (depths.start == 0, depths.end == a.cols);
                for rows in steps(0..c.rows, phase_rows) {
                    let depth = depths.len();
                    let pack_b = Grid::new(if rows.start == 0 { cols.len() } else { 0 }, depth, PACK_LINES, PACK_DEPTH);
                    let pack_a = Grid::new(if packs_a { rows.len() } else { 0 }, depth, PACK_LINES, PACK_DEPTH);
                    pool.tasks(pack_b.count() + pack_a.count(), |_, task| {
                        // The lines of B are its columns, those of A its rows.
                        let ((lines, steps), from, width, pad, to) = if task < pack_b.count() {
                            let start = b.data.as_ptr().wrapping_add(cols.start * b.col_stride);
                            let from = Source { start, line: b.col_stride, depth: b.row_stride };
                            (pack_b.part(task), from, tile_cols, S::F32_LANES, scratch_b)
                        } else {
                            let start = a.data.as_ptr().wrapping_add(rows.start * a.row_stride);
                            let from = Source { start, line: a.row_stride, depth: a.col_stride };
                            (pack_a.part(task - pack_b.count()), from, tile_rows, 1, scratch_a)
                        };
                        let from = Source { start: from.start.wrapping_add(depths.start * from.depth), ..from };
                        let to = Panels { start: to.get(), width, panel: width * depth, pad };
                        // SAFETY: the part lies inside the operand, whose extent its `Matrix` has checked; its panels
                        // inside the scratch, by its length; parts begin at whole panels and are disjoint.
                        unsafe { pack::pack(simd, from, lines, steps, to) };
                    });
                    let blocks = Grid::blocks(rows.len(), cols.len(), tile_rows, tile_cols);
                    pool.tasks(blocks.count(), |worker, task| {
                        let (own_rows, own_cols) = blocks.part(task);
                        let offset = (rows.start + own_rows.start) * c.row_stride + cols.start + own_cols.start;
                        let block = Target { start: target.get().wrapping_add(offset), row: c.row_stride };
                        for chunk in steps(0..depth.max(1), kernel::chunk_depth::<S>()) {
                            let length = chunk.end.min(depth) - chunk.start;
                            let a = if packs_a {
                                let first = own_rows.start * depth + chunk.start * tile_rows;
                                let start = scratch_a.get().cast_const().wrapping_add(first);
                                Left { start, panel: tile_rows * depth, row: 1, col: tile_rows }
                            } else {
                                let first = (rows.start + own_rows.start) * a.row_stride
                                    + (depths.start + chunk.start) * a.col_stride;
                                let start = a.data.as_ptr().wrapping_add(first);
                                Left { start, panel: tile_rows * a.row_stride, row: a.row_stride, col: a.col_stride }
                            };
                            let b_first = own_cols.start * depth + chunk.start * tile_cols;
                            let b = Right {
                                start: scratch_b.get().cast_const().wrapping_add(b_first),
                                panel: tile_cols * depth,
                                row: tile_cols,
                            };
                            let accumulate = update == Update::Accumulate || !first || chunk.start > 0;
                            let extents = (own_rows.len(), own_cols.len(), length);
                            // SAFETY: A's part lies inside the operand or its packed copy, B's inside its packed copy,
                            // which is as wide as whole tiles; the block of C belongs to this task alone.
                            unsafe { kernel::product(simd, extents, a, b, block, accumulate) };
                        }
                        if last {
                            let own_rows = rows.start + own_rows.start..rows.start + own_rows.end;
                            let own_cols = cols.start + own_cols.start..cols.start + own_cols.end;
                            // SAFETY: the block belongs to this task alone.
                            epilogue(worker, unsafe { Block::new(target.get(), c.row_stride, own_rows, own_cols) });
                        }
                    });
                }
            }
        }
    }
}

/// Divides a range into steps of a given length.
fn steps(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(step).map(move |start| start..end.min(start.saturating_add(step)))
}

/// A rectangle divided into parts, numbered along the first extent and then along the second.
struct Grid {
    extents: [usize; 2],
    part: [usize; 2],
}

impl Grid {
    fn new(first: usize, second: usize, first_part: usize, second_part: usize) -> Self {
        Self { extents: [first, second], part: [first_part, second_part] }
    }

    /// Blocks of C: whole tiles, of about equal size.
    fn blocks(rows: usize, cols: usize, tile_rows: usize, tile_cols: usize) -> Self {
        let even =
            |extent: usize, part: usize, tile: usize| extent.div_ceil(extent.div_ceil(part)).next_multiple_of(tile);
        let large = Self::new(rows, cols, even(rows, BLOCK_ROWS, tile_rows), even(cols, BLOCK_COLS, tile_cols));
        if large.count() >= FEW_BLOCKS {
            return large;
        }
        Self::new(rows, cols, even(rows, BLOCK_ROWS / 2, tile_rows), even(cols, BLOCK_COLS / 2, tile_cols))
    }

    fn count(&self) -> usize {
        self.extents[0].div_ceil(self.part[0]) * self.extents[1].div_ceil(self.part[1])
    }

    fn part(&self, number: usize) -> (Range<usize>, Range<usize>) {
        let down = self.extents[0].div_ceil(self.part[0]);
        let cut = |side: usize, index: usize| {
            let start = index * self.part[side];
            start..self.extents[side].min(start + self.part[side])
        };
        (cut(0, number % down), cut(1, number / down))
    }
}
