//! The whole Yxanul on every device of this machine against the f64 oracle: factorised, plain and untied.

use capful_core::model::Recompute;
use capful_host::device::AnyProfile;
use capful_tests::model::{LEVELS, Model, PATTERNS, assert_gradients, devices, tokens};
use capful_tests::oracle::attention::Pattern;
use capful_tests::oracle::differences::relative_error;
use capful_tests::oracle::pythia::Batch;
use capful_tests::oracle::train::Recipe;
use capful_tests::oracle::yxanul::{Config, logits, loss};
use capful_tests::oracle::{IGNORE, Oracle as _, train};

const VOCAB: usize = 77;

/// Small and odd: 6 query heads of 4 dims on 2 key heads, a feed-forward of 23; 77 ids in 128 rows.
fn odd(attention: Pattern) -> Config {
    Config {
        layers: 3,
        d: 24,
        heads: 6,
        kv_heads: 2,
        d_ff: 23,
        vocab: VOCAB,
        rank: Some(5),
        tied: true,
        rotary_base: 10_000.0,
        eps: 1e-5,
        attention,
    }
}

/// The three kinds of ends.
fn kinds(attention: Pattern) -> [Config; 3] {
    let odd = odd(attention);
    [odd, Config { rank: None, ..odd }, Config { rank: None, tied: false, kv_heads: 6, ..odd }]
}

/// Two blocks of 16 and a short one, in 2 sequences.
const LENGTH: usize = 37;

#[test]
fn loss_and_every_gradient_are_the_oracles() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    for config in PATTERNS.into_iter().flat_map(kinds) {
        let weights = config.formula_weights(0.4);
        let (expected_loss, expected) = config.loss_and_gradients(&weights, batch);
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 2, LENGTH, Recompute::None);
            let got = model.loss(batch);
            let what = format!("{name}, {config:?}");
            assert!((got - expected_loss).abs() <= 1e-4 * expected_loss, "{what}: {got}, {expected_loss} expected");
            assert_gradients(&what, &model.tensors("gradient."), &expected, 1e-4);
        }
    }
}

#[test]
fn recomputation_changes_no_bit_and_neither_do_threads() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    for config in kinds(Pattern::Mixed { block: 16 }) {
        let weights = config.formula_weights(0.4);
        let run = |device: &AnyProfile, recompute| {
            let mut model = Model::new(device, &config, &weights, 2, LENGTH, recompute);
            let loss = model.loss(batch);
            (loss.to_bits(), model.bits("gradient."))
        };
        let [reference, one, two] = devices().map(|(_, device)| LEVELS.map(|level| run(&device, level)));
        for levels in [&reference, &one] {
            assert!(levels[0].1.iter().all(|(_, bits)| bits.iter().any(|&b| b != 0)));
            assert!(levels[0] == levels[1], "cheap differs");
            assert!(levels[0] == levels[2], "full differs");
        }
        assert!(one == two, "two threads differ from one");
    }
}

#[test]
fn micro_batches_add_up_to_one_large_batch() {
    let (inputs, targets) = tokens(3 * LENGTH, VOCAB as u32);
    let part = |i: usize| Batch {
        inputs: &inputs[i * LENGTH..][..LENGTH],
        targets: &targets[i * LENGTH..][..LENGTH],
        length: LENGTH,
    };
    for config in kinds(Pattern::Dense) {
        let weights = config.formula_weights(0.4);
        for (name, device) in devices() {
            let mut large = Model::new(&device, &config, &weights, 3, LENGTH, Recompute::None);
            let whole = large.loss(Batch { inputs: &inputs, targets: &targets, length: LENGTH });
            let expected = large.tensors("gradient.");
            for level in LEVELS {
                let mut small = Model::new(&device, &config, &weights, 1, LENGTH, level);
                // A step before it leaves nothing behind.
                small.loss(part(2));
                let sum = small.losses(&[part(0), part(1), part(2)]);
                assert!((sum - whole).abs() <= 1e-6 * whole, "{name}: {sum}, {whole}");
                assert_gradients(name, &small.tensors("gradient."), &expected, 1e-5);
            }
        }
    }
}

#[test]
fn an_update_moves_every_weight_as_the_oracle_does() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    let batches = [(batch, 0.002), (batch, 0.01), (batch, 0.005)];
    for config in kinds(Pattern::Dense) {
        let mut expected = train::Training::new(config.formula_weights(0.1));
        train::train(&config, &mut expected, Recipe::pythia(), &batches);
        for (name, device) in devices() {
            let weights = config.formula_weights(0.1);
            let mut model = Model::new(&device, &config, &weights, 2, LENGTH, Recompute::Full);
            for (i, &(batch, lr)) in batches.iter().enumerate() {
                model.step(Recipe::pythia(), i as i32 + 1, lr, batch);
            }
            for (prefix, expected) in
                [("", &expected.weights), ("first_moment.", &expected.first), ("second_moment.", &expected.second)]
            {
                let got = model.tensors(prefix);
                for (tensor, expected) in expected {
                    let error = relative_error(&got[tensor].data, &expected.data);
                    assert!(error <= 1e-3, "{name}: {prefix}{tensor}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn decoding_gives_the_logits_of_an_evaluation_and_of_the_oracle() {
    let (inputs, _) = tokens(LENGTH, VOCAB as u32);
    for config in PATTERNS.into_iter().flat_map(kinds) {
        let weights = config.formula_weights(0.4);
        let expected = logits(&config, &weights, &inputs, LENGTH);
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 1, LENGTH, Recompute::None);
            let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
            for (way, got) in [("evaluation", wide(model.logits(&inputs))), ("decoding", wide(model.decoded(&inputs)))]
            {
                let error = relative_error(&got, &expected);
                assert!(error <= 1e-5, "{name}, {config:?}, {way}: {error:e}");
            }
        }
    }
}

#[test]
fn an_evaluation_scores_what_the_oracle_does() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    for config in kinds(Pattern::Dense) {
        let weights = config.formula_weights(0.4);
        let mean = loss(&config, &weights, Batch { inputs: &inputs, targets: &targets, length: LENGTH });
        let expected = mean * targets.iter().filter(|&&t| t != IGNORE).count() as f64;
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 2, LENGTH, Recompute::None);
            let got = model.session.evaluate(&inputs, &targets).expect("an evaluation");
            assert!((got - expected).abs() <= 1e-5 * expected, "{name}: {got}, {expected} expected");
        }
    }
}

#[test]
fn a_later_token_changes_no_earlier_logit() {
    let (inputs, _) = tokens(LENGTH, VOCAB as u32);
    let config = odd(Pattern::Dense);
    let weights = config.formula_weights(0.4);
    for (name, device) in devices() {
        let mut model = Model::new(&device, &config, &weights, 1, LENGTH, Recompute::None);
        let base = model.logits(&inputs);
        for changed in [0, 1, 15, 16, LENGTH - 1] {
            let mut inputs = inputs.clone();
            inputs[changed] = (inputs[changed] + 1) % VOCAB as u32;
            let now = model.logits(&inputs);
            let (before, own) = (changed * VOCAB, changed * VOCAB + VOCAB);
            assert_eq!(now[..before], base[..before], "{name}, {changed}");
            assert_ne!(now[before..own], base[before..own], "{name}, {changed}");
        }
    }
}
