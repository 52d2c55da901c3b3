//! Steps of every rule on the meter.

use super::*;
use crate::device::Single;
use crate::model::testing::{Half, metered};
use crate::model::{Family as _, MicroBatch, Products, Recompute};
use crate::ops::Pattern;

/// With every part.
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
    rule: Rule::Eprop,
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

#[test]
fn every_step_of_every_rule_passes_the_meter() {
    let (recompute, products) = (Recompute::NONE, Products::Wide);
    let micro = MicroBatch { batch: 2, seq_len: 7, chunk: 4, recompute, pattern: Pattern::DENSE, products };
    for rule in [Rule::Eprop, Rule::EpropRandom, Rule::Bptt, Rule::Frozen] {
        let bare = NeuroGen { skip: 0, memory: 0, gate: false, dopamine: 0.0, novelty: 0.0, ..MODEL };
        for model in [MODEL, bare].map(|m| NeuroGen { rule, ..m }) {
            model.validate().unwrap();
            model.validate_micro_batch(&micro).unwrap();
            metered(&model, &micro, &Single);
            metered(&model, &micro, &Half);
        }
    }
}
