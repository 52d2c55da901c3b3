//! What every family has in common: the shape of a step, and how a host drives it.

use super::parameter::Parameters;
use super::recompute::{EightBits, Recompute};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Ledger, Region, Role, Slot};
use crate::ops::{Chance, Pattern};
use crate::optimizer::{Group, Optimizer, Room};
use crate::train::{Ranks, Results, Settings};

/// What the products of the layers read. The embedding, the head and the weights' gradients are always wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// Weights and activations as they are kept.
    Wide,
    /// The same; the copies in 8 bits are made, so that their scales can be learnt.
    Warming,
    /// Copies in 8 bits.
    Quantised,
}

/// What a model's state is laid for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Purpose {
    /// Training as one of these ranks by this optimizer, and whatever else.
    Training(Ranks, Optimizer),
    /// Losses and logits of sequences.
    Evaluation,
    /// Token by token only.
    Decoding,
}

/// Why there is no training step of a model that was laid for other purposes.
pub(super) const UNLEARNT: OperationError =
    OperationError::Unsupported("there is no room for gradients: the model was not laid for training");

/// What only some families have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Steps of several micro-batches, which ranks may share.
    Accumulation,
    /// Gradients of the parameters in bf16.
    Bf16Gradients,
    /// Attention, of a pattern that can be chosen.
    Attention,
    /// Matrices in integers, where it is not trained: [`Profile::weights`].
    Integers,
    /// Parameters of this group that do not learn: [`Rule::Frozen`](crate::optimizer::Rule::Frozen).
    Frozen(Group),
    /// Averages of the parameters over steps.
    Averages,
    /// Gradients that are released layer by layer: [`Optimizer::releasing`].
    ReleasedGradients,
    /// Adapters (LoRA) next to weights that do not learn.
    Adapters,
    /// Rows that are documents by themselves, such as conversations.
    Documents,
    /// Text between two training steps, which training does not notice.
    Samples,
}

/// The shape of a micro-batch and what decides its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// Sequences of a micro-batch.
    pub batch: u32,
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// Rows of logits that exist at once.
    pub chunk: u32,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// What a query sees.
    pub pattern: Pattern,
    /// What products read.
    pub products: Products,
    /// The probability that a number is dropped where a family drops some in training; evaluations drop none.
    pub dropout: Chance,
    /// Whether attention stays inside documents in training; rows of evaluations are seen whole.
    pub documents: bool,
}

impl MicroBatch {
    /// Tokens of a micro-batch.
    pub const fn tokens(&self) -> u32 {
        self.batch * self.seq_len
    }

    /// Rows of a whole chunk of logits.
    pub const fn chunk_rows(&self) -> u32 {
        if self.chunk < self.tokens() { self.chunk } else { self.tokens() }
    }
}

/// Why a configuration describes no model, or a micro-batch no step of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModelError {
    /// A size that must not be 0.
    Zero(&'static str),
    /// A constant out of its range.
    Constant {
        /// Its name.
        name: &'static str,
        /// What it is.
        value: f32,
        /// What it must be.
        must: &'static str,
    },
    /// No size of a head is given, and the width does not divide by the heads.
    Heads {
        /// The width.
        d_model: u32,
        /// The heads.
        heads: u32,
    },
    /// The key and value heads do not divide the query heads.
    Groups {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
    },
    /// A factorised embedding of a rank above the width.
    Rank {
        /// The rank.
        rank: u32,
        /// The width.
        d_model: u32,
    },
    /// More value tables than layers that use them.
    ValueTables {
        /// The tables.
        tables: u32,
        /// The layers.
        layers: u32,
    },
    /// Adapters that the model cannot have: why.
    Adapters(&'static str),
    /// Adapters of a rank that is more than a matrix has.
    AdapterRank {
        /// Theirs.
        rank: u32,
        /// Rows or columns of the smallest matrix, whichever are fewer.
        most: u32,
    },
    /// A factorised embedding whose head is not tied to it.
    Untied,
    /// The rotated dims of a head are odd or more than the head has.
    Rotary {
        /// Dims to rotate.
        dims: u32,
        /// Dims of a head.
        size: u32,
    },
    /// Rotary wavelengths of which none is between those that stay and those that are stretched.
    Scaling {
        /// Turns in the original context of the longest that is stretched in part.
        low: f32,
        /// Of the shortest.
        high: f32,
    },
    /// The sequences are longer than the context.
    Context {
        /// Tokens of a sequence.
        seq_len: u32,
        /// The model's context.
        context: u32,
    },
    /// A module without neurons, outputs or synapses.
    Empty(&'static str),
    /// A module with more outputs than neurons.
    Outputs {
        /// The module.
        module: &'static str,
        /// Its outputs.
        outputs: u32,
        /// Its neurons.
        neurons: u32,
    },
    /// A fan-in that exceeds what can be drawn.
    FanIn {
        /// The module.
        module: &'static str,
        /// Synapses of a neuron.
        fan_in: u32,
        /// Sources that it could have.
        sources: u64,
    },
    /// A fan-out that exceeds the residual stream.
    FanOut {
        /// Dims that an output reaches.
        fan_out: u32,
        /// Dims there are.
        dims: u32,
    },
    /// Winners outside of their block.
    Winners {
        /// How many of a block fire.
        winners: u32,
        /// Neurons of a block.
        block: u32,
    },
    /// Stages of another number of sequences than there are streams.
    Streams {
        /// Sequences of a micro-batch.
        batch: u32,
        /// Streams.
        streams: u32,
    },
    /// What a family of spiking neurons does not have.
    Spiking(&'static str),
    /// A side of a product in 8 bits that is no multiple of 16.
    Sixteens {
        /// The side.
        name: &'static str,
        /// Its size.
        size: u32,
    },
    /// What cannot be kept in 8 bits.
    EightBits {
        /// What.
        kind: EightBits,
        /// Why not: a clause.
        why: &'static str,
    },
    /// A tensor of more than 2³² − 1 rows or elements of a row.
    TooLarge(&'static str),
}

impl core::fmt::Display for ModelError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ModelError::Zero(name) => write!(f, "{name} is 0; it must be at least 1"),
            ModelError::Constant { name, value, must } => write!(f, "{name} is {value}; it must be {must}"),
            ModelError::Heads { d_model, heads } => {
                write!(
                    f,
                    "{heads} heads do not divide a width (d_model) of {d_model}; choose a divisor, or a head_size"
                )
            }
            ModelError::Groups { heads, kv_heads } => {
                write!(f, "{kv_heads} key heads (kv_heads) do not divide {heads} query heads; choose a divisor")
            }
            ModelError::Rank { rank, d_model } => write!(
                f,
                "an embedding of rank {rank} is wider than the model (d_model {d_model}); lower the rank, or set rank=0 for none"
            ),
            ModelError::ValueTables { tables, layers } => write!(
                f,
                "{tables} value tables (value_tables) are more than the {layers} layers that use them; lower value_tables"
            ),
            ModelError::Adapters(why) => write!(f, "adapters (lora_rank) do not go with this: {why}"),
            ModelError::AdapterRank { rank, most } => write!(
                f,
                "adapters of rank {rank} (lora_rank) are larger than a matrix of {most} rows or columns beside them; lower it, or \
                 leave that one out of lora_targets"
            ),
            ModelError::Untied => f.write_str("a factorised embedding is tied; set tied=true, or rank=0 for none"),
            ModelError::Rotary { dims, size } => {
                write!(f, "{dims} rotary dims in heads of {size}: they must be even and no more than the head has")
            }
            ModelError::Scaling { low, high } => {
                write!(f, "rotary_low is {low} and rotary_high {high}; rotary_low must be the smaller one")
            }
            ModelError::Context { seq_len, context } => write!(
                f,
                "sequences of {seq_len} tokens are longer than the context of {context}; lower --seq-len or raise --set context=N"
            ),
            ModelError::Empty(module) => {
                write!(f, "{module} has no neurons, outputs or synapses; each must be at least 1")
            }
            ModelError::Outputs { module, outputs, neurons } => {
                write!(f, "{module} has {outputs} outputs of {neurons} neurons; lower its outputs or raise its neurons")
            }
            ModelError::FanIn { module, fan_in, sources } => write!(
                f,
                "{module} has a fan-in of {fan_in} and only {sources} sources to draw from; lower its fan-in, or change tap_share"
            ),
            ModelError::FanOut { fan_out, dims } => {
                write!(f, "an output cannot reach {fan_out} of {dims} dims; lower fan_out")
            }
            ModelError::Winners { winners, block } => {
                write!(f, "{winners} winners in a block of {block} neurons; winners must be 1 to {block}")
            }
            ModelError::Streams { batch, streams } => write!(
                f,
                "a micro-batch of {batch} sequences beside {streams} streams: streams keep their state, so --batch-size is one for the whole run"
            ),
            ModelError::Spiking(what) => write!(f, "a NeuroGen has no {what}"),
            ModelError::Sixteens { name, size } => {
                write!(f, "{name} is {size}, and fp8 multiplies sides of whole sixteens; use --precision bf16")
            }
            ModelError::EightBits { kind, why } => write!(f, "--recompute {} {why}", kind.name()),
            ModelError::TooLarge(name) => write!(f, "{name} is too large: a dimension passes 32 bits"),
        }
    }
}

impl core::error::Error for ModelError {}

/// The regions a host writes before a step and reads after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Control {
    /// [`Settings`].
    pub settings: Region,
    /// [`Results`].
    pub results: Region,
    /// [`Results`] of this rank's micro-batches alone: those of the step where there is one rank.
    pub own: Region,
    /// Where ranks share: [1 + ranks, [`Control::RANK`]], the step's results, and under them what each rank has: its
    /// own results, and a number that it tells the others.
    pub of_ranks: Option<Region>,
}

impl Control {
    /// Numbers of a rank's row: its results, and what it tells the others.
    pub const RANK: u32 = Results::LEN as u32 + 1;

    /// Lays them for one of `ranks`.
    pub fn lay(ranks: Ranks, ledger: &mut dyn Ledger) -> Control {
        let mut region =
            |name, rows, len| ledger.region(Slot::new(name, Role::Control, Dtype::F32, [1, 1, rows, len])).first;
        let len = Results::LEN as u32;
        let settings = region("settings", 1, Settings::LEN as u32);
        if !ranks.shares() {
            let results = region("results", 1, len);
            return Control { settings, results, own: results, of_ranks: None };
        }
        let all = region("results", ranks.count.saturating_add(1), Self::RANK);
        let row = |row| all.slice_rows(row, 1).slice_columns(0, len);
        Control { settings, results: row(0), own: row(1 + ranks.rank), of_ranks: Some(all) }
    }

    /// Where rank `rank` tells the others a number; nothing where there is one rank.
    pub fn told(&self, rank: u32) -> Option<Region> {
        self.of_ranks.map(|all| all.slice_rows(1 + rank, 1).slice_columns(Results::LEN as u32, 1))
    }
}

/// The regions of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batch {
    /// `[rows]` u32: token ids.
    pub ids: Region,
    /// `[rows]` u32: the id that follows each.
    pub targets: Region,
    /// `[rows]` u32: tokens of the same document before each, where a step goes by them.
    pub offsets: Option<Region>,
    /// `[2]` u32: the key of the micro-batch's masks, where it has some: see [`Dropout::key`](crate::ops::Dropout::key).
    pub key: Option<Region>,
}

impl Batch {
    /// Lays ids and targets, of `rows` tokens.
    pub fn lay(rows: u32, ledger: &mut dyn Ledger) -> Batch {
        let mut region = |name| ledger.region(Slot::new(name, Role::Batch, Dtype::U32, [1, 1, 1, rows])).first;
        Batch { ids: region("batch.ids"), targets: region("batch.targets"), offsets: None, key: None }
    }

    /// Lays the key too, where `chance` drops anything.
    pub fn with_key(self, chance: Chance, ledger: &mut dyn Ledger) -> Batch {
        let slot = Slot::new("batch.key", Role::Batch, Dtype::U32, [1, 1, 1, 2]);
        Batch { key: chance.any().then(|| ledger.region(slot).first), ..self }
    }

    /// Lays offsets too.
    pub fn with_offsets(self, ledger: &mut dyn Ledger) -> Batch {
        let slot = Slot::new("batch.offsets", Role::Batch, Dtype::U32, self.ids.shape);
        Batch { offsets: Some(ledger.region(slot).first), ..self }
    }
}

/// The most gauges of a family.
pub const GAUGES: usize = 8;

/// How a number is made of what a step leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// The mean of a region.
    Mean(Region),
    /// The mean opening of a gate: see [`crate::ops::Gate`].
    Gate {
        /// [count, streams]: the gating module's outputs.
        signals: Region,
        /// `[dims]`.
        weight: Region,
        /// `[dims]`.
        bias: Region,
    },
}

/// A number worth watching.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gauge {
    /// Its name in the metrics.
    pub name: &'static str,
    /// How it is made.
    pub measure: Measure,
}

/// A family: its memory, and its steps as the operations, one after the other, that a device is given to run. The same
/// calls serve planner, allocator, initialiser, checkpoint and step.
pub trait Family: Parameters {
    /// What lasts: weights, optimizer, tables, control.
    type Lasting: Copy;
    /// What a training step of one micro-batch needs besides.
    type Training: Copy;
    /// What an evaluation needs besides.
    type Evaluation: Copy;
    /// What token-by-token decoding needs besides.
    type Decoding: Copy;

    /// Whether this is a model.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn validate(&self) -> Result<(), ModelError>;

    /// Whether sequences of `seq_len` fit the model.
    ///
    /// # Errors
    /// [`ModelError::Context`] or [`ModelError::Zero`].
    fn validate_micro_batch(&self, micro: &MicroBatch) -> Result<(), ModelError>;

    /// Why it does not have what only some families have, where it does not: a clause, for a refusal.
    fn lacks(&self, capability: Capability) -> Option<&'static str>;

    /// The activations that its backward pass can compute again.
    fn recomputable(&self) -> Recompute {
        Recompute::NONE
    }

    /// Floating-point operations of training on one token by the field's convention: 6 a weight of a product,
    /// and attention's scores and mixing counted dense: 12 · layers · width · seq_len.
    fn flops_per_token(&self, seq_len: u32) -> u64;

    /// Lays what lasts. Unless it is for training only the weights and tables.
    fn lay_lasting(&self, profile: &dyn Profile, purpose: Purpose, ledger: &mut dyn Ledger) -> Self::Lasting;

    /// Lays a training micro-batch.
    fn lay_training(&self, micro: &MicroBatch, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Self::Training;

    /// Lays what an update by `optimizer` needs, if anything. It may share bytes with a micro-batch. Where gradients are
    /// released parameters move within that, and what they need lasts.
    fn lay_update(&self, optimizer: &Optimizer, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Option<Room> {
        if optimizer.releases() { None } else { Room::lay(self, optimizer, profile, ledger) }
    }

    /// Lays an evaluation of this shape. Its logits are f32 whatever the profile.
    fn lay_evaluation(&self, micro: &MicroBatch, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Self::Evaluation;

    /// Lays decoding over `context` positions. Its logits are f32 whatever the profile.
    fn lay_decoding(&self, context: u32, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Self::Decoding;

    /// Says in lines what the model is made of, where its table of regions does not.
    fn introduce(&self, _: &mut dyn FnMut(core::fmt::Arguments<'_>)) {}

    /// Shows what is worth watching in training, [`GAUGES`] at most.
    fn gauges(&self, _: &Self::Lasting, _: &mut dyn FnMut(Gauge)) {}

    /// Settings and results.
    fn control(lasting: &Self::Lasting) -> Control;

    /// Where a training batch goes.
    fn training_batch(training: &Self::Training) -> Batch;

    /// Where an evaluation batch goes.
    fn evaluation_batch(evaluation: &Self::Evaluation) -> Batch;

    /// Where an evaluation's logits lie, [chunk, vocabulary].
    fn evaluation_logits(evaluation: &Self::Evaluation) -> Region;

    /// Where the loss of each of its tokens is, in nats: `[batch · seq_len]` in f32, 0 where there is no target.
    fn evaluation_losses(evaluation: &Self::Evaluation) -> Region;

    /// Where decoding's token id, its position and the next token's logits lie.
    fn decoding_io(decoding: &Self::Decoding) -> (Region, Region, Region);

    /// Forward and backward of one micro-batch. The first of a step overwrites gradients and loss, others add.
    ///
    /// # Errors
    /// What the device could not do.
    fn micro_batch(
        &self,
        device: &mut dyn Device,
        lasting: &Self::Lasting,
        training: &Self::Training,
        micro: &MicroBatch,
        first: bool,
    ) -> Result<(), OperationError>;

    /// Clips by the global norm and moves the parameters, by the optimizer that they were laid for. `room` is what
    /// [`Family::lay_update`] laid.
    ///
    /// # Errors
    /// What the device could not do; no room where some is needed.
    fn update(
        &self,
        device: &mut dyn Device,
        lasting: &Self::Lasting,
        room: Option<&Room>,
    ) -> Result<(), OperationError>;

    /// Exchanges the parameters with their averages, where the optimizer keeps them: twice is nothing. What a step leaves
    /// besides stays.
    ///
    /// # Errors
    /// What the device could not do.
    fn exchange(&self, device: &mut dyn Device, lasting: &Self::Lasting) -> Result<(), OperationError>;

    /// The loss of one batch, without gradients.
    ///
    /// # Errors
    /// What the device could not do.
    fn evaluate(
        &self,
        device: &mut dyn Device,
        lasting: &Self::Lasting,
        evaluation: &Self::Evaluation,
        micro: &MicroBatch,
    ) -> Result<(), OperationError>;

    /// The logits of rows `first` … `first + count` of the batch last evaluated; `count` is at most the chunk.
    ///
    /// # Errors
    /// What the device could not do.
    fn logits(
        &self,
        device: &mut dyn Device,
        lasting: &Self::Lasting,
        evaluation: &Self::Evaluation,
        first: u32,
        count: u32,
    ) -> Result<(), OperationError>;

    /// The logits after one more token.
    ///
    /// # Errors
    /// What the device could not do; a position beyond the context.
    fn decode(
        &self,
        device: &mut dyn Device,
        lasting: &Self::Lasting,
        decoding: &Self::Decoding,
        pattern: Pattern,
    ) -> Result<(), OperationError>;
}
