//! The backward pass, from the loss to the gradient of every parameter.

use super::adapters::AdaptingGrad;
use super::copies::{FeedCopies, Projection};
use super::forward::Pass;
use super::masks::Masked;
use super::regions::Training;
use super::weights::{Dense, Gain, Weights};
use super::{Feed, Transformer};
use crate::device::{Device, OperationError};
use crate::memory::{Region, Section};
use crate::model::family::{Control, MicroBatch};
use crate::model::{Activation, EightBits};
use crate::ops::{
    AddValues, AddValuesGrad, AffineGrad, AttentionGrad, Blend, BlendGrad, Carry, Embed, EmbedGrad, HeadGrad, HeadLoss,
    LinearGrad, NormGrad, QkNormGrad, Quantise, QuantisedProduct, SwiGluGrad,
};
use crate::optimizer::Learning;

/// The backward pass of a micro-batch whose forward pass has run.
#[derive(Clone, Copy)]
pub(super) struct Backward<'a> {
    pub pass: Pass<'a>,
    pub control: &'a Control,
    /// The regions of the parameters' gradients, and the update that consumes them.
    pub learning: &'a Learning<Weights>,
    pub training: &'a Training,
    pub micro: &'a MicroBatch,
    /// Whether this is the first micro-batch of the step.
    pub first: bool,
    /// Whether to add to the gradients of earlier micro-batches.
    pub accumulate: bool,
}

impl Backward<'_> {
    /// The gradients of every layer and of the embedding; runs after [`Backward::head`].
    pub fn run(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        for l in (0..self.pass.model.layers).rev() {
            // First, because it reads the layer's output, and restoring the layer's input may overwrite that slot.
            self.blend(device, l)?;
            self.pass.restore(device, l)?;
            self.pass.rebuild(device, self.micro.recompute, l)?;
            self.feed(device, l)?;
            self.attention(device, l)?;
            self.formed(device, Section::Layer(l))?;
        }
        self.embed(device)?;
        self.formed(device, Section::Before)
    }

    fn formed(&self, device: &mut dyn Device, section: Section) -> Result<(), OperationError> {
        self.learning.updater.formed(device, self.control, section, self.first)
    }

    /// The gradients of a layer's linear layer.
    fn dense(
        &self,
        device: &mut dyn Device,
        at: (Projection, u32),
        part: fn(&Weights) -> &Dense,
        regions: [Region; 3],
    ) -> Result<(), OperationError> {
        self.project_grad(device, at, self.linear(at.1, part, regions))
    }

    /// These gradients of a layer's linear layer, and all gradients of its adapters.
    fn project_grad(
        &self,
        device: &mut dyn Device,
        at: (Projection, u32),
        linear: LinearGrad,
    ) -> Result<(), OperationError> {
        self.input_grad(device, at, linear)?;
        self.adapter_grad(device, at, linear.x, linear.out_grad)
    }

    /// These gradients of a layer's linear layer, and its adapters' contribution to the input's gradient.
    fn input_grad(
        &self,
        device: &mut dyn Device,
        at: (Projection, u32),
        linear: LinearGrad,
    ) -> Result<(), OperationError> {
        let adapting = self.adapting(at);
        let scales = self.pass.network.projection_scales(at);
        let mut weight = linear.weight;
        self.pass.forward.readable(device, &mut weight, scales)?;
        // Before the weight's: the GELU's gradient applies to the sum of both.
        if let Some((adapting, x_grad)) = adapting.zip(linear.x_grad) {
            adapting.input(device, linear.out_grad, x_grad)?;
        }
        let linear = LinearGrad { weight, add: adapting.is_some(), ..linear };
        self.pass.model.project_grad(device, self.pass.copying, at, linear)
    }

    /// The gradients of adapters, if there are any; runs after [`Backward::input_grad`].
    fn adapter_grad(
        &self,
        device: &mut dyn Device,
        at: (Projection, u32),
        x: Region,
        out_grad: Region,
    ) -> Result<(), OperationError> {
        self.adapting(at).map_or(Ok(()), |adapting| adapting.weights(device, x, out_grad))
    }

    /// The adapters of a layer's linear layer, if it has any.
    fn adapting(&self, (p, l): (Projection, u32)) -> Option<AdaptingGrad> {
        let grads = self.learning.gradients.adapters.get(p as usize).copied().flatten();
        Transformer::adapting_grad(self.pass.adapting((p, l)), grads, l, self.training, self.accumulate)
    }

    /// The operation that computes all gradients of layer `l`'s linear layer.
    fn linear(&self, l: u32, part: fn(&Weights) -> &Dense, [x, out_grad, x_grad]: [Region; 3]) -> LinearGrad {
        let (weights, grads) = (part(&self.pass.network.weights), part(&self.learning.gradients));
        let weight_grad = grads.weight.at(l);
        LinearGrad {
            weight_grad: weight_grad.if_any(),
            bias_grad: grads.bias(l),
            accumulate: self.accumulate,
            ..LinearGrad::new([x, weights.weight.at(l)], out_grad, [x_grad, weight_grad])
        }
    }

    /// The gradients of a norm of `x` with one or two outputs, added to the residual stream's gradient.
    fn norm(
        &self,
        [x, stats]: [Region; 2],
        first: AffineGrad,
        second: Option<AffineGrad>,
        copied: Option<(Projection, u32)>,
    ) -> NormGrad {
        let (model, x_grad) = (self.pass.model, self.training.x_grad);
        // Where the blend's gradient follows and changes this tensor, the copy is made after it.
        let copied = copied.filter(|(p, _)| !(model.stream_scalars && *p == Projection::Down));
        let copy = copied.and_then(|(p, l)| model.grad_copy(self.pass.copying, p, l, x_grad));
        let (kind, accumulate) = (model.norm, self.accumulate);
        NormGrad { kind, x, stats, x_grad, first, second, add: true, accumulate, copy }
    }

    /// The gradient of the norm of queries and keys, where there is one.
    fn qk_norm(&self, l: u32, qkv_grad: Region) -> Option<QkNormGrad> {
        let input = self.pass.forward.qk_input?;
        let [query_gain, key_gain] = self.pass.network.weights.qk_norm?.map(|gain| gain.at(l));
        let gain_grads = self.learning.gradients.qk_norm?.map(|gain| gain.at(l).if_any());
        let gain_grads = gain_grads[0].zip(gain_grads[1]).map(<[Region; 2]>::from);
        let (raw, stats, heads) = (input.raw.at(l), input.stats.at(l), self.pass.model.attention_heads());
        let accumulate = self.accumulate;
        Some(QkNormGrad { qkv_grad, raw, stats, query_gain, key_gain, gain_grads, heads, accumulate })
    }

    /// The gradients of one output of a norm.
    fn affine(&self, part: fn(&Weights) -> &Gain, l: u32, out_grad: Region) -> AffineGrad {
        part(&self.learning.gradients).affine_grad(part(&self.pass.network.weights), l, out_grad)
    }

    /// The gradients of the blend that follows layer `l`.
    fn blend(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (pass, x_grad) = (self.pass, self.training.x_grad);
        let (f, [scalars, grads]) =
            (pass.forward, [&pass.network.weights, &self.learning.gradients].map(|w| w.scalars));
        let (Some(first), Some(first_grad), Some(scalars), Some(grads)) =
            (f.first, self.training.first_grad, scalars, grads)
        else {
            return Ok(());
        };
        device.emit(BlendGrad {
            x: pass.input(l + 1),
            first,
            scalars: scalars.at(l),
            x_grad,
            first_grad,
            add: l + 1 < pass.model.layers,
            scalar_grads: grads.at(l),
            accumulate: self.accumulate,
        })?;
        match pass.model.grad_copy(pass.copying, Projection::Down, l, x_grad) {
            Some(copy) => device.emit(Quantise::new(x_grad, copy)),
            None => Ok(()),
        }
    }

    /// The gradients of layer `l`'s value table and gain, computed from the gradient of the values.
    fn values(&self, device: &mut dyn Device, l: u32, qkv_grad: Region) -> Result<(), OperationError> {
        let (pass, layers) = (self.pass, self.pass.model.layers);
        let (Some(added), Some(grads)) =
            (pass.model.add_values(pass.network, l, pass.ids, qkv_grad), self.learning.gradients.values)
        else {
            return Ok(());
        };
        let AddValues { ids, table, gain, heads, .. } = added;
        let tables = pass.model.value_tables.max(1);
        // The gradient of attention's output is no longer needed, so its region is reused.
        let mixed = self.training.mixed_grad;
        let out = mixed.reshaped([mixed.shape[0], mixed.shape[1], mixed.shape[2], heads.values()]);
        let gain_grad = grads.gain.at(l);
        let accumulate = self.accumulate;
        device.emit(AddValuesGrad { ids, table, gain, qkv_grad, out, gain_grad, heads, accumulate })?;
        let Some(table_grad) = grads.tables.at(l % tables).if_any() else { return Ok(()) };
        // Layers after this one that share the table have already written to its gradient.
        let accumulate = accumulate || l + tables < layers;
        device.emit(EmbedGrad { ids, out_grad: out, table_grad, accumulate })
    }

    /// The gradients of the feed-forward's branch; with sequential branches, through norm₂ into the residual stream.
    fn feed(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let Backward { pass, training: t, .. } = *self;
        let (f, up, activated) = (pass.forward, pass.forward.up.at(l), pass.forward.activated.at(l));
        let activated_grad = t.wide.reshaped(activated.shape);
        let regions = [activated, t.x_grad, activated_grad];
        match (pass.model.feed, pass.copying.and_then(|c| c.feed(pass.model, l))) {
            (Feed::Gelu, _) => {
                // The sums for up's bias are computed together with the gradient that they sum.
                let up_bias_grad = self.learning.gradients.up.bias(l);
                let down = self.linear(l, |w| &w.down, regions);
                let down = LinearGrad { before_gelu: Some(up), x_bias_grad: up_bias_grad, ..down };
                self.project_grad(device, (Projection::Down, l), down)?;
                let up = self.linear(l, |w| &w.up, [f.norm2.at(l), activated_grad, t.norm2_grad]);
                let up = LinearGrad { bias_grad: None, ..up };
                self.project_grad(device, (Projection::Up, l), up)?;
            }
            (Feed::SwiGlu, None) => {
                self.gated(device, l, regions)?;
                self.dense(device, (Projection::Up, l), |w| &w.up, [f.norm2.at(l), up, t.norm2_grad])?;
            }
            (Feed::SwiGlu, Some(copies)) => self.gated_by_copies(device, l, regions, &copies)?,
        }
        pass.mask(device, Masked::Norm2(l), t.norm2_grad)?;
        if pass.model.parallel() {
            return Ok(());
        }
        let first = self.affine(|w| &w.norm2, l, t.norm2_grad);
        device.emit(self.norm([f.mid(l), f.stats2.at(l)], first, None, Some((Projection::Out, l))))
    }

    /// The gradients of SwiGLU and of the down projection. Where SwiGLU's output, an operand of the weight's gradient,
    /// is recomputed, that happens in the same pass over gate and up.
    fn gated(
        &self,
        device: &mut dyn Device,
        l: u32,
        [activated, out_grad, activated_grad]: [Region; 3],
    ) -> Result<(), OperationError> {
        let (pass, at) = (self.pass, (Projection::Down, l));
        let again = pass.rebuilds(self.micro.recompute, Activation::Activated, l);
        let down = self.linear(l, |w| &w.down, [activated, out_grad, activated_grad]);
        let input = LinearGrad { weight_grad: None, bias_grad: None, ..down };
        let gate_up = pass.forward.up.at(l);
        let copy = pass.model.grad_copy(pass.copying, Projection::Up, l, gate_up);
        self.input_grad(device, at, if again { input } else { down })?;
        device.emit(SwiGluGrad {
            gate_up,
            out_grad: activated_grad,
            out: again.then_some(activated),
            copy,
            transposed: None,
            kept: pass.forward.eighths.at(EightBits::GateUp, l),
        })?;
        if again && down.weight_grad.is_some() {
            device.emit(LinearGrad { x_grad: None, ..down })?;
        }
        self.adapter_grad(device, at, activated, out_grad)
    }

    /// As [`Backward::gated`], with the gradients of gate and up's projection as well, where weight gradients are
    /// computed from 8-bit copies. The gradients of gate and up exist as copies only.
    fn gated_by_copies(
        &self,
        device: &mut dyn Device,
        l: u32,
        [activated, out_grad, activated_grad]: [Region; 3],
        copies: &FeedCopies,
    ) -> Result<(), OperationError> {
        let Backward { pass, training: t, .. } = *self;
        let (gate_up, norm2) = (pass.forward.up.at(l), pass.forward.norm2.at(l));
        let down = self.linear(l, |w| &w.down, [activated, out_grad, activated_grad]);
        let up = self.linear(l, |w| &w.up, [norm2, gate_up, t.norm2_grad]);
        let input = |linear: LinearGrad| LinearGrad { weight_grad: None, ..linear };
        let weight = |linear: LinearGrad, a, b| LinearGrad {
            x_grad: None,
            quantised: Some(QuantisedProduct { a, b }),
            ..linear
        };
        pass.model.project_grad(device, pass.copying, (Projection::Down, l), input(down))?;
        let copy = pass.model.grad_copy(pass.copying, Projection::Up, l, gate_up);
        let transposed = Some(copies.of_swiglu());
        device.emit(SwiGluGrad { gate_up, out_grad: activated_grad, out: None, copy, transposed, kept: None })?;
        if down.weight_grad.is_some() {
            device.emit(Quantise::transposed(out_grad, copies.down_grad))?;
            device.emit(weight(down, copies.down_grad, copies.activated))?;
        }
        pass.model.project_grad(device, pass.copying, (Projection::Up, l), input(up))?;
        if up.weight_grad.is_some() {
            device.emit(Quantise::transposed(norm2, copies.norm2))?;
            device.emit(weight(up, copies.up_grad, copies.norm2))?;
        }
        Ok(())
    }

    /// The gradients of attention's branch and norm₁; with parallel branches, of norm₂ as well.
    fn attention(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let Backward { pass, training: t, micro, .. } = *self;
        let (model, f) = (pass.model, pass.forward);
        let (qkv, mixed) = (f.qkv.at(l), f.mixed.at(l));
        let qkv_grad = t.wide.reshaped(qkv.shape);
        let mut out = self.linear(l, |w| &w.out, [mixed, t.x_grad, t.mixed_grad]);
        // The outputs of parallel branches are added to the same sum, so their biases have the same gradient.
        let same = self.learning.gradients.down.bias(l).zip(out.bias_grad).filter(|_| model.parallel());
        if let Some((from, to)) = same {
            device.emit(Carry { from, to })?;
            out.bias_grad = None;
        }
        self.project_grad(device, (Projection::Out, l), out)?;
        device.emit(AttentionGrad {
            qkv,
            out: mixed,
            log_sum: f.log_sum.at(l),
            out_grad: t.mixed_grad,
            qkv_grad,
            heads: model.attention_heads(),
            pattern: pass.pattern,
            offsets: t.batch.offsets,
            rotary: model.rotary(pass.network.table, micro.seq_len),
        })?;
        self.values(device, l, qkv_grad)?;
        if let Some(norm) = self.qk_norm(l, qkv_grad) {
            device.emit(norm)?;
        }
        self.dense(device, (Projection::Qkv, l), |w| &w.qkv, [f.norm1.at(l), qkv_grad, t.norm1_grad])?;
        pass.mask(device, Masked::Norm1(l), t.norm1_grad)?;
        let first = self.affine(|w| &w.norm1, l, t.norm1_grad);
        let second = model.parallel().then(|| self.affine(|w| &w.norm2, l, t.norm2_grad));
        let before = l.checked_sub(1).map(|before| (Projection::Down, before));
        device.emit(self.norm([pass.input(l), f.stats1.at(l)], first, second, before))
    }

    /// From the loss to the gradient of the last layer's output; `x` is the head's input.
    pub fn head(&self, device: &mut dyn Device, x: Region) -> Result<(), OperationError> {
        let Backward { pass, control, learning, training: t, micro, accumulate, .. } = *self;
        let (model, w, f) = (pass.model, &pass.network.weights, pass.forward);
        let grads = &learning.gradients;
        let x_grad = t.low_grad.unwrap_or(t.norm1_grad);
        let mut weight = w.head();
        f.readable(device, &mut weight, pass.network.head_scales())?;
        device.emit(HeadLoss {
            x,
            weight,
            bias: None,
            softcap: model.softcap,
            ids: model.vocab_size,
            targets: t.batch.targets,
            logits: t.wide.reshaped([1, 1, micro.chunk_rows(), model.vocabulary_rows()]),
            losses: f.losses,
            settings: control.settings,
            results: control.own,
            add_loss: accumulate,
            gradient: Some(HeadGrad { x_grad, weight_grad: grads.head().if_any(), accumulate }),
            integer: None,
        })?;
        if let (Some(mut factor), Some(low_grad), Some(factor_grad)) = (w.factor, t.low_grad, grads.factor) {
            f.readable(device, &mut factor, pass.network.factor_scales())?;
            let linear = LinearGrad::new([f.final_out, factor], low_grad, [t.norm1_grad, factor_grad]);
            device.emit(LinearGrad { transposed: true, weight_grad: factor_grad.if_any(), accumulate, ..linear })?;
        }
        let first = self.affine(|w| &w.final_norm, 0, t.norm1_grad);
        let last = (Projection::Down, model.layers - 1);
        // The final norm is the first to write the residual stream's gradient, so it does not add.
        let norm = self.norm([pass.input(model.layers), f.final_stats], first, None, Some(last));
        device.emit(NormGrad { add: false, ..norm })?;
        self.formed(device, Section::Behind)
    }

    /// From the gradient of the first layer's input to the embedding. A tied table's gradient is added to the head's.
    fn embed(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        let Backward { pass, learning, training: t, accumulate, .. } = *self;
        let grads = &learning.gradients;
        let (w, ids) = (&pass.network.weights, t.batch.ids);
        let (table_grad, tied) = (grads.embed.if_any(), pass.model.tied);
        if let Some(first) = t.first_grad {
            device.emit(Blend { x: t.x_grad, first, scalars: None })?;
        }
        // With adapters, nothing of the embedding learns.
        if pass.model.adapters().is_some() {
            return Ok(());
        }
        pass.mask(device, Masked::Embedding, t.x_grad)?;
        let into_table = |device: &mut dyn Device, out_grad| match table_grad {
            Some(table_grad) => device.emit(EmbedGrad { ids, out_grad, table_grad, accumulate: accumulate || tied }),
            None => Ok(()),
        };
        let (Some(factor), Some(low), Some(low_grad), Some(factor_grad)) =
            (w.factor, pass.forward.low, t.low_grad, grads.factor)
        else {
            return into_table(device, t.x_grad);
        };
        // The head's gradient took the slot of the looked-up rows, so they are looked up again.
        device.emit(Embed { ids, table: w.embed, scales: None, out: low })?;
        let linear = LinearGrad::new([low, factor], t.x_grad, [low_grad, factor_grad]);
        // With a tied table, the head has already written to the factor's gradient.
        device.emit(LinearGrad { weight_grad: factor_grad.if_any(), accumulate: accumulate || tied, ..linear })?;
        into_table(device, low_grad)
    }
}
