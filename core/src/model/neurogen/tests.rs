//! Steps of every rule on the meter.

use super::*;
use crate::device::{Meter, OperationError, Rates, Single};
use crate::memory::{Dtype, Entry, Layout};
use crate::model::testing::{Half, metered};
use crate::model::{Control, Family as _, MicroBatch, Products, Purpose, Recompute};
use crate::ops::{Chance, Pattern};
use crate::optimizer::{self, Group, Optimizer, Recipe};
use crate::train::Ranks;

/// A NeuroGen with every optional part.
const MODEL: NeuroGen = NeuroGen {
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
    full: true,
    dopamine: 0.5,
    novelty: 0.3,
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
    streams: 2,
};

const MICRO: MicroBatch = MicroBatch {
    batch: 2,
    seq_len: 7,
    chunk: 4,
    recompute: Recompute::NONE,
    pattern: Pattern::DENSE,
    products: Products::Wide,
    dropout: Chance::NONE,
    documents: false,
};

#[test]
fn every_step_of_every_rule_passes_the_meter() {
    for rule in [SynapseLearning::Eprop, SynapseLearning::EpropRandom, SynapseLearning::Bptt, SynapseLearning::Frozen] {
        let bare = NeuroGen { skip: 0, memory: 0, gate: false, dopamine: 0.0, novelty: 0.0, ..MODEL };
        for model in [MODEL, bare].map(|m| NeuroGen { rule, ..m }) {
            model.validate().unwrap();
            model.validate_micro_batch(&MICRO).unwrap();
            metered(&model, &MICRO, &Single);
            metered(&model, &MICRO, &Half);
        }
    }
}

#[test]
fn what_cannot_be_done_is_said_and_is_no_failure_of_the_device() {
    let mut visit = |_: &Entry| {};
    let mut layout = Layout::new(&mut visit);
    let optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);
    let mut meter = Meter::new(&Single, Rates::ONE);
    let unsupported = |done: Result<(), OperationError>, says: &str| match done {
        Err(OperationError::Unsupported(what)) => assert!(what.contains(says), "{what}"),
        other => panic!("{says}: {other:?}"),
    };
    // Several ranks with rules that ranks cannot share.
    let two = Ranks { rank: 0, count: 2, exact: false, gradients: false };
    let (_, learning) = optimizer::lay(&MODEL, Some((two, optimizer)), &Single, &|_| Dtype::F32, &mut layout);
    let control = Control::lay(two, &mut layout);
    let updated = learning.unwrap().updater.update(&mut meter, &control, None);
    unsupported(updated, "ranks share parameters that learn at the end of a step");
    // A second micro-batch, and training of a model that was laid for evaluation.
    let training = MODEL.lay_training(&MICRO, &Single, &mut layout);
    let lasting = MODEL.lay_lasting(&Single, Purpose::Training(Ranks::ALONE, optimizer), &mut layout);
    unsupported(MODEL.micro_batch(&mut meter, &lasting, &training, &MICRO, false), "in every micro-batch");
    let evaluated = MODEL.lay_lasting(&Single, Purpose::Evaluation, &mut layout);
    unsupported(MODEL.micro_batch(&mut meter, &evaluated, &training, &MICRO, true), "not laid for training");
    unsupported(MODEL.update(&mut meter, &evaluated, None), "not laid for training");
    // Frozen parameters whose gradients are always formed.
    let frozen = optimizer.with(Group::Matrix, Recipe { rule: optimizer::Rule::Frozen, rate: 1.0, decay: 0.0 });
    let lasting = MODEL.lay_lasting(&Single, Purpose::Training(Ranks::ALONE, frozen), &mut layout);
    unsupported(MODEL.micro_batch(&mut meter, &lasting, &training, &MICRO, true), "forms every gradient");
    let lasting = MODEL.lay_lasting(&Single, Purpose::Training(Ranks::ALONE, optimizer.releasing(true)), &mut layout);
    unsupported(MODEL.micro_batch(&mut meter, &lasting, &training, &MICRO, true), "of all its parts together");
}
