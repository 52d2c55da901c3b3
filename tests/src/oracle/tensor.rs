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

    /// Whether this is a matrix, to which weight decay applies. Biases and norms are vectors.
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

/// Weights by formula: entry i of tensor number n of `tensors` is `scale` · sin(0.37 i² + n), plus 1 in the weight of a
/// norm. Rounded to f32, so that a copy in f32 is the same model.
pub fn formula_weights(tensors: Vec<(String, Vec<usize>)>, scale: f64) -> Tensors {
    let make = |(n, (name, shape)): (usize, (String, Vec<usize>))| {
        let base = if name.contains("norm.weight") { 1.0 } else { 0.0 };
        let len = shape.iter().product();
        let data = (0..len).map(|i| f64::from((base + scale * super::differences::wave(n, i)) as f32)).collect();
        (name, Tensor::new(&shape, data))
    };
    tensors.into_iter().enumerate().map(make).collect()
}
