//! Pythia: EleutherAI's GPT-NeoX (Biderman et al. 2023), with parallel residual and partial rotary.
//!
//! `x ← x + attention(LN₁ x) + mlp(LN₂ x)` in every layer, a final LayerNorm, an untied head without bias.

mod regions;

pub use regions::{Decoding, Evaluation, Parameters, State, Training};

use self::regions::Forward;
use super::shared::Backward;
use super::stage::{Optimizer, Recompute, Stage, Steps};
use crate::device::{Device, OperationError};
use crate::memory::{Region, Stacked};
use crate::ops::{
    Affine, AffineGrad, Attention, AttentionGrad, CachedAttention, Embed, EmbedGrad, Epilogue, Gelu, HeadGrad,
    HeadLoss, Heads, Linear, LinearGrad, Norm, NormGrad, NormKind, Pattern, Rotary, Rotate,
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

impl Pythia {
    const fn heads(&self) -> Heads {
        Heads::interleaved(self.heads, self.d_model / self.heads)
    }

    const fn rotary(&self, table: Region, period: u32) -> Rotary {
        Rotary { table, heads: self.heads(), period }
    }

    fn norms(&self, device: &mut dyn Device, w: &Parameters, f: &Forward, l: u32) -> Result<(), OperationError> {
        let affine = |norm: &[Stacked; 2], out: &Stacked| Affine {
            gain: norm[0].at(l),
            bias: Some(norm[1].at(l)),
            out: out.at(l),
        };
        device.emit(Norm {
            kind: NormKind::Layer,
            x: f.x.at(l),
            eps: self.norm_eps,
            stats: f.stats.at(l),
            first: affine(&w.norm1, &f.norm1),
            second: Some(affine(&w.norm2, &f.norm2)),
            copy: None,
        })
    }

    /// qkv, and what attention makes of it.
    fn attend(
        &self,
        device: &mut dyn Device,
        state: &State,
        f: &Forward,
        stage: &Stage,
        l: u32,
    ) -> Result<(), OperationError> {
        let w = &state.weights;
        let qkv = f.qkv.at(l);
        device.emit(Linear::new(f.norm1.at(l), w.qkv.at(l), Some(w.qkv_bias.at(l)), qkv))?;
        device.emit(Rotate { qkv, rotary: self.rotary(state.table, stage.seq_len) })?;
        device.emit(Attention {
            qkv,
            out: f.mixed.at(l),
            log_sum: f.log_sum.at(l),
            heads: self.heads(),
            pattern: stage.pattern,
        })
    }

    fn expand(&self, device: &mut dyn Device, w: &Parameters, f: &Forward, l: u32) -> Result<(), OperationError> {
        device.emit(Linear {
            epilogue: Epilogue::Gelu(f.activated.at(l)),
            ..Linear::new(f.norm2.at(l), w.up.at(l), Some(w.up_bias.at(l)), f.hidden.at(l))
        })
    }

    /// Adds both branches to the residual stream.
    fn join(&self, device: &mut dyn Device, w: &Parameters, f: &Forward, l: u32) -> Result<(), OperationError> {
        let (x, next) = (f.x.at(l), f.x.at(l + 1));
        device.emit(Linear {
            epilogue: if f.x.is_shared() { Epilogue::Add } else { Epilogue::Residual(x) },
            ..Linear::new(f.mixed.at(l), w.dense.at(l), Some(w.dense_bias.at(l)), next)
        })?;
        device.emit(Linear {
            epilogue: Epilogue::Add,
            ..Linear::new(f.activated.at(l), w.down.at(l), Some(w.down_bias.at(l)), next)
        })
    }

    fn finish(&self, device: &mut dyn Device, w: &Parameters, f: &Forward) -> Result<(), OperationError> {
        device.emit(Norm {
            kind: NormKind::Layer,
            x: f.x.at(self.layers),
            eps: self.norm_eps,
            stats: f.final_stats,
            first: Affine { gain: w.final_norm[0], bias: Some(w.final_norm[1]), out: f.final_out },
            second: None,
            copy: None,
        })
    }

    fn forward(
        &self,
        device: &mut dyn Device,
        state: &State,
        f: &Forward,
        ids: Region,
        stage: &Stage,
    ) -> Result<(), OperationError> {
        let w = &state.weights;
        device.emit(Embed { ids, table: w.embed_in, out: f.x.at(0) })?;
        for l in 0..self.layers {
            self.norms(device, w, f, l)?;
            self.attend(device, state, f, stage, l)?;
            self.expand(device, w, f, l)?;
            self.join(device, w, f, l)?;
        }
        self.finish(device, w, f)
    }

    /// Rebuilds what layer `l`'s shared slots lost to later layers. The last layer's are still there.
    fn rebuild(
        &self,
        device: &mut dyn Device,
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
            return device.emit(Gelu { x: f.hidden.at(l), out: f.activated.at(l) });
        }
        self.attend(device, state, f, stage, l)?;
        self.expand(device, &state.weights, f, l)
    }

    fn backward_layer(
        &self,
        device: &mut dyn Device,
        backward: &Backward<'_, Parameters, Training>,
        l: u32,
    ) -> Result<(), OperationError> {
        let Backward { state, grads, training: t, stage, accumulate } = *backward;
        let (w, f) = (&state.weights, &t.forward);
        let (hidden, qkv) = (f.hidden.at(l), f.qkv.at(l));
        let (hidden_grad, qkv_grad) = (t.wide.reshaped(hidden.shape), t.wide.reshaped(qkv.shape));
        device.emit(LinearGrad {
            x: f.activated.at(l),
            weight: w.down.at(l),
            transposed: false,
            out_grad: t.x_grad,
            x_grad: hidden_grad,
            before_gelu: Some(hidden),
            weight_grad: grads.down.at(l),
            bias_grad: Some(grads.down_bias.at(l)),
            accumulate,
            quantised: None,
        })?;
        device.emit(LinearGrad {
            x: f.norm2.at(l),
            weight: w.up.at(l),
            transposed: false,
            out_grad: hidden_grad,
            x_grad: t.norm2_grad,
            before_gelu: None,
            weight_grad: grads.up.at(l),
            bias_grad: Some(grads.up_bias.at(l)),
            accumulate,
            quantised: None,
        })?;
        device.emit(LinearGrad {
            x: f.mixed.at(l),
            weight: w.dense.at(l),
            transposed: false,
            out_grad: t.x_grad,
            x_grad: t.narrow_grad,
            before_gelu: None,
            weight_grad: grads.dense.at(l),
            bias_grad: Some(grads.dense_bias.at(l)),
            accumulate,
            quantised: None,
        })?;
        device.emit(AttentionGrad {
            qkv,
            out: f.mixed.at(l),
            log_sum: f.log_sum.at(l),
            out_grad: t.narrow_grad,
            qkv_grad,
            heads: self.heads(),
            pattern: stage.pattern,
            rotary: self.rotary(state.table, stage.seq_len),
        })?;
        device.emit(LinearGrad {
            x: f.norm1.at(l),
            weight: w.qkv.at(l),
            transposed: false,
            out_grad: qkv_grad,
            x_grad: t.narrow_grad,
            before_gelu: None,
            weight_grad: grads.qkv.at(l),
            bias_grad: Some(grads.qkv_bias.at(l)),
            accumulate,
            quantised: None,
        })?;
        let affine = |gain: &Stacked, grad: &[Stacked; 2], out_grad| AffineGrad {
            gain: gain.at(l),
            out_grad,
            gain_grad: grad[0].at(l),
            bias_grad: Some(grad[1].at(l)),
        };
        device.emit(NormGrad {
            kind: NormKind::Layer,
            x: f.x.at(l),
            stats: f.stats.at(l),
            x_grad: t.x_grad,
            first: affine(&w.norm1[0], &grads.norm1, t.narrow_grad),
            second: Some(affine(&w.norm2[0], &grads.norm2, t.norm2_grad)),
            add: true,
            accumulate,
            copy: None,
        })
    }
}

impl Steps for Pythia {
    fn micro_batch(
        &self,
        device: &mut dyn Device,
        state: &State,
        t: &Training,
        stage: &Stage,
        first: bool,
    ) -> Result<(), OperationError> {
        let Some([grads, ..]) = &state.training else { return Err(OperationError::Device) };
        let (w, f, accumulate) = (&state.weights, &t.forward, !first);
        self.forward(device, state, f, t.batch.ids, stage)?;
        device.emit(HeadLoss {
            x: f.final_out,
            weight: w.embed_out,
            bias: None,
            ids: self.vocab_size,
            targets: t.batch.targets,
            logits: t.wide.reshaped([1, 1, stage.chunk.min(stage.tokens()), self.vocab_size]),
            losses: f.losses,
            settings: state.control.settings,
            results: state.control.results,
            add_loss: accumulate,
            gradient: Some(HeadGrad { x_grad: t.narrow_grad, weight_grad: Some(grads.embed_out), accumulate }),
        })?;
        device.emit(NormGrad {
            kind: NormKind::Layer,
            x: f.x.at(self.layers),
            stats: f.final_stats,
            x_grad: t.x_grad,
            first: AffineGrad {
                gain: w.final_norm[0],
                out_grad: t.narrow_grad,
                gain_grad: grads.final_norm[0],
                bias_grad: Some(grads.final_norm[1]),
            },
            second: None,
            add: false,
            accumulate,
            copy: None,
        })?;
        let backward = Backward { state, grads, training: t, stage, accumulate };
        for l in (0..self.layers).rev() {
            self.rebuild(device, state, f, stage, l)?;
            self.backward_layer(device, &backward, l)?;
        }
        device.emit(EmbedGrad { ids: t.batch.ids, out_grad: t.x_grad, table_grad: grads.embed_in, accumulate })
    }

    fn update(&self, device: &mut dyn Device, state: &State, optimizer: &Optimizer) -> Result<(), OperationError> {
        state.update(device, optimizer)
    }

    fn evaluate(
        &self,
        device: &mut dyn Device,
        state: &State,
        e: &Evaluation,
        stage: &Stage,
    ) -> Result<(), OperationError> {
        self.forward(device, state, &e.forward, e.batch.ids, stage)?;
        device.emit(HeadLoss {
            x: e.forward.final_out,
            weight: state.weights.embed_out,
            bias: None,
            ids: self.vocab_size,
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
        device: &mut dyn Device,
        state: &State,
        e: &Evaluation,
        first: u32,
        count: u32,
    ) -> Result<(), OperationError> {
        let x = e.forward.final_out.slice_rows(first, count);
        device.emit(Linear::new(x, state.weights.embed_out, None, e.logits.slice_rows(0, count)))
    }

    fn decode(
        &self,
        device: &mut dyn Device,
        state: &State,
        s: &Decoding,
        pattern: Pattern,
    ) -> Result<(), OperationError> {
        let (w, f) = (&state.weights, &s.forward);
        device.emit(Embed { ids: s.id, table: w.embed_in, out: f.x.at(0) })?;
        for l in 0..self.layers {
            self.norms(device, w, f, l)?;
            let qkv = f.qkv.at(l);
            device.emit(Linear::new(f.norm1.at(l), w.qkv.at(l), Some(w.qkv_bias.at(l)), qkv))?;
            device.emit(CachedAttention {
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
        device.emit(Linear::new(f.final_out, w.embed_out, None, s.logits))
    }
}
