//! The whole Pythia on every device of this machine compared with the f64 oracle and with PyTorch's twenty steps.

use capful_core::model::Recompute;
use capful_host::device::AnyProfile;
use capful_host::run::Rows;
use capful_tests::model::{LEVELS, Model, PATTERNS, assert_gradients, devices, tokens};
use capful_tests::oracle::attention::Pattern;
use capful_tests::oracle::differences::{relative_error, wave};
use capful_tests::oracle::fixture;
use capful_tests::oracle::train::Recipe;
use capful_tests::oracle::transformer::{Config, logits, loss, loss_and_gradients};
use capful_tests::oracle::{Batch, IGNORE, train};

/// Small and odd: 3 heads of 5 dims, 4 of which rotate, a feed-forward of 23, 29 ids.
fn odd(attention: Pattern) -> Config {
    Config { rotary: 4, attention, ..Config::pythia(2, 15, 3, 23, 29) }
}

/// Five blocks of 16 and a short one, so that every pattern masks pairs, in 2 sequences.
const LENGTH: usize = 83;

#[test]
fn loss_and_every_gradient_are_the_oracles_under_every_pattern() {
    let (inputs, targets) = tokens(2 * LENGTH, 29);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    for pattern in PATTERNS {
        let config = odd(pattern);
        let weights = config.formula_weights(0.4);
        let (expected_loss, expected) = loss_and_gradients(&config, &weights, batch);
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 2, LENGTH, Recompute::NONE);
            let got = model.loss(batch);
            let what = format!("{name}, {pattern:?}");
            assert!((got - expected_loss).abs() <= 1e-4 * expected_loss, "{what}: {got}, {expected_loss} expected");
            assert_gradients(&what, &model.tensors("gradient."), &expected, 1e-4);
        }
    }
}

#[test]
fn recomputation_changes_no_bit_and_neither_do_threads() {
    let (inputs, targets) = tokens(2 * LENGTH, 29);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    let config = odd(Pattern::Mixed { block: 16 });
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

#[test]
fn micro_batches_add_up_to_one_large_batch() {
    let (inputs, targets) = tokens(3 * LENGTH, 29);
    let part = |i: usize| Batch {
        inputs: &inputs[i * LENGTH..][..LENGTH],
        targets: &targets[i * LENGTH..][..LENGTH],
        length: LENGTH,
    };
    let config = odd(Pattern::Dense);
    let weights = config.formula_weights(0.4);
    for (name, device) in devices() {
        let mut large = Model::new(&device, &config, &weights, 3, LENGTH, Recompute::NONE);
        let whole = large.loss(Batch { inputs: &inputs, targets: &targets, length: LENGTH });
        let expected = large.tensors("gradient.");
        for level in LEVELS {
            let mut small = Model::new(&device, &config, &weights, 1, LENGTH, level);
            // A previous step has no effect.
            small.loss(part(2));
            let sum = small.losses(&[part(0), part(1), part(2)]);
            assert!((sum - whole).abs() <= 1e-6 * whole, "{name}: {sum}, {whole}");
            assert_gradients(name, &small.tensors("gradient."), &expected, 1e-5);
        }
    }
}

#[test]
fn pythia_70m_agrees_with_the_oracle() {
    let config = Config::pythia_70m(10_000);
    let weights = config.formula_weights(0.03);
    let (inputs, targets) = tokens(6, 10_000);
    let batch = Batch { inputs: &inputs, targets: &targets, length: 3 };
    let (expected_loss, expected) = loss_and_gradients(&config, &weights, batch);
    let [_, _, (name, device)] = devices();
    let mut model = Model::new(&device, &config, &weights, 2, 3, Recompute::NONE);
    let got = model.loss(batch);
    assert!((got - expected_loss).abs() <= 1e-4 * expected_loss, "{got}, {expected_loss} expected");
    let gradients = model.tensors("gradient.");
    assert_eq!(gradients.len(), 76);
    assert_gradients(name, &gradients, &expected, 1e-4);
}

#[test]
fn twenty_steps_follow_pytorch() {
    let cases = fixture::cases();
    assert_eq!(cases.len(), 4);
    for case in &cases {
        for (name, device) in devices() {
            let mut model = Model::new(&device, &case.config, &case.weights(), 2, case.length, Recompute::NONE);
            let what = format!("{name}, {:?}", case.config.attention);
            for (i, (batch, lr)) in case.batches().into_iter().enumerate() {
                let loss = model.step(i as i32 + 1, lr, batch);
                let torch = case.losses_f32[i];
                assert!((loss - torch).abs() <= 1e-3, "{what}, step {i}: {loss}, PyTorch {torch}");
                if i > 0 {
                    continue;
                }
                for (tensor, gradient) in model.tensors("gradient.") {
                    let [norm, along] = case.first_gradients[&tensor];
                    let g = gradient.data.iter();
                    let got_norm = g.clone().map(|g| g * g).sum::<f64>().sqrt();
                    let got_along: f64 = g.enumerate().map(|(i, g)| g * wave(1, i)).sum();
                    assert!((got_norm - norm).abs() <= 1e-4 * norm, "{what}: {tensor}: {got_norm}, PyTorch {norm}");
                    assert!((got_along - along).abs() <= 1e-4 * norm, "{what}: {tensor}: {got_along}, PyTorch {along}");
                }
            }
        }
    }
}

/// Without the biases of keys: where keys are not rotated these shift all scores of a query alike, so their gradient is
/// zero except for rounding, and AdamW makes whole steps of the rounding's sign.
fn defined(tensor: &str, values: &[f64]) -> Vec<f64> {
    if !tensor.ends_with("query_key_value.bias") {
        return values.to_vec();
    }
    let size = fixture::cases()[0].config.d / fixture::cases()[0].config.heads;
    values.chunks(size).enumerate().filter(|(part, _)| part % 3 != 1).flat_map(|(_, v)| v.to_vec()).collect()
}

#[test]
fn an_update_moves_every_weight_as_the_oracle_does() {
    let case = &fixture::cases()[0];
    let mut expected = train::Training::new(case.weights());
    let batches = &case.batches()[..3];
    train::train(&case.config, &mut expected, Recipe::pythia(), batches);
    for (name, device) in devices() {
        let mut model = Model::new(&device, &case.config, &case.weights(), 2, case.length, Recompute::FULL);
        for (i, &(batch, lr)) in batches.iter().enumerate() {
            model.step(i as i32 + 1, lr, batch);
        }
        for (prefix, expected) in
            [("", &expected.weights), ("first_moment.", &expected.first), ("second_moment.", &expected.second)]
        {
            let got = model.tensors(prefix);
            for (tensor, expected) in expected {
                let (got, expected) = (defined(tensor, &got[tensor].data), defined(tensor, &expected.data));
                let error = relative_error(&got, &expected);
                assert!(error <= 1e-3, "{name}: {prefix}{tensor}: {error:e}");
            }
        }
    }
}

#[test]
fn decoding_gives_the_logits_of_an_evaluation_and_of_the_oracle() {
    let (inputs, _) = tokens(LENGTH, 29);
    for pattern in PATTERNS {
        let config = odd(pattern);
        let weights = config.formula_weights(0.4);
        let expected = logits(&config, &weights, &inputs, LENGTH);
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 1, LENGTH, Recompute::NONE);
            let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
            for (way, got) in [("evaluation", wide(model.logits(&inputs))), ("decoding", wide(model.decoded(&inputs)))]
            {
                let error = relative_error(&got, &expected);
                assert!(error <= 1e-5, "{name}, {pattern:?}, {way}: {error:e}");
            }
        }
    }
}

#[test]
fn an_evaluation_scores_what_the_oracle_does() {
    let (inputs, targets) = tokens(2 * LENGTH, 29);
    let config = odd(Pattern::Dense);
    let weights = config.formula_weights(0.4);
    let mean = loss(&config, &weights, Batch { inputs: &inputs, targets: &targets, length: LENGTH });
    let expected = mean * targets.iter().filter(|&&t| t != IGNORE).count() as f64;
    for (name, device) in devices() {
        let mut model = Model::new(&device, &config, &weights, 2, LENGTH, Recompute::NONE);
        let got =
            model.session.evaluate(Rows { ids: &inputs, targets: &targets, offsets: &[] }).expect("an evaluation");
        assert!((got - expected).abs() <= 1e-5 * expected, "{name}: {got}, {expected} expected");
    }
}

#[test]
fn a_later_token_changes_no_earlier_logit() {
    let (inputs, _) = tokens(LENGTH, 29);
    for pattern in PATTERNS {
        let config = odd(pattern);
        let weights = config.formula_weights(0.4);
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 1, LENGTH, Recompute::NONE);
            let base = model.logits(&inputs);
            for changed in [0, 1, 15, 16, 40, LENGTH - 1] {
                let mut inputs = inputs.clone();
                inputs[changed] = (inputs[changed] + 1) % 29;
                let now = model.logits(&inputs);
                let (before, own) = (changed * 29, changed * 29 + 29);
                assert_eq!(now[..before], base[..before], "{name}, {pattern:?}, {changed}");
                assert_ne!(now[before..own], base[before..own], "{name}, {pattern:?}, {changed}");
            }
        }
    }
}

#[test]
fn a_loss_sends_no_gradient_to_later_tokens() {
    // Every position has its own id, so a row of the embedding corresponds to a position.
    let length = 70;
    let inputs: Vec<u32> = (0..length as u32).map(|t| (t * 31 + 5) % 79).collect();
    for pattern in PATTERNS {
        let config = Config { rotary: 4, attention: pattern, ..Config::pythia(2, 15, 3, 23, 79) };
        let weights = config.formula_weights(0.4);
        for (name, device) in devices() {
            for at in [0, 17, 50, length - 1] {
                let mut targets = vec![IGNORE; length];
                targets[at] = 3;
                let mut model = Model::new(&device, &config, &weights, 1, length, Recompute::CHEAP);
                model.loss(Batch { inputs: &inputs, targets: &targets, length });
                let table = &model.tensors("gradient.")["gpt_neox.embed_in.weight"].data;
                for (position, &id) in inputs.iter().enumerate() {
                    let row = &table[id as usize * 15..][..15];
                    let reached = row.iter().any(|&g| g != 0.0);
                    // Two layers: seen directly, or through a position that is seen.
                    let sees = |i, j| pattern.sees(i, j);
                    let expected = (0..=at).any(|k| sees(at, k) && (position <= k && sees(k, position)));
                    assert_eq!(reached, expected, "{name}, {pattern:?}: loss at {at}, token at {position}");
                }
            }
        }
    }
}
