//! Activations that layers save in 8 bits for the backward pass: the forward pass writes an 8-bit copy before the
//! activation is overwritten, and the backward pass expands the copy into the slot that all such layers share.

use super::forward::Pass;
use super::regions::Forward;
use super::{Feed, Transformer};
use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Region, Stacked};
#[cfg(feature = "compressed")]
use crate::model::activations::Slots;
use crate::model::activations::{Activations, BLOCKS, Keep, Kept};
use crate::model::family::{MicroBatch, ModelError, Products};
use crate::model::{Activation, EightBits};
#[cfg(feature = "compressed")]
use crate::ops::{Compress, Expand};

/// The residual stream: each layer's input, and the last layer's output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stream {
    slots: Stacked,
    /// The first layer's input, where it has a slot of its own.
    #[cfg(feature = "compressed")]
    first: Option<Region>,
    /// The number of first layers that alternate between the slots of the two layers after them.
    #[cfg(feature = "compressed")]
    turning: u32,
}

impl Stream {
    /// A stream in these slots.
    pub const fn new(slots: Stacked) -> Stream {
        Stream {
            slots,
            #[cfg(feature = "compressed")]
            first: None,
            #[cfg(feature = "compressed")]
            turning: 0,
        }
    }

    /// The input of layer `l` in the forward pass.
    pub fn at(&self, l: u32) -> Region {
        #[cfg(feature = "compressed")]
        if l < self.turning {
            return self.own(l).unwrap_or_else(|| self.slots.at(self.turning + (self.turning - l) % 2));
        }
        self.kept(l)
    }

    /// The input of layer `l` in the backward pass.
    pub fn kept(&self, l: u32) -> Region {
        #[cfg(feature = "compressed")]
        if let Some(first) = self.own(l) {
            return first;
        }
        self.slots.at(l)
    }

    #[cfg(feature = "compressed")]
    fn own(&self, l: u32) -> Option<Region> {
        self.first.filter(|_| l == 0)
    }
}

/// The regions of the 8-bit copies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Eighths {
    /// [batch, seq_len, 2 d_ff] E4M3: gate and up, rounded by SwiGLU; or [batch, seq_len, d_ff] in blocks: up alone.
    gate_up: Kept,
    /// [batch, seq_len, d_model] in blocks: layers' inputs.
    #[cfg(feature = "compressed")]
    input: Kept,
    /// [batch, seq_len, d_model] in blocks: the residual stream between the branches.
    #[cfg(feature = "compressed")]
    mid: Kept,
}

impl Eighths {
    /// The 8-bit copy of `kind` in layer `l`, if there is one.
    pub fn at(&self, kind: EightBits, l: u32) -> Option<Region> {
        match kind {
            EightBits::GateUp => self.gate_up.at(l),
            #[cfg(feature = "compressed")]
            EightBits::Input => self.input.at(l),
            #[cfg(feature = "compressed")]
            EightBits::Mid => self.mid.at(l),
            #[cfg(not(feature = "compressed"))]
            _ => None,
        }
    }
}

impl Transformer {
    /// Checks that a step can save in 8 bits the activations that it is configured to save so.
    pub(super) fn check_eighths(&self, micro: &MicroBatch) -> Result<(), ModelError> {
        for kind in micro.recompute.rounded() {
            let gated = kind == EightBits::GateUp && self.feed.gated();
            let why = match kind {
                EightBits::Mid if self.parallel() => {
                    "is for sequential branches, and this model's are parallel; leave it out"
                }
                _ if gated && micro.products != Products::Wide => {
                    "is for f32 or bf16 where the model has SwiGLU, whose gradient fp8 fuses with copies; leave it out"
                }
                _ if !gated && !BLOCKS => "is not in this build; build with the feature compressed",
                EightBits::Mid if micro.recompute.contains(Activation::Mid) => {
                    "keeps what is not computed again; leave out mid and full"
                }
                EightBits::GateUp if micro.recompute.contains(Activation::GateUp) => {
                    "keeps what is not computed again; leave out gate_up and full"
                }
                _ => continue,
            };
            return Err(ModelError::EightBits { kind, why });
        }
        Ok(())
    }

    /// Lays the residual stream. Where the first layer's input is blended into the others, it is saved unrounded.
    pub(super) fn lay_stream(&self, all: &mut Activations<'_>, keep: Keep) -> Stream {
        let stream = Stream::new(all.lay("layers.x", keep.inputs(), self.d_model));
        #[cfg(feature = "compressed")]
        if let layers @ 1.. = keep.eight_bits(EightBits::Input) {
            let own = self.stream_scalars;
            let first = own.then(|| all.lay("layers.x_first", Slots::ONE, self.d_model).first);
            // With parallel branches, a layer's output begins as the sum of the layer's input and attention's output,
            // while the input is still read: the two need different slots.
            return Stream { first, turning: if self.parallel() { layers } else { 0 }, ..stream };
        }
        stream
    }

    /// Lays the 8-bit copies.
    pub(super) fn lay_eighths(&self, all: &mut Activations<'_>, keep: Keep) -> Eighths {
        let (name, dtype) = match self.feed {
            Feed::Gelu => ("layers.up8", Dtype::Moment8),
            Feed::SwiGlu => ("layers.up_e4m3", Dtype::E4m3),
        };
        #[cfg(feature = "compressed")]
        let mut block = |name, kind, from, columns| {
            all.lay_eight_bits(name, Dtype::Moment8, [from, keep.eight_bits(kind)], columns)
        };
        Eighths {
            #[cfg(feature = "compressed")]
            input: block("layers.x8", EightBits::Input, u32::from(self.stream_scalars), self.d_model),
            #[cfg(feature = "compressed")]
            mid: block("layers.mid8", EightBits::Mid, 0, self.d_model),
            gate_up: match self.feed {
                Feed::Gelu if !BLOCKS => Kept::NOTHING,
                _ => all.lay_eight_bits(name, dtype, [0, keep.eight_bits(EightBits::GateUp)], self.up_width()),
            },
        }
    }
}

impl Forward {
    /// The blocks that store `kind` of layer `l`, if it is stored in blocks, and the region that the backward pass
    /// reads.
    #[cfg(feature = "compressed")]
    fn in_blocks(&self, kind: EightBits, l: u32) -> Option<(Region, Region)> {
        let codes = self.eighths.at(kind, l).filter(|codes| codes.dtype.is_coded())?;
        let back = match kind {
            EightBits::Input => self.x.kept(l),
            EightBits::Mid => self.mid(l),
            EightBits::GateUp => self.up.at(l),
        };
        Some((codes, back))
    }
}

impl Pass<'_> {
    /// Saves `kind` of layer `l` in blocks of 8 bits, where the step does so.
    #[cfg_attr(not(feature = "compressed"), allow(unused_variables, clippy::unused_self))]
    pub(super) fn keep(&self, device: &mut dyn Device, kind: EightBits, l: u32) -> Result<(), OperationError> {
        #[cfg(feature = "compressed")]
        if let Some((out, back)) = self.forward.in_blocks(kind, l) {
            let x = if kind == EightBits::Input { self.forward.x.at(l) } else { back };
            return device.emit(Compress { x, out });
        }
        Ok(())
    }

    /// Expands the blocks that layer `l` saved into the regions that its backward pass reads.
    #[cfg_attr(not(feature = "compressed"), allow(unused_variables, clippy::unused_self))]
    pub(super) fn restore(&self, device: &mut dyn Device, l: u32) -> Result<(), OperationError> {
        #[cfg(feature = "compressed")]
        for (codes, out) in EightBits::ALL.into_iter().filter_map(|kind| self.forward.in_blocks(kind, l)) {
            device.emit(Expand { codes, out })?;
        }
        Ok(())
    }
}
