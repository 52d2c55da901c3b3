//! Yxanul: a Llama (Touvron et al. 2023) whose embedding may be factorised (Lan et al. 2020).
//!
//! `m = x + attention(RMSNorm₁ x)`, `x ← m + down(silu(gate n) ∘ up n)` with `n = RMSNorm₂ m` in every layer, a final
//! RMSNorm h, no biases, full rotary, query heads in groups that share a key and value head. With a rank r the
//! embedding is `E[id] · Pᵀ` and the logits are `(h · P) · Eᵀ`; without one it is a plain Llama, tied or untied.

mod narrow;
mod regions;

pub use regions::{Decoding, Evaluation, Parameters, State, Training};

use self::narrow::{Narrow, Projection, project, project_grad};
use self::regions::Forward;
use super::shared::Backward;
use super::stage::{Optimizer, Recompute, Stage, Steps};
use crate::device::{Device, OperationError};
use crate::memory::Region;
use crate::ops::{
    Affine, AffineGrad, Attention, AttentionGrad, CachedAttention, Embed, EmbedGrad, Epilogue, HeadGrad, HeadLoss,
    Heads, Linear, LinearGrad, Norm, NormGrad, NormKind, Pattern, Quantised, Rotary, Rotate, SwiGlu, SwiGluGrad,
};

/// A Yxanul's sizes. All are free; the published ones are presets of the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yxanul {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub d_model: u32,
    /// Query heads; they divide the width.
    pub heads: u32,
    /// Key and value heads; they divide the query heads.
    pub kv_heads: u32,
    /// Width of the feed-forward.
    pub d_ff: u32,
    /// Token ids. In memory they are padded to a multiple of [`Yxanul::VOCABULARY_GRAIN`] rows.
    pub vocab_size: u32,
    /// The most positions.
    pub context: u32,
    /// Columns of E where the embedding is factorised.
    pub rank: Option<u32>,
    /// Whether the head uses the embedding's table. A factorised one does.
    pub tied: bool,
    /// Base of the rotary wavelengths.
    pub rotary_base: f32,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f32,
}

impl Yxanul {
    /// The vocabulary's rows are padded to a multiple of this, which suits matrix units.
    pub const VOCABULARY_GRAIN: u32 = 64;

    /// Rows of the embedding's table.
    pub const fn vocabulary_rows(&self) -> u32 {
        self.vocab_size.next_multiple_of(Self::VOCABULARY_GRAIN)
    }

    const fn head_size(&self) -> u32 {
        self.d_model / self.heads
    }

    const fn heads(&self) -> Heads {
        Heads::grouped(self.heads, self.kv_heads, self.head_size())
    }

    const fn rotary(&self, table: Region, period: u32) -> Rotary {
        Rotary { table, heads: self.heads(), period }
    }

    const fn norm(&self, x: Region, stats: Region, gain: Region, out: Region) -> Norm {
        let first = Affine { gain, bias: None, out };
        Norm { kind: NormKind::Rms, x, eps: self.norm_eps, stats, first, second: None, copy: None }
    }

    /// The tokens' vectors into the first layer's input.
    fn embed(&self, device: &mut dyn Device, w: &Parameters, f: &Forward, ids: Region) -> Result<(), OperationError> {
        let x = f.x.at(0);
        let (Some(project), Some(low)) = (w.project, f.low) else {
            return device.emit(Embed { ids, table: w.embed, out: x });
        };
        device.emit(Embed { ids, table: w.embed, out: low })?;
        device.emit(Linear::new(low, project, None, x))
    }

    /// RMSNorm₁, with the copy that a product reads or without.
    fn norm1(&self, w: &Parameters, f: &Forward, l: u32, copied: bool) -> Norm {
        let copy = f.copy(Projection::Qkv, l, f.norm1.at(l)).filter(|_| copied);
        Norm { copy, ..self.norm(f.x.at(l), f.stats1.at(l), w.norm1.at(l), f.norm1.at(l)) }
    }

    /// RMSNorm₂, as [`Yxanul::norm1`].
    fn norm2(&self, w: &Parameters, f: &Forward, l: u32, copied: bool) -> Norm {
        let copy = f.copy(Projection::GateUp, l, f.norm2.at(l)).filter(|_| copied);
        Norm { copy, ..self.norm(f.mid.at(l), f.stats2.at(l), w.norm2.at(l), f.norm2.at(l)) }
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
        let qkv = f.qkv.at(l);
        let linear = Linear::new(f.norm1.at(l), state.weights.qkv.at(l), None, qkv);
        project(device, f.narrow.as_ref(), (Projection::Qkv, l), linear)?;
        device.emit(Rotate { qkv, rotary: self.rotary(state.table, stage.seq_len) })?;
        device.emit(Attention {
            qkv,
            out: f.mixed.at(l),
            log_sum: f.log_sum.at(l),
            heads: self.heads(),
            pattern: stage.pattern,
        })
    }

    /// Adds `residual` to a product of layer `l`; in place where it is the product's own slot.
    fn add(
        &self,
        device: &mut dyn Device,
        f: &Forward,
        product: (Projection, u32),
        linear: Linear,
        residual: Region,
    ) -> Result<(), OperationError> {
        let epilogue = if residual == linear.out { Epilogue::Add } else { Epilogue::Residual(residual) };
        project(device, f.narrow.as_ref(), product, Linear { epilogue, ..linear })
    }

    /// Attention's branch into the residual stream.
    fn mix(&self, device: &mut dyn Device, w: &Parameters, f: &Forward, l: u32) -> Result<(), OperationError> {
        let linear = Linear::new(f.mixed.at(l), w.out.at(l), None, f.mid.at(l));
        self.add(device, f, (Projection::Out, l), linear, f.x.at(l))
    }

    fn expand(&self, device: &mut dyn Device, w: &Parameters, f: &Forward, l: u32) -> Result<(), OperationError> {
        let linear = Linear::new(f.norm2.at(l), w.gate_up.at(l), None, f.gate_up.at(l));
        project(device, f.narrow.as_ref(), (Projection::GateUp, l), linear)
    }

    /// SwiGLU; nobody multiplies what it makes again for the backward pass, so only [`Yxanul::feed`] asks for a copy.
    fn activate(
        &self,
        device: &mut dyn Device,
        f: &Forward,
        l: u32,
        copy: Option<Quantised>,
    ) -> Result<(), OperationError> {
        device.emit(SwiGlu { gate_up: f.gate_up.at(l), out: f.activated.at(l), copy })
    }

    /// The feed-forward of the stream after attention.
    fn feed(&self, device: &mut dyn Device, w: &Parameters, f: &Forward, l: u32) -> Result<(), OperationError> {
        device.emit(self.norm2(w, f, l, true))?;
        self.expand(device, w, f, l)?;
        self.activate(device, f, l, f.copy(Projection::Down, l, f.activated.at(l)))?;
        let linear = Linear::new(f.activated.at(l), w.down.at(l), None, f.x.at(l + 1));
        self.add(device, f, (Projection::Down, l), linear, f.mid.at(l))
    }

    /// The final norm, and of it what the vocabulary's rows are multiplied with.
    fn finish(&self, device: &mut dyn Device, w: &Parameters, f: &Forward) -> Result<Region, OperationError> {
        device.emit(self.norm(f.x.at(self.layers), f.final_stats, w.final_norm, f.final_out))?;
        let (Some(project), Some(low)) = (w.project, f.low) else { return Ok(f.final_out) };
        device.emit(Linear { transposed: true, ..Linear::new(f.final_out, project, None, low) })?;
        Ok(low)
    }

    /// Everything up to the head's input, which it gives back.
    fn forward(
        &self,
        device: &mut dyn Device,
        state: &State,
        f: &Forward,
        ids: Region,
        stage: &Stage,
    ) -> Result<Region, OperationError> {
        let w = &state.weights;
        self.embed(device, w, f, ids)?;
        for l in 0..self.layers {
            device.emit(self.norm1(w, f, l, true))?;
            self.attend(device, state, f, stage, l)?;
            self.mix(device, w, f, l)?;
            self.feed(device, w, f, l)?;
        }
        self.finish(device, w, f)
    }

    /// The head's rows that are ids: what logits for others are made with.
    fn logits_of(&self, device: &mut dyn Device, w: &Parameters, x: Region, out: Region) -> Result<(), OperationError> {
        device.emit(Linear::new(x, w.head().slice_rows(0, self.vocab_size), None, out))
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
        let w = &state.weights;
        // Only where products are computed again are there readers of copies.
        let products = stage.recompute == Recompute::Full;
        device.emit(self.norm1(w, f, l, products))?;
        if products {
            self.attend(device, state, f, stage, l)?;
            self.mix(device, w, f, l)?;
        }
        device.emit(self.norm2(w, f, l, products))?;
        if products {
            self.expand(device, w, f, l)?;
        }
        self.activate(device, f, l, None)
    }

    fn backward_layer(
        &self,
        device: &mut dyn Device,
        backward: &Backward<'_, Parameters, Training>,
        l: u32,
    ) -> Result<(), OperationError> {
        let Backward { state, grads, training: t, stage, accumulate } = *backward;
        let (w, f) = (&state.weights, &t.forward);
        let (gate_up, activated, qkv) = (f.gate_up.at(l), f.activated.at(l), f.qkv.at(l));
        let (activated_grad, qkv_grad) = (t.wide.reshaped(activated.shape), t.wide.reshaped(qkv.shape));
        let linear = |x, weight, out_grad, x_grad, weight_grad| LinearGrad {
            x,
            weight,
            transposed: false,
            out_grad,
            x_grad,
            before_gelu: None,
            weight_grad,
            bias_grad: None,
            accumulate,
            quantised: None,
        };
        let grad = |device: &mut dyn Device, p, linear| project_grad(device, f.narrow.as_ref(), (p, l), linear);
        let norm = |x, stats, gain, gain_grad, copy| NormGrad {
            kind: NormKind::Rms,
            x,
            stats,
            x_grad: t.x_grad,
            first: AffineGrad { gain, out_grad: t.narrow_grad, gain_grad, bias_grad: None },
            second: None,
            add: true,
            accumulate,
            copy,
        };
        grad(device, Projection::Down, linear(activated, w.down.at(l), t.x_grad, activated_grad, grads.down.at(l)))?;
        device.emit(SwiGluGrad {
            gate_up,
            out_grad: activated_grad,
            copy: f.grad_copy(Projection::GateUp, l, gate_up),
        })?;
        grad(
            device,
            Projection::GateUp,
            linear(f.norm2.at(l), w.gate_up.at(l), gate_up, t.narrow_grad, grads.gate_up.at(l)),
        )?;
        let copy = f.grad_copy(Projection::Out, l, t.x_grad);
        device.emit(norm(f.mid.at(l), f.stats2.at(l), w.norm2.at(l), grads.norm2.at(l), copy))?;
        grad(device, Projection::Out, linear(f.mixed.at(l), w.out.at(l), t.x_grad, t.narrow_grad, grads.out.at(l)))?;
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
        grad(device, Projection::Qkv, linear(f.norm1.at(l), w.qkv.at(l), qkv_grad, t.narrow_grad, grads.qkv.at(l)))?;
        let copy = l.checked_sub(1).and_then(|before| f.grad_copy(Projection::Down, before, t.x_grad));
        device.emit(norm(f.x.at(l), f.stats1.at(l), w.norm1.at(l), grads.norm1.at(l), copy))
    }

    /// From the loss to the gradient of the last layer's output.
    fn backward_head(
        &self,
        device: &mut dyn Device,
        backward: &Backward<'_, Parameters, Training>,
        x: Region,
    ) -> Result<(), OperationError> {
        let Backward { state, grads, training: t, stage, accumulate } = *backward;
        let (w, f, control) = (&state.weights, &t.forward, &state.control);
        let x_grad = t.low_grad.unwrap_or(t.narrow_grad);
        device.emit(HeadLoss {
            x,
            weight: w.head(),
            bias: None,
            ids: self.vocab_size,
            targets: t.batch.targets,
            logits: t.wide.reshaped([1, 1, stage.chunk.min(stage.tokens()), self.vocabulary_rows()]),
            losses: f.losses,
            settings: control.settings,
            results: control.results,
            add_loss: accumulate,
            gradient: Some(HeadGrad { x_grad, weight_grad: Some(grads.head()), accumulate }),
        })?;
        if let (Some(weight), Some(out_grad), Some(weight_grad)) = (w.project, t.low_grad, grads.project) {
            device.emit(LinearGrad {
                x: f.final_out,
                weight,
                transposed: true,
                out_grad,
                x_grad: t.narrow_grad,
                before_gelu: None,
                weight_grad,
                bias_grad: None,
                accumulate,
                quantised: None,
            })?;
        }
        device.emit(NormGrad {
            kind: NormKind::Rms,
            x: f.x.at(self.layers),
            stats: f.final_stats,
            x_grad: t.x_grad,
            first: AffineGrad {
                gain: w.final_norm,
                out_grad: t.narrow_grad,
                gain_grad: grads.final_norm,
                bias_grad: None,
            },
            second: None,
            add: false,
            accumulate,
            copy: f.grad_copy(Projection::Down, self.layers - 1, t.x_grad),
        })
    }

    /// From the gradient of the first layer's input to the embedding. A tied table's gradient is added to the head's.
    fn backward_embed(
        &self,
        device: &mut dyn Device,
        backward: &Backward<'_, Parameters, Training>,
    ) -> Result<(), OperationError> {
        let Backward { state, grads, training: t, accumulate, .. } = *backward;
        let (w, ids) = (&state.weights, t.batch.ids);
        let (table_grad, accumulate) = (grads.embed, accumulate || self.tied);
        let (Some(weight), Some(low), Some(low_grad), Some(weight_grad)) =
            (w.project, t.forward.low, t.low_grad, grads.project)
        else {
            return device.emit(EmbedGrad { ids, out_grad: t.x_grad, table_grad, accumulate });
        };
        // The head took the slot of the rows; they are looked up again.
        device.emit(Embed { ids, table: w.embed, out: low })?;
        device.emit(LinearGrad {
            x: low,
            weight,
            transposed: false,
            out_grad: t.x_grad,
            x_grad: low_grad,
            before_gelu: None,
            weight_grad,
            bias_grad: None,
            accumulate,
            quantised: None,
        })?;
        device.emit(EmbedGrad { ids, out_grad: low_grad, table_grad, accumulate })
    }
}

impl Steps for Yxanul {
    fn micro_batch(
        &self,
        device: &mut dyn Device,
        state: &State,
        t: &Training,
        stage: &Stage,
        first: bool,
    ) -> Result<(), OperationError> {
        let Some([grads, ..]) = &state.training else { return Err(OperationError::Device) };
        let narrow = Narrow::of(state, t, stage);
        if let Some(narrow) = narrow.filter(|_| first) {
            narrow.weights(device, self, state)?;
        }
        let t = &Training { forward: Forward { narrow, ..t.forward }, ..*t };
        let backward = Backward { state, grads, training: t, stage, accumulate: !first };
        let head = self.forward(device, state, &t.forward, t.batch.ids, stage)?;
        self.backward_head(device, &backward, head)?;
        for l in (0..self.layers).rev() {
            self.rebuild(device, state, &t.forward, stage, l)?;
            self.backward_layer(device, &backward, l)?;
        }
        self.backward_embed(device, &backward)
    }

    fn update(&self, device: &mut dyn Device, state: &State, optimizer: &Optimizer) -> Result<(), OperationError> {
        state.update(device, optimizer)?;
        state.scales.iter().flatten().try_for_each(|scales| scales.update(device))
    }

    fn evaluate(
        &self,
        device: &mut dyn Device,
        state: &State,
        e: &Evaluation,
        stage: &Stage,
    ) -> Result<(), OperationError> {
        let x = self.forward(device, state, &e.forward, e.batch.ids, stage)?;
        device.emit(HeadLoss {
            x,
            weight: state.weights.head(),
            bias: None,
            ids: self.vocab_size,
            targets: e.batch.targets,
            logits: e.padded_logits,
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
        let x = e.forward.low.unwrap_or(e.forward.final_out).slice_rows(first, count);
        self.logits_of(device, &state.weights, x, e.logits.slice_rows(0, count))
    }

    fn decode(
        &self,
        device: &mut dyn Device,
        state: &State,
        s: &Decoding,
        pattern: Pattern,
    ) -> Result<(), OperationError> {
        let (w, f) = (&state.weights, &s.forward);
        self.embed(device, w, f, s.id)?;
        for l in 0..self.layers {
            device.emit(self.norm1(w, f, l, true))?;
            let qkv = f.qkv.at(l);
            device.emit(Linear::new(f.norm1.at(l), w.qkv.at(l), None, qkv))?;
            device.emit(CachedAttention {
                qkv,
                cache: s.cache.at(l),
                cursor: s.cursor,
                out: f.mixed.at(l),
                rotary: self.rotary(state.table, self.context),
                pattern,
            })?;
            self.mix(device, w, f, l)?;
            self.feed(device, w, f, l)?;
        }
        let x = self.finish(device, w, f)?;
        self.logits_of(device, w, x, s.logits)
    }
}
