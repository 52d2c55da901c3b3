//! What a Pythia keeps in memory, and where.

use super::Pythia;
use crate::device::{Profile, count};
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot, Stacked};
use crate::model::shared::{
    self, Activations, Grouped, Groups, Keep, Must, check_constants, check_sizes, check_stage, larger,
};
use crate::model::stage::{Batch, Control, Family, ModelError, Products, Purpose, Stage};

/// Every parameter, or what belongs to every parameter: gradients, moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// [vocab_size, d_model].
    pub embed_in: Region,
    /// [3 d_model, d_model], rows [head, (query, key, value), size].
    pub qkv: Stacked,
    /// [d_model, d_model].
    pub dense: Stacked,
    /// [d_ff, d_model].
    pub up: Stacked,
    /// [d_model, d_ff].
    pub down: Stacked,
    /// [vocab_size, d_model].
    pub embed_out: Region,
    /// `[d_model]`: gain and bias of LN₁, before attention.
    pub norm1: [Stacked; 2],
    /// `[d_model]`: gain and bias of LN₂, before the feed-forward.
    pub norm2: [Stacked; 2],
    /// [3 d_model].
    pub qkv_bias: Stacked,
    /// `[d_model]`.
    pub dense_bias: Stacked,
    /// `[d_ff]`.
    pub up_bias: Stacked,
    /// `[d_model]`.
    pub down_bias: Stacked,
    /// `[d_model]`: gain and bias of the final LayerNorm.
    pub final_norm: [Region; 2],
    /// What is updated alike.
    pub groups: Groups,
}

impl Grouped for Parameters {
    fn groups(&self) -> &Groups {
        &self.groups
    }
}

/// What lasts from step to step.
pub type State = shared::Lasting<Parameters>;

/// The activations of a forward pass. Shared slots (stride 0) are rebuilt by every layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Forward {
    /// [batch, seq_len, d_model]: each layer's input, and the last one's output.
    pub(super) x: Stacked,
    /// [batch, seq_len, 2]: mean and reciprocal deviation of x.
    pub(super) stats: Stacked,
    /// [batch, seq_len, d_model]: LN₁ x.
    pub(super) norm1: Stacked,
    /// [batch, seq_len, d_model]: LN₂ x.
    pub(super) norm2: Stacked,
    /// [batch, seq_len, 3 d_model].
    pub(super) qkv: Stacked,
    /// [batch, heads, seq_len].
    pub(super) log_sum: Stacked,
    /// [batch, seq_len, d_model]: attention's output, before its projection.
    pub(super) mixed: Stacked,
    /// [batch, seq_len, d_ff]: before the GELU.
    pub(super) hidden: Stacked,
    /// [batch, seq_len, d_ff]: after it.
    pub(super) activated: Stacked,
    /// [batch, seq_len, 2].
    pub(super) final_stats: Region,
    /// [batch, seq_len, d_model]: the head's input.
    pub(super) final_out: Region,
    /// [batch · seq_len]: nats.
    pub(super) losses: Region,
}

/// What a training step needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    pub(super) batch: Batch,
    pub(super) forward: Forward,
    /// [batch, seq_len, d_model]: the gradient of the residual stream.
    pub(super) x_grad: Region,
    /// [batch, seq_len, d_model]: of LN₂'s output.
    pub(super) norm2_grad: Region,
    /// [batch, seq_len, d_model]: of attention's output, then of LN₁'s output.
    pub(super) narrow_grad: Region,
    /// [chunk, vocab_size]: logits; then, in each layer, of the feed-forward's hidden values and of qkv.
    pub(super) wide: Region,
}

/// What an evaluation needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    pub(super) batch: Batch,
    pub(super) forward: Forward,
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
    /// [2, context, d_model] a layer.
    pub(super) cache: Stacked,
    /// [1, vocab_size].
    pub(super) logits: Region,
}

impl Pythia {
    fn lay_parameters(&self, prefix: &'static str, role: Role, dtype: Dtype, ledger: &mut dyn Ledger) -> Parameters {
        let (d, ff, layers) = (self.d_model, self.d_ff, self.layers);
        let width = libm::sqrtf(d as f32);
        let small = Init::Normal(libm::sqrtf(2.0 / 5.0) / width);
        let wang = Init::Normal(2.0 / (layers as f32 * width));
        let mut lay = |name, layers, shape: [u32; 2], init| {
            let init = if role == Role::Weight || role == Role::Master { init } else { Init::Zero };
            let shape = [1, 1, shape[0], shape[1]];
            ledger.region(Slot { prefix, layers, init, ..Slot::new(name, role, dtype, shape) })
        };
        let embed_in = lay("gpt_neox.embed_in.weight", 1, [self.vocab_size, d], small).first;
        let qkv = lay("gpt_neox.layers.*.attention.query_key_value.weight", layers, [3 * d, d], small);
        let dense = lay("gpt_neox.layers.*.attention.dense.weight", layers, [d, d], wang);
        let up = lay("gpt_neox.layers.*.mlp.dense_h_to_4h.weight", layers, [ff, d], small);
        let down = lay("gpt_neox.layers.*.mlp.dense_4h_to_h.weight", layers, [d, ff], wang);
        let embed_out = lay("embed_out.weight", 1, [self.vocab_size, d], small).first;
        let mut vector = |name, layers, len, init| lay(name, layers, [1, len], init);
        let norm1 = [
            vector("gpt_neox.layers.*.input_layernorm.weight", layers, d, Init::One),
            vector("gpt_neox.layers.*.input_layernorm.bias", layers, d, Init::Zero),
        ];
        let norm2 = [
            vector("gpt_neox.layers.*.post_attention_layernorm.weight", layers, d, Init::One),
            vector("gpt_neox.layers.*.post_attention_layernorm.bias", layers, d, Init::Zero),
        ];
        let qkv_bias = vector("gpt_neox.layers.*.attention.query_key_value.bias", layers, 3 * d, Init::Zero);
        let dense_bias = vector("gpt_neox.layers.*.attention.dense.bias", layers, d, Init::Zero);
        let up_bias = vector("gpt_neox.layers.*.mlp.dense_h_to_4h.bias", layers, ff, Init::Zero);
        let down_bias = vector("gpt_neox.layers.*.mlp.dense_4h_to_h.bias", layers, d, Init::Zero);
        let final_norm = [
            vector("gpt_neox.final_layer_norm.weight", 1, d, Init::One).first,
            vector("gpt_neox.final_layer_norm.bias", 1, d, Init::Zero).first,
        ];
        // Matrices were laid first: each group is one range.
        let places = [embed_in.offset, norm1[0].first.offset, ledger.mark()];
        Parameters {
            embed_in,
            qkv,
            dense,
            up,
            down,
            embed_out,
            norm1,
            norm2,
            qkv_bias,
            dense_bias,
            up_bias,
            down_bias,
            final_norm,
            groups: Groups::new(dtype, places, ledger),
        }
    }

    fn lay_forward(&self, shape: [u32; 2], keep: Keep, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Forward {
        let (d, ff, layers) = (self.d_model, self.d_ff, self.layers);
        let mut all = Activations { profile, ledger, shape };
        let x = all.lay("layers.x", keep.inputs, layers + 1, d);
        let stats = all.lay_f32("layers.stats", keep.inputs, layers, 2);
        let norm1 = all.lay("layers.norm1", keep.element_wise, layers, d);
        let norm2 = all.lay("layers.norm2", keep.element_wise, layers, d);
        let qkv = all.lay("layers.qkv", keep.products, layers, 3 * d);
        let mixed = all.lay("layers.mixed", keep.products, layers, d);
        let hidden = all.lay("layers.hidden", keep.products, layers, ff);
        let activated = all.lay("layers.activated", keep.element_wise, layers, ff);
        let final_stats = all.lay_f32("final.stats", false, 1, 2).first;
        let final_out = all.lay("final.out", false, 1, d).first;
        let losses = all.losses();
        let log_sum = all.log_sum(keep.products, layers, self.heads);
        Forward { x, stats, norm1, norm2, qkv, log_sum, mixed, hidden, activated, final_stats, final_out, losses }
    }
}

impl Family for Pythia {
    type State = State;
    type Training = Training;
    type Evaluation = Evaluation;
    type Decoding = Decoding;

    fn validate(&self) -> Result<(), ModelError> {
        let sizes = [
            ("layers", self.layers),
            ("d_model", self.d_model),
            ("heads", self.heads),
            ("d_ff", self.d_ff),
            ("vocab_size", self.vocab_size),
            ("context", self.context),
            ("rotary_dims", self.rotary_dims),
        ];
        check_sizes(&sizes)?;
        check_constants(&[
            ("rotary_base", self.rotary_base, Must::Positive),
            ("norm_eps", self.norm_eps, Must::Positive),
        ])?;
        if !self.d_model.is_multiple_of(self.heads) {
            return Err(ModelError::Heads { d_model: self.d_model, heads: self.heads });
        }
        let size = self.d_model / self.heads;
        if !self.rotary_dims.is_multiple_of(2) || self.rotary_dims > size {
            return Err(ModelError::Rotary { dims: self.rotary_dims, size });
        }
        Ok(())
    }

    fn validate_stage(&self, stage: &Stage) -> Result<(), ModelError> {
        check_stage(stage, self.context)?;
        if stage.products == Products::Wide { Ok(()) } else { Err(ModelError::Wide) }
    }

    fn flops_per_token(&self, seq_len: u32) -> u64 {
        let [d, ff, layers] = [self.d_model, self.d_ff, self.layers].map(u64::from);
        let layer = count(&[d, 4 * d + 2 * ff]);
        let products = count(&[layers, layer]).saturating_add(count(&[self.vocab_size.into(), d]));
        count(&[6, products]).saturating_add(count(&[12, layers, d, seq_len.into()]))
    }

    fn lay_state(&self, profile: &dyn Profile, purpose: Purpose, ledger: &mut dyn Ledger) -> State {
        let training = purpose == Purpose::Training;
        let table = [self.context, self.rotary_dims / 2];
        State::lay(profile, training, table, self.rotary_base, ledger, &|prefix, role, dtype, ledger| {
            self.lay_parameters(prefix, role, dtype, ledger)
        })
    }

    fn lay_training(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Training {
        let Stage { batch, seq_len, chunk, recompute, .. } = *stage;
        let regions = Batch::lay(stage.tokens(), ledger);
        let forward = self.lay_forward([batch, seq_len], Keep::of(recompute), profile, ledger);
        let dtype = profile.dtype(Role::Work);
        let mut lay = |name, shape| ledger.region(Slot::new(name, Role::Work, dtype, shape)).first;
        let narrow = [1, batch, seq_len, self.d_model];
        let (x_grad, norm2_grad) = (lay("grad.x", narrow), lay("grad.norm2", narrow));
        let narrow_grad = lay("grad.mixed_or_norm1", narrow);
        let rows = chunk.min(stage.tokens());
        let wide = larger([1, 1, rows, self.vocab_size], [1, batch, seq_len, self.d_ff.max(3 * self.d_model)]);
        let wide = lay("logits_or_grad.hidden_or_qkv", wide);
        Training { batch: regions, forward, x_grad, norm2_grad, narrow_grad, wide }
    }

    fn lay_evaluation(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Evaluation {
        let batch = Batch::lay(stage.tokens(), ledger);
        let forward = self.lay_forward([stage.batch, stage.seq_len], Keep::NOTHING, profile, ledger);
        let shape = [1, 1, stage.chunk.min(stage.tokens()), self.vocab_size];
        let logits = ledger.region(Slot::new("logits", Role::Work, Dtype::F32, shape)).first;
        Evaluation { batch, forward, logits }
    }

    fn lay_decoding(&self, context: u32, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Decoding {
        let forward = self.lay_forward([1, 1], Keep::NOTHING, profile, ledger);
        let mut lay =
            |name, role, dtype, shape, layers| ledger.region(Slot::new(name, role, dtype, shape).layers(layers));
        let id = lay("decode.id", Role::Batch, Dtype::U32, [1, 1, 1, 1], 1).first;
        let cursor = lay("decode.cursor", Role::Batch, Dtype::U32, [1, 1, 1, 1], 1).first;
        let cache =
            lay("decode.cache", Role::Work, profile.dtype(Role::Work), [1, 2, context, self.d_model], self.layers);
        let logits = lay("decode.logits", Role::Work, Dtype::F32, [1, 1, 1, self.vocab_size], 1).first;
        Decoding { forward, id, cursor, cache, logits }
    }

    fn control(state: &State) -> Control {
        state.control
    }

    fn training_batch(training: &Training) -> Batch {
        training.batch
    }

    fn evaluation_batch(evaluation: &Evaluation) -> Batch {
        evaluation.batch
    }

    fn evaluation_logits(evaluation: &Evaluation) -> Region {
        evaluation.logits
    }

    fn decoding_io(decoding: &Decoding) -> (Region, Region, Region) {
        (decoding.id, decoding.cursor, decoding.logits)
    }
}
