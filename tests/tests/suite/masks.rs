//! Training with attention inside documents.

use std::fs;

use capful_core::model::Recompute;
use capful_tests::binary::{TINY, directory, host};
use capful_tests::model::{Model, PATTERNS, assert_gradients, devices, tokens};
use capful_tests::oracle::tensor::{Tensor, Tensors};
use capful_tests::oracle::transformer::{BEFORE, Config, loss_and_gradients};
use capful_tests::oracle::{Batch, IGNORE};
use capful_tests::runs::{losses, weights};
use serde_json::Value;

const LENGTH: usize = 37;
const VOCAB: usize = 61;

/// A Pythia and a Yxanul with documents of this many tokens.
fn families(documents: usize) -> [Config; 2] {
    let documents = Some(documents);
    [
        Config { documents, ..Config::pythia(2, 32, 4, 23, VOCAB) },
        Config { documents, rank: Some(5), ..Config::llama(2, 24, 6, 2, 23, VOCAB) },
    ]
}

/// Documents of two tokens (the first has one of them in its row), of some more, with ends at the ends of the pattern's
/// blocks, and one over the whole row.
const DOCUMENTS: [usize; 4] = [2, 9, 16 + BEFORE, 60];

/// The loss of all targets together, and its gradients, from a separate row for each document, from position 0, without
/// masking documents.
fn one_by_one(config: &Config, device: &capful_host::device::AnyProfile, batch: Batch<'_>) -> (f64, Tensors) {
    let weights = config.formula_weights(0.4);
    let whole = Config { documents: None, ..*config };
    let scored = |targets: &[u32]| targets.iter().filter(|&&t| t != IGNORE).count() as f64;
    let (mut loss, mut gradients) = (0.0, Tensors::new());
    for (inputs, targets) in batch.inputs.chunks(LENGTH).zip(batch.targets.chunks(LENGTH)) {
        let mut begin = 0;
        while begin < LENGTH {
            let end = (begin + 1..LENGTH).find(|&i| config.offset(i) == 0).unwrap_or(LENGTH);
            let alone = Batch { inputs: &inputs[begin..end], targets: &targets[begin..end], length: end - begin };
            begin = end;
            let share = scored(alone.targets) / scored(batch.targets);
            if share == 0.0 {
                continue;
            }
            let mut model = Model::new(device, &whole, &weights, 1, alone.length, Recompute::NONE);
            loss += share * model.loss(alone);
            for (name, gradient) in model.tensors("gradient.") {
                let zeros = || Tensor::new(&[gradient.data.len()], vec![0.0; gradient.data.len()]);
                let sum = gradients.entry(name).or_insert_with(zeros);
                sum.data.iter_mut().zip(&gradient.data).for_each(|(sum, g)| *sum += share * g);
            }
        }
    }
    (loss, gradients)
}

#[test]
fn a_row_of_documents_has_the_loss_and_the_gradients_of_its_documents_one_by_one() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    for config in DOCUMENTS.into_iter().flat_map(families) {
        for (name, device) in devices() {
            let what = format!("{name}, {config:?}");
            let (expected_loss, expected) = one_by_one(&config, &device, batch);
            let mut model = Model::new(&device, &config, &config.formula_weights(0.4), 2, LENGTH, Recompute::NONE);
            let got = model.loss(batch);
            assert!((got - expected_loss).abs() <= 1e-6 * expected_loss, "{what}: {got}, {expected_loss} expected");
            assert_gradients(&what, &model.tensors("gradient."), &expected, 1e-5);
        }
    }
}

#[test]
fn every_pattern_inside_documents_is_the_oracles() {
    let (inputs, targets) = tokens(2 * LENGTH, VOCAB as u32);
    let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
    for config in DOCUMENTS.into_iter().flat_map(families) {
        for attention in PATTERNS {
            let config = Config { attention, ..config };
            let weights = config.formula_weights(0.4);
            let (expected_loss, expected) = loss_and_gradients(&config, &weights, batch);
            for (name, device) in devices() {
                let what = format!("{name}, {config:?}");
                let mut model = Model::new(&device, &config, &weights, 2, LENGTH, Recompute::FULL);
                let got = model.loss(batch);
                assert!((got - expected_loss).abs() <= 1e-4 * expected_loss, "{what}: {got}, {expected_loss}");
                assert_gradients(&what, &model.tensors("gradient."), &expected, 1e-4);
            }
        }
    }
}

const RUN: &str = "--schedule constant --warmup 0 --log-every 1 --accumulate 2 --data tales";

#[test]
fn training_looks_at_documents_and_evaluations_do_not() {
    let dir = directory();
    let dir = dir.path();
    for flags in ["", "--preset yxanul-tiny --set rank=5 --set kv_heads=1"] {
        // At a learning rate of 0 the weights stay unchanged; with initial weights attention has little effect.
        for (out, masks) in [("whole", ""), ("inside", "--mask-documents")] {
            let line = format!("train {flags} {TINY} {RUN} --lr 0 --steps 3 {masks} --out {out}");
            host(dir, &line).ok();
        }
        let [(whole, evaluated), (inside, same)] = ["whole", "inside"].map(|run| losses(dir, run));
        assert_eq!(evaluated, same);
        assert!(whole.len() == 3 && whole.iter().zip(&inside).any(|(a, b)| a != b), "{whole:?} {inside:?}");
        for run in ["whole", "inside"] {
            fs::remove_dir_all(dir.join(run)).unwrap();
        }
    }
}

#[test]
fn threads_recomputation_and_an_interruption_change_no_bit() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train {TINY} {RUN} --steps 8");
    for (out, flags) in [
        ("one", "--threads 1 --mask-documents"),
        ("two", "--threads 2 --mask-documents --recompute full"),
        ("none", "--threads 1"),
    ] {
        host(dir, &format!("{line} {flags} --out {out}")).ok();
    }
    assert!(weights(dir, "one", 8) == weights(dir, "two", 8));
    assert!(weights(dir, "one", 8) != weights(dir, "none", 8));
    // A resumed run uses the mask, too.
    host(dir, &format!("train {TINY} {RUN} --steps 4 --mask-documents --out parts")).ok();
    host(dir, "train --resume --steps 8 --out parts").ok();
    assert!(weights(dir, "parts", 8) == weights(dir, "one", 8));
}

#[test]
fn a_plan_has_an_offset_for_each_token_and_no_byte_more() {
    let dir = directory();
    let dir = dir.path();
    let regions = |flags: &str| -> Vec<[Value; 2]> {
        let plan = host(dir, &format!("plan --json {TINY} --tokenizer byte {flags}"));
        let plan = plan.planned().json();
        let regions = plan["regions"].as_array().unwrap().iter();
        regions.map(|region| ["name", "bytes"].map(|key| region[key].clone())).collect()
    };
    let (plain, mut inside) = (regions(""), regions("--mask-documents"));
    let offsets = inside.iter().position(|[name, _]| name == "batch.offsets").unwrap();
    assert_eq!(inside.remove(offsets)[1], 4 * 4 * 32);
    assert_eq!(inside, plain);
}

#[test]
fn a_run_may_begin_to_look_at_documents_and_others_cannot() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train {TINY} {RUN}");
    let config = |run: &str| fs::read_to_string(dir.join(run).join("config.toml")).unwrap();
    host(dir, &format!("{line} --steps 4 --out run")).ok();
    // As a version without masks writes it.
    assert!(!config("run").contains("mask_documents"));
    host(dir, "train --resume --steps 8 --mask-documents --out run").ok();
    assert!(config("run").contains("\nmask_documents = true\n"));
    host(dir, &format!("{line} --steps 8 --out plain")).ok();
    assert!(weights(dir, "run", 8) != weights(dir, "plain", 8));
    let spiking = "train --preset neurogen-tiny --mask-documents --data tales --steps 1 --out other";
    host(dir, spiking).refused(2, &["a NeuroGen has no attention to keep inside documents (--mask-documents)"]);
    assert!(!dir.join("other").exists());
}
