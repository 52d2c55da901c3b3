//! The models that are tried.

use super::law::matrices;
use crate::config::RawConfig;

/// The recipe that a model is trained with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipe {
    /// The law's recipe.
    Quick,
    /// Pythia's recipe with much dropout and decay: for a small text that is read many times, see docs/learning.md.
    Many,
}

/// A model's size and recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub layers: u32,
    /// Columns of the residual stream.
    pub width: u32,
    /// The recipe that it is trained with.
    pub recipe: Recipe,
}

/// Layers and widths, from the smallest that the law covers.
const SHAPES: [[u32; 2]; 16] = [
    [4, 64],
    [4, 96],
    [4, 128],
    [6, 128],
    [6, 160],
    [6, 192],
    [8, 192],
    [6, 256],
    [8, 256],
    [12, 256],
    [6, 384],
    [8, 384],
    [6, 512],
    [8, 512],
    [12, 512],
    [12, 768],
];

impl Shape {
    /// Every shape of the quick recipe.
    pub fn all() -> impl Iterator<Item = Shape> {
        SHAPES.into_iter().map(|[layers, width]| Shape { layers, width, recipe: Recipe::Quick })
    }

    /// The shape that reads a small text many times: pythia-70m.
    pub fn many() -> Shape {
        Shape { layers: 6, width: 512, recipe: Recipe::Many }
    }

    /// The preset of this shape and `true`; without one, the nearest preset of the same recipe and `false`.
    pub fn preset(&self) -> (&'static str, bool) {
        match (self.layers, self.width) {
            (6, 128) => ("quick-14m", true),
            (6, 512) => ("quick-70m", true),
            (12, 768) => ("quick-160m", true),
            _ => ("quick-70m", false),
        }
    }

    /// Columns of a layer's feed-forward block: about 2.75 times the width.
    fn feed(&self) -> u32 {
        (11 * self.width / 4).next_multiple_of(32)
    }

    /// Heads of 32 columns, or of 64 where the model is wide.
    fn heads(&self) -> u32 {
        if self.width < 256 { self.width / 32 } else { self.width / 64 }
    }

    /// Its configuration.
    pub fn raw(&self) -> RawConfig {
        if self.recipe == Recipe::Many {
            return RawConfig {
                preset: Some("pythia-70m".to_owned()),
                set: vec!["context=512".to_owned()],
                tokenizer: Some("bpe".to_owned()),
                lr: Some(1e-3),
                dropout: Some(0.3),
                weight_decay: Some(3.0),
                keep_best: Some(true),
                eval_every: Some(50),
                ..RawConfig::default()
            };
        }
        let (preset, whole) = self.preset();
        let Shape { layers, width, .. } = *self;
        let keys = [("layers", layers), ("d_model", width), ("heads", self.heads()), ("d_ff", self.feed())];
        let set = keys.iter().map(|(key, value)| format!("{key}={value}")).filter(|_| !whole).collect();
        RawConfig { preset: Some(preset.to_owned()), set, ..RawConfig::default() }
    }

    /// Parameters of the matrices in its layers.
    pub fn matrices(&self) -> f64 {
        // The presets have 352, 1,408 and 2,048 columns.
        matrices(self.layers, self.width, if self.width == 768 { 2048 } else { self.feed() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ModelConfig};

    #[test]
    fn every_shape_is_a_model_with_so_many_parameters_in_its_matrices() {
        let mut before = 0.0;
        for shape in Shape::all() {
            let config = Config::resolve(shape.raw()).unwrap();
            let (ModelConfig::Pythia(model) | ModelConfig::Yxanul(model)) = config.model else { panic!("{shape:?}") };
            assert_eq!((model.layers, model.d_model), (shape.layers, shape.width));
            let width = f64::from(model.d_model);
            let each = 4.0 * width * width + 3.0 * width * f64::from(model.d_ff);
            assert_eq!(shape.matrices(), f64::from(model.layers) * each, "{shape:?}");
            assert!(shape.matrices() > before && model.d_model % (32 * model.heads) == 0, "{shape:?}");
            before = shape.matrices();
        }
    }
}
