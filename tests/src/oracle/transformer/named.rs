//! Linear layers and norms by the names of their weights, forward and backward.

use super::super::ops::{layer_norm, layer_norm_gradient, linear, linear_gradient, rms_norm, rms_norm_gradient};
use super::super::tensor::{Tensor, Tensors};
use super::{Config, Norm};

/// A model and its weights. Names are without `.weight` and `.bias`, except for [`Named::data`].
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) config: &'a Config,
    weights: &'a Tensors,
}

/// The addition of an adapter to a linear layer: scale · B (A x).
struct Adapter<'a> {
    names: [String; 2],
    /// [rank, inputs].
    a: &'a [f64],
    /// [outputs, rank].
    b: &'a [f64],
    rank: usize,
    scale: f64,
}

impl<'a> Named<'a> {
    pub(super) fn new(config: &'a Config, weights: &'a Tensors) -> Self {
        assert!(config.tied || config.rank.is_none(), "a factorised embedding is tied");
        assert_eq!(weights.len(), config.tensors().len(), "tensors of {config:?}");
        Self { config, weights }
    }

    fn get(self, name: &str) -> &'a Tensor {
        self.weights.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// The entries of a tensor by its full name.
    pub(super) fn data(self, name: &str) -> &'a [f64] {
        &self.get(name).data
    }

    /// The linear layer `name` applied to rows `x`, with its bias if it has one.
    pub(super) fn linear(self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{name}.weight"));
        let (outputs, inputs) = (weight.shape[0], weight.shape[1]);
        let bias = self.weights.get(&format!("{name}.bias")).map(|bias| bias.data.as_slice());
        let mut y = linear(x, &weight.data, bias, x.len() / inputs, inputs, outputs);
        if let Some(Adapter { names: _, a, b, rank, scale }) = self.adapter(name) {
            let low = linear(x, a, None, x.len() / inputs, inputs, rank);
            let added = linear(&low, b, None, x.len() / inputs, rank, outputs);
            y.iter_mut().zip(added).for_each(|(y, added)| *y += scale * added);
        }
        y
    }

    /// The adapter of the linear layer `name`.
    fn adapter(self, name: &str) -> Option<Adapter<'a>> {
        let (rank, alpha) = self.config.adapters?;
        let names = ["A", "B"].map(|which| format!("{name}.lora_{which}.weight"));
        let [a, b] = [self.weights.get(&names[0])?, self.weights.get(&names[1])?].map(|tensor| &tensor.data[..]);
        Some(Adapter { names, a, b, rank, scale: alpha / rank as f64 })
    }

    /// The gradient of the input of [`Named::linear`]; the gradients of its weights go into `gradients`.
    pub(super) fn linear_back(self, name: &str, x: &[f64], dy: &[f64], gradients: &mut Tensors) -> Vec<f64> {
        let weight = self.get(&format!("{name}.weight"));
        let (outputs, inputs) = (weight.shape[0], weight.shape[1]);
        let (mut dx, dw, db) = linear_gradient(x, &weight.data, dy, x.len() / inputs, inputs, outputs);
        if let Some(Adapter { names: [of_a, of_b], a, b, rank, scale }) = self.adapter(name) {
            let rows = x.len() / inputs;
            let low = linear(x, a, None, rows, inputs, rank);
            let scaled: Vec<f64> = dy.iter().map(|dy| scale * dy).collect();
            let (d_low, db, _) = linear_gradient(&low, b, &scaled, rows, rank, outputs);
            let (added, da, _) = linear_gradient(x, a, &d_low, rows, inputs, rank);
            dx.iter_mut().zip(added).for_each(|(dx, added)| *dx += added);
            gradients.insert(of_a, Tensor::new(&[rank, inputs], da));
            gradients.insert(of_b, Tensor::new(&[outputs, rank], db));
        }
        gradients.insert(format!("{name}.weight"), Tensor::new(&[outputs, inputs], dw));
        if self.weights.contains_key(&format!("{name}.bias")) {
            gradients.insert(format!("{name}.bias"), Tensor::new(&[outputs], db));
        }
        dx
    }

    /// The norm `name` of rows `x`.
    pub(super) fn norm(self, name: &str, x: &[f64]) -> Vec<f64> {
        let Config { d, eps, norm, .. } = *self.config;
        let gain = self.data(&format!("{name}.weight"));
        match norm {
            Norm::Layer => layer_norm(x, gain, self.data(&format!("{name}.bias")), d, eps),
            Norm::Rms => rms_norm(x, gain, d, eps),
        }
    }

    /// The RMSNorm `name` of each head of rows `x`.
    pub(super) fn head_norm(self, name: &str, x: &[f64]) -> Vec<f64> {
        rms_norm(x, self.data(&format!("{name}.weight")), self.config.head_size, self.config.eps)
    }

    /// The gradient of the input of [`Named::head_norm`]; the gradient of its gain goes into `gradients`.
    pub(super) fn head_norm_back(self, name: &str, x: &[f64], dy: &[f64], gradients: &mut Tensors) -> Vec<f64> {
        let Config { head_size, eps, .. } = *self.config;
        let name = format!("{name}.weight");
        let (dx, dgain) = rms_norm_gradient(x, self.data(&name), dy, head_size, eps);
        gradients.insert(name, Tensor::new(&[head_size], dgain));
        dx
    }

    /// The gradient of the input of [`Named::norm`]; the gradients of its weights go into `gradients`.
    pub(super) fn norm_back(self, name: &str, x: &[f64], dy: &[f64], gradients: &mut Tensors) -> Vec<f64> {
        let Config { d, eps, norm, .. } = *self.config;
        let gain = self.data(&format!("{name}.weight"));
        let (dx, dgain) = match norm {
            Norm::Layer => {
                let (dx, dgain, dbias) = layer_norm_gradient(x, gain, dy, d, eps);
                gradients.insert(format!("{name}.bias"), Tensor::new(&[d], dbias));
                (dx, dgain)
            }
            Norm::Rms => rms_norm_gradient(x, gain, dy, d, eps),
        };
        gradients.insert(format!("{name}.weight"), Tensor::new(&[d], dgain));
        dx
    }
}
