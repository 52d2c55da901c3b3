//! Views of matrices and of their blocks.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// A read-only matrix in a slice, with any strides.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) row_stride: usize,
    pub(super) col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix without gaps.
    ///
    /// # Panics
    /// If it reaches over the end of the slice.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::with_strides(data, rows, cols, cols, 1)
    }

    /// Element (i, j) at `data[i * row_stride + j * col_stride]`.
    ///
    /// # Panics
    /// If it reaches over the end of the slice.
    pub fn with_strides(data: &'a [f32], rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Self {
        check(data.len(), rows, cols, row_stride, col_stride);
        Self { data, rows, cols, row_stride, col_stride }
    }

    /// The transpose, by exchanging the strides.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

impl fmt::Debug for Matrix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {} (strides {}, {})", self.rows, self.cols, self.row_stride, self.col_stride)
    }
}

/// A writable row-major matrix.
pub struct MatrixMut<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// A row-major matrix without gaps.
    ///
    /// # Panics
    /// If it reaches over the end of the slice.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// Element (i, j) at `data[i * row_stride + j]`.
    ///
    /// # Panics
    /// If it reaches over the end of the slice, or its rows overlap.
    pub fn with_stride(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(rows < 2 || row_stride >= cols, "rows of {cols} lie {row_stride} apart");
        check(data.len(), rows, cols, row_stride, 1);
        Self { data, rows, cols, row_stride }
    }
}

fn check(len: usize, rows: usize, cols: usize, row_stride: usize, col_stride: usize) {
    if rows > 0 && cols > 0 {
        let last = (rows - 1).checked_mul(row_stride).zip((cols - 1).checked_mul(col_stride));
        let last = last.and_then(|(row, col)| row.checked_add(col));
        assert!(
            last.is_some_and(|last| last < len),
            "{rows} × {cols} with strides {row_stride}, {col_stride} in {len} elements"
        );
    }
}

/// A finished block of C, owned by the thread that computed it.
pub struct Block<'a> {
    start: *mut f32,
    row_stride: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    matrix: PhantomData<&'a mut [f32]>,
}

impl Block<'_> {
    /// # Safety
    /// The block must lie inside the matrix that begins at `start`, and nothing else may access it.
    pub(super) unsafe fn new(start: *mut f32, row_stride: usize, rows: Range<usize>, cols: Range<usize>) -> Self {
        Self { start, row_stride, rows, cols, matrix: PhantomData }
    }

    /// Its rows in C.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Its columns in C.
    pub fn cols(&self) -> Range<usize> {
        self.cols.clone()
    }

    /// The block's part of a row of C; `row` counts in C.
    ///
    /// # Panics
    /// If the row is not one of the block's.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(self.rows.contains(&row), "row {row} of {:?}", self.rows);
        // SAFETY: inside the block, which is ours by the contract of `new`; borrowed for as long as the slice lives.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(row * self.row_stride + self.cols.start), self.cols.len())
        }
    }
}
