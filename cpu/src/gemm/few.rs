//! Matrix multiplication of few rows with the transpose of a matrix, as in decoding. Its speed is limited by reading B,
//! so B is read once, in place, without packing.

use pulp::{Simd, WithSimd};

/// Multiplications of at most this many rows use this code.
pub(super) const MAX_ROWS: usize = 8;

/// C[i, j] (+)= Σ_p A[i, p] · B[p, j], each element a dot product of two contiguous vectors of length `depth`.
pub(super) struct Dots {
    pub rows: usize,
    pub cols: usize,
    pub depth: usize,
    /// Row i at `a + i * a_row`.
    pub a: *const f32,
    pub a_row: usize,
    /// Column j at `b + j * b_col`.
    pub b: *const f32,
    pub b_col: usize,
    /// Row i at `c + i * c_row`.
    pub c: *mut f32,
    pub c_row: usize,
    pub accumulate: bool,
}

impl WithSimd for Dots {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Four columns at a time where the registers suffice, so that reads of B run ahead.
        let mut j = 0;
        while j < self.cols {
            let wide = S::REGISTER_COUNT >= 32 && self.cols - j >= 4;
            let mut i = 0;
            while i < self.rows {
                let left = self.rows - i;
                // SAFETY: the creator of `Dots` vouches for the matrices; i + rows and j + columns stay inside.
                unsafe {
                    i += match (wide, left) {
                        (true, 4..) => self.dots::<S, 4, 4>(simd, i, j),
                        (true, 2..) => self.dots::<S, 2, 4>(simd, i, j),
                        (true, _) => self.dots::<S, 1, 4>(simd, i, j),
                        (false, 4..) => self.dots::<S, 4, 1>(simd, i, j),
                        (false, 2..) => self.dots::<S, 2, 1>(simd, i, j),
                        (false, _) => self.dots::<S, 1, 1>(simd, i, j),
                    };
                }
            }
            j += if wide { 4 } else { 1 };
        }
    }
}

impl Dots {
    /// `ROWS × COLS` dot products from (i, j) on; returns `ROWS`. Each is summed in an order independent of `ROWS` and
    /// `COLS`: a vector of partial sums, then its lanes, then the remainder of the depth.
    ///
    /// # Safety
    /// The matrices must be valid for those rows and columns.
    #[inline(always)]
    unsafe fn dots<S: Simd, const ROWS: usize, const COLS: usize>(&self, simd: S, i: usize, j: usize) -> usize {
        let lanes = S::F32_LANES;
        let whole = self.depth - self.depth % lanes;
        let zero = simd.splat_f32s(0.0);
        let mut sums = [[zero; COLS]; ROWS];
        // SAFETY: reads of `lanes` elements below `whole`, then single ones below `depth`; the contract for the rest.
        unsafe {
            let a = |row: usize, p: usize| self.a.add((i + row) * self.a_row + p);
            let b = |col: usize, p: usize| self.b.add((j + col) * self.b_col + p);
            for p in (0..whole).step_by(lanes) {
                let mut right = [zero; COLS];
                for (col, right) in right.iter_mut().enumerate() {
                    prefetch(b(col, p).wrapping_add(COLS * self.b_col));
                    *right = b(col, p).cast::<S::f32s>().read_unaligned();
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let left = a(row, p).cast::<S::f32s>().read_unaligned();
                    for (sum, &right) in sums.iter_mut().zip(&right) {
                        *sum = simd.mul_add_e_f32s(left, right, *sum);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                for (col, &sum) in sums.iter().enumerate() {
                    let mut sum = simd.reduce_sum_f32s(sum);
                    for p in whole..self.depth {
                        sum += *a(row, p) * *b(col, p);
                    }
                    let target = self.c.add((i + row) * self.c_row + j + col);
                    *target = if self.accumulate { *target + sum } else { sum };
                }
            }
        }
        ROWS
    }
}

/// Prefetches the cache line at an address, which need not be valid: each row of B is so short that the hardware
/// prefetcher would start too late.
#[inline(always)]
fn prefetch(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that touches no memory.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
