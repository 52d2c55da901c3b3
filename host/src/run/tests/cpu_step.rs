//! Compares whole steps of a small model on this device with the reference.

use capful_core::device::{Rates, Single};
use capful_core::model::{EightBits, MicroBatch, Products, Recompute, Transformer};
use capful_core::ops::{Chance, Dropout, IGNORE, Pattern, PatternKind};
use capful_core::optimizer::Optimizer;
use capful_core::random::Random;
use capful_core::train::Settings;

use crate::config::AnyFamily;
use crate::device::cpu::CpuProfile;
use crate::device::{AnyProfile, Storage};
use crate::plan::{Constants, Laid, Sections};
use crate::run::{Rows, Session};

const RATES: Rates = Rates::ONE;

fn model() -> Transformer {
    Transformer {
        layers: 2,
        d_model: 42,
        heads: 3,
        kv_heads: 3,
        head_size: 14,
        d_ff: 101,
        vocab_size: 131,
        context: 80,
        rotary_dims: 6,
        ..Transformer::GPT_NEOX
    }
}

/// The state after two micro-batches and an update of `stage`, region by region, then losses of an evaluation and the
/// logits of a few decoded tokens.
fn outcome(profile: &AnyProfile, stage: MicroBatch) -> Vec<(String, Vec<f32>)> {
    let model = model();
    let sections = Sections {
        training: vec![stage],
        accumulate: vec![2],
        ranks: capful_core::train::Ranks::ALONE,
        evaluation: Some(stage),
        decoding: Some(20),
        // An eps above the gradients' size: with a small eps Adam's step is their sign, and rounding decides the sign
        // of zeros.
        weights: None,
        constants: Constants { optimizer: Optimizer::adamw([0.9, 0.95], 0.1, 0.1), pattern: stage.pattern },
    };
    let family = AnyFamily::Transformer(model);
    let laid = Laid::new(&family, profile, RATES, &sections).unwrap().recorded(&family, profile).unwrap();
    let mut session = Session::start(laid, profile, Some(3), model.vocab_size).unwrap();
    let random = Random::new(9, 0);
    let tokens = stage.tokens() as usize;
    let id = |i: usize| random.below(i as u64, u64::from(model.vocab_size)) as u32;
    let batch = |from: usize| -> Vec<u32> { (from..from + tokens).map(id).collect() };
    let targets = |from: usize| -> Vec<u32> {
        (from..from + tokens).map(|i| if i % 11 == 3 { IGNORE } else { id(i + 1) }).collect()
    };
    // Documents of 13 tokens, which continue from row to row.
    let offsets: Vec<u32> = (0..tokens as u32).map(|i| i % 13).collect();
    let loss_scale = 0.5 / tokens as f32;
    let corrections = [[0.1, 0.05]; 5];
    session.begin(Settings { learning_rate: 0.01, loss_scale, corrections, ..Settings::UNIT }).unwrap();
    for (from, first) in [(0, true), (tokens, false)] {
        let (ids, targets) = (batch(from), targets(from));
        session.mask(0, Dropout::key(3, first.into())).unwrap();
        session.micro_batch(0, Rows { ids: &ids, targets: &targets, offsets: &offsets }, first).unwrap();
    }
    session.update().unwrap();
    let ticket = session.finish().unwrap();
    let results = <[f32; 2]>::from(session.results(ticket).unwrap()).to_vec();
    let mut found = vec![("results".to_owned(), results)];
    for entry in session.laid.lasting.clone() {
        for layer in 0..entry.slot.layers {
            let region = entry.place.at(layer);
            let mut values = vec![0.0f32; region.elements() as usize];
            session.device.read(region, bytemuck::cast_slice_mut(&mut values)).unwrap();
            found.push((format!("{}{} {layer}", entry.slot.prefix, entry.slot.name), values));
        }
    }
    let (ids, targets) = (batch(7), targets(7));
    let loss = session.evaluate(Rows { ids: &ids, targets: &targets, offsets: &[] }).unwrap();
    found.push(("evaluation".to_owned(), vec![loss as f32]));
    let mut rows = Vec::new();
    session.logits(5, &mut |row| rows.extend_from_slice(row)).unwrap();
    found.push(("logits".to_owned(), rows));
    for position in 0..20 {
        let logits = session.decode(id(position as usize), position).unwrap().to_vec();
        found.push((format!("decoded {position}"), logits));
    }
    found
}

fn apart(a: &[f32], b: &[f32]) -> f64 {
    let difference: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    let norm: f64 = a.iter().map(|a| f64::from(*a).powi(2)).sum();
    difference.sqrt() / norm.sqrt().max(1e-20)
}

#[test]
fn whole_steps_agree_with_the_reference_and_threads_with_each_other() {
    let patterns = [PatternKind::Dense, PatternKind::Local, PatternKind::Global, PatternKind::Mixed];
    let rounded = Recompute::FULL.with_eight_bits(EightBits::Input, 1);
    let recomputes = [Recompute::NONE, Recompute::CHEAP, Recompute::FULL, rounded];
    for (case, kind) in patterns.into_iter().enumerate() {
        for recompute in recomputes {
            let pattern = Pattern { kind, block: 8, window: 1, stride: 3 };
            let stage = MicroBatch {
                batch: 3,
                seq_len: 37,
                chunk: [29, 200][case % 2],
                recompute,
                pattern,
                products: Products::Wide,
                dropout: Chance::nearest([0.0, 0.3][case % 2]).unwrap(),
                documents: recompute != Recompute::CHEAP,
            };
            let expected = outcome(&AnyProfile::Reference(Single), stage);
            let found = outcome(&AnyProfile::Cpu(CpuProfile { threads: 1 }), stage);
            for ((name, expected), (_, found)) in expected.iter().zip(&found) {
                let apart = apart(expected, found);
                // A number between two codes may round to either of them.
                let most = if recompute == rounded { 1e-3 } else { 1e-5 };
                assert!(apart <= most, "{name} is {apart:.1e} of its norm off, {stage:?}");
            }
            for threads in [2, 3] {
                assert!(found == outcome(&AnyProfile::Cpu(CpuProfile { threads }), stage), "{threads} threads");
            }
        }
    }
}
