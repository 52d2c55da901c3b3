//! AdamW (Loshchilov and Hutter 2019): a gradient, two moments and, for a weight in bf16, what that lacks of its f32 master.

use super::shared::{self, Shared};
use super::{Optimizer, Rule};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Layout, Ledger, Region, Role, Section, Space, Stacked};
use crate::model::{Control, Parameter, Parameters};
use crate::ops::{AdamW, SquaredNorm};
use crate::train::Ranks;

/// The most ranges of a model's parameters.
pub(super) const RANGES: usize = 8;
/// Why a model with more is not updated.
pub(super) const TOO_MANY: &str =
    "AdamW moves at most 8 ranges of parameters; lay those of one type and one decay behind each other";

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

    /// All of them as one region.
    fn all(&self, ledger: &mut dyn Ledger) -> Region {
        let ends = self.found.first().zip(self.found.last());
        let (dtype, start, end) = ends.map_or((Dtype::F32, 0, 0), |(a, z)| (a.dtype, a.start, z.end));
        ledger.range("all gradients", dtype, start, end)
    }
}

/// A table of `model`'s parameters: all of them as weights, otherwise those that AdamW moves, in the type `dtype`.
type Described = (&'static str, Role, Option<Dtype>);

/// Lays such a table.
fn table<M: Parameters>(
    model: &M,
    (prefix, role, dtype): Described,
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

/// Neighbouring parameters that one operation moves: rows of [`Layout::GRAIN`] elements. Small, because a chip carries it on
/// its stack: the types of all but the weight are those of all ranges, and every region has the same rows.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    decays: bool,
    /// The weights' type.
    dtype: Dtype,
    /// Its rows, and where they begin in each table.
    rows: u32,
    weight: u64,
    remainder: Option<u64>,
    gradient: u64,
    first: u64,
    second: u64,
}

/// Rows of a table from byte `offset` on.
const fn band(dtype: Dtype, offset: u64, rows: u32) -> Region {
    Region { space: Space::Arena, dtype, offset, shape: [1, 1, rows, Layout::GRAIN as u32] }
}

/// What AdamW keeps from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Moments {
    /// All of it.
    Whole(Whole),
    /// What one of several ranks keeps.
    Shared(Shared),
}

/// What one process keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Whole {
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

impl<T> Learning<T> {
    /// Whether the gradients of a micro-batch are added to those before it, which is not the step's first unless `first`.
    pub fn accumulates(&self, first: bool) -> bool {
        !first && !matches!(&self.moments, Moments::Shared(shared) if shared.ranks().each())
    }

    /// Goes on from the gradients of `section`, which a micro-batch has formed, the step's first or a later one: where ranks
    /// share gradients they are added to the step's.
    ///
    /// # Errors
    /// What the device could not do.
    pub fn formed(&self, device: &mut dyn Device, section: Section, first: bool) -> Result<(), OperationError> {
        match &self.moments {
            Moments::Shared(shared) if shared.ranks().gradients => shared.exchange(device, section, !first),
            _ => Ok(()),
        }
    }

    /// Ends a micro-batch, the step's first or a later one: where every one forms its gradient by itself, it is added to the
    /// step's.
    ///
    /// # Errors
    /// What the device could not do.
    pub fn end_micro_batch(
        &self,
        device: &mut dyn Device,
        control: &Control,
        first: bool,
    ) -> Result<(), OperationError> {
        match &self.moments {
            Moments::Shared(shared) if shared.ranks().each() => shared.reduce(device, control, !first),
            _ => Ok(()),
        }
    }
}

/// Lays the weights of `model` in the types that `weight` says and, for one of the ranks in training, masters, gradients and
/// moments.
pub fn lay<M: Parameters>(
    model: &M,
    training: Option<Ranks>,
    profile: &dyn Profile,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, Option<Learning<M::Table>>) {
    if let Some(ranks) = training.filter(Ranks::shares) {
        return shared::lay(model, ranks, profile, weight, ledger);
    }
    let (weights, weight_ranges) = table(model, ("", Role::Weight, None), weight, ledger);
    if training.is_none() {
        return (weights, None);
    }
    let mut other = |prefix, role, dtype| table(model, (prefix, role, Some(dtype)), weight, ledger);
    let reduced = weight_ranges.found.iter().any(|range| range.dtype != Dtype::F32);
    let masters = reduced.then(|| other("master.", Role::Master, Dtype::Remainder).1);
    let (gradients, gradient_ranges) = other("gradient.", Role::Gradient, profile.dtype(Role::Gradient));
    let moment = |prefix| other(prefix, Role::Moment, profile.dtype(Role::Moment)).1;
    let [first, second] = ["first_moment.", "second_moment."].map(moment);
    let moments = Whole::of([&weight_ranges, &gradient_ranges, &first, &second], masters.as_ref(), ledger);
    (weights, Some(Learning { gradients, moments: Moments::Whole(moments) }))
}

impl Whole {
    fn of(
        [weights, gradients, first, second]: [&Ranges; 4],
        masters: Option<&Ranges>,
        ledger: &mut dyn Ledger,
    ) -> Whole {
        let ranges = core::array::from_fn(|i| {
            let weights = weights.found.get(i)?;
            // One that is too large was refused as it was laid.
            let rows = ledger.range("a range of parameters", weights.dtype, weights.start, weights.end).rows();
            Some(Range {
                decays: weights.decays,
                dtype: weights.dtype,
                rows,
                weight: weights.start,
                remainder: masters.and_then(|masters| masters.found.get(i)).map(|bytes| bytes.start),
                gradient: gradients.found.get(i)?.start,
                first: first.found.get(i)?.start,
                second: second.found.get(i)?.start,
            })
        });
        Whole { ranges, gradient: gradients.all(ledger), full: weights.full }
    }
}

impl Moments {
    /// Clips by the global norm, then moves every range. A rank adds up the gradients of all before, unless that is done, and
    /// moves its part, which it gives to the others.
    ///
    /// # Errors
    /// What the device could not do; a model of too many ranges.
    pub fn update(
        &self,
        device: &mut dyn Device,
        control: &Control,
        optimizer: &Optimizer,
    ) -> Result<(), OperationError> {
        let Whole { ranges, gradient, full } = match self {
            Moments::Whole(whole) => whole,
            Moments::Shared(shared) => return shared.update(device, control, optimizer),
        };
        if *full {
            return Err(OperationError::Unsupported(TOO_MANY));
        }
        let Control { settings, results, .. } = *control;
        let Optimizer { beta1, beta2, eps, .. } = *optimizer;
        device.emit(SquaredNorm { gradient: *gradient, results })?;
        ranges.iter().flatten().filter(|range| range.rows > 0).try_for_each(|range| {
            let Range { decays, dtype, rows, .. } = *range;
            let exact = |offset| band(Dtype::F32, offset, rows);
            device.emit(AdamW {
                weight: band(dtype, range.weight, rows),
                remainder: range.remainder.map(|offset| band(Dtype::Remainder, offset, rows)),
                gradient: band(gradient.dtype, range.gradient, rows),
                first: exact(range.first),
                second: exact(range.second),
                settings,
                results,
                beta1,
                beta2,
                eps,
                decay: if decays { optimizer.decay } else { 0.0 },
            })
        })
    }
}
