//! Compares whole steps of a small NeuroGen on this device with the reference, and its gradients with finite
//! differences.

use capful_core::device::{Rates, Single};
use capful_core::memory::{Region, Role};
use capful_core::model::neurogen::{Connectome, SynapseLearning};
use capful_core::model::{MicroBatch, NeuroGen, Products, Recompute};
use capful_core::ops::{Cell, Chance, IGNORE, Pattern};
use capful_core::optimizer::Optimizer;
use capful_core::random::Random;
use capful_core::train::Settings;

use crate::config::AnyFamily;
use crate::device::cpu::CpuProfile;
use crate::device::{AnyProfile, Storage};
use crate::plan::{Constants, Laid, Sections};
use crate::run::{Rows, Session};

const STREAMS: usize = 3;
const LENGTH: usize = 19;
const STAGE: MicroBatch = MicroBatch {
    batch: STREAMS as u32,
    seq_len: LENGTH as u32,
    chunk: 8,
    recompute: Recompute::NONE,
    pattern: Pattern::DENSE,
    products: Products::Wide,
    dropout: Chance::NONE,
    documents: false,
};
/// Settings of a first step, with learning rate 0.01.
const SETTINGS: Settings = Settings {
    learning_rate: 0.01,
    clip: 1.0,
    loss_scale: 1.0 / (STREAMS * LENGTH) as f32,
    factored: 0.01,
    corrections: [[0.1, 0.01]; 5],
    decay: 1.0,
    average: 0.0,
};
/// An eps above the gradients' size: with a small eps Adam's step is their sign, and rounding decides the sign of
/// zeros.
const OPTIMIZER: Optimizer = Optimizer::adamw([0.9, 0.99], 0.1, 0.1);

/// No size divides another.
fn model() -> NeuroGen {
    NeuroGen {
        vocab_size: 61,
        embedding: 10,
        taps: 3,
        connectome: Connectome {
            taps: 30,
            neurons: [13, 29, 21, 17, 30, 9],
            outputs: [7, 11, 13, 5, 12, 4],
            fan_in: [8, 11, 10, 9, 12, 7],
            tap_share: 0.4,
            pipelined: false,
            feedback: true,
            seed: 5,
        },
        fan_out: 5,
        skip: 3,
        memory: 6,
        memory_decay: 0.9,
        gate: true,
        rule: SynapseLearning::Eprop,
        full: false,
        dopamine: 0.0,
        novelty: 0.0,
        cell: Cell {
            leak: 0.85,
            threshold: 1.0,
            fatigue: 0.96,
            adaptation: 0.2,
            filter: 0.6,
            rate: 0.1,
            homeostasis: 0.005,
            block: 8,
            winners: 3,
        },
        streams: STREAMS as u32,
    }
}

/// Models with every learning rule, and with and without every part.
fn models() -> Vec<(&'static str, NeuroGen)> {
    let base = model();
    let wired = |change: fn(&mut Connectome)| {
        let mut connectome = base.connectome;
        change(&mut connectome);
        NeuroGen { connectome, ..base }
    };
    let modulated = NeuroGen { dopamine: 0.5, novelty: 0.3, ..base };
    let pipelined = wired(|c| c.pipelined = true);
    vec![
        ("eprop", base),
        ("eprop-random", NeuroGen { rule: SynapseLearning::EpropRandom, ..base }),
        ("bptt", NeuroGen { rule: SynapseLearning::Bptt, ..base }),
        ("frozen", NeuroGen { rule: SynapseLearning::Frozen, ..base }),
        ("full", NeuroGen { full: true, ..base }),
        ("full bptt", NeuroGen { full: true, rule: SynapseLearning::Bptt, ..base }),
        ("no gate", NeuroGen { gate: false, ..base }),
        ("no memory", NeuroGen { memory: 0, ..base }),
        ("no skip", NeuroGen { skip: 0, ..base }),
        ("none of them", NeuroGen { skip: 0, memory: 0, gate: false, ..base }),
        ("modulated", modulated),
        ("pipelined", pipelined),
        ("pipelined bptt", NeuroGen { rule: SynapseLearning::Bptt, ..pipelined }),
        ("no feedback", wired(|c| c.feedback = false)),
    ]
}

fn session(profile: &AnyProfile, model: NeuroGen) -> Session {
    let sections = Sections {
        training: vec![STAGE],
        accumulate: vec![1],
        ranks: capful_core::train::Ranks::ALONE,
        evaluation: Some(STAGE),
        decoding: Some(64),
        constants: Constants { optimizer: OPTIMIZER, pattern: Pattern::DENSE },
        weights: None,
    };
    let family = AnyFamily::NeuroGen(model);
    let laid = Laid::new(&family, profile, Rates::ONE, &sections).unwrap().recorded(&family, profile).unwrap();
    Session::start(laid, profile, Some(3), model.vocab_size).unwrap()
}

/// A batch of the tokens of every stream: ids, targets, offsets.
struct Tokens([Vec<u32>; 3]);

impl Tokens {
    /// Tokens `from` … of every stream; documents have 13 tokens and begin at different tokens in each stream.
    fn of_streams(from: usize) -> Tokens {
        Tokens::new(from, |stream, t| ((t + 5 * stream) % 13) as u32)
    }

    /// Rows that begin a document each.
    fn fresh(from: usize) -> Tokens {
        Tokens::new(from, |_, t| (t - from) as u32)
    }

    fn new(from: usize, offset: impl Fn(usize, usize) -> u32) -> Tokens {
        let places = || (0..STREAMS).flat_map(|stream| (from..from + LENGTH).map(move |t| (stream, t)));
        let id = |(stream, t): (usize, usize)| Random::new(9, stream as u64).below(t as u64, 61) as u32;
        let ids = places().map(id).collect();
        let targets = places().map(|(s, t)| if (t + s) % 11 == 3 { IGNORE } else { id((s, t + 1)) }).collect();
        Tokens([ids, targets, places().map(|(s, t)| offset(s, t)).collect()])
    }

    fn rows(&self) -> Rows<'_> {
        let [ids, targets, offsets] = &self.0;
        Rows { ids, targets, offsets }
    }
}

fn read(session: &mut Session, region: Region) -> Vec<f32> {
    let mut values = vec![0.0f32; region.elements() as usize];
    session.device.read(region, bytemuck::cast_slice_mut(&mut values)).unwrap();
    values
}

fn write(session: &mut Session, region: Region, values: &[f32]) {
    session.device.write(region, bytemuck::cast_slice(values)).unwrap();
}

/// Name and region of all persistent tensors.
fn lasting(session: &Session) -> Vec<(String, Region)> {
    let entries = session.laid.lasting.iter();
    entries.map(|e| (format!("{}{}", e.slot.prefix, e.slot.name), e.place.first)).collect()
}

fn place(session: &Session, name: &str) -> Region {
    lasting(session).into_iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// The logits of the last evaluated batch.
fn logits(session: &mut Session) -> Vec<f32> {
    let mut all = Vec::new();
    session.logits((STREAMS * LENGTH) as u32, &mut |row| all.extend_from_slice(row)).unwrap();
    all
}

/// The state after two steps, region by region, then the results of each step, of an evaluation and of a few decoded
/// tokens.
fn outcome(profile: &AnyProfile, model: NeuroGen) -> Vec<(String, Vec<f32>)> {
    let mut session = session(profile, model);
    let mut found = Vec::new();
    for step in 0..2 {
        let tokens = Tokens::of_streams(step * LENGTH);
        session.begin(SETTINGS).unwrap();
        session.micro_batch(0, tokens.rows(), true).unwrap();
        session.update().unwrap();
        let ticket = session.finish().unwrap();
        found.push((format!("results {step}"), <[f32; 2]>::from(session.results(ticket).unwrap()).to_vec()));
    }
    for (name, region) in lasting(&session) {
        let values = read(&mut session, region);
        found.push((name, values));
    }
    let tokens = Tokens::fresh(40);
    let loss = session.evaluate(tokens.rows()).unwrap();
    found.push(("evaluation".to_owned(), vec![loss as f32]));
    found.push(("logits".to_owned(), logits(&mut session)));
    for (position, &id) in tokens.0[0][..12].iter().enumerate() {
        let logits = session.decode(id, position as u32).unwrap().to_vec();
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
    for (what, model) in models() {
        let expected = outcome(&AnyProfile::Reference(Single), model);
        let found = outcome(&AnyProfile::Cpu(CpuProfile { threads: 1 }), model);
        assert_eq!(expected.len(), found.len());
        for ((name, expected), (_, found)) in expected.iter().zip(&found) {
            if name.contains("state.spikes") {
                assert_eq!(expected, found, "{what}: {name}");
                let rate = expected.iter().sum::<f32>() / expected.len() as f32;
                assert!((0.0..=0.4).contains(&rate), "{what}: {name} is {rate} of all neurons");
            }
            let apart = apart(expected, found);
            assert!(apart <= 5e-6, "{what}: {name} is {apart:.1e} of its norm off");
        }
        let spikes = expected.iter().filter(|(name, _)| name.contains("state.spikes"));
        assert!(spikes.flat_map(|(_, s)| s).sum::<f32>() > 0.0, "{what}: nothing fires");
        let learns = model.rule != SynapseLearning::Frozen;
        let moved = |(name, values): &(String, Vec<f32>)| {
            name.starts_with("gradient.modules.") && values.iter().any(|x| *x != 0.0)
        };
        assert_eq!(expected.iter().filter(|e| moved(e)).count(), if learns { 6 } else { 0 }, "{what}");
        for threads in [2, 3] {
            assert!(found == outcome(&AnyProfile::Cpu(CpuProfile { threads }), model), "{what}: {threads} threads");
        }
    }
}

#[test]
fn a_document_token_by_token_is_the_document_at_once() {
    let cpu = |threads| AnyProfile::Cpu(CpuProfile { threads });
    for (what, model) in models() {
        for profile in [AnyProfile::Reference(Single), cpu(1), cpu(2)] {
            let mut session = session(&profile, model);
            for step in 0..3 {
                session.begin(SETTINGS).unwrap();
                session.micro_batch(0, Tokens::of_streams(step * LENGTH).rows(), true).unwrap();
                session.update().unwrap();
            }
            let tokens = Tokens::fresh(70);
            session.evaluate(tokens.rows()).unwrap();
            let rows = logits(&mut session);
            // One document after the other: no state of the previous document remains.
            let mut last: Option<Vec<f32>> = None;
            for (i, (&id, row)) in tokens.0[0].iter().zip(rows.chunks_exact(61)).enumerate() {
                let position = (i % LENGTH) as u32;
                let decoded = session.decode(id, position).unwrap();
                for (a, b) in decoded.iter().zip(row) {
                    assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{what}: {a} and {b} at {i}");
                }
                assert!(last.is_none_or(|last| last != decoded), "{what}: two tokens have the same logits");
                last = Some(decoded.to_vec());
            }
        }
    }
}

/// The summed loss of the batch, in f64 from the logits.
fn loss(session: &mut Session, tokens: &Tokens) -> f64 {
    session.evaluate(tokens.rows()).unwrap();
    let rows = logits(session);
    let one = |(row, &target): (&[f32], &u32)| {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        if target == IGNORE { 0.0 } else { sum.ln() - f64::from(row[target as usize]) }
    };
    rows.chunks_exact(61).zip(&tokens.0[1]).map(one).sum()
}

/// The decoder's gradients, derived from its first update with a learning rate of 1: G = −Δw √(row moment /
/// correction), since all columns count as equal; for the biases the root of their moment with the step's sign.
fn decoder_gradients(before: [&[f32]; 2], after: [&[f32]; 2], moments: &[f32], share: f32) -> [Vec<f64>; 2] {
    let moved = |i: usize, j: usize| f64::from(before[i][j]) - f64::from(after[i][j]);
    let root = |moment: f32| f64::from(moment / share).sqrt();
    let (rows, biases) = moments.split_at(moments.len() / 2);
    let columns = before[0].len() / rows.len();
    let weights = (0..before[0].len()).map(|j| moved(0, j) * root(rows[j / columns])).collect();
    [weights, (0..biases.len()).map(|j| moved(1, j).signum() * root(biases[j])).collect()]
}

/// Weights that do not influence any spike: the loss is smooth in them.
#[test]
fn gradients_of_what_no_spike_depends_on_are_finite_differences() {
    let cell = Cell { homeostasis: 0.0, ..model().cell };
    let base = NeuroGen { cell, ..model() };
    let without = NeuroGen { gate: false, memory: 0, ..base };
    for (what, model) in
        [("whole", base), ("without gate and memory", without), ("without skip", NeuroGen { skip: 0, ..base })]
    {
        for profile in [AnyProfile::Reference(Single), AnyProfile::Cpu(CpuProfile { threads: 2 })] {
            let mut session = session(&profile, model);
            let named = |name: &str| !name.starts_with("modules.") && name != "embedding.weight";
            let weights: Vec<(String, Region)> = {
                let entries = session.laid.lasting.iter().filter(|e| e.slot.role == Role::Weight);
                entries.map(|e| (e.slot.name.to_owned(), e.place.first)).filter(|(name, _)| named(name)).collect()
            };
            // Gates, gains and biases differ from their initial values, and the Thalamus is inhibited, as after a step.
            for (name, region) in &weights {
                let random = Random::new(4, region.offset);
                let mut values = read(&mut session, *region);
                values.iter_mut().enumerate().for_each(|(i, x)| *x += 0.3 * random.normal(i as u64));
                write(&mut session, *region, &values);
                assert!(!values.is_empty(), "{name}");
            }
            session.begin(Settings { learning_rate: 0.0, loss_scale: 1.0, ..SETTINGS }).unwrap();
            session.update().unwrap();

            let tokens = Tokens::fresh(3);
            let mut expected = Vec::new();
            for (name, region) in &weights {
                let values = read(&mut session, *region);
                let random = Random::new(8, region.offset);
                for which in 0..6 {
                    let element = random.below(which, values.len() as u64) as usize;
                    let [above, below] = [1.0, -1.0].map(|side| {
                        let mut moved = values.clone();
                        moved[element] += side * 0.01;
                        write(&mut session, *region, &moved);
                        loss(&mut session, &tokens)
                    });
                    let step = f64::from(values[element] + 0.01) - f64::from(values[element] - 0.01);
                    expected.push((name.clone(), element, (above - below) / step));
                }
                write(&mut session, *region, &values);
            }

            let decoder = ["decoder.weight", "decoder.bias"].map(|name| place(&session, name));
            let before = decoder.map(|region| read(&mut session, region));
            session.begin(Settings { learning_rate: 1.0, loss_scale: 1.0, ..SETTINGS }).unwrap();
            session.micro_batch(0, tokens.rows(), true).unwrap();
            let after = decoder.map(|region| read(&mut session, region));
            let region = place(&session, "row_moment.decoder");
            let moments = read(&mut session, region);
            let [weight, bias] =
                decoder_gradients(before.each_ref().map(|x| &x[..]), after.each_ref().map(|x| &x[..]), &moments, 0.01);
            for (name, _) in &weights {
                let found: Vec<f64> = match name.as_str() {
                    "decoder.weight" => weight.clone(),
                    "decoder.bias" => bias.clone(),
                    _ => {
                        let region = place(&session, &format!("gradient.{name}"));
                        read(&mut session, region).iter().map(|x| f64::from(*x)).collect()
                    }
                };
                let size = found.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
                assert!(size > 0.01, "{what}: {name} has no gradient");
                for (_, element, expected) in expected.iter().filter(|(of, ..)| of == name) {
                    let off = (found[*element] - expected).abs();
                    assert!(
                        off <= 5e-4 * size,
                        "{what}: {name} {element}: {} and {expected}, largest {size}",
                        found[*element]
                    );
                }
            }
        }
    }
}
