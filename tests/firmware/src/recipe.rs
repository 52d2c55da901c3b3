//! The models and settings of the learning programs. The test trains the same models on the host.

use capful_core::model::neurogen::{Connectome, SynapseLearning};
use capful_core::model::{MicroBatch, NeuroGen, Products, Recompute, Transformer};
use capful_core::ops::{Cell, Chance, Pattern};
use capful_core::optimizer::Optimizer;

/// Ids of the models: bytes of ASCII.
pub const IDS: u32 = 128;
/// The seed of the initial values.
pub const SEED: u64 = 7;
/// The learning rate of every step.
pub const RATE: f64 = 1e-2;
/// The largest norm of the gradient.
pub const CLIP: f32 = 1.0;
/// AdamW's constants.
pub const OPTIMIZER: Optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);

/// A step: two sequences of sixteen tokens.
pub const STAGE: MicroBatch = MicroBatch {
    batch: 2,
    seq_len: 16,
    chunk: 16,
    recompute: Recompute::NONE,
    pattern: Pattern::DENSE,
    products: Products::Wide,
    dropout: Chance::NONE,
    documents: false,
};

/// A Pythia of two layers.
pub const PYTHIA: Transformer = Transformer {
    layers: 2,
    d_model: 16,
    heads: 2,
    kv_heads: 2,
    head_size: 8,
    d_ff: 32,
    vocab_size: IDS,
    context: STAGE.seq_len,
    rotary_dims: 2,
    ..Transformer::GPT_NEOX
};

/// A NeuroGen with every part that e-prop can train.
pub const NEUROGEN: NeuroGen = NeuroGen {
    vocab_size: IDS,
    embedding: 8,
    taps: 3,
    connectome: Connectome {
        taps: 24,
        neurons: [16, 24, 16, 16, 24, 8],
        outputs: [8, 16, 16, 8, 16, 4],
        fan_in: [8, 8, 8, 8, 8, 8],
        tap_share: 0.4,
        pipelined: false,
        feedback: true,
        seed: 5,
    },
    fan_out: 5,
    skip: 4,
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
    streams: STAGE.batch,
};

/// The step of the program that adapts: two sequences of 32 tokens.
pub const ADAPT: MicroBatch = MicroBatch { seq_len: 32, chunk: 32, ..STAGE };
/// The learning rate of that program: smaller, since the weights are already trained.
pub const ADAPT_RATE: f64 = 3e-3;

/// The first token of sequence `row` of step `step` among `count` ids: the sequences are consecutive and wrap around.
pub const fn start(step: usize, row: usize, count: usize) -> usize {
    let (batch, seq_len) = (ADAPT.batch as usize, ADAPT.seq_len as usize);
    (step * batch + row) * seq_len % (count - seq_len)
}
