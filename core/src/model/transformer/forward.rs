//! The forward pass, over sequences or of one token behind a cache.

use super::copies::{Copying, Projection};
use super::integers;
use super::regions::{Forward, Network};
use super::{Feed, Transformer};
use crate::device::{Device, OperationError};
use crate::memory::{Region, Stacked};
use crate::model::family::{MicroBatch, Recompute};
use crate::ops::{Attention, CachedAttention, Embed, Epilogue, Gelu, Linear, Norm, Pattern, Rotate, SwiGlu};

/// What queries look back on.
#[derive(Clone, Copy)]
pub(super) enum Past {
    /// The tokens before them in their sequence.
    Sequence {
        /// Tokens of a sequence.
        seq_len: u32,
    },
    /// The keys and values of earlier tokens.
    Cache {
        /// [2, context, kv_heads · size] a layer.
        cache: Stacked,
        /// `[1]` u32: the token's position.
        cursor: Region,
    },
}

/// A forward pass, and where it finds and leaves everything.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub model: &'a Transformer,
    pub network: &'a Network,
    pub forward: &'a Forward,
    pub past: Past,
    pub pattern: Pattern,
    /// The copies that products read, in a step that makes them.
    pub copying: Option<&'a Copying>,
}

impl Pass<'_> {
    /// Everything up to the head's input, which it gives back.
    pub fn run(&self, device: &mut dyn Device, ids: Region) -> Result<Region, OperationError> {
        self.embed(device, ids)?;
        for l in 0..self.model.layers {
            self.norm1(device, l)?;
            self.attend(device, l)?;
            self.mix(device, l)?;
            self.norm2(device, l)?;
            self.expand(device, l)?;
            self.activate(device, l)?;
            self.contract(device, l)?;
        }
        self.finish(device)
    }

    /// The tokens' vectors into the first layer's input.
    fn embed(&self, device: &mut dyn Device, ids: Region) -> Result<(), OperationError> {
        let (w, scales, x) = (&self.network.weights, self.network.embed_scales(), self.forward.x.at(0));
        let (Some(factor), Some(low)) = (w.factor, self.forward.low) else {
            return device.emit(Embed { ids, table: w.embed, scales, out: x });
        };
        device.emit(Embed { ids, table: w.embed, scales, out: low })?;
        integers::factor(device, self.network, self.forward.codes.as_ref(), Linear::new(low, factor, None, x))
    }

    /// norm₁; of parallel branches both norms at once, since they are of the same x.
    fn norm1(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (model, w, f) = (self.model, &self.network.weights, self.forward);
        device.emit(Norm {
            kind: model.norm,
            x: f.x.at(l),
            eps: model.norm_eps,
            stats: f.stats1.at(l),
            first: w.norm1.affine(l, f.norm1.at(l)),
            second: model.parallel().then(|| w.norm2.affine(l, f.norm2.at(l))),
            copy: model.input_copy(self.copying, Projection::Qkv, l, f.norm1.at(l)),
        })
    }

    /// norm₂ of what attention was added to.
    fn norm2(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (model, w, f) = (self.model, &self.network.weights, self.forward);
        if model.parallel() {
            return Ok(());
        }
        device.emit(Norm {
            kind: model.norm,
            x: f.mid.at(l),
            eps: model.norm_eps,
            stats: f.stats2.at(l),
            first: w.norm2.affine(l, f.norm2.at(l)),
            second: None,
            copy: model.input_copy(self.copying, Projection::Up, l, f.norm2.at(l)),
        })
    }

    /// Queries, keys and values, and what attention makes of them.
    fn attend(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (model, w, f, pattern) = (self.model, &self.network.weights, self.forward, self.pattern);
        let (qkv, out) = (f.qkv.at(l), f.mixed.at(l));
        let linear = Linear::new(f.norm1.at(l), w.qkv.weight.at(l), w.qkv.bias(l), qkv);
        self.project(device, (Projection::Qkv, l), linear)?;
        if let Some(norm) = model.qk_norm(w, l, qkv, self.forward.qk_input) {
            device.emit(norm)?;
        }
        match self.past {
            Past::Sequence { seq_len } => {
                device.emit(Rotate { qkv, rotary: model.rotary(self.network.table, seq_len) })?;
                let heads = model.attention_heads();
                device.emit(Attention { qkv, out, log_sum: f.log_sum.at(l), heads, pattern })
            }
            Past::Cache { cache, cursor } => {
                let rotary = model.rotary(self.network.table, model.context);
                device.emit(CachedAttention { qkv, cache: cache.at(l), cursor, out, rotary, pattern })
            }
        }
    }

    /// A product of a layer, by way of copies or codes where there are any.
    fn project(
        &self,
        device: &mut dyn Device,
        product: (Projection, u32),
        linear: Linear,
    ) -> Result<(), OperationError> {
        match &self.forward.codes {
            Some(codes) => integers::project(device, self.network, Some(codes), product, linear),
            None => self.model.project(device, self.copying, product, linear),
        }
    }

    /// Adds `residual` to a product of layer `l`; in place where it is the product's own slot.
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

    /// Attention's branch into the residual stream.
    fn mix(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (w, f) = (&self.network.weights.out, self.forward);
        let linear = Linear::new(f.mixed.at(l), w.weight.at(l), w.bias(l), f.mid.at(l));
        self.add(device, (Projection::Out, l), linear, f.x.at(l))
    }

    /// The feed-forward's first product, with its GELU.
    fn expand(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (model, w, f) = (self.model, &self.network.weights.up, self.forward);
        let epilogue = match model.feed {
            Feed::Gelu => Epilogue::Gelu(f.activated.at(l)),
            Feed::SwiGlu => Epilogue::Store,
        };
        let linear = Linear::new(f.norm2.at(l), w.weight.at(l), w.bias(l), f.up.at(l));
        self.project(device, (Projection::Up, l), Linear { epilogue, ..linear })
    }

    /// The feed-forward's activation, where the product did not make it.
    fn activate(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (gate_up, out) = (self.forward.up.at(l), self.forward.activated.at(l));
        let copy = self.model.input_copy(self.copying, Projection::Down, l, out);
        match self.model.feed {
            Feed::Gelu => Ok(()),
            Feed::SwiGlu => device.emit(SwiGlu { gate_up, out, copy }),
        }
    }

    /// The feed-forward's branch into the residual stream.
    fn contract(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        let (w, f) = (&self.network.weights.down, self.forward);
        let linear = Linear::new(f.activated.at(l), w.weight.at(l), w.bias(l), f.x.at(l + 1));
        self.add(device, (Projection::Down, l), linear, f.mid.at(l))
    }

    /// The final norm, and of it what the vocabulary's rows are multiplied with.
    fn finish(&self, device: &mut dyn Device) -> Result<Region, OperationError> {
        let (model, w, f) = (self.model, &self.network.weights, self.forward);
        device.emit(Norm {
            kind: model.norm,
            x: f.x.at(model.layers),
            eps: model.norm_eps,
            stats: f.final_stats,
            first: w.final_norm.affine(0, f.final_out),
            second: None,
            copy: None,
        })?;
        let (Some(factor), Some(low)) = (w.factor, f.low) else { return Ok(f.final_out) };
        let linear = Linear { transposed: true, ..Linear::new(f.final_out, factor, None, low) };
        integers::factor(device, self.network, f.codes.as_ref(), linear)?;
        Ok(low)
    }

    /// Rebuilds what layer `l`'s shared slots lost to later layers. The last layer's are still there.
    pub fn rebuild(&self, device: &mut dyn Device, micro: &MicroBatch, l: u32) -> Result<(), OperationError> {
        if l + 1 == self.model.layers || micro.recompute == Recompute::None {
            return Ok(());
        }
        if micro.recompute == Recompute::Full {
            self.norm1(device, l)?;
            self.attend(device, l)?;
            if !self.model.parallel() {
                self.mix(device, l)?;
            }
            self.norm2(device, l)?;
            self.expand(device, l)?;
            return Pass { copying: None, ..*self }.activate(device, l);
        }
        // No product is computed again, so nobody reads copies.
        let uncopied = Pass { copying: None, ..*self };
        uncopied.norm1(device, l)?;
        uncopied.norm2(device, l)?;
        match self.model.feed {
            Feed::Gelu => device.emit(Gelu { x: self.forward.up.at(l), out: self.forward.activated.at(l) }),
            Feed::SwiGlu => uncopied.activate(device, l),
        }
    }
}
