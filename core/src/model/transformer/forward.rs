//! The forward pass, over sequences or for one token with a cache.

use super::copies::{Copying, Projection};
use super::integers;
use super::masks::{Masked, Masks};
use super::regions::{Forward, Network};
use super::{Feed, Transformer};
use crate::device::{Device, OperationError};
use crate::memory::{Region, Stacked};
use crate::model::{Activation, EightBits, Recompute};
use crate::ops::{
    Attention, Blend, CachedAttention, Carry, Embed, Epilogue, Gelu, Linear, Norm, Pattern, Quantise, Quantised,
    Rotate, SwiGlu,
};

/// The earlier tokens that queries see.
#[derive(Clone, Copy)]
pub(super) enum Past {
    /// The tokens before each query in its sequence.
    Sequence {
        /// Tokens of a sequence.
        seq_len: u32,
        /// `[batch · seq_len]` u32: the number of tokens of its document before each token, where attention stays in
        /// documents.
        offsets: Option<Region>,
    },
    /// The keys and values of earlier tokens.
    Cache {
        /// [2, context, kv_heads · size] for each layer.
        cache: Stacked,
        /// `[1]` u32: the token's position.
        cursor: Region,
    },
}

/// A forward pass and its regions.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub model: &'a Transformer,
    pub network: &'a Network,
    pub forward: &'a Forward,
    pub past: Past,
    pub pattern: Pattern,
    /// `[batch · seq_len]` u32: the tokens.
    pub ids: Region,
    /// The 8-bit copies for matrix multiplications, in a step that makes them.
    pub copying: Option<&'a Copying>,
    /// The dropout masks of a training step.
    pub masks: Option<Masks>,
    /// Whether this pass recomputes for the backward pass, which reads the layers' inputs where they are saved.
    pub again: bool,
}

impl Pass<'_> {
    /// Runs everything up to the head's input, and returns that.
    pub fn run(&self, device: &mut dyn Device) -> Result<Region, OperationError> {
        self.embed(device)?;
        for l in 0..self.model.layers {
            self.keep(device, EightBits::Input, l)?;
            self.norm1(device, l)?;
            self.queries(device, l)?;
            self.attend(device, l)?;
            self.mix(device, l)?;
            self.keep(device, EightBits::Mid, l)?;
            self.norm2(device, l)?;
            self.expand(device, l)?;
            self.keep(device, EightBits::GateUp, l)?;
            self.activate(device, l)?;
            self.contract(device, l)?;
            self.blend(device, l)?;
        }
        self.finish(device)
    }

    /// The tokens' vectors into the first layer's input.
    fn embed(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        let (w, f, ids, x) = (&self.network.weights, self.forward, self.ids, self.input(0));
        let mut table = w.embed;
        let scales = f.readable(device, &mut table, self.network.embed_scales())?;
        match w.factor.zip(f.low) {
            Some((factor, low)) => {
                device.emit(Embed { ids, table, scales, out: low })?;
                integers::factor(device, self.network, f, Linear::new(low, factor, None, x))?;
            }
            None => device.emit(Embed { ids, table, scales, out: x })?,
        }
        self.mask(device, Masked::Embedding, x)?;
        match f.first {
            Some(first) if first != x => device.emit(Carry { from: x, to: first }),
            _ => Ok(()),
        }
    }

    /// Blends the embedding into the output of layer `l`, where the model does so.
    fn blend(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (scalars, f) = (self.network.weights.scalars, self.forward);
        match scalars.zip(f.first) {
            Some((scalars, first)) => device.emit(Blend { x: self.input(l + 1), first, scalars: Some(scalars.at(l)) }),
            None => Ok(()),
        }
    }

    /// Applies dropout to `x`, or to its gradient, where the step drops any.
    pub fn mask(&self, device: &mut dyn Device, which: Masked, x: Region) -> Result<(), OperationError> {
        self.masks.map_or(Ok(()), |masks| device.emit(masks.of(which, x)))
    }

    /// The copy that a norm makes of its output for `p`. With dropout, [`Pass::behind_norm`] makes the copy instead.
    fn norm_copy(&self, p: Projection, l: u32, out: Region) -> Option<Quantised> {
        if self.masks.is_some() { None } else { self.model.input_copy(self.copying, p, l, out) }
    }

    /// Applies dropout to the outputs of a norm. The first of them is the input of `copied`, for which it makes a copy.
    fn behind_norm(
        &self,
        device: &mut dyn Device,
        [first, second]: [Option<(Masked, Region)>; 2],
        copied: Option<(Projection, u32)>,
    ) -> Result<(), OperationError> {
        let Some(masks) = self.masks else { return Ok(()) };
        [first, second].into_iter().flatten().try_for_each(|(which, x)| device.emit(masks.of(which, x)))?;
        match (copied, first) {
            (Some((p, l)), Some((_, x))) => self.copy(device, p, l, x),
            _ => Ok(()),
        }
    }

    /// The input of layer `l`, which is the output of layer `l` − 1.
    // Not inlined, so that a chip has its code once.
    #[inline(never)]
    pub fn input(&self, l: u32) -> Region {
        if self.again { self.forward.x.kept(l) } else { self.forward.x.at(l) }
    }

    /// norm₁; with parallel branches both norms at once, since both read the same x.
    fn norm1(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (model, w, f) = (self.model, &self.network.weights, self.forward);
        let out = f.norm1.at(l);
        device.emit(Norm {
            kind: model.norm,
            x: self.input(l),
            eps: model.norm_eps,
            stats: f.stats1.at(l),
            first: w.norm1.affine(l, out),
            second: model.parallel().then(|| w.norm2.affine(l, f.norm2.at(l))),
            copy: self.norm_copy(Projection::Qkv, l, out),
        })?;
        let second = model.parallel().then(|| (Masked::Norm2(l), f.norm2.at(l)));
        self.behind_norm(device, [Some((Masked::Norm1(l), out)), second], Some((Projection::Qkv, l)))
    }

    /// norm₂ of the residual stream after attention.
    fn norm2(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (model, w, f) = (self.model, &self.network.weights, self.forward);
        if model.parallel() {
            return Ok(());
        }
        let out = f.norm2.at(l);
        device.emit(Norm {
            kind: model.norm,
            x: f.mid(l),
            eps: model.norm_eps,
            stats: f.stats2.at(l),
            first: w.norm2.affine(l, out),
            second: None,
            copy: self.norm_copy(Projection::Up, l, out),
        })?;
        self.behind_norm(device, [Some((Masked::Norm2(l), out)), None], Some((Projection::Up, l)))
    }

    /// Queries, keys and values. With a cache, attention itself rotates them.
    fn queries(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (model, w, f) = (self.model, &self.network.weights, self.forward);
        let qkv = f.qkv.at(l);
        let linear = Linear::new(f.norm1.at(l), w.qkv.weight.at(l), w.qkv.bias(l), qkv);
        self.project(device, (Projection::Qkv, l), linear)?;
        if let Some(norm) = model.qk_norm(w, l, qkv, f.qk_input) {
            device.emit(norm)?;
        }
        if let Past::Sequence { seq_len, .. } = self.past {
            device.emit(Rotate { qkv, rotary: model.rotary(self.network.table, seq_len) })?;
        }
        match model.add_values(self.network, l, self.ids, qkv) {
            Some(values) => device.emit(values),
            None => Ok(()),
        }
    }

    /// Attention over queries, keys and values.
    fn attend(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (model, f, pattern) = (self.model, self.forward, self.pattern);
        let (qkv, out) = (f.qkv.at(l), f.mixed.at(l));
        match self.past {
            Past::Sequence { offsets, .. } => {
                let heads = model.attention_heads();
                device.emit(Attention { qkv, out, log_sum: f.log_sum.at(l), heads, pattern, offsets })
            }
            Past::Cache { cache, cursor } => {
                let rotary = model.rotary(self.network.table, model.context);
                device.emit(CachedAttention { qkv, cache: cache.at(l), cursor, out, rotary, pattern })
            }
        }
    }

    /// A projection of a layer without adapters, computed from 8-bit copies or integer codes where there are any.
    pub(super) fn project_alone(
        &self,
        device: &mut dyn Device,
        product: (Projection, u32),
        mut linear: Linear,
    ) -> Result<(), OperationError> {
        let scales = self.network.projection_scales(product);
        let scales = self.forward.readable(device, &mut linear.weight, scales)?;
        match &self.forward.codes {
            Some(codes) => integers::multiply(device, linear, scales, Some(codes)),
            None => self.model.project(device, self.copying, product, linear),
        }
    }

    /// Adds `residual` to a projection of layer `l`; in place where it is the projection's own output slot.
    fn add(
        &self,
        device: &mut dyn Device,
        product: (Projection, u32),
        linear: Linear,
        residual: Region,
    ) -> Result<(), OperationError> {
        let epilogue = if residual == linear.out { Epilogue::Add } else { Epilogue::Residual(residual) };
        self.project(device, product, Linear { epilogue, ..linear })
    }

    /// Attention's output projection, added to the residual stream.
    fn mix(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (w, f) = (&self.network.weights.out, self.forward);
        let linear = Linear::new(f.mixed.at(l), w.weight.at(l), w.bias(l), f.mid(l));
        self.add(device, (Projection::Out, l), linear, self.input(l))
    }

    /// The feed-forward's first matrix, with its GELU.
    fn expand(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (model, w, f) = (self.model, &self.network.weights.up, self.forward);
        let epilogue = match model.feed {
            Feed::Gelu => Epilogue::Gelu(f.activated.at(l)),
            Feed::SwiGlu => Epilogue::Store,
        };
        let linear = Linear::new(f.norm2.at(l), w.weight.at(l), w.bias(l), f.up.at(l));
        self.project(device, (Projection::Up, l), Linear { epilogue, ..linear })
    }

    /// The feed-forward's activation, where the matrix multiplication did not compute it.
    fn activate(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (gate_up, out) = (self.forward.up.at(l), self.forward.activated.at(l));
        let copy = self.model.input_copy(self.copying, Projection::Down, l, out);
        match self.model.feed {
            Feed::Gelu => Ok(()),
            Feed::SwiGlu => {
                device.emit(SwiGlu { gate_up, out, copy, kept: self.forward.eighths.at(EightBits::GateUp, l) })
            }
        }
    }

    /// The feed-forward's second matrix, added to the residual stream.
    fn contract(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (w, f) = (&self.network.weights.down, self.forward);
        let linear = Linear::new(f.activated.at(l), w.weight.at(l), w.bias(l), self.input(l + 1));
        self.add(device, (Projection::Down, l), linear, f.mid(l))
    }

    /// The final norm, and its projection to the operand of the vocabulary table where the embedding is factorised.
    fn finish(&self, device: &mut dyn Device) -> Result<Region, OperationError> {
        let (model, w, f) = (self.model, &self.network.weights, self.forward);
        device.emit(Norm {
            kind: model.norm,
            x: self.input(model.layers),
            eps: model.norm_eps,
            stats: f.final_stats,
            first: w.final_norm.affine(0, f.final_out),
            second: None,
            copy: None,
        })?;
        let (Some(factor), Some(low)) = (w.factor, f.low) else { return Ok(f.final_out) };
        let linear = Linear { transposed: true, ..Linear::new(f.final_out, factor, None, low) };
        integers::factor(device, self.network, f, linear)?;
        Ok(low)
    }

    /// Whether `activation` of layer `l` must be recomputed. The last layer's activations still exist.
    pub fn rebuilds(&self, again: Recompute, activation: Activation, l: u32) -> bool {
        l < u32::from(again.layers(activation)) && l + 1 < self.model.layers
    }

    /// Recomputes the contents of layer `l`'s shared slots that later layers overwrote, in the order of the forward
    /// pass, except SwiGLU's output.
    pub fn rebuild(&self, device: &mut dyn Device, again: Recompute, l: u32) -> Result<(), OperationError> {
        let (parallel, again) = (self.model.parallel(), |a| self.rebuilds(again, a, l));
        let (qkv, up) = (again(Activation::Qkv), again(Activation::GateUp));
        // Copies are made only for a matrix multiplication that follows.
        let reading = |read: bool| Pass { copying: self.copying.filter(|_| read), ..*self };
        if parallel {
            self.parallel_norms(device, l, again(Activation::Norm1), again(Activation::Norm2))?;
        } else if again(Activation::Norm1) {
            reading(qkv).norm1(device, l)?;
        } else if qkv {
            self.copy(device, Projection::Qkv, l, self.forward.norm1.at(l))?;
        }
        if qkv {
            self.queries(device, l)?;
        }
        if again(Activation::Mixed) {
            self.attend(device, l)?;
        }
        if again(Activation::Mid) && !parallel {
            self.mix(device, l)?;
        }
        if again(Activation::Norm2) {
            reading(up).norm2(device, l)?;
        } else if up {
            self.copy(device, Projection::Up, l, self.forward.norm2.at(l))?;
        }
        if up {
            self.expand(device, l)?;
        }
        match self.model.feed {
            _ if !again(Activation::Activated) => Ok(()),
            // The matrix multiplication already computed it.
            Feed::Gelu if up => Ok(()),
            Feed::Gelu => device.emit(Gelu { x: self.forward.up.at(l), out: self.forward.activated.at(l) }),
            // SwiGLU's gradient recomputes it.
            Feed::SwiGlu => Ok(()),
        }
    }

    /// Recomputes those norms of parallel branches that are not saved.
    fn parallel_norms(&self, device: &mut dyn Device, l: u32, first: bool, second: bool) -> Result<(), OperationError> {
        let (model, w, f) = (self.model, &self.network.weights, self.forward);
        let (norm1, norm2) = (w.norm1.affine(l, f.norm1.at(l)), w.norm2.affine(l, f.norm2.at(l)));
        let masked = [(first, Masked::Norm1(l), norm1.out), (second, Masked::Norm2(l), norm2.out)];
        let (first, second) = match (first, second) {
            (false, false) => return Ok(()),
            (true, second) => (norm1, second.then_some(norm2)),
            (false, true) => (norm2, None),
        };
        let (kind, eps) = (model.norm, model.norm_eps);
        device.emit(Norm { kind, x: self.input(l), eps, stats: f.stats1.at(l), first, second, copy: None })?;
        self.behind_norm(device, masked.map(|(again, which, x)| again.then_some((which, x))), None)
    }

    /// Copies the saved input of a projection that is recomputed, if the operation that wrote the input had copied it.
    fn copy(&self, device: &mut dyn Device, p: Projection, l: u32, x: Region) -> Result<(), OperationError> {
        match self.model.input_copy(self.copying, p, l, x) {
            Some(out) => device.emit(Quantise::new(x, out)),
            None => Ok(()),
        }
    }
}
