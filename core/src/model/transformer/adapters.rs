//! Low-rank adapters of frozen weights (LoRA, Hu et al. 2021): `y = x · Wᵀ + (α / r) · (x · Aᵀ) · Bᵀ`.
//!
//! A projection that is several tensors in files (queries, keys, values; gate, up) has an A and a B for each, as in
//! PEFT: one pair over the fused matrix would be a different model, which a PEFT file could not represent. The As are
//! stacked as [parts · r, in], so one matrix multiplication computes the input of all Bs. The Bs lie as the weight's
//! parts do, [out, r], and before each multiplication they are spread over blocks of columns ([`Spread`]), which also
//! applies α / r. So gradients, optimizer and files see B in its plain form, every device's ordinary matrix
//! multiplication suffices, and the zeros between the blocks lie in one slot that all layers share.

use super::base::BaseType;
use super::copies::Projection;
use super::forward::Pass;
use super::regions::Training;
use super::{Feed, Transformer};
use crate::device::{Device, OperationError, Profile};
use crate::integer::ParameterKind;
use crate::memory::{Init, Ledger, Region, Role, Slot, Stacked};
use crate::model::Parameter;
use crate::ops::{Epilogue, Gelu, Linear, LinearGrad, Spread, SpreadGrad, part_count};

/// Which projections have adapters, and the adapters' settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adapters {
    /// r: rows of each A, columns of each B.
    pub rank: u32,
    /// α: the output of an adapter is scaled by α / r.
    pub alpha: f32,
    /// Whether the projection of queries, keys and values has adapters.
    pub qkv: bool,
    /// Whether attention's output projection has an adapter.
    pub out: bool,
    /// Whether the feed-forward's first matrix has adapters: up, or gate and up.
    pub up: bool,
    /// Whether the feed-forward's second matrix has an adapter.
    pub down: bool,
    /// The type in which the frozen weights are stored.
    pub base: BaseType,
}

impl Adapters {
    /// α / r.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }

    /// Whether projection `p` has adapters.
    pub(super) const fn on(&self, p: Projection) -> bool {
        match p {
            Projection::Qkv => self.qkv,
            Projection::Out => self.out,
            Projection::Up => self.up,
            Projection::Down => self.down,
        }
    }
}

/// Whether a parameter of this name belongs to an adapter.
pub fn is_adapter(name: &str) -> bool {
    [".lora_A.weight", ".lora_B.weight"].iter().any(|end| name.ends_with(end))
}

/// A projection's adapters, or their gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adapter {
    /// [parts · r, in].
    pub a: Stacked,
    /// [out, r].
    pub b: Stacked,
}

/// Projections that may have adapters in this build.
pub const ADAPTED: usize = if cfg!(feature = "adapters") { Projection::ALL.len() } else { 0 };

/// Scratch of the adapters, or of their gradients: one slot of each kind, which all layers and projections share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AdapterRoom {
    /// [batch · seq_len, parts · r]: x · Aᵀ.
    low: Region,
    /// [out, parts · r]: the Bs in blocks of columns, times α / r.
    spread: Region,
}

/// A layer's adapters of a projection.
#[derive(Clone, Copy)]
pub(super) struct Adapting {
    a: Region,
    b: Region,
    low: Region,
    spread: Region,
    parts: [u32; 3],
    scale: f32,
}

impl Adapting {
    /// Adds the adapters' output for `x` to `out`.
    fn forward(&self, device: &mut dyn Device, x: Region, out: Region) -> Result<(), OperationError> {
        self.spread(device)?;
        device.emit(Linear::new(x, self.a, None, self.low))?;
        device.emit(Linear { epilogue: Epilogue::Add, ..Linear::new(self.low, self.spread, None, out) })
    }

    fn spread(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        let Adapting { b, parts, scale, spread, .. } = *self;
        device.emit(Spread { x: b, parts, scale, out: spread })
    }
}

/// The gradients of a layer's adapters, and the regions that they are written to.
#[derive(Clone, Copy)]
pub(super) struct AdaptingGrad {
    of: Adapting,
    grads: AdapterRoom,
    a_grad: Region,
    b_grad: Region,
    accumulate: bool,
}

impl AdaptingGrad {
    /// Writes the input's gradient through the adapters over `x_grad`; keeps the gradient of x · Aᵀ for
    /// [`AdaptingGrad::weights`].
    pub(super) fn input(
        &self,
        device: &mut dyn Device,
        out_grad: Region,
        x_grad: Region,
    ) -> Result<(), OperationError> {
        self.of.spread(device)?;
        let back = |x, weight, out| Linear { transposed: true, ..Linear::new(x, weight, None, out) };
        device.emit(back(out_grad, self.of.spread, self.grads.low))?;
        device.emit(back(self.grads.low, self.of.a, x_grad))
    }

    /// The gradients of A and B, given their input `x`.
    pub(super) fn weights(&self, device: &mut dyn Device, x: Region, out_grad: Region) -> Result<(), OperationError> {
        let AdaptingGrad { of, grads, a_grad, b_grad, accumulate } = *self;
        device.emit(Linear::new(x, of.a, None, of.low))?;
        let weight = |[x, weight]: [Region; 2], out_grad, to| LinearGrad {
            x_grad: None,
            ..LinearGrad::new([x, weight], out_grad, [x, to])
        };
        device.emit(weight([of.low, of.spread], out_grad, grads.spread))?;
        let Adapting { parts, scale, .. } = of;
        device.emit(SpreadGrad { out_grad: grads.spread, parts, scale, x_grad: b_grad, accumulate })?;
        device.emit(LinearGrad { accumulate, ..weight([x, of.a], grads.low, a_grad) })
    }
}

impl Pass<'_> {
    /// The adapters of projection `p` of layer `l`, if it has any.
    pub(super) fn adapting(&self, (p, l): (Projection, u32)) -> Option<Adapting> {
        let (adapters, room) = (self.model.adapters()?, self.forward.adapters?);
        let Adapter { a, b } = (*self.network.weights.adapters.get(p as usize)?)?;
        let (a, b, parts) = (a.at(l), b.at(l), self.model.projection_parts(p));
        let low = room.low.reshaped([1, 1, room.low.rows(), a.rows()]);
        let spread = room.spread.reshaped([1, 1, b.rows(), a.rows()]);
        Some(Adapting { a, b, low, spread, parts, scale: adapters.scale() })
    }

    /// A projection of a layer, with its adapters' output added.
    pub(super) fn project(
        &self,
        device: &mut dyn Device,
        product: (Projection, u32),
        linear: Linear,
    ) -> Result<(), OperationError> {
        let Some(adapting) = self.adapting(product) else { return self.project_alone(device, product, linear) };
        // A GELU applies to the sum, so it runs after the adapters.
        let activated = linear.epilogue.activated();
        let epilogue = if activated.is_some() { Epilogue::Store } else { linear.epilogue };
        self.project_alone(device, product, Linear { epilogue, ..linear })?;
        adapting.forward(device, linear.x, linear.out)?;
        activated.map_or(Ok(()), |out| device.emit(Gelu { x: linear.out, out }))
    }
}

impl Transformer {
    /// The adapters, if any. A build without the feature has none, and no code for them.
    pub(super) const fn adapters(&self) -> Option<Adapters> {
        if cfg!(feature = "adapters") { self.adapters } else { None }
    }

    /// Rows of each tensor that a projection becomes in files; all 0 where it is one tensor.
    pub(super) const fn projection_parts(&self, p: Projection) -> [u32; 3] {
        match (p, self.feed) {
            (Projection::Qkv, _) => self.qkv_parts(),
            (Projection::Up, Feed::SwiGlu) => [self.d_ff, self.d_ff, 0],
            _ => [0; 3],
        }
    }

    /// Outputs and inputs of a projection.
    pub(super) const fn projection_sides(&self, p: Projection) -> [u32; 2] {
        match p {
            Projection::Qkv => [self.qkv_width(), self.d_model],
            Projection::Out => [self.d_model, self.mixed_width()],
            Projection::Up => [self.up_width(), self.d_model],
            Projection::Down => [self.d_model, self.d_ff],
        }
    }

    /// The smallest dimension of any matrix that has adapters.
    pub(super) fn smallest_adapted_side(&self) -> u32 {
        let sides = |p: Projection| {
            let [outputs, inputs] = self.projection_sides(p);
            let parts = self.projection_parts(p).into_iter().filter(|rows| *rows > 0);
            parts.fold(outputs.min(inputs), u32::min)
        };
        let on = |p: &Projection| self.adapters().is_some_and(|adapters| adapters.on(*p));
        Projection::ALL.into_iter().filter(on).map(sides).fold(u32::MAX, u32::min)
    }

    /// Rows of a projection's A.
    const fn adapter_rows(&self, p: Projection, rank: u32) -> u32 {
        rank.saturating_mul(part_count(&self.projection_parts(p)))
    }

    /// Places the adapters of projection `p` under these names. Not inlined, to save code size on a chip.
    #[inline(never)]
    pub(super) fn place_adapter(
        &self,
        p: Projection,
        [a, b]: [&'static str; 2],
        place: &mut dyn FnMut(&Parameter) -> Stacked,
    ) -> Option<Adapter> {
        let rank = self.adapters().filter(|adapters| adapters.on(p))?.rank;
        let ([outputs, inputs], parts) = (self.projection_sides(p), self.projection_parts(p));
        let rows = self.adapter_rows(p, rank);
        // Kaiming's uniform initialisation with a = √5, as in PEFT: bounds of √(6 / ((1 + a²) · in)).
        let init = Init::Uniform(1.0 / libm::sqrtf(inputs as f32));
        // Adapters are not multiplied in integers.
        let matrix = |name, shape, init, parts| Parameter {
            parts,
            kind: ParameterKind::Vector,
            ..Parameter::matrix(name, self.layers, shape, init)
        };
        let rows_of_parts = parts.map(|part| if part > 0 { rank } else { 0 });
        let a = place(&matrix(a, [rows, inputs], init, rows_of_parts));
        Some(Adapter { a, b: place(&matrix(b, [outputs, rank], Init::Zero, parts)) })
    }

    /// Elements of a layer's adapters.
    pub(super) fn adapter_elements(&self) -> u64 {
        let Some(adapters) = self.adapters() else { return 0 };
        let elements = |p| {
            let [outputs, inputs] = self.projection_sides(p).map(u64::from);
            u64::from(self.adapter_rows(p, adapters.rank)) * inputs + u64::from(adapters.rank) * outputs
        };
        Projection::ALL.into_iter().filter(|p| adapters.on(*p)).map(elements).sum()
    }

    /// The largest number of rows of any A.
    fn most_adapter_rows(&self) -> Option<u32> {
        let adapters = self.adapters()?;
        Projection::ALL.into_iter().filter(|p| adapters.on(*p)).map(|p| self.adapter_rows(p, adapters.rank)).max()
    }

    /// The shape of the largest spread B.
    fn largest_spread(&self) -> [u32; 4] {
        let rank = self.adapters().map_or(0, |adapters| adapters.rank);
        let on = |p: &Projection| self.adapters().is_some_and(|adapters| adapters.on(*p));
        let shape = |p| [1, 1, self.projection_sides(p)[0], self.adapter_rows(p, rank)];
        let elements = |[_, _, rows, columns]: &[u32; 4]| u64::from(*rows) * u64::from(*columns);
        Projection::ALL.into_iter().filter(on).map(shape).max_by_key(elements).unwrap_or([1; 4])
    }

    /// Lays the scratch that a forward pass of `tokens` tokens needs for adapters, if there are any.
    pub(super) fn lay_adapters(
        &self,
        tokens: u32,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Option<AdapterRoom> {
        self.lay_room(["adapter.low", "adapter.spread"], Role::Weight, tokens, profile, ledger)
    }

    /// Lays the additional scratch of the adapters' gradients.
    pub(super) fn lay_adapter_grads(
        &self,
        tokens: u32,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Option<AdapterRoom> {
        self.lay_room(["grad.adapter.low", "grad.adapter.spread"], Role::Gradient, tokens, profile, ledger)
    }

    /// Lays two slots of these names for `tokens` tokens, the second in the type of `role`.
    fn lay_room(
        &self,
        [low, spread]: [&'static str; 2],
        role: Role,
        tokens: u32,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Option<AdapterRoom> {
        let rows = self.most_adapter_rows()?;
        let mut lay = |name, role, shape| ledger.region(Slot::new(name, Role::Work, profile.dtype(role), shape)).first;
        let low = lay(low, Role::Work, [1, 1, tokens, rows]);
        Some(AdapterRoom { low, spread: lay(spread, role, self.largest_spread()) })
    }

    /// The gradient operations of `of`, the adapters of projection `p` of layer `l`, writing to `grads`.
    pub(super) fn adapting_grad(
        of: Option<Adapting>,
        grads: Option<Adapter>,
        l: u32,
        training: &Training,
        accumulate: bool,
    ) -> Option<AdaptingGrad> {
        let (of, Adapter { a, b }, room) = (of?, grads?, training.adapters?);
        let low = room.low.reshaped(of.low.shape);
        let grads = AdapterRoom { low, spread: room.spread.reshaped(of.spread.shape) };
        Some(AdaptingGrad { of, grads, a_grad: a.at(l), b_grad: b.at(l), accumulate })
    }
}
