//! The whole model's gradient compared with differences of its loss, its counts, its causality, and equivalences.

use super::super::IGNORE;
use super::super::differences::{assert_close, gradient, wave};
use super::block::{fuse, split};
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

/// The gradient of every tensor agrees with differences: in at most `most` single entries, spread over the tensor, and
/// along a wave, which involves every entry.
#[track_caller]
fn assert_gradients(config: &Config, most: usize) {
    let batch = Batch { inputs: &INPUTS, targets: &TARGETS, length: LENGTH };
    let weights = config.formula_weights(0.4);
    let (_, gradients) = loss_and_gradients(config, &weights, batch);
    let shapes =
        |of: &Tensors| of.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect::<Vec<_>>();
    let learning: Tensors = weights.clone().into_iter().filter(|(name, _)| config.learns(name)).collect();
    assert_eq!(shapes(&gradients), shapes(&learning), "{config:?}");
    gradients.into_par_iter().for_each(|(name, found)| {
        let len = found.data.len();
        // A prime that divides no length: these are all entries where `most` is large enough.
        let entries: Vec<usize> = (0..most.min(len)).map(|k| k * 7919 % len).collect();
        let direction = |i| wave(1, i) / libm::sqrt(len as f64);
        let mut moved = weights.clone();
        let f = |by: &[f64]| {
            let data = &mut moved.get_mut(&name).unwrap().data;
            data.copy_from_slice(&weights[&name].data);
            entries.iter().zip(by).for_each(|(&i, by)| data[i] += by);
            data.iter_mut().enumerate().for_each(|(i, x)| *x += by[entries.len()] * direction(i));
            loss(config, &moved, batch)
        };
        // The loss hardly depends on the length of the stream before a norm, nor on the inputs of a small gain:
        // differences with respect to these take a longer step.
        let hardly = ["stream_scalars", "value_tables"].iter().any(|part| name.contains(part));
        // Through keys and their softmax it has more curvature with an adapter, whose factors are multiplied: a shorter
        // step.
        let bends = name.contains("lora");
        let step = if hardly {
            2e-3
        } else if bends {
            2e-4
        } else {
            5e-4
        };
        let expected = gradient(f, &vec![0.0; entries.len() + 1], step);
        let along = found.data.iter().enumerate().map(|(i, g)| g * direction(i)).sum();
        let got: Vec<f64> = entries.iter().map(|&i| found.data[i]).chain([along]).collect();
        assert_close(&format!("{name}, {config:?}"), &got, &expected, 1e-8);
    });
}

#[test]
fn every_gradient_of_a_pythia_agrees_with_differences_under_every_pattern() {
    PATTERNS.iter().for_each(|&pattern| assert_gradients(&small(pattern), usize::MAX));
}

#[test]
fn every_gradient_of_a_llama_agrees_with_differences_tied_or_not_factorised_or_not() {
    let base = Config { attention: Pattern::Mixed { block: 1 }, ..Config::llama(2, 12, 6, 2, 7, 11) };
    for (rank, tied) in [(Some(3), true), (None, true), (None, false)] {
        assert_gradients(&Config { rank, tied, ..base }, usize::MAX);
    }
}

#[test]
fn every_gradient_of_every_mixture_agrees_with_differences() {
    mixtures().iter().for_each(|config| assert_gradients(config, 24));
    adapted_mixtures().iter().for_each(|config| assert_gradients(config, 8));
}

#[test]
fn gains_of_all_norms_begin_at_one_and_nothing_else_does() {
    for config in mixtures() {
        for (name, tensor) in config.formula_weights(0.0) {
            let gain = name.ends_with("norm.weight");
            assert!(tensor.data.iter().all(|&x| x == f64::from(u8::from(gain))), "{name}");
        }
    }
}

#[test]
fn a_later_token_changes_no_earlier_logit_and_a_seen_one_does() {
    for config in PATTERNS.map(small).into_iter().chain(mixtures()) {
        let weights = config.formula_weights(0.4);
        let base = logits(&config, &weights, &INPUTS[..LENGTH], LENGTH);
        for changed in 0..LENGTH {
            let mut inputs = INPUTS[..LENGTH].to_vec();
            inputs[changed] = 10;
            let now = logits(&config, &weights, &inputs, LENGTH);
            let split = changed * config.vocab;
            assert_eq!(now[..split], base[..split], "{config:?}");
            assert_ne!(now[split..split + config.vocab], base[split..split + config.vocab], "{config:?}");
        }
    }
}

#[test]
fn the_fused_projection_keeps_query_key_and_value_of_a_head_together() {
    let fused = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 2.0, 3.0, 12.0, 13.0, 22.0, 23.0];
    let [q, k, v] = split(&fused, 2);
    assert_eq!((q[..].to_vec(), k[0], v[3]), (vec![0.0, 1.0, 2.0, 3.0], 10.0, 23.0));
    assert_eq!(fuse(&[q, k, v], 2), fused);
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
    // Along g / |g|² the loss rises by 1 per unit.
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
