//! Training: clip by the global norm, then AdamW, step after step.

use super::ops::{AdamW, adamw};
use super::tensor::{Tensors, norm, zeros_like};
use super::{Batch, Oracle};

/// The constants of a training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, on matrices only.
    pub weight_decay: f64,
    /// The largest global norm of the gradient; infinite for none.
    pub clip: f64,
}

impl Recipe {
    /// Pythia's published recipe: β 0.9 and 0.95, eps 1e-8, decay 0.1, clip 1.
    pub fn pythia() -> Self {
        Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0 }
    }
}

/// Weights and the state of their optimizer.
#[derive(Debug, Clone)]
pub struct Training {
    /// The weights.
    pub weights: Tensors,
    /// AdamW's first moments.
    pub first: Tensors,
    /// AdamW's second moments.
    pub second: Tensors,
    /// Updates made so far.
    pub step: u32,
}

impl Training {
    /// A training that has not begun.
    pub fn new(weights: Tensors) -> Self {
        Self { first: zeros_like(&weights), second: zeros_like(&weights), weights, step: 0 }
    }

    /// One update with `gradients` at learning rate `lr`; returns the global norm before clipping. All gradients are
    /// scaled by min(1, clip / (norm + 1e-6)); the 1e-6 is PyTorch's, and avoids a division by zero.
    pub fn update(&mut self, gradients: &Tensors, recipe: Recipe, lr: f64) -> f64 {
        self.step += 1;
        let norm = norm(gradients);
        let scale = (recipe.clip / (norm + 1e-6)).min(1.0);
        for (name, weight) in &mut self.weights {
            let clipped: Vec<f64> = gradients[name].data.iter().map(|g| g * scale).collect();
            let weight_decay = if weight.is_matrix() { recipe.weight_decay } else { 0.0 };
            let with = AdamW { lr, beta1: recipe.beta1, beta2: recipe.beta2, eps: recipe.eps, weight_decay };
            let first = &mut self.first.get_mut(name).expect("moments have the weights' names").data;
            let second = &mut self.second.get_mut(name).expect("moments have the weights' names").data;
            (weight.data, *first, *second) = adamw(&weight.data, &clipped, first, second, self.step, with);
        }
        norm
    }
}

/// Trains on each batch in turn, with its learning rate, and returns the loss of each batch before its update.
pub fn train(config: &impl Oracle, training: &mut Training, recipe: Recipe, batches: &[(Batch<'_>, f64)]) -> Vec<f64> {
    batches
        .iter()
        .map(|&(batch, lr)| {
            let (loss, gradients) = config.loss_and_gradients(&training.weights, batch);
            training.update(&gradients, recipe, lr);
            loss
        })
        .collect()
}
