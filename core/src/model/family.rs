//! The interface of every model family: the shape of a step, and how a host runs it.

use super::parameter::Parameters;
use super::recompute::{EightBits, Recompute};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Ledger, Region, Role, Slot};
use crate::ops::{Chance, Pattern};
use crate::optimizer::{Group, Optimizer, Room};
use crate::train::{Ranks, Results, Settings};

/// What the matrix multiplications of the layers read. Those of the embedding, the head and the weights' gradients
/// always read wide operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// Weights and activations in the types that they are stored in.
    Wide,
    /// As [`Products::Wide`]; the 8-bit copies are made as well, so that their scales adapt.
    Warming,
    /// Copies in 8 bits.
    Quantised,
}

/// The purpose that a model's state is laid for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Purpose {
    /// Training as one of these ranks by this optimizer; evaluation and decoding as well.
    Training(Ranks, Optimizer),
    /// Losses and logits of sequences.
    Evaluation,
    /// Decoding token by token only.
    Decoding,
}

/// The refusal of a training step on a model that was laid for another purpose.
pub(super) const UNLEARNT: OperationError =
    OperationError::Unsupported("there is no room for gradients: the model was not laid for training");

/// An ability that only some families have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Steps of several micro-batches, which ranks may share.
    Accumulation,
    /// Gradients of the parameters in bf16.
    Bf16Gradients,
    /// Attention with a pattern that can be chosen.
    Attention,
    /// Matrices in integers, in a model that is not trained: [`Profile::weights`].
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

/// The shape of a micro-batch, and the choices that decide its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// Sequences of a micro-batch.
    pub batch: u32,
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// Rows of logits that exist at once.
    pub chunk: u32,
    /// The activations that the backward pass recomputes.
    pub recompute: Recompute,
    /// The tokens that a query sees.
    pub pattern: Pattern,
    /// What matrix multiplications read.
    pub products: Products,
    /// The probability with which a number is dropped in training, in families that have dropout; evaluations drop
    /// none.
    pub dropout: Chance,
    /// Whether attention stays inside documents in training; evaluations see every sequence whole.
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

/// Why a configuration describes no model, or why a micro-batch cannot be a step of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModelError {
    /// A size that must not be 0.
    Zero(&'static str),
    /// A constant out of its range.
    Constant {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: f32,
        /// The condition that it must satisfy.
        must: &'static str,
    },
    /// The head size is not given, and the width is not divisible by the number of heads.
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
    /// Adapters that the model cannot have, with the reason.
    Adapters(&'static str),
    /// Adapters whose rank exceeds that of a matrix.
    AdapterRank {
        /// The rank of the adapters.
        rank: u32,
        /// The smaller dimension of the smallest matrix.
        most: u32,
    },
    /// A factorised embedding whose head is not tied to it.
    Untied,
    /// The number of rotated dims of a head is odd, or exceeds the size of the head.
    Rotary {
        /// Dims to rotate.
        dims: u32,
        /// Dims of a head.
        size: u32,
    },
    /// Bounds on rotary wavelengths that leave no range between the unchanged and the fully stretched ones.
    Scaling {
        /// Rotations, within the original context, of the longest wavelength that is partly stretched.
        low: f32,
        /// Rotations of the shortest wavelength that is partly stretched.
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
        /// The dims that an output reaches.
        fan_out: u32,
        /// The dims of the residual stream.
        dims: u32,
    },
    /// More winners than a block has neurons.
    Winners {
        /// Neurons of a block that fire.
        winners: u32,
        /// Neurons of a block.
        block: u32,
    },
    /// A micro-batch whose number of sequences differs from the number of streams.
    Streams {
        /// Sequences of a micro-batch.
        batch: u32,
        /// Streams.
        streams: u32,
    },
    /// A feature that families of spiking neurons do not have.
    Spiking(&'static str),
    /// A dimension of an 8-bit matrix multiplication that is not a multiple of 16.
    Sixteens {
        /// The dimension.
        name: &'static str,
        /// Its size.
        size: u32,
    },
    /// An activation that cannot be saved in 8 bits.
    EightBits {
        /// The activation.
        kind: EightBits,
        /// The reason, as a clause.
        why: &'static str,
    },
    /// A tensor of more than 2³² − 1 rows, or with more than 2³² − 1 elements in a row.
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

/// The regions that a host writes before a step and reads after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Control {
    /// [`Settings`].
    pub settings: Region,
    /// [`Results`].
    pub results: Region,
    /// [`Results`] of this rank's micro-batches alone; with one rank, the results of the step.
    pub own: Region,
    /// With several ranks: [1 + ranks, [`Control::RANK`]]. Row 0 has the step's results; each row below has those of
    /// one rank, and a number that the rank reports to the others.
    pub of_ranks: Option<Region>,
}

impl Control {
    /// Length of a rank's row: its results, and the number that it reports.
    pub const RANK: u32 = Results::LEN as u32 + 1;

    /// Lays the control regions of one of `ranks`.
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

    /// The number that rank `rank` reports to the others; `None` where there is one rank.
    pub fn told(&self, rank: u32) -> Option<Region> {
        self.of_ranks.map(|all| all.slice_rows(1 + rank, 1).slice_columns(Results::LEN as u32, 1))
    }
}

/// The regions of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batch {
    /// `[rows]` u32: token ids.
    pub ids: Region,
    /// `[rows]` u32: the token id that follows each id.
    pub targets: Region,
    /// `[rows]` u32: the number of preceding tokens in the same document, for steps that use it.
    pub offsets: Option<Region>,
    /// `[2]` u32: the key of the micro-batch's dropout masks, if any: see [`Dropout::key`](crate::ops::Dropout::key).
    pub key: Option<Region>,
}

impl Batch {
    /// Lays the ids and targets of `rows` tokens.
    pub fn lay(rows: u32, ledger: &mut dyn Ledger) -> Batch {
        let mut region = |name| ledger.region(Slot::new(name, Role::Batch, Dtype::U32, [1, 1, 1, rows])).first;
        Batch { ids: region("batch.ids"), targets: region("batch.targets"), offsets: None, key: None }
    }

    /// Adds a key, where `chance` drops anything.
    pub fn with_key(self, chance: Chance, ledger: &mut dyn Ledger) -> Batch {
        let slot = Slot::new("batch.key", Role::Batch, Dtype::U32, [1, 1, 1, 2]);
        Batch { key: chance.any().then(|| ledger.region(slot).first), ..self }
    }

    /// Adds offsets.
    pub fn with_offsets(self, ledger: &mut dyn Ledger) -> Batch {
        let slot = Slot::new("batch.offsets", Role::Batch, Dtype::U32, self.ids.shape);
        Batch { offsets: Some(ledger.region(slot).first), ..self }
    }
}

/// The largest number of gauges of a family.
pub const GAUGES: usize = 8;

/// How a gauge is computed from regions that a step leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// The mean of a region.
    Mean(Region),
    /// The mean opening of a gate: see [`crate::ops::Gate`].
    Gate {
        /// [count, streams]: the gating module's outputs.
        signals: Region,
        /// `[dims]`: the gate's weight.
        weight: Region,
        /// `[dims]`.
        bias: Region,
    },
}

/// A number worth watching during training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gauge {
    /// Its name in the metrics.
    pub name: &'static str,
    /// How it is computed.
    pub measure: Measure,
}

/// A model family: the layout of its memory, and its steps as sequences of operations for a device to run. Planner,
/// allocator, initialiser, checkpoint and step all make the same calls.
pub trait Family: Parameters {
    /// The persistent regions: weights, optimizer state, tables, control.
    type Lasting: Copy;
    /// The additional regions of a training step on one micro-batch.
    type Training: Copy;
    /// The additional regions of an evaluation.
    type Evaluation: Copy;
    /// The additional regions of token-by-token decoding.
    type Decoding: Copy;

    /// Checks the configuration.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn validate(&self) -> Result<(), ModelError>;

    /// Checks that the model can run micro-batches of this shape.
    ///
    /// # Errors
    /// [`ModelError::Context`] or [`ModelError::Zero`].
    fn validate_micro_batch(&self, micro: &MicroBatch) -> Result<(), ModelError>;

    /// `None` if the family has this capability, else the reason why it has not, as a clause for a refusal.
    fn lacks(&self, capability: Capability) -> Option<&'static str>;

    /// The activations that the family's backward pass can recompute.
    fn recomputable(&self) -> Recompute {
        Recompute::NONE
    }

    /// Floating-point operations of training on one token by the field's convention: 6 for each weight of a matrix
    /// multiplication, and attention's scores and mixing counted dense: 12 · layers · width · seq_len.
    fn flops_per_token(&self, seq_len: u32) -> u64;

    /// Lays the persistent regions: for training all of them, else only weights and tables.
    fn lay_lasting(&self, profile: &dyn Profile, purpose: Purpose, ledger: &mut dyn Ledger) -> Self::Lasting;

    /// Lays the regions of a training micro-batch.
    fn lay_training(&self, micro: &MicroBatch, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Self::Training;

    /// Lays the regions that an update by `optimizer` needs, if any. They may share bytes with a micro-batch. Where
    /// gradients are released, parameters are updated during the backward pass, so those regions are persistent
    /// instead.
    fn lay_update(&self, optimizer: &Optimizer, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Option<Room> {
        if optimizer.releases() { None } else { Room::lay(self, optimizer, profile, ledger) }
    }

    /// Lays the regions of an evaluation of this shape. Its logits are f32 whatever the profile.
    fn lay_evaluation(&self, micro: &MicroBatch, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Self::Evaluation;

    /// Lays the regions of decoding over `context` positions. Its logits are f32 whatever the profile.
    fn lay_decoding(&self, context: u32, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Self::Decoding;

    /// Describes, in lines of text, what the table of regions does not show of the model.
    fn introduce(&self, _: &mut dyn FnMut(core::fmt::Arguments<'_>)) {}

    /// Shows the gauges worth watching in training, at most [`GAUGES`].
    fn gauges(&self, _: &Self::Lasting, _: &mut dyn FnMut(Gauge)) {}

    /// The regions of settings and results.
    fn control(lasting: &Self::Lasting) -> Control;

    /// The regions of a training batch.
    fn training_batch(training: &Self::Training) -> Batch;

    /// The regions of an evaluation batch.
    fn evaluation_batch(evaluation: &Self::Evaluation) -> Batch;

    /// The region of an evaluation's logits, [chunk, vocabulary].
    fn evaluation_logits(evaluation: &Self::Evaluation) -> Region;

    /// The region of an evaluation's losses, one for each token, in nats: `[batch · seq_len]` in f32, 0 without a
    /// target.
    fn evaluation_losses(evaluation: &Self::Evaluation) -> Region;

    /// The regions of decoding's token id, its position and the next token's logits.
    fn decoding_io(decoding: &Self::Decoding) -> (Region, Region, Region);

    /// Forward and backward pass of one micro-batch. The first of a step overwrites gradients and loss, later ones add.
    ///
    /// # Errors
    /// An error of the device.
    fn micro_batch(
        &self,
        device: &mut dyn Device,
        lasting: &Self::Lasting,
        training: &Self::Training,
        micro: &MicroBatch,
        first: bool,
    ) -> Result<(), OperationError>;

    /// Clips by the global norm and updates the parameters with the optimizer that they were laid for. `room` is the
    /// result of [`Family::lay_update`].
    ///
    /// # Errors
    /// An error of the device; `room` missing where it is needed.
    fn update(
        &self,
        device: &mut dyn Device,
        lasting: &Self::Lasting,
        room: Option<&Room>,
    ) -> Result<(), OperationError>;

    /// Swaps the parameters with their averages, where the optimizer has averages; a second call swaps them back. Other
    /// state of a step stays as it is.
    ///
    /// # Errors
    /// An error of the device.
    fn exchange(&self, device: &mut dyn Device, lasting: &Self::Lasting) -> Result<(), OperationError>;

    /// The loss of one batch, without gradients.
    ///
    /// # Errors
    /// An error of the device.
    fn evaluate(
        &self,
        device: &mut dyn Device,
        lasting: &Self::Lasting,
        evaluation: &Self::Evaluation,
        micro: &MicroBatch,
    ) -> Result<(), OperationError>;

    /// The logits of rows `first` … `first + count` of the last evaluated batch; `count` is at most the chunk.
    ///
    /// # Errors
    /// An error of the device.
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
    /// An error of the device; a position beyond the context.
    fn decode(
        &self,
        device: &mut dyn Device,
        lasting: &Self::Lasting,
        decoding: &Self::Decoding,
        pattern: Pattern,
    ) -> Result<(), OperationError>;
}
