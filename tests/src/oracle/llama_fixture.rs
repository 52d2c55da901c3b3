//! Twenty training steps of very small Llamas, and of a Qwen2 and a Qwen3, as computed by transformers:
//! `tests/fixtures/llama_transformers_20_steps.json` and `parts_transformers_20_steps.json`, made by
//! `tests/peers/llama_fixture.py` and `parts_fixture.py`, whose headers describe how.

use super::Batch;
use super::fixture::{Step, numbers, pairs, size, step};
use super::tensor::Tensors;
use super::transformer::{Biases, Config, Scaling};
use serde_json::Value;
use std::collections::BTreeMap;

/// One training: a model, its data, and transformers' results in f32.
#[derive(Debug, Clone)]
pub struct Case {
    /// The model.
    pub config: Config,
    /// Tokens of a sequence.
    pub length: usize,
    /// The batches in their order, one update each.
    pub steps: Vec<Step>,
    /// Loss before each update, in nats.
    pub losses: Vec<f64>,
    /// For each tensor's gradient in the first step, before clipping: its norm, and its dot product with wave number 1.
    pub first_gradients: BTreeMap<String, [f64; 2]>,
    /// Logits of the first sequence of the first batch, before the first update and after the last.
    pub logits: [Vec<f64>; 2],
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

    /// The ids for the logits.
    pub fn prompt(&self) -> &[u32] {
        &self.steps[0].inputs[..self.length]
    }
}

/// All cases of both fixtures: a Llama factorised, tied and untied; a Qwen3, a Qwen2, a Llama 3.1, and a Llama with all
/// biases and linearly stretched wavelengths.
pub fn cases() -> Vec<Case> {
    let files = [
        include_str!("../../fixtures/llama_transformers_20_steps.json"),
        include_str!("../../fixtures/parts_transformers_20_steps.json"),
    ];
    let parsed = files.map(|text| serde_json::from_str::<Value>(text).expect("JSON"));
    parsed.iter().flat_map(|file| list(&file["cases"]).iter().map(move |case| read(file, case))).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// The stretching of wavelengths in transformers' configuration.
fn scaling(rope: &Value) -> Scaling {
    let number = |key: &str| rope[key].as_f64().unwrap_or_else(|| panic!("{key} of {rope}"));
    match rope["rope_type"].as_str() {
        None | Some("default") => Scaling::None,
        Some("linear") => Scaling::Linear(number("factor")),
        Some("llama3") => Scaling::Llama3 {
            factor: number("factor"),
            low: number("low_freq_factor"),
            high: number("high_freq_factor"),
            original: number("original_max_position_embeddings"),
        },
        other => panic!("rope_type {other:?}"),
    }
}

fn read(file: &Value, case: &Value) -> Case {
    // One configuration for all cases, or one each.
    let model = file.get("config").unwrap_or(&case["config"]);
    let get = |key: &str| size(&model[key]);
    let base = Config::llama(
        get("num_hidden_layers"),
        get("hidden_size"),
        get("num_attention_heads"),
        get("num_key_value_heads"),
        get("intermediate_size"),
        get("vocab_size"),
    );
    let rank = Some(size(&case["rank"])).filter(|&rank| rank > 0);
    let (is, kind) = (|key: &str| model[key].as_bool().unwrap_or(false), case["model"].as_str().unwrap_or("llama"));
    let attention = is("attention_bias");
    let head_size = model.get("head_dim").map_or(base.head_size, size);
    let config = Config {
        rank,
        tied: case["tied"].as_bool().expect("a truth"),
        head_size,
        rotary: head_size,
        bias: Biases { qkv: attention || kind == "qwen2", output: attention, feed: is("mlp_bias") },
        norm_gains: true,
        qk_norm: kind == "qwen3",
        softcap: None,
        scaling: scaling(&model["rope_parameters"]),
        ..base
    };
    let (length, losses) = (size(&file["length"]), numbers(&case["losses"]));
    Case {
        config,
        length,
        steps: (0..losses.len()).map(|s| step(s, size(&file["sequences"]), length, config.vocab as u32)).collect(),
        losses,
        first_gradients: pairs(&case["first_gradients"]),
        logits: ["logits_before", "logits_after"].map(|key| numbers(&case[key])),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Oracle as _;
    use super::super::differences::{assert_close, wave};
    use super::super::train::{Recipe, Training, train};
    use super::super::transformer::logits;
    use super::*;

    #[test]
    fn twenty_steps_follow_transformers() {
        let cases = cases();
        assert_eq!(cases.len(), 7);
        for case in cases {
            let mut training = Training::new(case.weights());
            let what = format!("{:?}", case.config);
            let (batch, _) = case.batches()[0];
            let (_, gradients) = case.config.loss_and_gradients(&training.weights, batch);
            assert_eq!(gradients.len(), case.first_gradients.len());
            for (name, [norm, along]) in &case.first_gradients {
                let g = &gradients[name].data;
                let got_norm = libm::sqrt(g.iter().map(|g| g * g).sum());
                let got_along: f64 = g.iter().enumerate().map(|(i, g)| g * wave(1, i)).sum();
                assert_close(&format!("{what}: {name}"), &[got_norm, got_along], &[*norm, *along], 1e-5);
            }
            let now = |weights: &Tensors| logits(&case.config, weights, case.prompt(), case.length);
            assert_close(&what, &now(&training.weights), &case.logits[0], 1e-6);
            let losses = train(&case.config, &mut training, Recipe::pythia(), &case.batches());
            // transformers computes in f32.
            assert_close(&what, &losses, &case.losses, 1e-5);
            assert_close(&what, &now(&training.weights), &case.logits[1], 1e-4);
        }
    }
}
