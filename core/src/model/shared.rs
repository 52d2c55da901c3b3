//! What families have in common: how parameters are grouped and updated, what lasts, which activations are kept.

use super::scales::Scales;
use super::stage::{Control, ModelError, Optimizer, Recompute, Stage};
use crate::device::{OperationError, Profile, Run};
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot, Space, Stacked};
use crate::ops::{AdamW, SquaredNorm};

/// The ranges of a table of parameters that are updated alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Groups {
    /// All matrices, padding included: what decays.
    pub decayed: Region,
    /// All the rest.
    pub plain: Region,
    /// Both.
    pub all: Region,
}

impl Groups {
    /// The matrices were laid from byte `start` to `middle`, all the rest from there to `end`.
    pub(super) fn new(dtype: Dtype, start: u64, middle: u64, end: u64) -> Groups {
        let range = |start, end| range(dtype, start, end);
        Groups { decayed: range(start, middle), plain: range(middle, end), all: range(start, end) }
    }
}

/// The bytes from `start` to `end` as one region; both lie on the ledger's grain.
fn range(dtype: Dtype, start: u64, end: u64) -> Region {
    let columns = crate::memory::Layout::GRAIN;
    let rows = ((end - start) / dtype.size() / columns) as u32;
    Region { space: Space::Arena, dtype, offset: start, shape: [1, 1, rows, columns as u32] }
}

/// A family's table of parameters, or of what belongs to every parameter.
pub trait Grouped: Copy {
    /// Its ranges.
    fn groups(&self) -> &Groups;
}

/// What lasts from step to step; `P` is the family's table of parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lasting<P> {
    /// The weights.
    pub weights: P,
    /// Their f32 masters, in training with weights of fewer bits.
    pub masters: Option<P>,
    /// Gradient and both moments, in training.
    pub training: Option<[P; 3]>,
    /// [context, rotated dims / 2, 2].
    pub table: Region,
    /// Settings and results.
    pub control: Control,
    /// The scaling of values and of gradients that are copied in 8 bits, where they are.
    pub scales: Option<[Scales; 2]>,
}

impl<P: Grouped> Lasting<P> {
    /// Lays everything that lasts; `parameters` lays one table of them, `table` is [context, rotated dims / 2].
    pub(super) fn lay(
        profile: &dyn Profile,
        training: bool,
        table: [u32; 2],
        rotary_base: f32,
        ledger: &mut dyn Ledger,
        parameters: &dyn Fn(&'static str, Role, Dtype, &mut dyn Ledger) -> P,
    ) -> Lasting<P> {
        let mut lay = |prefix, role| parameters(prefix, role, profile.dtype(role), ledger);
        let weights = lay("", Role::Weight);
        let masters = (training && profile.masters()).then(|| lay("master.", Role::Master));
        let training = training.then(|| {
            [lay("gradient.", Role::Gradient), lay("first_moment.", Role::Moment), lay("second_moment.", Role::Moment)]
        });
        let init = Init::Rotary { base: rotary_base };
        let slot = Slot::new("rotary_table", Role::Constant, Dtype::F32, [1, table[0], table[1], 2]);
        let table = ledger.region(Slot { init, ..slot }).first;
        Lasting { weights, masters, training, table, control: Control::lay(ledger), scales: None }
    }

    /// Clips by the global norm of all gradients, then moves both groups; only matrices decay.
    pub(super) fn update<D>(&self, device: &mut D, optimizer: &Optimizer) -> Result<(), OperationError>
    where
        D: Run<SquaredNorm> + Run<AdamW>,
    {
        let Some([gradient, first, second]) = &self.training else { return Err(OperationError::Device) };
        let Control { settings, results } = self.control;
        device.run(SquaredNorm { gradient: gradient.groups().all, results })?;
        let group = |part: fn(&Groups) -> Region, decay| AdamW {
            weight: part(self.weights.groups()),
            master: self.masters.as_ref().map(|m| part(m.groups())),
            gradient: part(gradient.groups()),
            first: part(first.groups()),
            second: part(second.groups()),
            settings,
            results,
            beta1: optimizer.beta1,
            beta2: optimizer.beta2,
            eps: optimizer.eps,
            decay,
        };
        device.run(group(|g| g.decayed, optimizer.decay))?;
        device.run(group(|g| g.plain, 0.0))
    }
}

/// What the backward pass of every layer shares.
pub(super) struct Backward<'a, P, T> {
    pub state: &'a Lasting<P>,
    pub grads: &'a P,
    pub training: &'a T,
    pub stage: &'a Stage,
    pub accumulate: bool,
}

/// Which activations every layer has slots of its own for.
#[derive(Clone, Copy)]
pub(super) struct Keep {
    pub inputs: bool,
    pub products: bool,
    pub element_wise: bool,
}

impl Keep {
    pub const NOTHING: Keep = Keep { inputs: false, products: false, element_wise: false };

    pub const fn of(recompute: Recompute) -> Keep {
        match recompute {
            Recompute::None => Keep { inputs: true, products: true, element_wise: true },
            Recompute::Cheap => Keep { inputs: true, products: true, element_wise: false },
            Recompute::Full => Keep { inputs: true, products: false, element_wise: false },
        }
    }
}

/// Lays the activations of a forward pass over [batch, seq_len]: in slots of their own where they are kept.
pub(super) struct Activations<'a> {
    pub profile: &'a dyn Profile,
    pub ledger: &'a mut dyn Ledger,
    pub shape: [u32; 2],
}

impl Activations<'_> {
    /// [batch, seq_len, columns] in the type of activations.
    pub fn lay(&mut self, name: &'static str, keep: bool, layers: u32, columns: u32) -> Stacked {
        let dtype = self.profile.dtype(if keep { Role::Saved } else { Role::Work });
        self.lay_as(name, keep, layers, columns, dtype)
    }

    /// The same in f32: what a sum over many values gives (statistics, losses), whatever the profile.
    pub fn lay_f32(&mut self, name: &'static str, keep: bool, layers: u32, columns: u32) -> Stacked {
        self.lay_as(name, keep, layers, columns, Dtype::F32)
    }

    fn lay_as(&mut self, name: &'static str, keep: bool, layers: u32, columns: u32, dtype: Dtype) -> Stacked {
        let role = if keep { Role::Saved } else { Role::Work };
        let [batch, seq_len] = self.shape;
        let slot = Slot::new(name, role, dtype, [1, batch, seq_len, columns]);
        self.ledger.region(slot.layers(if keep { layers } else { 1 }))
    }

    /// `[batch · seq_len]`: a loss each row.
    pub fn losses(&mut self) -> Region {
        let rows = self.shape[0] * self.shape[1];
        self.ledger.region(Slot::new("losses", Role::Work, Dtype::F32, [1, 1, 1, rows])).first
    }

    /// [batch, heads, seq_len]: attention's logarithmic sums.
    pub fn log_sum(&mut self, keep: bool, layers: u32, heads: u32) -> Stacked {
        let [batch, seq_len] = self.shape;
        let slot = Slot::new("layers.log_sum", Role::Saved, Dtype::F32, [1, batch, heads, seq_len]);
        self.ledger.region(slot.layers(if keep { layers } else { 1 }))
    }
}

/// Refuses sizes of 0 and sizes that a region cannot have.
pub(super) fn check_sizes(sizes: &[(&'static str, u32)]) -> Result<(), ModelError> {
    if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        return Err(ModelError::Zero(name));
    }
    // A region's rows and a row's elements are 32-bit, and layers of a kind are summed in 64.
    match sizes.iter().find(|(_, size)| *size >= 1 << 28) {
        Some((name, _)) => Err(ModelError::TooLarge(name)),
        None => Ok(()),
    }
}

/// What a constant must be.
#[derive(Clone, Copy)]
pub(super) enum Must {
    /// A share or a decay: 0 to 1.
    Share,
    /// Above 0.
    Positive,
    /// A number.
    Finite,
}

pub(super) fn check_constants(constants: &[(&'static str, f32, Must)]) -> Result<(), ModelError> {
    for &(name, value, must) in constants {
        let (good, must) = match must {
            Must::Share => ((0.0..=1.0).contains(&value), "0 to 1"),
            Must::Positive => (value > 0.0 && value.is_finite(), "above 0"),
            Must::Finite => (value.is_finite(), "finite"),
        };
        if !good {
            return Err(ModelError::Constant { name, value, must });
        }
    }
    Ok(())
}

/// Whether a stage is one of a model of this context whose widest activation has `widest` columns, and whose
/// vocabulary has `vocabulary` rows.
pub(super) fn check_stage(stage: &Stage, context: u32, widest: u32, vocabulary: u32) -> Result<(), ModelError> {
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
    if stage.seq_len > context {
        return Err(ModelError::Context { seq_len: stage.seq_len, context });
    }
    let tokens = u64::from(stage.batch) * u64::from(stage.seq_len);
    let logits = u64::from(stage.chunk) * u64::from(vocabulary);
    if (tokens * u64::from(widest)).max(logits) > u64::from(u32::MAX) {
        return Err(ModelError::TooLarge("a micro-batch's widest activation"));
    }
    Ok(())
}
