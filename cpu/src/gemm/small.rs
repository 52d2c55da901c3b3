//! A matrix multiplication by one thread, of a size that fits its caches.

use pulp::{Arch, Simd, WithSimd};

use super::kernel::{self, Left, MAX_TILE_COLS, MAX_TILE_ROWS, Right, Target};
use super::pack::{self, Panels, Source};
use super::{LINE, Matrix, MatrixMut, Update, split_scratch};
use crate::simd;

/// The scratch that [`small`] needs for C `[m, n]` and depth `k`, in f32: the same for all strides.
pub fn small_scratch_len(m: usize, n: usize, k: usize) -> usize {
    2 * LINE + (m.next_multiple_of(MAX_TILE_ROWS) + n.next_multiple_of(MAX_TILE_COLS)) * k
}

/// C = A · B or C += A · B by the calling thread: for multiplications of some 16 to 128 a side inside a task, as in
/// attention. The whole depth is summed before the sum is added to C.
///
/// # Panics
/// If the shapes disagree or the scratch is shorter than [`small_scratch_len`].
pub fn small(a: Matrix<'_>, b: Matrix<'_>, c: MatrixMut<'_>, update: Update, scratch: &mut [f32]) {
    small_on(simd::arch(), a, b, c, update, scratch);
}

pub(super) fn small_on(
    arch: Arch,
    a: Matrix<'_>,
    b: Matrix<'_>,
    c: MatrixMut<'_>,
    update: Update,
    scratch: &mut [f32],
) {
    assert!(a.rows == c.rows && b.cols == c.cols && a.cols == b.rows, "{a:?} · {b:?} → {} × {}", c.rows, c.cols);
    let needed = small_scratch_len(c.rows, c.cols, a.cols);
    assert!(scratch.len() >= needed, "scratch of {} f32, {needed} needed", scratch.len());
    arch.dispatch(Small { a, b, c, update, scratch });
}

struct Small<'a> {
    a: Matrix<'a>,
    b: Matrix<'a>,
    c: MatrixMut<'a>,
    update: Update,
    scratch: &'a mut [f32],
}

impl WithSimd for Small<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { a, b, c, update, scratch } = self;
        let (tile_rows, tile_cols) = (kernel::tile_rows::<S>(), kernel::tile_cols::<S>());
        let depth = a.cols;
        let (scratch_a, scratch_b) = split_scratch(scratch, c.rows.next_multiple_of(MAX_TILE_ROWS) * depth);
        // A is read in place if it is contiguous in either direction.
        let left = if a.col_stride == 1 || a.row_stride == 1 {
            Left { start: a.data.as_ptr(), panel: tile_rows * a.row_stride, row: a.row_stride, col: a.col_stride }
        } else {
            let source = Source { start: a.data.as_ptr(), line: a.row_stride, depth: a.col_stride };
            let to = Panels { start: scratch_a.as_mut_ptr(), width: tile_rows, panel: tile_rows * depth, pad: 1 };
            // SAFETY: the matrix has checked its extent; the scratch is long enough, as asserted, and ours.
            unsafe { pack::pack(simd, source, 0..a.rows, 0..depth, to) };
            Left { start: scratch_a.as_ptr(), panel: tile_rows * depth, row: 1, col: tile_rows }
        };
        // B is read in place too, except for columns short of a whole tile, where the kernel would read past the end.
        let in_place = if b.col_stride == 1 { b.cols - b.cols % tile_cols } else { 0 };
        let target = Target { start: c.data.as_mut_ptr(), row: c.row_stride };
        let accumulate = update == Update::Accumulate;
        if in_place > 0 {
            let right = Right { start: b.data.as_ptr(), panel: tile_cols, row: b.row_stride };
            // SAFETY: A and whole tiles of B and C inside their matrices.
            unsafe { kernel::product(simd, (c.rows, in_place, depth), left, right, target, accumulate) };
        }
        if in_place < c.cols {
            let start = b.data.as_ptr().wrapping_add(in_place * b.col_stride);
            let source = Source { start, line: b.col_stride, depth: b.row_stride };
            let to =
                Panels { start: scratch_b.as_mut_ptr(), width: tile_cols, panel: tile_cols * depth, pad: S::F32_LANES };
            let right = Right { start: to.start.cast_const(), panel: tile_cols * depth, row: tile_cols };
            let target = Target { start: target.start.wrapping_add(in_place), ..target };
            let cols = c.cols - in_place;
            // SAFETY: the rest of B is packed into the scratch, long enough as asserted, panel after whole panel.
            unsafe {
                pack::pack(simd, source, 0..cols, 0..depth, to);
                kernel::product(simd, (c.rows, cols, depth), left, right, target, accumulate);
            }
        }
    }
}
