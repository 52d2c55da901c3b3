//! Twenty training steps of a very small GPT-NeoX as computed by PyTorch: `tests/fixtures/pythia_torch_20_steps.json`,
//! made by `tests/peers/fixture.py`, whose header has the formulas that are repeated here.

use super::attention::Pattern;
use super::tensor::Tensors;
use super::transformer::Config;
use super::{Batch, IGNORE};
use serde_json::Value;
use std::collections::BTreeMap;

/// One training: a model, its data, and PyTorch's results.
#[derive(Debug, Clone)]
pub struct Case {
    /// The model.
    pub config: Config,
    /// Tokens of a sequence.
    pub length: usize,
    /// The batches in their order, one update each.
    pub steps: Vec<Step>,
    /// Loss before each update, in nats, computed in f64.
    pub losses: Vec<f64>,
    /// Loss before each update, computed in f32.
    pub losses_f32: Vec<f64>,
    /// Global norm of each step's gradient before clipping, in f64.
    pub gradient_norms: Vec<f64>,
    /// For each tensor's gradient in the first step, before clipping: its norm, and its dot product with wave number 1.
    pub first_gradients: BTreeMap<String, [f64; 2]>,
}

/// A batch and the learning rate of its update.
#[derive(Debug, Clone)]
pub struct Step {
    /// Token ids [sequences, length].
    pub inputs: Vec<u32>,
    /// Ids to predict, [`IGNORE`] where none is.
    pub targets: Vec<u32>,
    /// Learning rate.
    pub lr: f64,
}

impl Case {
    /// The weights before the first update.
    pub fn weights(&self) -> Tensors {
        self.config.formula_weights(0.1)
    }

    /// The batches and learning rates as [`super::train::train`] takes them.
    pub fn batches(&self) -> Vec<(Batch<'_>, f64)> {
        let length = self.length;
        self.steps.iter().map(|s| (Batch { inputs: &s.inputs, targets: &s.targets, length }, s.lr)).collect()
    }
}

/// All cases of the fixture: dense attention, and each block-sparse pattern over a length with a short last block.
pub fn cases() -> Vec<Case> {
    let file: Value = serde_json::from_str(include_str!("../../fixtures/pythia_torch_20_steps.json")).expect("JSON");
    let sequences = size(&file["sequences"]);
    file["cases"].as_array().expect("cases").iter().map(|case| read(&file["config"], sequences, case)).collect()
}

fn read(model: &Value, sequences: usize, case: &Value) -> Case {
    let get = |key: &str| size(&model[key]);
    let base = Config::pythia(
        get("num_hidden_layers"),
        get("hidden_size"),
        get("num_attention_heads"),
        get("intermediate_size"),
        get("vocab_size"),
    );
    let block = || size(&case["attention"]["block"]);
    let attention = match case["attention"]["attention"].as_str() {
        Some("dense") => Pattern::Dense,
        Some("local") => Pattern::Local { block: block(), window: size(&case["attention"]["window"]) },
        Some("global") => Pattern::Global { block: block(), stride: size(&case["attention"]["stride"]) },
        Some("mixed") => Pattern::Mixed { block: block() },
        other => panic!("attention {other:?}"),
    };
    let length = size(&case["length"]);
    let losses = numbers(&case["float64"]["losses"]);
    Case {
        config: Config { attention, ..base },
        length,
        steps: (0..losses.len()).map(|s| step(s, sequences, length, base.vocab as u32)).collect(),
        losses,
        losses_f32: numbers(&case["float32"]["losses"]),
        gradient_norms: numbers(&case["float64"]["gradient_norms"]),
        first_gradients: pairs(&case["first_gradients"]),
    }
}

/// Each tensor's two numbers.
pub(super) fn pairs(value: &Value) -> BTreeMap<String, [f64; 2]> {
    let pairs = value.as_object().expect("an object").iter();
    pairs.map(|(name, pair)| (name.clone(), numbers(pair).try_into().expect("a pair"))).collect()
}

/// Batch `s` and its rate by formula.
pub(super) fn step(s: usize, sequences: usize, length: usize, vocab: u32) -> Step {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for b in 0..sequences {
        let mut token = (3 * s + 7 * b) as u32 % vocab;
        for t in 0..length {
            inputs.push(token);
            token = (5 * token + 3) % vocab;
            targets.push(if (s + b + t) % 7 == 3 { IGNORE } else { token });
        }
    }
    let s = s as f64;
    let lr = if s < 5.0 { 0.01 * (s + 1.0) / 5.0 } else { 0.01 * (1.0 - (s - 4.0) / 20.0) };
    Step { inputs, targets, lr }
}

pub(super) fn size(value: &Value) -> usize {
    value.as_u64().expect("a whole number") as usize
}

pub(super) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::differences::{assert_close, wave};
    use super::super::train::{Recipe, Training, train};
    use super::super::transformer::loss_and_gradients;
    use super::*;

    #[test]
    fn twenty_steps_follow_pytorch_in_f64() {
        let cases = cases();
        assert_eq!(cases.len(), 4);
        for case in cases {
            let mut training = Training::new(case.weights());
            let losses = train(&case.config, &mut training, Recipe::pythia(), &case.batches());
            assert_eq!(losses.len(), 20);
            assert_close(&format!("losses, {:?}", case.config.attention), &losses, &case.losses, 1e-11);
            // The tolerance for a step in f32 on this fixture.
            assert_close("losses in f32", &losses, &case.losses_f32, 1e-6);
        }
    }

    #[test]
    fn the_first_gradient_of_every_tensor_is_pytorchs() {
        for case in cases() {
            let (batch, _) = case.batches()[0];
            let (_, gradients) = loss_and_gradients(&case.config, &case.weights(), batch);
            assert_eq!(gradients.len(), case.first_gradients.len());
            let total: f64 = gradients.values().flat_map(|g| &g.data).map(|g| g * g).sum();
            assert_close("global norm", &[libm::sqrt(total)], &case.gradient_norms[..1], 1e-12);
            for (name, [norm, along]) in case.first_gradients {
                let g = &gradients[&name].data;
                let got_norm = libm::sqrt(g.iter().map(|g| g * g).sum());
                let got_along: f64 = g.iter().enumerate().map(|(i, g)| g * wave(1, i)).sum();
                assert_close(&name, &[got_norm, got_along], &[norm, along], 1e-12);
            }
        }
    }
}
