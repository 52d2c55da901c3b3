//! A tensor to be written, as a description without its numbers in memory.

use std::rc::Rc;

/// Rows of a stored tensor; for a vector its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// The stored tensor.
    pub tensor: Rc<str>,
    /// The first row.
    pub first: u64,
    /// Number of rows.
    pub count: u64,
    /// Whether row i of the first half and row i of the second half become adjacent: 0, n/2, 1, n/2 + 1, …
    pub paired: bool,
}

/// The source of a tensor's numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Rows, one below the other.
    Rows(Vec<Rows>),
    /// E · Pᵀ of two stored matrices, E `[rows, rank]` and P `[columns, rank]`, summed in f32.
    Product([Rc<str>; 2]),
    /// The numbers themselves.
    Numbers(Vec<f32>),
}

/// A tensor's shape and the source of its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Row-major shape with one or two dimensions.
    pub shape: Vec<u64>,
    /// Its numbers.
    pub values: Values,
}

impl Tensor {
    /// A vector of zeros.
    pub fn zeros(len: u64) -> Tensor {
        Tensor { shape: vec![len], values: Values::Numbers(vec![0.0; len as usize]) }
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Elements of a row; 1 for a vector.
    pub fn columns(&self) -> u64 {
        if let [_, columns] = self.shape[..] { columns } else { 1 }
    }
}
