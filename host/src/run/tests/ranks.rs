//! Compares whole steps of several ranks with steps of a single one.

use std::cell::RefCell;
use std::rc::Rc;

use capful_core::memory::{Entry, Role};
use capful_core::ops::Dropout;
use capful_core::random::Random;
use capful_core::train::Settings;

use crate::config::{Config, RawConfig};
use crate::device::Storage as _;
use crate::plan::{Machine, Plan};
use crate::ranks::threads;
use crate::run::{Rows, Session};

/// Number of steps of a run.
const STEPS: u64 = 3;

/// The settings of a test run.
#[derive(Debug, Clone, Copy)]
struct Run {
    device: &'static str,
    model: &'static str,
    exact: bool,
    zero: u32,
    /// Micro-batches of a step.
    micro: u32,
    clip: f32,
}

/// Models whose parameters are neither a whole number of pieces nor equal shares of them, and whose tensors are no
/// whole rows. The first has one table for the embedding and one for the head, uses dropout and masks documents; the
/// second has a single table, multiplied with a factor.
const UNTIED: &str = "preset = 'pythia-tiny'\ndropout = 0.1\nmask_documents = true\n[model]\nlayers = 3\nd_model = 72\nheads = 3\nd_ff = 97\n\
                      head_size = 24";
const FACTORISED: &str = "preset = 'yxanul-tiny'\n[model]\nlayers = 3\nd_model = 73\nheads = 3\nkv_heads = 1\nd_ff = 97\n\
                          head_size = 26\nrank = 51\nbias = true";

/// Optimizers with two moments, one moment and none per parameter, and a frozen parameter.
const MIXED: &str = "preset = 'pythia-tiny'\n[model]\nlayers = 3\nd_model = 72\nheads = 3\nd_ff = 97\nhead_size = 24\n\
                     [group.embedding]\noptimizer = 'frozen'\n[group.head]\noptimizer = 'sgd'\nmomentum = 0.0\n\
                     [group.vector]\noptimizer = 'sgd'\nlr = 0.5\nweight_decay = 0.01";

/// Models with matrices that ranks exchange whole: in `WHOLE` the matrices of three layers, distributed over the ranks
/// in turn, and a table that is split; in `WHOLE_FACTOR` also a matrix before the layers, so that nothing there is
/// split. Value tables belong to no layer.
const WHOLE: &str = "preset = 'pythia-tiny'\noptimizer = 'muon'\nmuon_row_norm = true\n[model]\nlayers = 3\nd_model = 72\n\
                     heads = 3\nd_ff = 97\nhead_size = 24";
const WHOLE_FACTOR: &str = "preset = 'yxanul-tiny'\noptimizer = 'muon'\n[model]\nlayers = 3\nd_model = 73\nheads = 3\n\
                            kv_heads = 1\nd_ff = 97\nhead_size = 26\nrank = 51\nbias = true";
const FACTORED_MOMENTS: &str = "preset = 'pythia-tiny'\noptimizer = 'adamw_factored'\n[model]\nlayers = 3\nd_model = 72\n\
                                heads = 3\nd_ff = 97\nhead_size = 24\nvalue_tables = 2\n[group.head]\noptimizer = 'adamw'";
const QUICK: &str = "preset = 'quick-tiny'\n[model]\nlayers = 5";

const EXACT: Run = Run { device: "cpu", model: UNTIED, exact: true, zero: 1, micro: 6, clip: 1.0 };
const PLAIN: Run = Run { exact: false, ..EXACT };

fn config(run: Run, rank: u32, ranks: u32) -> Config {
    let Run { device, model, exact, zero, micro, .. } = run;
    let text = format!(
        "device = '{device}'\nthreads = 1\nvocab_size = 300\nbatch_size = 2\nseq_len = 12\naccumulate = {micro}\n\
         exact_ranks = {exact}\nzero = {zero}\n{model}"
    );
    let raw: RawConfig = toml::from_str(&text).expect("TOML");
    Config::resolve(RawConfig { rank: Some(rank), ranks: Some(ranks), ..raw }).expect("a configuration")
}

/// The state of a rank after the last step.
struct Left {
    /// Loss and squared norm of each step.
    results: Vec<[u32; 2]>,
    /// For each rank, in the last step: the loss of its micro-batches, and the number that it passed to `tell`.
    of_ranks: Vec<[f32; 2]>,
    /// The bits of its weights.
    weights: Vec<u32>,
    /// The moments stored on this rank, by their number among all moments.
    moments: Vec<(usize, u32)>,
    /// The averages stored on this rank, by their number among all averages.
    averages: Vec<(usize, u32)>,
    /// Its weights after the exchange with the averages, where the run averages.
    exchanged: Vec<u32>,
}

fn batch(config: &Config, number: u64) -> [Vec<u32>; 3] {
    let random = Random::new(5, number);
    let tokens = u64::from(config.batch_size * config.seq_len);
    let id = |i| random.below(i, config.vocab_size().into()) as u32;
    let offsets = (0..tokens as u32).map(|i| i % 5).collect();
    [(0..tokens).map(id).collect(), (1..=tokens).map(id).collect(), offsets]
}

fn train(run: Run, count: u32) -> Vec<Left> {
    threads::run(count, |peers| {
        let rank = crate::ranks::Peers::rank(&peers);
        let config = config(run, rank, count);
        let (_, laid) = Plan::new(&config, &Machine::of(&config).expect("a machine")).expect("a plan");
        let mut session = Session::start_training(
            laid,
            &crate::plan::profile(&config).unwrap(),
            &config,
            &[],
            Some(Rc::new(RefCell::new(peers))),
        )
        .expect("a session");
        let mut results = Vec::new();
        for step in 0..STEPS {
            let stage = config.stages()[0];
            let settings = Settings::of(step, 1e-2, &config.optimizer(), run.clip, stage.step_tokens());
            // Step 0 starts the averages; each later step adds another share.
            session.begin(Settings { average: 1.0 / (step * step + 1) as f32, ..settings }).unwrap();
            session.tell((10 * step + u64::from(rank)) as f32).unwrap();
            for round in 0..run.micro / count {
                let number = step * u64::from(run.micro) + u64::from(round * count + rank);
                let [ids, targets, offsets] = batch(&config, number);
                let rows = Rows { ids: &ids, targets: &targets, offsets: &offsets };
                session.mask(0, Dropout::key(config.seed, number)).unwrap();
                match round + 1 < run.micro / count {
                    true => session.micro_batch(0, rows, round == 0).unwrap(),
                    false => session.last_micro_batch(0, rows, round == 0).unwrap(),
                }
            }
            let ticket = session.finish().unwrap();
            results.push(<[f32; 2]>::from(session.results(ticket).unwrap()).map(f32::to_bits));
        }
        let of_ranks = session.of_ranks().collect();
        let [weights, moments, averages] =
            [Role::Weight, Role::Moment, Role::Average].map(|role| held(&mut session, role));
        let mut exchanged = Vec::new();
        if config.averaging().is_some() {
            session.exchange().unwrap();
            exchanged = bits(held(&mut session, Role::Weight));
            session.exchange().unwrap();
            let again = [Role::Weight, Role::Average].map(|role| held(&mut session, role));
            assert!(again == [weights.clone(), averages.clone()], "not what it was");
        }
        Left { results, of_ranks, weights: bits(weights), moments, averages, exchanged }
    })
}

/// The elements of `role`'s tensors that this session's rank stores, by their number among all elements of that role.
fn held(session: &mut Session, role: Role) -> Vec<(usize, u32)> {
    let (mut found, mut number) = (Vec::new(), 0);
    let lasting = session.laid.lasting.clone();
    for (_, region) in lasting.iter().filter(|entry| entry.slot.role == role).flat_map(Entry::tensors) {
        let (size, mut bytes) = (region.dtype.size() as usize, vec![0; region.bytes() as usize]);
        let mut storage = session.storage();
        storage.read(region, &mut bytes).unwrap();
        let held = storage.held(region);
        // The bits of one number, of any size from 8 bits.
        let bits = |i: usize| bytes[i * size..][..size].iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        found.extend((held.start / size..held.end / size).map(|i| (number + i, bits(i))));
        number += bytes.len() / size;
    }
    found
}

fn bits(numbered: Vec<(usize, u32)>) -> Vec<u32> {
    numbered.into_iter().map(|(_, bits)| bits).collect()
}

/// Joins the numbers of all ranks; each number is stored on exactly one rank.
fn together<'r>(parts: impl Iterator<Item = &'r Vec<(usize, u32)>>) -> Vec<u32> {
    let mut all: Vec<_> = parts.flatten().copied().collect();
    all.sort_unstable();
    assert!(all.iter().map(|(number, _)| *number).eq(0..all.len()), "held twice, or by no one");
    bits(all)
}

/// Joins the moments of all ranks.
fn moments(ranks: &[Left]) -> Vec<u32> {
    together(ranks.iter().map(|rank| &rank.moments))
}

fn apart(a: &[u32], b: &[u32]) -> f64 {
    let numbers = |bits: &[u32]| -> Vec<f64> { bits.iter().map(|x| f32::from_bits(*x).into()).collect() };
    let (a, b) = (numbers(a), numbers(b));
    let difference: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / a.iter().map(|a| a.powi(2)).sum::<f64>()).sqrt()
}

#[test]
fn exact_ranks_have_the_bits_of_one_whatever_their_number() {
    let cases =
        [UNTIED, FACTORISED, MIXED].into_iter().flat_map(|model| ["cpu", "reference"].map(|device| (device, model)));
    let whole =
        [("cpu", WHOLE), ("cpu", WHOLE_FACTOR), ("cpu", QUICK), ("reference", WHOLE), ("cpu", FACTORED_MOMENTS)];
    for (device, model) in cases.chain(whole) {
        let run = Run { device, model, ..EXACT };
        let alone = train(run, 1);
        let expected = moments(&alone);
        // Ranks that also share gradients are exact with and without `exact_ranks`, a single rank only with it.
        let zero = Run { zero: 2, ..run };
        let counts = [2, 3, 6].map(|count| [(run, count), (zero, count), (Run { exact: false, ..zero }, count)]);
        for (run, count) in counts.into_iter().flatten().chain([(zero, 1)]) {
            let ranks = train(run, count);
            for rank in &ranks {
                assert_eq!(rank.results, alone[0].results, "{run:?}: {count} ranks");
                assert!(rank.weights == alone[0].weights, "{run:?}: {count} ranks have other weights");
                let told: Vec<f32> = rank.of_ranks.iter().map(|of| of[1]).collect();
                let expected: Vec<f32> = (0..count).map(|rank| (10 * (STEPS - 1) as u32 + rank) as f32).collect();
                assert_eq!(told, expected);
            }
            assert!(moments(&ranks) == expected, "{run:?}: {count} ranks have other moments");
        }
    }
}

#[test]
fn ranks_share_states_in_8_bits() {
    for model in [UNTIED, MIXED, WHOLE_FACTOR, QUICK] {
        let model = &*format!("states = '8bit'\n{model}").leak();
        let run = Run { model, ..EXACT };
        let alone = train(run, 1);
        let expected = moments(&alone);
        assert!(!expected.is_empty());
        for (run, count) in [(run, 2), (run, 3), (Run { zero: 2, ..run }, 2)] {
            let ranks = train(run, count);
            assert!(ranks.iter().all(|rank| rank.results == alone[0].results), "{run:?}: {count} ranks");
            assert!(ranks.iter().all(|rank| rank.weights == alone[0].weights), "{run:?}: {count} ranks");
            assert!(moments(&ranks) == expected, "{run:?}: {count} ranks have other moments");
        }
    }
}

/// Each of several ranks stores a part of the averages; after the exchange all ranks have the same weights. A process
/// whose tables are laid out parameter by parameter has the same averages.
#[test]
fn ranks_average_what_they_move_and_exchange_all_of_it() {
    for model in [UNTIED, FACTORISED, MIXED] {
        let model = &*format!("ema = 0.5\n{model}").leak();
        let run = Run { model, micro: 1, clip: 0.0, ..PLAIN };
        let [whole, exact] = [run, Run { exact: true, ..run }].map(|run| train(run, 1));
        assert!(exact[0].exchanged == whole[0].exchanged && exact[0].weights == whole[0].weights, "{model}");
        assert_eq!(bits(exact[0].averages.clone()), bits(whole[0].averages.clone()), "{model}");
        let run = Run { model, ..EXACT };
        let alone = train(run, 1);
        let expected = bits(alone[0].averages.clone());
        assert!(alone[0].exchanged != alone[0].weights && !expected.is_empty());
        // If every parameter learns, the exchanged weights are the averages; a frozen parameter has no average and
        // keeps its weights.
        assert_eq!(model.ends_with(MIXED), alone[0].exchanged != expected);
        for (zero, count) in [(1, 2), (1, 3), (2, 2), (2, 3)] {
            let ranks = train(Run { zero, ..run }, count);
            assert!(together(ranks.iter().map(|rank| &rank.averages)) == expected, "{model}: {count}, {zero}");
            for rank in ranks {
                assert!(
                    rank.exchanged == alone[0].exchanged,
                    "{model}: {count}, {zero}: others evaluate other averages"
                );
            }
        }
    }
}

/// With a single micro-batch, exact ranks differ from one process whose tables are laid out parameter by parameter only
/// in the order in which the norm is summed; without clipping the norm changes no weight.
#[test]
fn a_single_micro_batch_has_the_bits_of_one_process_however_tables_are_laid() {
    for model in [UNTIED, FACTORISED, WHOLE, WHOLE_FACTOR, QUICK] {
        let alone = train(Run { model, micro: 1, clip: 0.0, ..PLAIN }, 1);
        for zero in [1, 2] {
            let exact = train(Run { model, micro: 1, clip: 0.0, zero, ..EXACT }, 1);
            assert!(exact[0].weights == alone[0].weights, "{model}, {zero}");
            assert!(moments(&exact) == moments(&alone), "{model}, {zero}");
            for ([loss, norm], [other_loss, other_norm]) in exact[0].results.iter().zip(&alone[0].results) {
                assert_eq!(loss, other_loss);
                approx::assert_relative_eq!(f32::from_bits(*norm), f32::from_bits(*other_norm), max_relative = 1e-6);
            }
        }
    }
}

#[test]
fn ranks_agree_with_each_other_with_themselves_and_with_accumulation() {
    let exact = train(EXACT, 1);
    let alone = train(PLAIN, 1);
    for count in [2, 3] {
        let [once, again] = [(); 2].map(|()| train(PLAIN, count));
        for (rank, same) in once.iter().zip(&again) {
            assert!(rank.weights == once[0].weights && rank.results == once[0].results, "{count} ranks");
            assert!(rank.weights == same.weights, "{count} ranks, other bits the second time");
        }
        for other in [&alone, &exact] {
            // Adam's first steps amplify rounding errors of the smallest gradients into rounding errors of weights.
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
fn a_rank_plans_a_share_of_moments_and_of_gradients() {
    let planned = |run, role: Role, count| {
        let config = config(run, 0, count);
        let (plan, _) = Plan::new(&config, &Machine::of(&config).expect("a machine")).expect("a plan");
        assert_eq!(plan.regions.iter().map(|l| l.bytes + l.padding).sum::<u64>(), plan.arena_bytes, "{run:?}, {count}");
        plan.regions.iter().filter(|l| l.role == role.name()).map(|l| l.bytes + l.padding).sum::<u64>()
    };
    let bytes = |role, count| planned(PLAIN, role, count);
    let all = bytes(Role::Gradient, 1);
    assert_eq!(bytes(Role::Moment, 1), 2 * all);
    // Pieces of 16,384 numbers, rounded up: 2 for the 320 × 72 embedding, 3 for each layer's 36,096 numbers, 2 for the
    // head's rows and a norm.
    let sections = [2u64, 3, 3, 3, 2];
    for count in [2u64, 3, 6] {
        let share = sections.map(|pieces| pieces.div_ceil(count)).iter().sum::<u64>() * 4 * 16_384;
        assert_eq!(bytes(Role::Moment, count as u32), 2 * share, "{count} ranks");
        assert_eq!(bytes(Role::Gradient, count as u32), all, "{count} ranks");
        assert_eq!(bytes(Role::Weight, count as u32), bytes(Role::Weight, 1));
        // Beyond the share of the summed gradients: one layer, and the larger of the two ends, which has the head's
        // rows and two rows of a norm.
        let formed = 4 * (36_096 + 320 * 72 + 2 * 128);
        let gradients = planned(Run { zero: 2, ..PLAIN }, Role::Gradient, count as u32);
        assert_eq!(gradients, share + formed, "{count} ranks");
        // The ends are a tied table and its factor, 320 × 51 + 73 × 51 numbers in rows of 128, and the last norm, one
        // row.
        let tied = Run { zero: 2, model: FACTORISED, ..PLAIN };
        let layer: u64 = [130 * 73, 73 * 78, 194 * 73, 73 * 97, 73, 73, 130, 73, 194, 73].map(padded).iter().sum();
        let ends = [padded(320 * 51) + padded(73 * 51), padded(73)];
        let pieces = [ends[0], layer, layer, layer, ends[1]].map(|elements: u64| elements.div_ceil(16_384));
        let share = pieces.map(|pieces| pieces.div_ceil(count)).iter().sum::<u64>() * 4 * 16_384;
        let gradients = planned(tied, Role::Gradient, count as u32);
        assert_eq!(gradients, share + 4 * (ends[0] + ends[1] + layer), "{count} ranks");
    }
}

/// Number of elements in whole rows of 128.
fn padded(elements: u64) -> u64 {
    elements.next_multiple_of(128)
}
