//! The whole model's gradient against differences of its loss, its counts, and its causality.

use super::super::IGNORE;
use super::super::differences::{assert_close, gradient};
use super::*;
use rayon::prelude::*;

const PATTERNS: [Pattern; 4] = [
    Pattern::Dense,
    Pattern::Local { block: 2, window: 1 },
    Pattern::Global { block: 2, stride: 2 },
    Pattern::Mixed { block: 1 },
];

/// Small and odd: 3 heads of 5 dimensions of which 4 rotate, 7 positions.
fn small(attention: Pattern) -> Config {
    Config { rotary: 4, attention, ..Config::pythia(2, 15, 3, 7, 11) }
}

const LENGTH: usize = 7;
const INPUTS: [u32; 14] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7];
const TARGETS: [u32; 14] = [1, 4, 1, 5, 9, 2, 6, 5, IGNORE, 5, 8, 9, 7, IGNORE];

#[test]
fn every_gradient_agrees_with_differences_under_every_pattern() {
    let batch = Batch { inputs: &INPUTS, targets: &TARGETS, length: LENGTH };
    for pattern in PATTERNS {
        let config = small(pattern);
        let weights = config.formula_weights(0.4);
        let (_, gradients) = loss_and_gradients(&config, &weights, batch);
        let names: Vec<String> = config.tensors().into_iter().map(|(name, _)| name).collect();
        assert_eq!(gradients.len(), names.len());
        names.into_par_iter().for_each(|name| {
            let mut moved = weights.clone();
            let f = |data: &[f64]| {
                moved.get_mut(&name).unwrap().data.copy_from_slice(data);
                loss(&config, &moved, batch)
            };
            let expected = gradient(f, &weights[&name].data, 1e-3);
            assert_eq!(gradients[&name].shape, weights[&name].shape);
            assert_close(&format!("{name}, {pattern:?}"), &gradients[&name].data, &expected, 1e-8);
        });
    }
}

#[test]
fn a_later_token_changes_no_earlier_logit_and_a_seen_one_does() {
    for pattern in PATTERNS {
        let config = small(pattern);
        let weights = config.formula_weights(0.4);
        let base = logits(&config, &weights, &INPUTS[..LENGTH], LENGTH);
        for changed in 0..LENGTH {
            let mut inputs = INPUTS[..LENGTH].to_vec();
            inputs[changed] = 10;
            let now = logits(&config, &weights, &inputs, LENGTH);
            let split = changed * config.vocab;
            assert_eq!(now[..split], base[..split], "{pattern:?}");
            assert_ne!(now[split..split + config.vocab], base[split..split + config.vocab], "{pattern:?}");
        }
    }
}

#[test]
fn the_fused_projection_keeps_query_key_and_value_of_a_head_together() {
    let config = Config::pythia(1, 4, 2, 4, 5);
    let fused = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 2.0, 3.0, 12.0, 13.0, 22.0, 23.0];
    let [q, k, v] = config.split(&fused);
    assert_eq!((q[..].to_vec(), k[0], v[3]), (vec![0.0, 1.0, 2.0, 3.0], 10.0, 23.0));
    assert_eq!(config.fuse([&q, &k, &v]), fused);
}

#[test]
fn pythia_70m_has_its_published_number_of_parameters_in_76_tensors() {
    assert_eq!(Config::pythia_70m(50_304).parameters(), 70_426_624);
    assert_eq!(Config::pythia_70m(10_000).parameters(), 29_155_328);
    assert_eq!(Config::pythia_70m(10_000).tensors().len(), 76);
    assert_eq!(Config::pythia_70m(10_000).rotary, 16);
}

#[test]
fn the_gradient_of_a_full_size_model_is_the_slope_along_itself() {
    let config = Config::pythia_70m(10_000);
    let weights = config.formula_weights(0.03);
    let inputs: Vec<u32> = (0..20).map(|t| (t * t * 37 + t * 11) % 10_000).collect();
    let targets: Vec<u32> = inputs.iter().map(|id| (id * 7 + 1) % 10_000).collect();
    let batch = Batch { inputs: &inputs, targets: &targets, length: 10 };
    let (_, gradients) = loss_and_gradients(&config, &weights, batch);
    let squared: f64 = gradients.values().flat_map(|t| &t.data).map(|g| g * g).sum();
    // Along g / |g|² the loss rises by 1 a unit.
    let slope = gradient(
        |at| {
            let mut moved = weights.clone();
            for (name, tensor) in &mut moved {
                tensor.data.iter_mut().zip(&gradients[name].data).for_each(|(w, g)| *w += at[0] * g / squared);
            }
            loss(&config, &moved, batch)
        },
        &[0.0],
        1e-3,
    );
    assert_close("slope", &slope, &[1.0], 1e-7);
}
