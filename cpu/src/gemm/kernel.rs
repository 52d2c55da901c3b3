//! The innermost loops of matrix multiplication: a tile of C stays in registers while the loop runs over the depth.

use pulp::{Simd, WithSimd};

/// The widest tile any instruction set uses; packed buffers are sized for it.
pub(super) const MAX_TILE_ROWS: usize = 12;
/// As [`MAX_TILE_ROWS`], columns.
pub(super) const MAX_TILE_COLS: usize = 64;

/// Rows of a panel of A. A tile takes all or some of these rows: 6 rows by four vectors or 12 rows by two fill 24 of 32
/// registers, 6 rows by two fill 12 of 16.
pub(super) const fn tile_rows<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 12 } else { 6 }
}

/// Columns of a panel of B, and of the widest tile: four vectors, or two where registers are few.
pub(super) const fn tile_cols<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 4 * S::F32_LANES } else { 2 * S::F32_LANES }
}

/// The depth summed in registers before the sum is added to C; part of the definition of the result.
pub(super) const fn chunk_depth<S: Simd>() -> usize {
    if S::F32_LANES >= 16 { 512 } else { 256 }
}

/// Steps of depth between two checks of the loop counter.
const UNROLL: usize = 4;

/// Addresses of A's elements: element (i, p) at `start + i / tile_rows * panel + i % tile_rows * row + p * col`.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub start: *const f32,
    pub panel: usize,
    pub row: usize,
    pub col: usize,
}

/// Addresses of B's elements: element (p, j) at `start + j / tile_cols * panel + p * row + j % tile_cols`. Rows of a
/// panel are readable to the tile's full width.
#[derive(Clone, Copy)]
pub(super) struct Right {
    pub start: *const f32,
    pub panel: usize,
    pub row: usize,
}

/// Addresses of C's elements: element (i, j) at `start + i * row + j`.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub start: *mut f32,
    pub row: usize,
}

/// One tile's operands; `a`, `b`, `c` start at the tile's first elements.
#[derive(Clone, Copy)]
struct Operands {
    depth: usize,
    a: Left,
    b: Right,
    c: Target,
    accumulate: bool,
}

/// Multiplies `ROWS` rows of A by `VECS` vectors of columns of B. `UNIT_COL`: A is contiguous along the depth;
/// otherwise along the rows.
struct Tile<'a, const ROWS: usize, const VECS: usize, const UNIT_COL: bool>(&'a Operands);

impl<const ROWS: usize, const VECS: usize, const UNIT_COL: bool> WithSimd for Tile<'_, ROWS, VECS, UNIT_COL> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let &Operands { depth, a, b, c, accumulate } = self.0;
        let mut sums = [[simd.splat_f32s(0.0); VECS]; ROWS];
        let mut right = b.start;
        // Four pointers for three rows each leave registers free; twelve pointers would not.
        let mut left = [a.start; 4];
        // SAFETY: the caller of `product` vouches for rows × depth elements of A, depth rows of B of the tile's full
        // width, and the tile of C; every address below is one of those.
        unsafe {
            if UNIT_COL {
                for (i, pointer) in left.iter_mut().enumerate() {
                    *pointer = pointer.wrapping_add(i * 3 * a.row);
                }
            }
            for _ in 0..depth / UNROLL {
                for _ in 0..UNROLL {
                    Self::step(simd, &mut sums, &mut left, &mut right, (a, b));
                }
            }
            for _ in 0..depth % UNROLL {
                Self::step(simd, &mut sums, &mut left, &mut right, (a, b));
            }
            for (i, row) in sums.iter().enumerate() {
                for (v, &sum) in row.iter().enumerate() {
                    let target = c.start.add(i * c.row + v * S::F32_LANES).cast::<S::f32s>();
                    let sum = if accumulate { simd.add_f32s(target.read_unaligned(), sum) } else { sum };
                    target.write_unaligned(sum);
                }
            }
        }
    }
}

impl<const ROWS: usize, const VECS: usize, const UNIT_COL: bool> Tile<'_, ROWS, VECS, UNIT_COL> {
    /// One step of depth: adds the outer product of a column of A's tile and a row of B's tile, and advances the
    /// pointers.
    ///
    /// # Safety
    /// The elements at both pointers must be readable.
    #[inline(always)]
    unsafe fn step<S: Simd>(
        simd: S,
        sums: &mut [[S::f32s; VECS]; ROWS],
        left: &mut [*const f32; 4],
        right: &mut *const f32,
        (a, b): (Left, Right),
    ) {
        // SAFETY: the contract.
        unsafe {
            let mut columns = [simd.splat_f32s(0.0); VECS];
            for (v, column) in columns.iter_mut().enumerate() {
                *column = right.add(v * S::F32_LANES).cast::<S::f32s>().read_unaligned();
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let element = if UNIT_COL { left[i / 3].add(i % 3 * a.row) } else { left[0].add(i) };
                let element = simd.splat_f32s(*element);
                for (sum, &column) in row.iter_mut().zip(&columns) {
                    *sum = simd.mul_add_e_f32s(element, column, *sum);
                }
            }
        }
        *right = right.wrapping_add(b.row);
        if UNIT_COL {
            *left = left.map(|pointer| pointer.wrapping_add(1));
        } else {
            left[0] = left[0].wrapping_add(a.col);
        }
    }
}

/// A separate function for each tile shape, so that each shape has its own register allocation.
#[inline(never)]
fn tile<S: Simd, const ROWS: usize, const VECS: usize>(simd: S, operands: &Operands) {
    if operands.a.col == 1 {
        simd.vectorize(Tile::<ROWS, VECS, true>(operands));
    } else {
        simd.vectorize(Tile::<ROWS, VECS, false>(operands));
    }
}

/// Runs the largest tile of at most `rows` rows; returns its number of rows. Tiles that do not fit in the registers are
/// not compiled.
fn largest_tile<S: Simd, const VECS: usize>(simd: S, rows: usize, operands: &Operands) -> usize {
    if const { VECS <= 2 && S::REGISTER_COUNT >= 32 } {
        if rows >= 12 {
            tile::<S, 12, VECS>(simd, operands);
            return 12;
        }
        if rows >= 8 {
            tile::<S, 8, VECS>(simd, operands);
            return 8;
        }
    }
    match rows {
        6.. => {
            tile::<S, 6, VECS>(simd, operands);
            6
        }
        4.. => {
            tile::<S, 4, VECS>(simd, operands);
            4
        }
        2.. => {
            tile::<S, 2, VECS>(simd, operands);
            2
        }
        _ => {
            tile::<S, 1, VECS>(simd, operands);
            1
        }
    }
}

/// Runs the largest tile of at most `rows` rows and `vectors` vectors of columns; returns its number of rows.
fn widest_tile<S: Simd>(simd: S, rows: usize, vectors: usize, operands: &Operands) -> usize {
    if const { S::REGISTER_COUNT >= 32 } {
        match vectors {
            4.. => return largest_tile::<S, 4>(simd, rows, operands),
            3 => return largest_tile::<S, 3>(simd, rows, operands),
            _ => {}
        }
    }
    match vectors {
        2.. => largest_tile::<S, 2>(simd, rows, operands),
        _ => largest_tile::<S, 1>(simd, rows, operands),
    }
}

/// C (+)= A · B for `rows × cols` of C, with the sum over `depth` in registers, first to last.
///
/// # Safety
/// The addresses of [`Left`], [`Right`] and [`Target`] must be valid for these extents, C's for writing, and no other
/// thread may use C at the same time. Either `a.row` or `a.col` must be 1.
#[allow(clippy::too_many_arguments, reason = "three matrices, three extents")]
pub(super) unsafe fn product<S: Simd>(
    simd: S,
    (rows, cols, depth): (usize, usize, usize),
    a: Left,
    b: Right,
    c: Target,
    accumulate: bool,
) {
    let (tile_rows, tile_cols) = (tile_rows::<S>(), tile_cols::<S>());
    let mut spill = [0.0f32; MAX_TILE_ROWS * MAX_TILE_COLS];
    for i in (0..rows).step_by(tile_rows) {
        let height = tile_rows.min(rows - i);
        let a_panel = a.start.wrapping_add(i / tile_rows * a.panel);
        for j in (0..cols).step_by(tile_cols) {
            let width = tile_cols.min(cols - j);
            let b = Right { start: b.start.wrapping_add(j / tile_cols * b.panel), ..b };
            let mut row = 0;
            while row < height {
                let a = Left { start: a_panel.wrapping_add(row * a.row), ..a };
                let own = Target { start: c.start.wrapping_add((i + row) * c.row + j), ..c };
                let mut operands = Operands { depth, a, b, c: own, accumulate };
                let whole = width % S::F32_LANES == 0;
                if !whole {
                    // A tile that crosses the edge is written to a buffer first; the sum and the order of additions are
                    // the same.
                    operands.c = Target { start: spill.as_mut_ptr(), row: tile_cols };
                    operands.accumulate = false;
                }
                let done = widest_tile(simd, height - row, width.div_ceil(S::F32_LANES), &operands);
                if !whole {
                    for r in 0..done {
                        // SAFETY: row `row + r` and columns j..j + width lie in the block of C that is ours.
                        let to = unsafe { std::slice::from_raw_parts_mut(own.start.add(r * c.row), width) };
                        for (to, &sum) in to.iter_mut().zip(&spill[r * tile_cols..]) {
                            *to = if accumulate { *to + sum } else { sum };
                        }
                    }
                }
                row += done;
            }
        }
    }
}
