//! Copies operands into the order in which the [kernel](super::kernel) reads them: panels of a tile's width, each depth
//! by depth.

use std::ops::Range;

use pulp::{Simd, WithSimd};

/// A matrix that is divided into panels along its lines: element (line j, depth p) at `start + j * line + p * depth`.
/// For A the lines are rows, for B columns.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub start: *const f32,
    pub line: usize,
    pub depth: usize,
}

/// Panels of `width` lines: element (line j, depth p) at `start + j / width * panel + p * width + j % width`.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub start: *mut f32,
    pub width: usize,
    pub panel: usize,
    /// Zeros pad the last panel to a multiple of this many lines, which the kernel reads.
    pub pad: usize,
}

/// Packs `lines` (beginning at a panel's first line) × `depths` of the source.
///
/// # Safety
/// The source must be readable there; the panels must be writable, and nothing else may access them.
pub(super) unsafe fn pack<S: Simd>(simd: S, source: Source, lines: Range<usize>, depths: Range<usize>, to: Panels) {
    let (line, depth) = (source.line, source.depth);
    if line == 1 {
        match to.width {
            64 => simd.vectorize(Copy::<64> { source, lines, depths, to }),
            32 => simd.vectorize(Copy::<32> { source, lines, depths, to }),
            16 => simd.vectorize(Copy::<16> { source, lines, depths, to }),
            12 => simd.vectorize(Copy::<12> { source, lines, depths, to }),
            8 => simd.vectorize(Copy::<8> { source, lines, depths, to }),
            6 => simd.vectorize(Copy::<6> { source, lines, depths, to }),
            _ => one_by_one(source, lines, depths, to),
        }
    } else if depth == 1 {
        simd.vectorize(Transpose { source, lines, depths, to });
    } else {
        one_by_one(source, lines, depths, to);
    }
}

fn one_by_one(source: Source, lines: Range<usize>, depths: Range<usize>, to: Panels) {
    let end = lines.end.next_multiple_of(to.pad);
    for j in lines.start..end {
        for p in depths.clone() {
            // SAFETY: the contract of `pack`.
            unsafe {
                let element = if j < lines.end { *source.start.add(j * source.line + p * source.depth) } else { 0.0 };
                *to.start.add(j / to.width * to.panel + p * to.width + j % to.width) = element;
            }
        }
    }
}

/// The source is contiguous across the panel: rows are copied piece by piece.
struct Copy<const WIDTH: usize> {
    source: Source,
    lines: Range<usize>,
    depths: Range<usize>,
    to: Panels,
}

impl<const WIDTH: usize> WithSimd for Copy<WIDTH> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { source, lines, depths, to } = self;
        // A few rows at a time: their lines stay in the first-level cache even where all rows begin in the same set.
        const ROWS: usize = 8;
        for first in depths.clone().step_by(ROWS) {
            for j in lines.clone().step_by(WIDTH) {
                let width = WIDTH.min(lines.end - j);
                for p in first..depths.end.min(first + ROWS) {
                    // SAFETY: the contract of `pack`.
                    unsafe {
                        let from = source.start.add(p * source.depth + j);
                        let piece = to.start.add(j / WIDTH * to.panel + p * WIDTH);
                        if width == WIDTH {
                            std::ptr::copy_nonoverlapping(from, piece, WIDTH);
                        } else {
                            std::ptr::copy_nonoverlapping(from, piece, width);
                            std::ptr::write_bytes(piece.add(width), 0, width.next_multiple_of(to.pad) - width);
                        }
                    }
                }
            }
        }
    }
}

/// The source is contiguous along the depth: square blocks of it are transposed in registers.
struct Transpose {
    source: Source,
    lines: Range<usize>,
    depths: Range<usize>,
    to: Panels,
}

impl WithSimd for Transpose {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { source, lines, depths, to } = self;
        let side = square_side::<S>();
        let whole_depths = depths.start..depths.end - (depths.end - depths.start) % side.max(1);
        let mut j = lines.start;
        while side > 0 && to.width % side == 0 && j + side <= lines.end {
            let panel = j / to.width * to.panel + j % to.width;
            for p in whole_depths.clone().step_by(side) {
                // SAFETY: the contract of `pack`; the square lies inside lines × depths.
                unsafe {
                    let from = source.start.add(j * source.line + p);
                    transpose_square(simd, from, source.line, to.start.add(panel + p * to.width), to.width);
                }
            }
            for p in whole_depths.end..depths.end {
                for i in 0..side {
                    // SAFETY: as above.
                    unsafe {
                        *to.start.add(panel + p * to.width + i) = *source.start.add((j + i) * source.line + p);
                    }
                }
            }
            j += side;
        }
        // The remaining lines may start inside a panel, so they are copied element by element, including the zeros.
        one_by_one(source, j..lines.end, depths, to);
    }
}

/// The side of the squares for [`transpose_square`]; 0 if no such code exists.
const fn square_side<S: Simd>() -> usize {
    if cfg!(target_arch = "x86_64") && (S::F32_LANES == 16 || S::F32_LANES == 8) { S::F32_LANES } else { 0 }
}

/// Reads `side` rows `from_row` apart and writes `side` rows `to_row` apart, transposed.
///
/// # Safety
/// Both squares must be valid, the second for writing.
#[inline(always)]
unsafe fn transpose_square<S: Simd>(simd: S, from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the contract of this function; the instruction sets are available because their tokens exist.
    unsafe {
        if let Some(v4) = same::<S, pulp::x86::V4>(simd) {
            x86::transpose_16(v4, from, from_row, to, to_row);
        } else if let Some(v3) = same::<S, pulp::x86::V3>(simd) {
            x86::transpose_8(v3, from, from_row, to, to_row);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (simd, from, from_row, to, to_row);
}

/// The token as its concrete type; decided at compile time.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn same<S: Simd, T: Simd>(simd: S) -> Option<T> {
    if std::any::TypeId::of::<S>() == std::any::TypeId::of::<T>() {
        // SAFETY: S and T are the same type.
        Some(unsafe { std::mem::transmute_copy(&simd) })
    } else {
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256, __m512};

    use pulp::cast;
    use pulp::x86::{V3, V4};

    /// # Safety
    /// Both squares must be valid, the second for writing.
    #[inline(always)]
    pub(super) unsafe fn transpose_16(simd: V4, from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        let x = simd.avx512f;
        // SAFETY: row i of the first square.
        let load = |i: usize| unsafe { from.add(i * from_row).cast::<__m512>().read_unaligned() };
        // SAFETY: row i of the second square.
        let store = |i: usize, v: __m512| unsafe { to.add(i * to_row).cast::<__m512>().write_unaligned(v) };
        // fours[4 g + c], 128-bit lane l: rows 4 g .. 4 g + 4 of column 4 l + c.
        let mut fours = [load(0); 16];
        for g in 0..4 {
            let r = [load(4 * g), load(4 * g + 1), load(4 * g + 2), load(4 * g + 3)];
            let low = [x._mm512_unpacklo_ps(r[0], r[1]), x._mm512_unpacklo_ps(r[2], r[3])];
            let high = [x._mm512_unpackhi_ps(r[0], r[1]), x._mm512_unpackhi_ps(r[2], r[3])];
            fours[4 * g] = cast!(x._mm512_unpacklo_pd(cast!(low[0]), cast!(low[1])));
            fours[4 * g + 1] = cast!(x._mm512_unpackhi_pd(cast!(low[0]), cast!(low[1])));
            fours[4 * g + 2] = cast!(x._mm512_unpacklo_pd(cast!(high[0]), cast!(high[1])));
            fours[4 * g + 3] = cast!(x._mm512_unpackhi_pd(cast!(high[0]), cast!(high[1])));
        }
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        for c in 0..4 {
            let u = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
            let even = [x._mm512_shuffle_f32x4::<EVEN>(u[0], u[1]), x._mm512_shuffle_f32x4::<EVEN>(u[2], u[3])];
            let odd = [x._mm512_shuffle_f32x4::<ODD>(u[0], u[1]), x._mm512_shuffle_f32x4::<ODD>(u[2], u[3])];
            store(c, x._mm512_shuffle_f32x4::<EVEN>(even[0], even[1]));
            store(4 + c, x._mm512_shuffle_f32x4::<EVEN>(odd[0], odd[1]));
            store(8 + c, x._mm512_shuffle_f32x4::<ODD>(even[0], even[1]));
            store(12 + c, x._mm512_shuffle_f32x4::<ODD>(odd[0], odd[1]));
        }
    }

    /// # Safety
    /// Both squares must be valid, the second for writing.
    #[inline(always)]
    pub(super) unsafe fn transpose_8(simd: V3, from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        let x = simd.avx;
        // SAFETY: row i of the first square.
        let load = |i: usize| unsafe { from.add(i * from_row).cast::<__m256>().read_unaligned() };
        // SAFETY: row i of the second square.
        let store = |i: usize, v: __m256| unsafe { to.add(i * to_row).cast::<__m256>().write_unaligned(v) };
        let mut fours = [load(0); 8];
        for g in 0..2 {
            let r = [load(4 * g), load(4 * g + 1), load(4 * g + 2), load(4 * g + 3)];
            let low = [x._mm256_unpacklo_ps(r[0], r[1]), x._mm256_unpacklo_ps(r[2], r[3])];
            let high = [x._mm256_unpackhi_ps(r[0], r[1]), x._mm256_unpackhi_ps(r[2], r[3])];
            fours[4 * g] = cast!(x._mm256_unpacklo_pd(cast!(low[0]), cast!(low[1])));
            fours[4 * g + 1] = cast!(x._mm256_unpackhi_pd(cast!(low[0]), cast!(low[1])));
            fours[4 * g + 2] = cast!(x._mm256_unpacklo_pd(cast!(high[0]), cast!(high[1])));
            fours[4 * g + 3] = cast!(x._mm256_unpackhi_pd(cast!(high[0]), cast!(high[1])));
        }
        for c in 0..4 {
            store(c, x._mm256_permute2f128_ps::<0x20>(fours[c], fours[4 + c]));
            store(4 + c, x._mm256_permute2f128_ps::<0x31>(fours[c], fours[4 + c]));
        }
    }
}
