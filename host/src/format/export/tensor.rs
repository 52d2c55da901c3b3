//! A tensor to be written, as a recipe: nothing of it is in memory.

use std::rc::Rc;

/// Rows of a stored tensor; of a vector its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    /// The stored tensor.
    pub tensor: Rc<str>,
    /// The first of them.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Whether row i of the first half and row i of the second become neighbours: 0, n/2, 1, n/2 + 1, …
    pub paired: bool,
}

/// Where a tensor's numbers come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Rows, one below the other.
    Rows(Vec<Rows>),
    /// E · Pᵀ of two stored matrices, E `[rows, rank]` and P `[columns, rank]`, summed in f32.
    Product([Rc<str>; 2]),
    /// The numbers themselves.
    Numbers(Vec<f32>),
}

/// A tensor's shape and where its numbers come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Row-major shape: of one dimension or two.
    pub shape: Vec<u64>,
    /// Its numbers.
    pub values: Values,
}

impl Tensor {
    /// A vector of zeros.
    pub fn zeros(len: u64) -> Tensor {
        Tensor { shape: vec![len], values: Values::Numbers(vec![0.0; len as usize]) }
    }

    /// Elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Elements of a row: of a vector 1.
    pub fn columns(&self) -> u64 {
        if let [_, columns] = self.shape[..] { columns } else { 1 }
    }
}
