//! Weights in 8 and 4 bits: a trained model's scores with them, their memory, and the cases that are refused.

use std::collections::HashMap;
use std::path::Path;

use capful_core::device::{InIntegers, Meter, OperationError, Profile as _, Rates, Reference, Single};
use capful_core::integer::{Integer, Row, quantise_row};
use capful_core::memory::{Arena, Entry, Layout, Region, Role};
use capful_core::model::{Family as _, FirstValues, MicroBatch, Products, Purpose, Recompute, Transformer};
use capful_core::ops::{Chance, Pattern};
use capful_core::optimizer::Optimizer;
use capful_core::train::{Ranks, Settings};
use capful_host::config::AnyFamily;
use capful_tests::binary::{Outcome, TINY, directory, host};
use capful_tests::model::{Peer as _, tokens};
use capful_tests::oracle::transformer::mixtures;
use serde_json::Value;

const MICRO: MicroBatch = MicroBatch {
    batch: 2,
    seq_len: 12,
    chunk: 7,
    recompute: Recompute::NONE,
    pattern: Pattern::DENSE,
    products: Products::Wide,
    dropout: Chance::NONE,
    documents: false,
};

/// The dequantised numbers of a weight; its region has this many rows, the last of which may be padding.
fn rounded(integer: Integer, weight: &[f32], [rows, columns]: [usize; 2], group: u32) -> (Vec<u8>, Vec<u16>, Vec<f32>) {
    let (stride, groups) = (integer.dtype().row_bytes(columns as u32) as usize, columns.div_ceil(group as usize));
    let (mut codes, mut scales, mut numbers) = (vec![0; rows * stride], Vec::new(), Vec::new());
    for (r, row) in weight.chunks_exact(columns).enumerate() {
        let (mut to, mut halves, mut found) = (vec![0; stride], vec![0; groups], vec![0.0; columns]);
        quantise_row(integer, row, group, &mut to, &mut halves);
        Row { integer, codes: &to, side: None, scales: &halves, group: group as usize }
            .decoded(columns, |i, x| found[i] = x);
        integer.put_row([rows as u32, r as u32], &to, &mut codes);
        scales.extend(halves);
        numbers.extend(found);
    }
    (codes, scales, numbers)
}

/// The loss of each token of a model whose matrices are dequantised integers: computed in integers, or in f32.
fn losses(model: &Transformer, integer: Integer, in_integers: bool) -> Vec<f32> {
    let profile = InIntegers { profile: &Single, weights: in_integers.then_some(integer) };
    let mut entries: Vec<Entry> = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = Layout::new(&mut visit);
    let lasting = model.lay_lasting(&profile, Purpose::Evaluation, &mut layout);
    let evaluation = model.lay_evaluation(&MICRO, &profile, &mut layout);
    let bytes = layout.high_water().expect("it fits");
    // The weights that are in integers, and their groups: as in the layout of integers, whichever of the two is filled.
    let mut groups = HashMap::new();
    let mut note = |e: &Entry| {
        if e.slot.role == Role::Scale {
            groups.insert(e.slot.name, e.slot.shape[3]);
        }
    };
    let always = InIntegers { profile: &Single, weights: Some(integer) };
    model.lay_lasting(&always, Purpose::Evaluation, &mut Layout::new(&mut note));

    let mut storage = vec![0u64; bytes as usize / 8];
    let all: &mut [u8] = bytemuck::cast_slice_mut(&mut storage);
    let mut write = |region: Region, bytes: &[u8]| {
        assert!(bytes.len() as u64 <= region.bytes(), "{region:?}");
        all[region.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    };
    for entry in entries.iter().filter(|e| matches!(e.slot.role, Role::Weight | Role::Constant)) {
        for layer in 0..entry.slot.layers {
            let mut values = vec![0.0; entry.slot.elements() as usize];
            FirstValues::new(&entry.slot, layer, 5).fill(0, &mut values);
            let (place, columns) = (entry.place.at(layer), entry.slot.shape[3]);
            // Every matrix preserves the magnitude of its input, so that each of them matters.
            if groups.contains_key(entry.slot.name) {
                let rms = (values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32).sqrt();
                values.iter_mut().for_each(|x| *x /= rms * (columns as f32).sqrt());
            }
            let Some(&count) = groups.get(entry.slot.name) else {
                write(place, bytemuck::cast_slice(&values));
                continue;
            };
            let group = integer.group_of(columns, count).expect("a group");
            let (codes, scales, numbers) = rounded(integer, &values, [place.rows() as usize, columns as usize], group);
            if !in_integers {
                write(place, bytemuck::cast_slice(&numbers));
                continue;
            }
            let of = |e: &&Entry| e.slot.role == Role::Scale && e.slot.name == entry.slot.name;
            write(place, &codes);
            write(entries.iter().find(of).expect("scales").place.at(layer), bytemuck::cast_slice(&scales));
        }
    }
    let batch = Transformer::evaluation_batch(&evaluation);
    let (ids, targets) = tokens(MICRO.tokens() as usize, model.vocab_size);
    write(batch.ids, bytemuck::cast_slice(&ids));
    write(batch.targets, bytemuck::cast_slice(&targets));
    let settings = Settings { loss_scale: 1.0, ..Settings::default() };
    write(Transformer::control(&lasting).settings, bytemuck::bytes_of(&settings));
    let mut device = Reference { arena: Arena::new(&mut storage) };
    model.evaluate(&mut device, &lasting, &evaluation, &MICRO).expect("an evaluation");
    device.arena.f32(Transformer::evaluation_losses(&evaluation)).expect("losses").to_vec()
}

/// Every weight uses its own scales, in every mixture of parts: the only difference to f32 is the rounding of
/// activations.
#[test]
fn every_mixture_in_integers_scores_as_with_the_numbers_of_its_codes() {
    for config in mixtures() {
        let AnyFamily::Transformer(model) = config.family(MICRO.seq_len) else { panic!("another family") };
        for integer in [Integer::Int8, Integer::Int4] {
            let (found, expected) = (losses(&model, integer, true), losses(&model, integer, false));
            let mean = |of: &[f32]| of.iter().map(|x| f64::from(*x)).sum::<f64>() / of.len() as f64;
            let spread = expected.iter().map(|x| (f64::from(*x) - mean(&expected)).powi(2)).sum::<f64>();
            let off = found.iter().zip(&expected).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            let share = (off / spread).sqrt();
            assert!(share > 0.0 && share < 0.05, "{config:?}, {integer:?}: {share}");
        }
    }
}

#[test]
fn weights_in_integers_are_not_trained() {
    let AnyFamily::Transformer(model) = mixtures()[0].family(MICRO.seq_len) else { panic!("another family") };
    let profile = InIntegers { profile: &Single, weights: Some(Integer::Int8) };
    assert!(profile.multiplies_integers());
    let mut visit = |_: &Entry| {};
    let mut layout = Layout::new(&mut visit);
    let optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);
    let lasting = model.lay_lasting(&profile, Purpose::Training(Ranks::ALONE, optimizer), &mut layout);
    let training = model.lay_training(&MICRO, &profile, &mut layout);
    let mut meter = Meter::new(&Single, Rates::ONE);
    let refused = model.micro_batch(&mut meter, &lasting, &training, &MICRO, true);
    assert_eq!(refused, Err(OperationError::Untrainable));
}

fn eval(dir: &Path, flags: &str) -> Value {
    host(dir, &format!("eval --json --run run {flags}")).ok().json()
}

fn loss(value: &Value) -> f64 {
    value["loss"].as_f64().expect("a loss")
}

/// Trains a model of a few parts, and compares its scores in integers with f32.
#[test]
fn a_trained_model_is_scored_and_generates_in_integers() {
    for preset in ["--preset pythia-tiny", "--preset yxanul-tiny --set kv_heads=1 --set rank=8"] {
        let dir = directory();
        let dir = dir.path();
        host(dir, &format!("train {preset} {TINY} --steps 60 --lr 1e-2 --out run")).ok();
        let whole = eval(dir, "--documents");
        assert_eq!(loss(&eval(dir, "--weights f32")), loss(&whole));
        let documents = whole["documents"].as_array().expect("documents");
        let nats: f64 = documents.iter().map(|d| d["nats"].as_f64().expect("nats")).sum();
        assert!((nats / whole["tokens"].as_f64().expect("tokens") / loss(&whole) - 1.0).abs() < 1e-9);
        for (weights, most) in [("int8", 0.005), ("int4", 0.03)] {
            let found = eval(dir, &format!("--weights {weights}"));
            let change = loss(&found) / loss(&whole) - 1.0;
            assert!(change != 0.0 && change.abs() < most, "{preset} {weights}: {change}");
            let defined = eval(dir, &format!("--weights {weights} --device reference"));
            assert!((loss(&defined) / loss(&found) - 1.0).abs() < 1e-5, "{preset} {weights}: {defined} {found}");
            let text = |device: &str| -> Value {
                let line = format!("generate --json --run run --weights {weights} --max-tokens 12 --temperature 0");
                host(dir, &format!("{line} --device {device}")).ok().json()["ids"].clone()
            };
            assert_eq!(text("cpu"), text("reference"));
        }
    }
}

#[test]
fn who_has_no_integers_says_so() {
    let dir = directory();
    let dir = dir.path();
    host(dir, &format!("train {TINY} --steps 1 --out run")).ok();
    let refused = |line: &str| -> Outcome {
        let outcome = host(dir, line);
        assert_eq!(outcome.status, Some(2), "{line}: {}", outcome.err);
        assert_eq!(outcome.err.trim_end().lines().count(), 1, "{}", outcome.err);
        outcome
    };
    let gpu = refused("eval --run run --device cuda --weights int8").err;
    assert!(gpu.contains("--weights int8") && gpu.contains("cuda"), "{gpu}");
    let spiking = refused("plan --preset neurogen-tiny --weights int4").err;
    assert!(spiking.contains("--weights int4") && spiking.contains("NeuroGen"), "{spiking}");
    assert!(refused("eval --run run --weights int3").err.contains("int3"));
}

/// The memory of a model of 260,032 parameters: the ledger's sum, compared with a computation by hand.
#[test]
fn the_image_of_a_small_model_fits_a_microcontroller() {
    let dir = directory();
    let sizes = "--set layers=5 --set d_model=64 --set heads=8 --set kv_heads=4 --set d_ff=172 --set rank=0 \
                 --set context=512 --vocab-size 512";
    let plan = |weights: &str| -> Value {
        host(dir.path(), &format!("plan --json --preset yxanul-tiny {sizes} --weights {weights}")).ok().json()
    };
    let sum = |plan: &Value, keys: &[&str]| -> u64 {
        let lines = plan["image"].as_array().expect("lines").iter();
        lines.flat_map(|line| keys.iter().map(|key| line[*key].as_u64().expect("a number"))).sum()
    };
    // 512 positions of 4 pairs of cosine and sine; 11 gains of 64.
    let (table, gains) = (4 * 512 * 4 * 2, 4 * 11 * 64);
    let matrices = 512 * 64 + 5 * (128 * 64 + 64 * 64 + 344 * 64 + 64 * 172);
    let scales = [
        2 * (512 + 5 * (128 + 64 + 344 + 64)),
        // Groups of 32 of 64 and of 172 inputs; the table's rows are shorter than 128.
        2 * (512 + 5 * (2 * (128 + 64 + 344) + 6 * 64)),
    ];
    for (weights, bytes, most) in [
        ("f32", 4 * matrices + gains + table, u64::MAX),
        ("int8", matrices + scales[0] + gains + table, 290 << 10),
        ("int4", matrices / 2 + scales[1] + gains + table, 170 << 10),
    ] {
        let plan = plan(weights);
        assert_eq!(plan["params"], 260_032);
        assert_eq!(sum(&plan, &["bytes"]), bytes, "{weights}");
        let image = plan["image_bytes"].as_u64().expect("bytes");
        assert_eq!(sum(&plan, &["bytes", "padding"]), image, "{weights}");
        assert!(image <= most, "{weights}: {image}");
    }
}
