//! The memory of a transformer in addition to its weights: the regions and their shapes.

use super::Transformer;
use super::adapters::AdapterRoom;
use super::copies::Copies;
use super::eighths::{Eighths, Stream};
use super::integers::{Codes, Integers};
use super::weights::Weights;
use crate::device::Profile;
use crate::memory::{Ledger, Region, Stacked};
use crate::model::Activation;
use crate::model::Scales;
use crate::model::activations::{Activations, Keep, Slots};
use crate::model::family::{Batch, Control};
use crate::optimizer::Learning;

/// The persistent regions that a forward pass reads: a decoder has no others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// The weights.
    pub weights: Weights,
    /// The integer format of the weights and their scales, where they are in integers.
    pub integers: Option<Integers>,
    /// [context, rotated dims / 2, 2].
    pub(super) table: Region,
}

/// The persistent regions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lasting {
    /// The regions that a forward pass reads.
    pub network: Network,
    /// Gradients and optimizer state, in training.
    pub learning: Option<Learning<Weights>>,
    /// Settings and results.
    pub control: Control,
    /// The scaling of values and of gradients that are copied in 8 bits, if any are.
    pub(super) scales: Option<[Scales; 2]>,
}

/// The activations of a forward pass. Every layer overwrites shared slots (stride 0).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Forward {
    /// [batch, seq_len, rank]: the tokens' rows of E, then the head's input, where the embedding is factorised.
    pub low: Option<Region>,
    /// [batch, seq_len, d_model]: each layer's input, and the last layer's output.
    pub x: Stream,
    /// [batch, seq_len, d_model]: the first layer's input, where it is blended into the others.
    pub first: Option<Region>,
    /// [batch, seq_len, 1 or 2]: the statistics of norm₁; with parallel branches also of norm₂.
    pub stats1: Stacked,
    /// [batch, seq_len, d_model]: norm₁.
    pub norm1: Stacked,
    /// [batch, seq_len, (heads + 2 kv_heads) · size]: rotated, and normalised where the model does so.
    pub qkv: Stacked,
    /// The input of the norm of queries and keys, where its gradient will be computed.
    pub qk_input: Option<QkInput>,
    /// [batch, heads, seq_len].
    pub log_sum: Stacked,
    /// [batch, seq_len, heads · size]: attention's output, before its projection.
    pub mixed: Stacked,
    /// [batch, seq_len, d_model]: x after attention was added, where it has slots of its own: see [`Forward::mid`].
    pub mid: Option<Stacked>,
    /// [batch, seq_len, 1 or 2]: the statistics of norm₂.
    pub stats2: Stacked,
    /// [batch, seq_len, d_model]: norm₂.
    pub norm2: Stacked,
    /// [batch, seq_len, d_ff or 2 d_ff]: up, or gate and up; in the backward pass the gradients of gate and up.
    pub up: Stacked,
    /// The activations that layers save in 8 bits.
    pub eighths: Eighths,
    /// [batch, seq_len, d_ff]: GELU or SwiGLU of `up`.
    pub activated: Stacked,
    /// [batch, seq_len, 1 or 2].
    pub final_stats: Region,
    /// [batch, seq_len, d_model]: h.
    pub final_out: Region,
    /// [batch · seq_len]: nats.
    pub losses: Region,
    /// The quantised input of a matrix multiplication, where weights are in integers.
    pub codes: Option<Codes>,
    /// [the largest weight]: the expanded numbers of a weight that is stored in fewer bits.
    pub numbers: Option<Region>,
    /// Scratch of the adapters.
    pub adapters: Option<AdapterRoom>,
}

impl Forward {
    /// [batch, seq_len, d_model]: x after attention was added in layer `l`. With parallel branches, or outside of
    /// training, the slot of the layer's output.
    // Not inlined, so that a chip has its code once.
    #[inline(never)]
    pub fn mid(&self, l: u32) -> Region {
        self.mid.map_or_else(|| self.x.at(l + 1), |mid| mid.at(l))
    }
}

/// The input of the norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct QkInput {
    /// [batch, seq_len, (heads + kv_heads) · size]: queries and keys.
    pub raw: Stacked,
    /// [batch, seq_len, heads + kv_heads]: the norm's statistics.
    pub stats: Stacked,
}

/// The regions of a training step in addition to the persistent ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    pub(super) batch: Batch,
    pub(super) forward: Forward,
    /// [batch, seq_len, d_model]: the gradient of the residual stream. The slot of the final norm's output.
    pub(super) x_grad: Region,
    /// [batch, seq_len, d_model]: the gradient of norm₁'s or of the final norm's output.
    pub(super) norm1_grad: Region,
    /// [batch, seq_len, heads · size]: the gradient of attention's output. Shares the slot of `norm1_grad`.
    pub(super) mixed_grad: Region,
    /// [batch, seq_len, d_model]: the gradient of norm₂'s output. Shares the slot of `norm1_grad` where branches are
    /// sequential, otherwise that of the last layer's output.
    pub(super) norm2_grad: Region,
    /// [batch, seq_len, d_model]: the gradient of the embedding through the blends.
    pub(super) first_grad: Option<Region>,
    /// [batch, seq_len, rank]: the gradient of the head's input, then of the tokens' rows of E.
    pub(super) low_grad: Option<Region>,
    /// [chunk, padded vocabulary]: logits; then, in each layer, the gradients of the activated values and of qkv.
    pub(super) wide: Region,
    /// Copies in 8 bits, on a device that multiplies them.
    pub(super) copies: Option<Copies>,
    /// Scratch of the adapters' gradients.
    pub(super) adapters: Option<AdapterRoom>,
}

/// The regions of an evaluation in addition to the persistent ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    pub(super) batch: Batch,
    pub(super) forward: Forward,
    /// [chunk, padded vocabulary]: the logits as the loss writes them.
    pub(super) padded_logits: Region,
    /// [chunk, vocab_size]: the same bytes, as a host reads them.
    pub(super) logits: Region,
}

/// The regions of decoding in addition to the persistent ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decoding {
    pub(super) forward: Forward,
    /// `[1]` u32.
    pub(super) id: Region,
    /// `[1]` u32.
    pub(super) cursor: Region,
    /// [2, context, kv_heads · size] for each layer.
    pub(super) cache: Stacked,
    /// [1, vocab_size].
    pub(super) logits: Region,
}

impl Transformer {
    pub(super) fn lay_forward(
        &self,
        shape: [u32; 2],
        keep: Keep,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Forward {
        let (d, statistics) = (self.d_model, self.statistics());
        let sequential = !self.parallel();
        let kind = |activation| keep.of_kind(activation);
        let mut all = Activations { profile, ledger, shape };
        let low = self.rank.map(|rank| all.lay("embed.low", Slots::ONE, rank).first);
        let x = self.lay_stream(&mut all, keep);
        let first = self.stream_scalars.then(|| match keep.inputs {
            true => x.at(0),
            false => all.lay("embed.first", Slots::ONE, d).first,
        });
        let stats1 = all.lay_f32("layers.stats1", keep.beside_inputs(), statistics);
        let norm1 = all.lay("layers.norm1", kind(Activation::Norm1), d);
        let qkv = all.lay("layers.qkv", kind(Activation::Qkv), self.qkv_width());
        // Only training has a backward pass, so only training saves this input.
        let qk_input = (self.qk_norm && keep.inputs).then(|| {
            let heads = self.attention_heads();
            let raw = all.lay("layers.qk_raw", kind(Activation::Qkv), heads.normed() * heads.size);
            QkInput { raw, stats: all.lay_f32("layers.qk_stats", kind(Activation::Qkv), heads.normed()) }
        });
        let log_sum = all.log_sum(kind(Activation::Mixed), self.heads);
        let mixed = all.lay("layers.mixed", kind(Activation::Mixed), self.mixed_width());
        let mid = (sequential && keep.inputs).then(|| all.lay("layers.mid", kind(Activation::Mid), d));
        // norm₂'s statistics are recomputed only where both mid and norm₂ are; where either is saved, so are they.
        let slots2 = kind(Activation::Mid).both(kind(Activation::Norm2));
        let stats2 = if sequential { all.lay_f32("layers.stats2", slots2, statistics) } else { stats1 };
        let norm2 = all.lay("layers.norm2", kind(Activation::Norm2), d);
        let up = all.lay("layers.up", kind(Activation::GateUp), self.up_width());
        let eighths = self.lay_eighths(&mut all, keep);
        let activated = all.lay("layers.activated", kind(Activation::Activated), self.d_ff);
        let final_stats = all.lay_f32("final.stats", Slots::ONE, statistics).first;
        let name = if keep.inputs { "final.out_or_grad.x" } else { "final.out" };
        let final_out = all.lay(name, Slots::ONE, d).first;
        let losses = all.losses();
        let codes = Codes::lay(self, shape[0] * shape[1], profile, ledger);
        let numbers = self.lay_numbers(profile, ledger);
        let adapters = self.lay_adapters(shape[0] * shape[1], profile, ledger);
        Forward {
            low,
            x,
            first,
            stats1,
            norm1,
            qkv,
            qk_input,
            log_sum,
            mixed,
            mid,
            stats2,
            norm2,
            up,
            eighths,
            activated,
            final_stats,
            final_out,
            losses,
            codes,
            numbers,
            adapters,
        }
    }
}
