//! What a transformer keeps in memory besides its weights, and where.

use super::Transformer;
use super::copies::{Copies, lay_scales};
use super::weights::Weights;
use crate::device::Profile;
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot, Stacked};
use crate::model::Scales;
use crate::model::activations::{Activations, Keep, larger};
use crate::model::stage::{Batch, Control, Purpose, Stage};
use crate::optimizer::{self, Learning};

/// What lasts from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    /// The weights.
    pub weights: Weights,
    /// Gradients, and what the optimizer keeps, in training.
    pub learning: Option<Learning<Weights>>,
    /// [context, rotated dims / 2, 2].
    pub(super) table: Region,
    /// Settings and results.
    pub control: Control,
    /// The scaling of values and of gradients that are copied in 8 bits, where they are.
    pub(super) scales: Option<[Scales; 2]>,
}

/// The activations of a forward pass. Shared slots (stride 0) are rebuilt by every layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Forward {
    /// [batch, seq_len, rank]: the tokens' rows of E, then the head's input, where the embedding is factorised.
    pub low: Option<Region>,
    /// [batch, seq_len, d_model]: each layer's input, and the last one's output.
    pub x: Stacked,
    /// [batch, seq_len, 1 or 2]: what norm₁ is made with; of parallel branches norm₂ as well.
    pub stats1: Stacked,
    /// [batch, seq_len, d_model]: norm₁.
    pub norm1: Stacked,
    /// [batch, seq_len, (heads + 2 kv_heads) · size]: rotated.
    pub qkv: Stacked,
    /// [batch, heads, seq_len].
    pub log_sum: Stacked,
    /// [batch, seq_len, d_model]: attention's output, before its projection.
    pub mixed: Stacked,
    /// [batch, seq_len, d_model]: x after attention was added. Of parallel branches, or where nothing is kept, the slot of
    /// the layer's output.
    pub mid: Stacked,
    /// [batch, seq_len, 1 or 2]: what norm₂ is made with.
    pub stats2: Stacked,
    /// [batch, seq_len, d_model]: norm₂.
    pub norm2: Stacked,
    /// [batch, seq_len, d_ff or 2 d_ff]: up, or gate and up; in the backward pass the gradients of gate and up.
    pub up: Stacked,
    /// [batch, seq_len, d_ff]: GELU or SwiGLU of that.
    pub activated: Stacked,
    /// [batch, seq_len, 1 or 2].
    pub final_stats: Region,
    /// [batch, seq_len, d_model]: h.
    pub final_out: Region,
    /// [batch · seq_len]: nats.
    pub losses: Region,
}

/// What a training step needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    pub(super) batch: Batch,
    pub(super) forward: Forward,
    /// [batch, seq_len, d_model]: the gradient of the residual stream.
    pub(super) x_grad: Region,
    /// [batch, seq_len, d_model]: of norm₁'s, of attention's or of the final norm's output, in turn.
    pub(super) norm1_grad: Region,
    /// [batch, seq_len, d_model]: of norm₂'s output. The slot of `norm1_grad` where branches are sequential.
    pub(super) norm2_grad: Region,
    /// [batch, seq_len, rank]: of the head's input, then of the tokens' rows of E.
    pub(super) low_grad: Option<Region>,
    /// [chunk, padded vocabulary]: logits; then, in each layer, of the activated values and of qkv.
    pub(super) wide: Region,
    /// Copies in 8 bits, on a device that multiplies them.
    pub(super) copies: Option<Copies>,
}

/// What an evaluation needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    pub(super) batch: Batch,
    pub(super) forward: Forward,
    /// [chunk, padded vocabulary]: the loss's own.
    pub(super) padded_logits: Region,
    /// [chunk, vocab_size]: the same bytes, as a host reads them.
    pub(super) logits: Region,
}

/// What decoding needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decoding {
    pub(super) forward: Forward,
    /// `[1]` u32.
    pub(super) id: Region,
    /// `[1]` u32.
    pub(super) cursor: Region,
    /// [2, context, kv_heads · size] a layer.
    pub(super) cache: Stacked,
    /// [1, vocab_size].
    pub(super) logits: Region,
}

impl Transformer {
    pub(super) fn lay_lasting(&self, profile: &dyn Profile, purpose: Purpose, ledger: &mut dyn Ledger) -> State {
        let training = purpose == Purpose::Training;
        let (weights, learning) = optimizer::lay(self, training, profile, &|_| profile.dtype(Role::Weight), ledger);
        let init = Init::Rotary { base: self.rotary_base };
        let shape = [1, self.context, self.rotary_dims / 2, 2];
        let table = Slot { init, ..Slot::new("rotary_table", Role::Constant, Dtype::F32, shape) };
        let (table, control) = (ledger.region(table).first, Control::lay(ledger));
        let scales = (training && profile.quantises()).then(|| lay_scales(self.layers, ledger));
        State { weights, learning, table, control, scales }
    }

    fn lay_forward(&self, shape: [u32; 2], keep: Keep, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Forward {
        let (d, layers, statistics) = (self.d_model, self.layers, self.statistics());
        let sequential = !self.parallel();
        let mut all = Activations { profile, ledger, shape };
        let low = self.rank.map(|rank| all.lay("embed.low", false, 1, rank).first);
        let x = all.lay("layers.x", keep.inputs, layers + 1, d);
        let stats1 = all.lay_f32("layers.stats1", keep.inputs, layers, statistics);
        let norm1 = all.lay("layers.norm1", keep.element_wise, layers, d);
        let qkv = all.lay("layers.qkv", keep.products, layers, self.qkv_width());
        let log_sum = all.log_sum(keep.products, layers, self.heads);
        let mixed = all.lay("layers.mixed", keep.products, layers, d);
        let mid = match sequential && keep.inputs {
            true => all.lay("layers.mid", keep.products, layers, d),
            false => Stacked { first: x.at(1), ..x },
        };
        let stats2 = if sequential { all.lay_f32("layers.stats2", keep.products, layers, statistics) } else { stats1 };
        let norm2 = all.lay("layers.norm2", keep.element_wise, layers, d);
        let up = all.lay("layers.up", keep.products, layers, self.up_width());
        let activated = all.lay("layers.activated", keep.element_wise, layers, self.d_ff);
        let final_stats = all.lay_f32("final.stats", false, 1, statistics).first;
        let final_out = all.lay("final.out", false, 1, d).first;
        let losses = all.losses();
        Forward {
            low,
            x,
            stats1,
            norm1,
            qkv,
            log_sum,
            mixed,
            mid,
            stats2,
            norm2,
            up,
            activated,
            final_stats,
            final_out,
            losses,
        }
    }

    pub(super) fn lay_step(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Training {
        let Stage { batch, seq_len, recompute, .. } = *stage;
        let regions = Batch::lay(stage.tokens(), ledger);
        let forward = self.lay_forward([batch, seq_len], Keep::of(recompute), profile, ledger);
        let dtype = profile.dtype(Role::Work);
        let mut lay = |name, shape| ledger.region(Slot::new(name, Role::Work, dtype, shape)).first;
        let x_grad = lay("grad.x", [1, batch, seq_len, self.d_model]);
        let norm1_grad = lay("grad.norm1_or_mixed", [1, batch, seq_len, self.d_model]);
        let norm2_grad =
            if self.parallel() { lay("grad.norm2", [1, batch, seq_len, self.d_model]) } else { norm1_grad };
        let low_grad = self.rank.map(|rank| lay("grad.low", [1, batch, seq_len, rank]));
        let widest = [1, batch, seq_len, self.d_ff.max(self.qkv_width())];
        let logits = [1, 1, stage.chunk_rows(), self.vocabulary_rows()];
        let wide = lay("logits_or_grad.activated_or_qkv", larger(logits, widest));
        let copies = profile.quantises().then(|| Copies::lay(self, stage.tokens(), ledger));
        Training { batch: regions, forward, x_grad, norm1_grad, norm2_grad, low_grad, wide, copies }
    }

    pub(super) fn lay_loss(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Evaluation {
        let batch = Batch::lay(stage.tokens(), ledger);
        let forward = self.lay_forward([stage.batch, stage.seq_len], Keep::NOTHING, profile, ledger);
        let rows = stage.chunk_rows();
        let shape = [1, 1, rows, self.vocabulary_rows()];
        let padded_logits = ledger.region(Slot::new("logits", Role::Work, Dtype::F32, shape)).first;
        let logits = padded_logits.reshaped([1, 1, rows, self.vocab_size]);
        Evaluation { batch, forward, padded_logits, logits }
    }

    pub(super) fn lay_token(&self, context: u32, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Decoding {
        let forward = self.lay_forward([1, 1], Keep::NOTHING, profile, ledger);
        let mut lay =
            |name, role, dtype, shape, layers| ledger.region(Slot::new(name, role, dtype, shape).layers(layers));
        let id = lay("decode.id", Role::Batch, Dtype::U32, [1, 1, 1, 1], 1).first;
        let cursor = lay("decode.cursor", Role::Batch, Dtype::U32, [1, 1, 1, 1], 1).first;
        let columns = self.kv_heads * self.head_size();
        let cache = lay("decode.cache", Role::Work, profile.dtype(Role::Work), [1, 2, context, columns], self.layers);
        let logits = lay("decode.logits", Role::Work, Dtype::F32, [1, 1, 1, self.vocab_size], 1).first;
        Decoding { forward, id, cursor, cache, logits }
    }
}
