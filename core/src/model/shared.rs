//! What families have in common: how parameters are grouped and updated, what lasts, which activations are kept.

use super::scales::Scales;
use super::stage::{Control, ModelError, Optimizer, Recompute, Stage};
use crate::device::{Device, OperationError, Profile, count};
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot, Stacked};
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
    pub(super) fn new(dtype: Dtype, [start, middle, end]: [u64; 3], ledger: &mut dyn Ledger) -> Groups {
        let mut range = |name, start, end| ledger.range(name, dtype, start, end);
        Groups {
            decayed: range("all matrices", start, middle),
            plain: range("all vectors", middle, end),
            all: range("all parameters", start, end),
        }
    }
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
    pub(super) fn update(&self, device: &mut dyn Device, optimizer: &Optimizer) -> Result<(), OperationError> {
        let Some([gradient, first, second]) = &self.training else { return Err(OperationError::Device) };
        let Control { settings, results } = self.control;
        device.emit(SquaredNorm { gradient: gradient.groups().all, results })?;
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
        device.emit(group(|g| g.decayed, optimizer.decay))?;
        device.emit(group(|g| g.plain, 0.0))
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
    check_limits(sizes)
}

/// Refuses sizes of which a few together, such as the three parts of a projection, pass the 32 bits of a dimension.
pub(super) fn check_limits(sizes: &[(&'static str, u32)]) -> Result<(), ModelError> {
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

/// Whether a stage is one of a model of this context.
pub(super) fn check_stage(stage: &Stage, context: u32) -> Result<(), ModelError> {
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
    // Tokens are the rows of every activation.
    match stage.batch.checked_mul(stage.seq_len) {
        Some(_) => Ok(()),
        None => Err(ModelError::TooLarge("a micro-batch")),
    }
}

/// The shape of a slot that is of either shape in turn: that of more elements.
pub(super) fn larger(a: [u32; 4], b: [u32; 4]) -> [u32; 4] {
    let elements = |shape: [u32; 4]| count(&shape.map(u64::from));
    if elements(a) >= elements(b) { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Meter, Rates, Single};
    use crate::memory::{Entry, Layout};
    use crate::model::{Products, Purpose, Pythia, Steps, Yxanul};
    use crate::ops::Pattern;
    use crate::random::Random;

    /// Sizes from small to absurd.
    const SIZES: [u32; 10] = [1, 2, 16, 48, 256, 1 << 16, (1 << 20) + 16, (1 << 28) - 16, (1 << 28) - 1, u32::MAX];

    fn stage(draw: &mut impl FnMut() -> u32) -> Stage {
        let (batch, seq_len, chunk) = (draw(), draw(), draw());
        let recompute = [Recompute::None, Recompute::Cheap, Recompute::Full][draw() as usize % 3];
        Stage { batch, seq_len, chunk, recompute, pattern: Pattern::DENSE, products: Products::Wide }
    }

    /// Lays and meters what `family` accepts; whether it did. The arena is no smaller than its largest region, computed
    /// in numbers of 128 bits: what wraps would be.
    fn lays<F>(family: &F, layers: u32, stage: &Stage) -> Option<bool>
    where
        F: Steps,
    {
        family.validate().ok()?;
        family.validate_stage(stage).ok()?;
        let mut largest = 0;
        let mut visit = |e: &Entry| {
            let bytes: u128 = e.slot.shape.iter().map(|n| u128::from(*n)).product::<u128>()
                * u128::from(e.slot.dtype.size())
                * u128::from(e.slot.layers);
            largest = bytes.max(largest);
        };
        let mut layout = Layout::new(&mut visit);
        let state = family.lay_state(&Single, Purpose::Training, &mut layout);
        let training = family.lay_training(stage, &Single, &mut layout);
        family.lay_evaluation(stage, &Single, &mut layout);
        family.lay_decoding(stage.seq_len, &Single, &mut layout);
        let Ok(bytes) = layout.high_water() else { return Some(false) };
        family.flops_per_token(stage.seq_len);
        if layers <= 2 {
            let mut meter = Meter::new(&Single, Rates::ONE);
            match family.micro_batch(&mut meter, &state, &training, stage, true) {
                Ok(()) | Err(OperationError::TooLarge { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(u128::from(bytes) >= largest);
        Some(true)
    }

    #[test]
    fn absurd_sizes_are_refused_or_laid_and_nothing_wraps() {
        let random = Random::new(5, 0);
        let (mut laid, mut too_large) = ([0, 0], [0, 0]);
        for i in 0..20_000 {
            let mut at = 100 * i;
            let mut draw = || {
                at += 1;
                SIZES[random.below(at, SIZES.len() as u64) as usize]
            };
            let (layers, d_model, heads, d_ff, vocab_size, context) =
                (draw(), draw(), 1, draw(), draw(), u32::MAX >> 4);
            let (rotary_base, norm_eps) = (1e4, 1e-5);
            let pythia =
                Pythia { layers, d_model, heads, d_ff, vocab_size, context, rotary_dims: 2, rotary_base, norm_eps };
            let (rank, tied) = ([None, Some(1)][i as usize % 2], true);
            let yxanul = Yxanul {
                layers,
                d_model,
                heads,
                kv_heads: 1,
                d_ff,
                vocab_size,
                context,
                rank,
                tied,
                rotary_base,
                norm_eps,
            };
            let stage = stage(&mut draw);
            for (f, found) in [lays(&pythia, layers, &stage), lays(&yxanul, layers, &stage)].into_iter().enumerate() {
                laid[f] += u32::from(found == Some(true));
                too_large[f] += u32::from(found == Some(false));
            }
        }
        assert!(laid.iter().chain(&too_large).all(|&n| n > 100), "{laid:?} laid, {too_large:?} too large");
    }
}
