//! Whole steps of several ranks beside one.

use std::cell::RefCell;
use std::rc::Rc;

use capful_core::memory::{Entry, Role};
use capful_core::random::Random;
use capful_core::train::Settings;

use super::threads;
use crate::config::{Config, RawConfig};
use crate::device::{AnyProfile, Storage as _};
use crate::plan::{Machine, Plan};
use crate::run::{Rows, Session};

/// Micro-batches of a step, and steps.
const MICRO: u32 = 6;
const STEPS: u64 = 3;

/// A model whose parameters are no whole number of pieces, nor equal shares of them.
fn config(device: &str, exact: bool, rank: u32, ranks: u32) -> Config {
    let text = format!(
        "preset = 'pythia-tiny'\ndevice = '{device}'\nthreads = 1\nvocab_size = 300\nbatch_size = 2\nseq_len = 12\n\
         accumulate = {MICRO}\nexact_ranks = {exact}\n[model]\nlayers = 3\nd_model = 72\nheads = 3\nd_ff = 97\nhead_size = 24"
    );
    let raw: RawConfig = toml::from_str(&text).expect("TOML");
    Config::resolve(RawConfig { rank: Some(rank), ranks: Some(ranks), ..raw }).expect("a configuration")
}

/// What a rank has after the steps.
struct Left {
    /// Loss and squared norm of each step.
    results: Vec<[u32; 2]>,
    /// The loss of each rank's micro-batches, and what it told, in the last step.
    of_ranks: Vec<[f32; 2]>,
    /// The bits of its weights.
    weights: Vec<u32>,
    /// Of moments those that it holds, by their number.
    moments: Vec<(usize, u32)>,
}

fn batch(config: &Config, number: u64) -> [Vec<u32>; 3] {
    let random = Random::new(5, number);
    let tokens = u64::from(config.batch_size * config.seq_len);
    let id = |i| random.below(i, config.vocab_size().into()) as u32;
    [(0..tokens).map(id).collect(), (1..=tokens).map(id).collect(), vec![0; tokens as usize]]
}

fn train(device: &str, exact: bool, count: u32) -> Vec<Left> {
    threads::run(count, |peers| {
        let rank = super::Peers::rank(&peers);
        let config = config(device, exact, rank, count);
        let (_, laid) = Plan::new(&config, &Machine::of(&config).expect("a machine")).expect("a plan");
        let mut session = Session::start_training(
            laid,
            &AnyProfile::of(&config).unwrap(),
            &config,
            &[],
            Some(Rc::new(RefCell::new(peers))),
        )
        .expect("a session");
        let mut results = Vec::new();
        for step in 0..STEPS {
            let stage = config.stages()[0];
            let settings = Settings::of(step, 1e-2, &config.optimizer(), 1.0, stage.step_tokens());
            session.begin(settings).unwrap();
            session.tell((10 * step + u64::from(rank)) as f32).unwrap();
            for round in 0..MICRO / count {
                let number = step * u64::from(MICRO) + u64::from(round * count + rank);
                let [ids, targets, offsets] = batch(&config, number);
                let rows = Rows { ids: &ids, targets: &targets, offsets: &offsets };
                session.micro_batch(0, rows, round == 0).unwrap();
            }
            session.update().unwrap();
            let ticket = session.finish().unwrap();
            results.push(<[f32; 2]>::from(session.results(ticket).unwrap()).map(f32::to_bits));
        }
        let (mut weights, mut moments) = (Vec::new(), Vec::new());
        let mut number = 0;
        for entry in session.laid.lasting.clone() {
            for (_, region) in Entry::tensors(&entry) {
                let mut bits = vec![0u32; region.elements() as usize];
                let mut storage = session.storage();
                storage.read(region, bytemuck::cast_slice_mut(&mut bits)).unwrap();
                let held = storage.held(region);
                match entry.slot.role {
                    Role::Weight => weights.extend(bits),
                    Role::Moment => {
                        moments.extend((held.start / 4..held.end / 4).map(|i| (number + i, bits[i])));
                        number += bits.len();
                    }
                    _ => {}
                }
            }
        }
        Left { results, of_ranks: session.of_ranks().collect(), weights, moments }
    })
}

/// The moments of all ranks, each of which is there once.
fn moments(ranks: &[Left]) -> Vec<u32> {
    let mut all: Vec<_> = ranks.iter().flat_map(|rank| rank.moments.iter().copied()).collect();
    all.sort_unstable();
    assert!(all.iter().map(|(number, _)| *number).eq(0..all.len()), "held twice, or by no one");
    all.into_iter().map(|(_, bits)| bits).collect()
}

fn apart(a: &[u32], b: &[u32]) -> f64 {
    let numbers = |bits: &[u32]| -> Vec<f64> { bits.iter().map(|x| f32::from_bits(*x).into()).collect() };
    let (a, b) = (numbers(a), numbers(b));
    let difference: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / a.iter().map(|a| a.powi(2)).sum::<f64>()).sqrt()
}

#[test]
fn exact_ranks_have_the_bits_of_one_whatever_their_number() {
    for device in ["cpu", "reference"] {
        let alone = train(device, true, 1);
        let expected = moments(&alone);
        for count in [2, 3, 6] {
            let ranks = train(device, true, count);
            for rank in &ranks {
                assert_eq!(rank.results, alone[0].results, "{device}: {count} ranks");
                assert!(rank.weights == alone[0].weights, "{device}: {count} ranks have other weights");
                let told: Vec<f32> = rank.of_ranks.iter().map(|of| of[1]).collect();
                let expected: Vec<f32> = (0..count).map(|rank| (10 * (STEPS - 1) as u32 + rank) as f32).collect();
                assert_eq!(told, expected);
            }
            assert!(moments(&ranks) == expected, "{device}: {count} ranks have other moments");
        }
    }
}

#[test]
fn ranks_agree_with_each_other_with_themselves_and_with_accumulation() {
    let exact = train("cpu", true, 1);
    let alone = train("cpu", false, 1);
    for count in [2, 3] {
        let [once, again] = [(); 2].map(|()| train("cpu", false, count));
        for (rank, same) in once.iter().zip(&again) {
            assert!(rank.weights == once[0].weights && rank.results == once[0].results, "{count} ranks");
            assert!(rank.weights == same.weights, "{count} ranks, other bits the second time");
        }
        for other in [&alone, &exact] {
            // Adam's first steps turn rounding of the smallest gradients into rounding of weights.
            let apart = apart(&once[0].weights, &other[0].weights);
            assert!(apart < 1e-4, "{count} ranks: {apart}");
            let losses = |of: &Left| of.results.iter().map(|[loss, _]| f32::from_bits(*loss)).collect::<Vec<_>>();
            for (a, b) in losses(&once[0]).iter().zip(losses(&other[0])) {
                approx::assert_relative_eq!(*a, b, max_relative = 1e-5);
            }
        }
    }
}

#[test]
fn a_rank_plans_a_share_of_moments() {
    let bytes = |role: Role, count| {
        let config = config("cpu", false, 0, count);
        let (plan, _) = Plan::new(&config, &Machine::of(&config).expect("a machine")).expect("a plan");
        plan.regions.iter().filter(|l| l.role == role.name()).map(|l| l.bytes + l.padding).sum::<u64>()
    };
    let all = bytes(Role::Gradient, 1);
    assert_eq!(bytes(Role::Moment, 1), 2 * all);
    for count in [2u64, 3, 6] {
        // Whole pieces of 16,384 numbers.
        let share = all.div_ceil(4 * 16_384).div_ceil(count) * 4 * 16_384;
        assert_eq!(bytes(Role::Moment, count as u32), 2 * share, "{count} ranks");
        assert_eq!(bytes(Role::Gradient, count as u32), all, "{count} ranks");
        assert_eq!(bytes(Role::Weight, count as u32), bytes(Role::Weight, 1));
    }
}
