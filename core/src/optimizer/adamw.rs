//! AdamW (Loshchilov and Hutter 2019): a gradient, two moments and, for weights of fewer bits, an f32 master each.

use super::{Optimizer, Rule};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Ledger, Region, Role, Stacked};
use crate::model::{Control, Parameter, Parameters};
use crate::ops::{AdamW, SquaredNorm};

/// The most ranges of a model's parameters.
const RANGES: usize = 8;

/// The bytes of neighbours in a table that AdamW moves alike.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    decays: bool,
    /// What splits ranges: in every table alike.
    weight: Dtype,
    dtype: Dtype,
    start: u64,
    end: u64,
}

/// The ranges of a table, found as it is laid.
#[derive(Default)]
struct Ranges {
    found: heapless::Vec<Bytes, RANGES>,
    /// Whether the last parameter belongs to the last range.
    open: bool,
    /// Whether there were too many.
    full: bool,
}

impl Ranges {
    /// Takes the next parameter, whose weight is of type `weight`, laid at `place` up to `end`.
    fn take(&mut self, rule: Rule, weight: Dtype, place: Region, end: u64) {
        let Rule::AdamW { decays } = rule else {
            self.open = false;
            return;
        };
        let next = Bytes { decays, weight, dtype: place.dtype, start: place.offset, end };
        match self.found.last_mut().filter(|last| self.open && (last.decays, last.weight) == (decays, weight)) {
            Some(last) => last.end = end,
            None => self.full |= self.found.push(next).is_err(),
        }
        self.open = true;
    }
}

/// Lays one table of `model`'s parameters: all of them as weights, otherwise those that AdamW moves, in the type `dtype`.
fn table<M: Parameters>(
    model: &M,
    (prefix, role, dtype): (&'static str, Role, Option<Dtype>),
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, Ranges) {
    let mut ranges = Ranges::default();
    let table = model.parameters(&mut |p| {
        if role != Role::Weight && !matches!(p.rule, Rule::AdamW { .. }) {
            ranges.open = false;
            return Stacked::NOTHING;
        }
        let weight = weight(p);
        let place = ledger.region(p.slot(prefix, role, dtype.unwrap_or(weight)));
        ranges.take(p.rule, weight, place.first, ledger.mark());
        place
    });
    (table, ranges)
}

/// Neighbouring parameters that one operation moves.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    decays: bool,
    weight: Region,
    master: Option<Region>,
    gradient: Region,
    first: Region,
    second: Region,
}

/// What AdamW keeps from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    ranges: [Option<Range>; RANGES],
    /// Every gradient, as one region.
    gradient: Region,
    /// Whether the model has more ranges than there is room for.
    full: bool,
}

/// What training keeps of a model's parameters; `T` is its table of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Learning<T> {
    /// The gradients of those that AdamW moves.
    pub gradients: T,
    /// What AdamW keeps.
    pub moments: Moments,
}

/// Lays the weights of `model` in the types that `weight` says and, in training, masters, gradients and moments.
pub fn lay<M: Parameters>(
    model: &M,
    training: bool,
    profile: &dyn Profile,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, Option<Learning<M::Table>>) {
    let (weights, weight_ranges) = table(model, ("", Role::Weight, None), weight, ledger);
    if !training {
        return (weights, None);
    }
    let mut other = |prefix, role| table(model, (prefix, role, Some(profile.dtype(role))), weight, ledger);
    let reduced = weight_ranges.found.iter().any(|range| range.dtype != Dtype::F32);
    let masters = reduced.then(|| other("master.", Role::Master).1);
    let (gradients, gradient_ranges) = other("gradient.", Role::Gradient);
    let [first, second] = ["first_moment.", "second_moment."].map(|prefix| other(prefix, Role::Moment).1);
    let moments = Moments::of([&weight_ranges, &gradient_ranges, &first, &second], masters.as_ref(), ledger);
    (weights, Some(Learning { gradients, moments }))
}

impl Moments {
    fn of(
        [weights, gradients, first, second]: [&Ranges; 4],
        masters: Option<&Ranges>,
        ledger: &mut dyn Ledger,
    ) -> Moments {
        let mut region = |of: &Ranges, i: usize| {
            of.found.get(i).map(|b| ledger.range("a range of parameters", b.dtype, b.start, b.end))
        };
        let ranges = core::array::from_fn(|i| {
            Some(Range {
                decays: weights.found.get(i)?.decays,
                weight: region(weights, i)?,
                master: masters.and_then(|m| region(m, i)),
                gradient: region(gradients, i)?,
                first: region(first, i)?,
                second: region(second, i)?,
            })
        });
        let ends = gradients.found.first().zip(gradients.found.last());
        let (dtype, start, end) = ends.map_or((Dtype::F32, 0, 0), |(a, z)| (a.dtype, a.start, z.end));
        let gradient = ledger.range("all gradients", dtype, start, end);
        Moments { ranges, gradient, full: weights.full }
    }

    /// Clips by the global norm of all gradients, then moves every range.
    ///
    /// # Errors
    /// What the device could not do; a model of too many ranges.
    pub fn update(
        &self,
        device: &mut dyn Device,
        control: &Control,
        optimizer: &Optimizer,
    ) -> Result<(), OperationError> {
        if self.full {
            return Err(OperationError::Device);
        }
        let Control { settings, results } = *control;
        let Optimizer { beta1, beta2, eps, .. } = *optimizer;
        device.emit(SquaredNorm { gradient: self.gradient, results })?;
        self.ranges.iter().flatten().try_for_each(|range| {
            let Range { decays, weight, master, gradient, first, second } = *range;
            let decay = if decays { optimizer.decay } else { 0.0 };
            device.emit(AdamW { weight, master, gradient, first, second, settings, results, beta1, beta2, eps, decay })
        })
    }
}
