//! Pythia: EleutherAI's GPT-NeoX (Biderman et al. 2023), with parallel residual and partial rotary.
//!
//! `x ← x + attention(LN₁ x) + mlp(LN₂ x)` in every layer, a final LayerNorm, an untied head without bias.

use super::stage::{Batch, Control, Family, ModelError, Optimizer, Recompute, Stage, Steps};
use crate::device::{OperationError, Profile, Run};
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot, Space, Stacked};
use crate::ops::{
    AdamW, Affine, AffineGrad, Attention, AttentionGrad, CachedAttention, Embed, EmbedGrad, Gelu, HeadGrad, HeadLoss,
    Heads, Linear, LinearGrad, Norm, NormGrad, Pattern, Rotary, SquaredNorm,
};

/// A Pythia's sizes. All are free; the published ones are presets of the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pythia {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub d_model: u32,
    /// Attention heads; they divide the width.
    pub heads: u32,
    /// Width of the feed-forward.
    pub d_ff: u32,
    /// Token ids.
    pub vocab_size: u32,
    /// The most positions.
    pub context: u32,
    /// Rotated dims of each head; even.
    pub rotary_dims: u32,
    /// Base of the rotary wavelengths.
    pub rotary_base: f32,
    /// Added to the variance in LayerNorm.
    pub norm_eps: f32,
}

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
    /// All matrices, padding included: what decays.
    pub decayed: Region,
    /// All the rest.
    pub plain: Region,
    /// Both.
    pub all: Region,
}

/// What lasts from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    /// The weights.
    pub weights: Parameters,
    /// Their f32 masters, in training with weights of fewer bits.
    pub masters: Option<Parameters>,
    /// Gradient and both moments, in training.
    pub training: Option<[Parameters; 3]>,
    /// [context, rotary_dims / 2, 2].
    pub table: Region,
    /// Settings and results.
    pub control: Control,
}

/// The activations of a forward pass. Shared slots (stride 0) are rebuilt by every layer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Forward {
    /// [batch, seq_len, d_model]: each layer's input, and the last one's output.
    x: Stacked,
    /// [batch, seq_len, 2]: mean and reciprocal deviation of x.
    stats: Stacked,
    /// [batch, seq_len, d_model]: LN₁ x.
    norm1: Stacked,
    /// [batch, seq_len, d_model]: LN₂ x.
    norm2: Stacked,
    /// [batch, seq_len, 3 d_model].
    qkv: Stacked,
    /// [batch, heads, seq_len].
    log_sum: Stacked,
    /// [batch, seq_len, d_model]: attention's output, before its projection.
    mixed: Stacked,
    /// [batch, seq_len, d_ff]: before the GELU.
    hidden: Stacked,
    /// [batch, seq_len, d_ff]: after it.
    activated: Stacked,
    /// [batch, seq_len, 2].
    final_stats: Region,
    /// [batch, seq_len, d_model]: the head's input.
    final_out: Region,
    /// [batch · seq_len]: nats.
    losses: Region,
}

/// What a training step needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    batch: Batch,
    forward: Forward,
    /// [batch, seq_len, d_model]: the gradient of the residual stream.
    x_grad: Region,
    /// [batch, seq_len, d_model]: of LN₂'s output.
    norm2_grad: Region,
    /// [batch, seq_len, d_model]: of attention's output, then of LN₁'s output.
    narrow_grad: Region,
    /// [chunk, vocab_size]: logits; then, in each layer, of the feed-forward's hidden values and of qkv.
    wide: Region,
}

/// What an evaluation needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    batch: Batch,
    forward: Forward,
    logits: Region,
}

/// What decoding needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decoding {
    forward: Forward,
    /// `[1]` u32.
    id: Region,
    /// `[1]` u32.
    cursor: Region,
    /// [2, context, d_model] a layer.
    cache: Stacked,
    /// [1, vocab_size].
    logits: Region,
}

/// A device that runs everything a Pythia needs.
pub trait PythiaDevice:
    Run<Embed>
    + Run<EmbedGrad>
    + Run<Norm>
    + Run<NormGrad>
    + Run<Linear>
    + Run<LinearGrad>
    + Run<Gelu>
    + Run<Attention>
    + Run<AttentionGrad>
    + Run<CachedAttention>
    + Run<HeadLoss>
    + Run<SquaredNorm>
    + Run<AdamW>
{
}

impl<D> PythiaDevice for D where
    D: Run<Embed>
        + Run<EmbedGrad>
        + Run<Norm>
        + Run<NormGrad>
        + Run<Linear>
        + Run<LinearGrad>
        + Run<Gelu>
        + Run<Attention>
        + Run<AttentionGrad>
        + Run<CachedAttention>
        + Run<HeadLoss>
        + Run<SquaredNorm>
        + Run<AdamW>
{
}

impl Pythia {
    const fn heads(&self) -> Heads {
        Heads::interleaved(self.heads, self.d_model / self.heads)
    }

    const fn rotary(&self, table: Region, period: u32) -> Rotary {
        Rotary { table, heads: self.heads(), period }
    }

    fn lay_parameters(&self, prefix: &'static str, role: Role, dtype: Dtype, ledger: &mut dyn Ledger) -> Parameters {
        let (d, ff, layers) = (self.d_model, self.d_ff, self.layers);
        let width = libm::sqrtf(d as f32);
        let small = Init::Normal(libm::sqrtf(2.0 / 5.0) / width);
        let wang = Init::Normal(2.0 / (layers as f32 * width));
        let mut lay = |name, layers, shape: [u32; 2], init| {
            let init = if role == Role::Weight || role == Role::Master { init } else { Init::Zero };
            let shape = [1, 1, shape[0], shape[1]];
            ledger.region(Slot { prefix, name, role, dtype, shape, layers, init })
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
        let (start, middle, end) = (embed_in.offset, norm1[0].first.offset, ledger.mark());
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
            decayed: range(dtype, start, middle),
            plain: range(dtype, middle, end),
            all: range(dtype, start, end),
        }
    }

    /// Lays the activations; `kept` and `element_wise` say whether each layer has slots of its own.
    /// What a sum over many values gives (statistics, losses) is f32 whatever the profile.
    fn lay_forward(
        &self,
        [batch, seq_len]: [u32; 2],
        keep: Keep,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Forward {
        let (d, ff) = (self.d_model, self.d_ff);
        let mut lay_as = |name, keep: bool, layers, columns, dtype: Option<Dtype>| {
            let role = if keep { Role::Saved } else { Role::Work };
            let dtype = dtype.unwrap_or(profile.dtype(role));
            let slot = Slot::new(name, role, dtype, [1, batch, seq_len, columns]);
            ledger.region(slot.layers(if keep { layers } else { 1 }))
        };
        let layers = self.layers;
        let x = lay_as("layers.x", keep.inputs, layers + 1, d, None);
        let stats = lay_as("layers.stats", keep.inputs, layers, 2, Some(Dtype::F32));
        let mut lay = |name, keep, layers, columns| lay_as(name, keep, layers, columns, None);
        let norm1 = lay("layers.norm1", keep.element_wise, layers, d);
        let norm2 = lay("layers.norm2", keep.element_wise, layers, d);
        let qkv = lay("layers.qkv", keep.products, layers, 3 * d);
        let mixed = lay("layers.mixed", keep.products, layers, d);
        let hidden = lay("layers.hidden", keep.products, layers, ff);
        let activated = lay("layers.activated", keep.element_wise, layers, ff);
        let final_stats = lay_as("final.stats", false, 1, 2, Some(Dtype::F32)).first;
        let final_out = lay_as("final.out", false, 1, d, None).first;
        let losses = ledger.region(Slot::new("losses", Role::Work, Dtype::F32, [1, 1, 1, batch * seq_len])).first;
        let slot = Slot::new("layers.log_sum", Role::Saved, Dtype::F32, [1, batch, self.heads, seq_len]);
        let log_sum = ledger.region(slot.layers(if keep.products { layers } else { 1 }));
        Forward { x, stats, norm1, norm2, qkv, log_sum, mixed, hidden, activated, final_stats, final_out, losses }
    }

    fn norms<D: PythiaDevice>(
        &self,
        device: &mut D,
        w: &Parameters,
        f: &Forward,
        l: u32,
    ) -> Result<(), OperationError> {
        let affine =
            |norm: &[Stacked; 2], out: &Stacked| Affine { gain: norm[0].at(l), bias: norm[1].at(l), out: out.at(l) };
        device.run(Norm {
            x: f.x.at(l),
            eps: self.norm_eps,
            stats: f.stats.at(l),
            first: affine(&w.norm1, &f.norm1),
            second: Some(affine(&w.norm2, &f.norm2)),
        })
    }

    /// qkv, and what attention makes of it.
    fn attend<D: PythiaDevice>(
        &self,
        device: &mut D,
        state: &State,
        f: &Forward,
        stage: &Stage,
        l: u32,
    ) -> Result<(), OperationError> {
        let w = &state.weights;
        let qkv = f.qkv.at(l);
        device.run(Linear {
            rotary: Some(self.rotary(state.table, stage.seq_len)),
            ..Linear::new(f.norm1.at(l), w.qkv.at(l), Some(w.qkv_bias.at(l)), qkv)
        })?;
        device.run(Attention {
            qkv,
            out: f.mixed.at(l),
            log_sum: f.log_sum.at(l),
            heads: self.heads(),
            pattern: stage.pattern,
        })
    }

    fn expand<D: PythiaDevice>(
        &self,
        device: &mut D,
        w: &Parameters,
        f: &Forward,
        l: u32,
    ) -> Result<(), OperationError> {
        device.run(Linear {
            activated: Some(f.activated.at(l)),
            ..Linear::new(f.norm2.at(l), w.up.at(l), Some(w.up_bias.at(l)), f.hidden.at(l))
        })
    }

    /// Adds both branches to the residual stream.
    fn join<D: PythiaDevice>(&self, device: &mut D, w: &Parameters, f: &Forward, l: u32) -> Result<(), OperationError> {
        let (x, next) = (f.x.at(l), f.x.at(l + 1));
        let in_place = f.x.is_shared();
        device.run(Linear {
            residual: (!in_place).then_some(x),
            accumulate: in_place,
            ..Linear::new(f.mixed.at(l), w.dense.at(l), Some(w.dense_bias.at(l)), next)
        })?;
        device.run(Linear {
            accumulate: true,
            ..Linear::new(f.activated.at(l), w.down.at(l), Some(w.down_bias.at(l)), next)
        })
    }

    fn finish<D: PythiaDevice>(&self, device: &mut D, w: &Parameters, f: &Forward) -> Result<(), OperationError> {
        device.run(Norm {
            x: f.x.at(self.layers),
            eps: self.norm_eps,
            stats: f.final_stats,
            first: Affine { gain: w.final_norm[0], bias: w.final_norm[1], out: f.final_out },
            second: None,
        })
    }

    fn forward<D: PythiaDevice>(
        &self,
        device: &mut D,
        state: &State,
        f: &Forward,
        ids: Region,
        stage: &Stage,
    ) -> Result<(), OperationError> {
        let w = &state.weights;
        device.run(Embed { ids, table: w.embed_in, out: f.x.at(0) })?;
        for l in 0..self.layers {
            self.norms(device, w, f, l)?;
            self.attend(device, state, f, stage, l)?;
            self.expand(device, w, f, l)?;
            self.join(device, w, f, l)?;
        }
        self.finish(device, w, f)
    }

    /// Rebuilds what layer `l`'s shared slots lost to later layers. The last layer's are still there.
    fn rebuild<D: PythiaDevice>(
        &self,
        device: &mut D,
        state: &State,
        f: &Forward,
        stage: &Stage,
        l: u32,
    ) -> Result<(), OperationError> {
        if l + 1 == self.layers || stage.recompute == Recompute::None {
            return Ok(());
        }
        self.norms(device, &state.weights, f, l)?;
        if stage.recompute == Recompute::Cheap {
            return device.run(Gelu { x: f.hidden.at(l), out: f.activated.at(l) });
        }
        self.attend(device, state, f, stage, l)?;
        self.expand(device, &state.weights, f, l)
    }

    fn backward_layer<D: PythiaDevice>(
        &self,
        device: &mut D,
        backward: &Backward<'_>,
        l: u32,
    ) -> Result<(), OperationError> {
        let Backward { state, grads, training: t, stage, accumulate } = *backward;
        let (w, f) = (&state.weights, &t.forward);
        let (hidden, qkv) = (f.hidden.at(l), f.qkv.at(l));
        let (hidden_grad, qkv_grad) = (t.wide.reshaped(hidden.shape), t.wide.reshaped(qkv.shape));
        device.run(LinearGrad {
            x: f.activated.at(l),
            weight: w.down.at(l),
            out_grad: t.x_grad,
            x_grad: hidden_grad,
            before_gelu: Some(hidden),
            weight_grad: grads.down.at(l),
            bias_grad: Some(grads.down_bias.at(l)),
            accumulate,
        })?;
        device.run(LinearGrad {
            x: f.norm2.at(l),
            weight: w.up.at(l),
            out_grad: hidden_grad,
            x_grad: t.norm2_grad,
            before_gelu: None,
            weight_grad: grads.up.at(l),
            bias_grad: Some(grads.up_bias.at(l)),
            accumulate,
        })?;
        device.run(LinearGrad {
            x: f.mixed.at(l),
            weight: w.dense.at(l),
            out_grad: t.x_grad,
            x_grad: t.narrow_grad,
            before_gelu: None,
            weight_grad: grads.dense.at(l),
            bias_grad: Some(grads.dense_bias.at(l)),
            accumulate,
        })?;
        device.run(AttentionGrad {
            qkv,
            out: f.mixed.at(l),
            log_sum: f.log_sum.at(l),
            out_grad: t.narrow_grad,
            qkv_grad,
            heads: self.heads(),
            pattern: stage.pattern,
            rotary: self.rotary(state.table, stage.seq_len),
        })?;
        device.run(LinearGrad {
            x: f.norm1.at(l),
            weight: w.qkv.at(l),
            out_grad: qkv_grad,
            x_grad: t.narrow_grad,
            before_gelu: None,
            weight_grad: grads.qkv.at(l),
            bias_grad: Some(grads.qkv_bias.at(l)),
            accumulate,
        })?;
        let affine = |gain: &Stacked, grad: &[Stacked; 2], out_grad| AffineGrad {
            gain: gain.at(l),
            out_grad,
            gain_grad: grad[0].at(l),
            bias_grad: grad[1].at(l),
        };
        device.run(NormGrad {
            x: f.x.at(l),
            stats: f.stats.at(l),
            x_grad: t.x_grad,
            first: affine(&w.norm1[0], &grads.norm1, t.narrow_grad),
            second: Some(affine(&w.norm2[0], &grads.norm2, t.norm2_grad)),
            add: true,
            accumulate,
        })
    }
}

/// What the backward pass of every layer shares.
struct Backward<'a> {
    state: &'a State,
    grads: &'a Parameters,
    training: &'a Training,
    stage: &'a Stage,
    accumulate: bool,
}

/// Which activations every layer has slots of its own for.
#[derive(Clone, Copy)]
struct Keep {
    inputs: bool,
    products: bool,
    element_wise: bool,
}

impl Keep {
    const NOTHING: Keep = Keep { inputs: false, products: false, element_wise: false };

    const fn of(recompute: Recompute) -> Keep {
        match recompute {
            Recompute::None => Keep { inputs: true, products: true, element_wise: true },
            Recompute::Cheap => Keep { inputs: true, products: true, element_wise: false },
            Recompute::Full => Keep { inputs: true, products: false, element_wise: false },
        }
    }
}

/// The bytes from `start` to `end` as one region; both lie on the ledger's grain.
fn range(dtype: Dtype, start: u64, end: u64) -> Region {
    let columns = crate::memory::Layout::GRAIN;
    let rows = ((end - start) / dtype.size() / columns) as u32;
    Region { space: Space::Arena, dtype, offset: start, shape: [1, 1, rows, columns as u32] }
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
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ModelError::Zero(name));
        }
        // A region's rows and a row's elements are 32-bit, and layers of a kind are summed in 64.
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size >= 1 << 28) {
            return Err(ModelError::TooLarge(name));
        }
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
        let sizes = [
            ("batch-size", stage.batch),
            ("seq-len", stage.seq_len),
            ("chunk", stage.chunk),
            ("block", stage.pattern.block),
            ("stride", stage.pattern.stride),
        ];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ModelError::Zero(name));
        }
        if stage.seq_len > self.context {
            return Err(ModelError::Context { seq_len: stage.seq_len, context: self.context });
        }
        let tokens = u64::from(stage.batch) * u64::from(stage.seq_len);
        let widest = tokens * u64::from(self.d_ff.max(3 * self.d_model));
        if widest.max(u64::from(stage.chunk) * u64::from(self.vocab_size)) > u64::from(u32::MAX) {
            return Err(ModelError::TooLarge("a micro-batch's widest activation"));
        }
        Ok(())
    }

    fn flops_per_token(&self, seq_len: u32) -> u64 {
        let [d, ff, layers] = [self.d_model, self.d_ff, self.layers].map(u64::from);
        let products = layers * (4 * d * d + 2 * d * ff) + u64::from(self.vocab_size) * d;
        6 * products + 12 * layers * d * u64::from(seq_len)
    }

    fn lay_state(&self, profile: &dyn Profile, training: bool, ledger: &mut dyn Ledger) -> State {
        let mut lay = |prefix, role| self.lay_parameters(prefix, role, profile.dtype(role), ledger);
        let weights = lay("", Role::Weight);
        let masters = (training && profile.masters()).then(|| lay("master.", Role::Master));
        let training = training.then(|| {
            [lay("gradient.", Role::Gradient), lay("first_moment.", Role::Moment), lay("second_moment.", Role::Moment)]
        });
        let shape = [1, self.context, self.rotary_dims / 2, 2];
        let init = Init::Rotary { base: self.rotary_base };
        let table = Slot { init, ..Slot::new("rotary_table", Role::Constant, Dtype::F32, shape) };
        let table = ledger.region(table).first;
        State { weights, masters, training, table, control: Control::lay(ledger) }
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
        let wide = (rows * self.vocab_size).max(stage.tokens() * self.d_ff.max(3 * self.d_model));
        let wide = lay("logits_or_grad.hidden_or_qkv", [1, 1, 1, wide]);
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

impl<D: PythiaDevice> Steps<D> for Pythia {
    fn micro_batch(
        &self,
        device: &mut D,
        state: &State,
        t: &Training,
        stage: &Stage,
        first: bool,
    ) -> Result<(), OperationError> {
        let Some([grads, ..]) = &state.training else { return Err(OperationError::Device) };
        let (w, f, accumulate) = (&state.weights, &t.forward, !first);
        self.forward(device, state, f, t.batch.ids, stage)?;
        device.run(HeadLoss {
            x: f.final_out,
            weight: w.embed_out,
            targets: t.batch.targets,
            logits: t.wide.reshaped([1, 1, stage.chunk.min(stage.tokens()), self.vocab_size]),
            losses: f.losses,
            settings: state.control.settings,
            results: state.control.results,
            add_loss: accumulate,
            gradient: Some(HeadGrad { x_grad: t.narrow_grad, weight_grad: grads.embed_out, accumulate }),
        })?;
        device.run(NormGrad {
            x: f.x.at(self.layers),
            stats: f.final_stats,
            x_grad: t.x_grad,
            first: AffineGrad {
                gain: w.final_norm[0],
                out_grad: t.narrow_grad,
                gain_grad: grads.final_norm[0],
                bias_grad: grads.final_norm[1],
            },
            second: None,
            add: false,
            accumulate,
        })?;
        let backward = Backward { state, grads, training: t, stage, accumulate };
        for l in (0..self.layers).rev() {
            self.rebuild(device, state, f, stage, l)?;
            self.backward_layer(device, &backward, l)?;
        }
        device.run(EmbedGrad { ids: t.batch.ids, out_grad: t.x_grad, table_grad: grads.embed_in, accumulate })
    }

    fn update(&self, device: &mut D, state: &State, optimizer: &Optimizer) -> Result<(), OperationError> {
        let Some([grads, first, second]) = &state.training else { return Err(OperationError::Device) };
        let Control { settings, results } = state.control;
        device.run(SquaredNorm { gradient: grads.all, results })?;
        let group = |part: fn(&Parameters) -> Region, decay| AdamW {
            weight: part(&state.weights),
            master: state.masters.as_ref().map(part),
            gradient: part(grads),
            first: part(first),
            second: part(second),
            settings,
            results,
            beta1: optimizer.beta1,
            beta2: optimizer.beta2,
            eps: optimizer.eps,
            decay,
        };
        device.run(group(|p| p.decayed, optimizer.decay))?;
        device.run(group(|p| p.plain, 0.0))
    }

    fn evaluate(&self, device: &mut D, state: &State, e: &Evaluation, stage: &Stage) -> Result<(), OperationError> {
        self.forward(device, state, &e.forward, e.batch.ids, stage)?;
        device.run(HeadLoss {
            x: e.forward.final_out,
            weight: state.weights.embed_out,
            targets: e.batch.targets,
            logits: e.logits,
            losses: e.forward.losses,
            settings: state.control.settings,
            results: state.control.results,
            add_loss: false,
            gradient: None,
        })
    }

    fn logits(
        &self,
        device: &mut D,
        state: &State,
        e: &Evaluation,
        first: u32,
        count: u32,
    ) -> Result<(), OperationError> {
        let x = e.forward.final_out.slice_rows(first, count);
        device.run(Linear::new(x, state.weights.embed_out, None, e.logits.slice_rows(0, count)))
    }

    fn decode(&self, device: &mut D, state: &State, s: &Decoding, pattern: Pattern) -> Result<(), OperationError> {
        let (w, f) = (&state.weights, &s.forward);
        device.run(Embed { ids: s.id, table: w.embed_in, out: f.x.at(0) })?;
        for l in 0..self.layers {
            self.norms(device, w, f, l)?;
            let qkv = f.qkv.at(l);
            device.run(Linear::new(f.norm1.at(l), w.qkv.at(l), Some(w.qkv_bias.at(l)), qkv))?;
            device.run(CachedAttention {
                qkv,
                cache: s.cache.at(l),
                cursor: s.cursor,
                out: f.mixed.at(l),
                rotary: self.rotary(state.table, self.context),
                pattern,
            })?;
            self.expand(device, w, f, l)?;
            self.join(device, w, f, l)?;
        }
        self.finish(device, w, f)?;
        device.run(Linear::new(f.final_out, w.embed_out, None, s.logits))
    }
}
