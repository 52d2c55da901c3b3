//! A named set of f64 arrays: weights, gradients, moments.

use std::collections::BTreeMap;

/// A row-major array and its shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Length along each axis, the slowest first.
    pub shape: Vec<usize>,
    /// The entries, as many as the product of `shape`.
    pub data: Vec<f64>,
}

impl Tensor {
    /// `data` seen as `shape`.
    pub fn new(shape: &[usize], data: Vec<f64>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "{shape:?}");
        Self { shape: shape.to_vec(), data }
    }

    /// All zeros.
    pub fn zeros(shape: &[usize]) -> Self {
        Self::new(shape, vec![0.0; shape.iter().product()])
    }

    /// Whether this is a matrix: what weight decay falls on. Biases and norms are vectors.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Zeros of the names and shapes of `like`.
pub fn zeros_like(like: &Tensors) -> Tensors {
    like.iter().map(|(name, tensor)| (name.clone(), Tensor::zeros(&tensor.shape))).collect()
}

/// The Euclidean norm of all entries of all tensors together.
pub fn norm(tensors: &Tensors) -> f64 {
    libm::sqrt(tensors.values().flat_map(|t| &t.data).map(|x| x * x).sum())
}
