//! Every mixture of a transformer's parts on every device of this machine compared with the f64 oracle.

use capful_core::model::{Activation, Recompute};
use capful_core::random::Random;
use capful_host::device::AnyProfile;
use capful_tests::model::{LEVELS, Model, assert_gradients, devices, in_eight_bits, sets, tokens};
use capful_tests::oracle::Batch;
use capful_tests::oracle::attention::Pattern;
use capful_tests::oracle::differences::relative_error;
use capful_tests::oracle::tensor::Tensors;
use capful_tests::oracle::transformer::{Config, adapted_mixtures, logits, loss_and_gradients, mixtures};
use rayon::prelude::*;

/// Two blocks of 16 and a short one, in 2 sequences.
const LENGTH: usize = 37;

/// The configurations, alternately dense and with masked blocks.
fn in_turn(configs: Vec<Config>) -> Vec<Config> {
    let attention = |i: usize| if i.is_multiple_of(2) { Pattern::Dense } else { Pattern::Mixed { block: 16 } };
    configs.into_iter().enumerate().map(|(i, config)| Config { attention: attention(i), ..config }).collect()
}

/// The mixtures.
fn cases() -> Vec<Config> {
    in_turn(mixtures())
}

/// The mixtures with adapters, with the frozen weights as they are and in 8 bits.
fn adapted() -> Vec<Config> {
    let all = [false, true]
        .map(|eight_bits| in_turn(adapted_mixtures()).into_iter().map(move |config| Config { eight_bits, ..config }));
    all.into_iter().flatten().collect()
}

/// The initial weights of a model.
fn first_weights(config: &Config) -> Tensors {
    let weights = config.formula_weights(0.4);
    if config.eight_bits { in_eight_bits(&weights) } else { weights }
}

#[test]
fn loss_and_every_gradient_are_the_oracles_whatever_is_computed_again() {
    let without_gains = cases().into_iter().map(|config| Config { norm_gains: false, ..config });
    cases().into_iter().chain(without_gains).chain(adapted()).collect::<Vec<_>>().into_par_iter().for_each(|config| {
        let (inputs, targets) = tokens(2 * LENGTH, config.vocab as u32);
        let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
        let weights = first_weights(&config);
        let (expected_loss, expected) = loss_and_gradients(&config, &weights, batch);
        for (name, device) in devices() {
            let what = format!("{name}, {config:?}");
            let mut bits = Vec::new();
            for recompute in LEVELS {
                let mut model = Model::new(&device, &config, &weights, 2, LENGTH, recompute);
                let got = model.loss(batch);
                assert!((got - expected_loss).abs() <= 1e-4 * expected_loss, "{what}: {got}, {expected_loss} expected");
                assert_gradients(&what, &model.tensors("gradient."), &expected, 1e-4);
                bits.push(model.bits("gradient."));
            }
            assert!(bits.iter().all(|level| *level == bits[0]), "{what}: recomputation changes bits");
        }
    });
}

/// Loss and gradients have the same bits with each choice as where everything is saved.
fn changes_no_bit(device: (&str, &AnyProfile), config: &Config, choices: impl Iterator<Item = Recompute>) {
    let (inputs, targets) = tokens(2 * LENGTH, config.vocab as u32);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    let weights = config.formula_weights(0.4);
    let bits = |recompute| {
        let mut model = Model::new(device.1, config, &weights, 2, LENGTH, recompute);
        (model.loss(batch).to_bits(), model.bits("gradient."))
    };
    let kept = bits(Recompute::NONE);
    for recompute in choices {
        assert!(bits(recompute) == kept, "{}, {config:?}, {recompute:?}", device.0);
    }
}

/// On the Reference every set with every mixture; on the other devices every set with at least one mixture.
#[test]
fn whatever_set_of_activations_is_computed_again_no_bit_changes() {
    let parts = cases().len();
    cases().into_par_iter().enumerate().for_each(|(i, config)| {
        for (name, device) in devices() {
            let parts = if matches!(device, AnyProfile::Reference(_)) { 1 } else { parts };
            changes_no_bit((name, &device), &config, sets(i, parts));
        }
    });
}

/// Choices for four layers: none, some or all layers for each kind.
#[test]
fn of_however_many_layers_activations_are_computed_again_no_bit_changes() {
    let random = Random::new(5, 0);
    cases().into_par_iter().enumerate().for_each(|(i, config)| {
        let config = Config { layers: 4, ..config };
        let choice = |which: u64| {
            let layers = |a: Activation| random.below(64 * i as u64 + 8 * which + a as u64, 5) as u16;
            Activation::ALL.into_iter().fold(Recompute::NONE, |all, a| all.with_layers(a, layers(a)))
        };
        for (name, device) in devices() {
            changes_no_bit((name, &device), &config, (0..6).map(choice));
        }
    });
}

#[test]
fn micro_batches_add_up_to_one_large_batch() {
    // Micro-batches have different masks.
    let whole = cases().into_iter().chain(adapted()).map(|config| Config { dropout: None, ..config });
    whole.collect::<Vec<_>>().into_par_iter().for_each(|config| {
        let (inputs, targets) = tokens(2 * LENGTH, config.vocab as u32);
        let weights = first_weights(&config);
        let half = |i: usize| Batch {
            inputs: &inputs[i * LENGTH..][..LENGTH],
            targets: &targets[i * LENGTH..][..LENGTH],
            length: LENGTH,
        };
        let (expected_loss, expected) =
            loss_and_gradients(&config, &weights, Batch { inputs: &inputs, targets: &targets, length: LENGTH });
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 1, LENGTH, Recompute::NONE);
            let got = model.losses(&[half(0), half(1)]);
            assert!((got - expected_loss).abs() <= 1e-4 * expected_loss, "{name}, {config:?}: {got}, {expected_loss}");
            assert_gradients(&format!("{name}, {config:?}"), &model.tensors("gradient."), &expected, 1e-4);
        }
    });
}

#[test]
fn logits_of_a_batch_and_of_token_after_token_are_the_oracles() {
    cases().into_iter().chain(adapted()).collect::<Vec<_>>().into_par_iter().for_each(|config| {
        let (inputs, _) = tokens(LENGTH, config.vocab as u32);
        let weights = first_weights(&config);
        let expected = logits(&config, &weights, &inputs, LENGTH);
        for (name, device) in devices() {
            let mut model = Model::new(&device, &config, &weights, 1, LENGTH, Recompute::NONE);
            for (what, got) in [("batch", model.logits(&inputs)), ("decoded", model.decoded(&inputs))] {
                let got: Vec<f64> = got.into_iter().map(f64::from).collect();
                let error = relative_error(&got, &expected);
                assert!(error <= 1e-5, "{name}, {what}, {config:?}: {error:e}");
            }
        }
    });
}
