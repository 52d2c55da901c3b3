//! The weights of a model, and the training state of a single process: masters, gradients, the rules' state and
//! averages. Each is a table in which adjacent parameters that are updated alike are contiguous.

use core::array::from_fn;

use super::learning::{Kept, Learning, RANGES, TOO_MANY, Updater};
use super::matrices::{self, Matrices, MatrixTables, Stack};
use super::rule::STATES;
use super::{Averaged, Group, Optimizer, Room, Rows};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Layout, Ledger, Region, Role, Slot, Space, Stacked};
use crate::model::{Control, Parameter, Parameters};
use crate::ops::SquaredNorm;

/// Adjacent parameters that one operation updates: rows of [`Layout::GRAIN`] elements. Small, because a chip has it on
/// its stack: all ranges share one type for each table but the weights, and every region has the same rows.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    group: Group,
    /// The weights' type.
    dtype: Dtype,
    /// The number of rows, and the offset at which they begin in each table.
    rows: u32,
    weight: u64,
    remainder: Option<u64>,
    gradient: u64,
    states: [u64; STATES],
    /// The matrices of the range, where it is one parameter that is updated as whole matrices.
    matrices: Option<Matrices>,
}

/// The training state of a single process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Whole {
    ranges: [Option<Range>; RANGES],
    /// Every gradient, as one region.
    gradient: Region,
    /// The offset of the averages, which are laid as the gradients are, if there are any.
    averages: Option<u64>,
    /// Whether the model has more ranges than there is room for.
    full: bool,
}

/// Assigns parameters, in the order in which they are listed, to ranges.
struct Ranges<'o> {
    optimizer: &'o Optimizer,
    /// The number of ranges so far.
    count: usize,
    /// Group and type of the last parameter, if the next one may belong to the same range.
    last: Option<(Group, Dtype)>,
}

impl<'o> Ranges<'o> {
    const fn new(optimizer: &'o Optimizer) -> Self {
        Ranges { optimizer, count: 0, last: None }
    }

    /// The range of the next parameter, whose weight is of type `weight`; `None` where it has no gradient.
    fn of(&mut self, p: &Parameter, weight: Dtype) -> Option<usize> {
        if !self.optimizer.learns(p) {
            self.last = None;
            return None;
        }
        // A parameter that is updated as whole matrices is a range by itself.
        let alike = |(group, dtype)| {
            let recipe = self.optimizer.of(group);
            recipe == self.optimizer.of(p.group) && dtype == weight && !recipe.rule.is_whole()
        };
        if !self.last.is_some_and(alike) {
            self.count += 1;
        }
        self.last = Some((p.group, weight));
        Some(self.count - 1)
    }
}

/// The first byte of a range in a table, and the byte after its last one.
type Bytes = [u64; 2];

/// Lays a table of `model`'s parameters with the slots that `slot` gives, if any; `slot` receives a parameter and, if
/// it has a gradient, the index of its range. Also returns the bytes of each range in the table.
fn table<M: Parameters>(
    model: &M,
    optimizer: &Optimizer,
    weight: &dyn Fn(&Parameter) -> Dtype,
    slot: &mut dyn FnMut(&Parameter, Option<usize>) -> Option<Slot>,
    ledger: &mut dyn Ledger,
) -> (M::Table, [Option<Bytes>; RANGES]) {
    let (mut ranges, mut found) = (Ranges::new(optimizer), [None; RANGES]);
    let table = model.parameters(&mut |p| {
        let range = ranges.of(p, weight(p));
        let Some(slot) = slot(p, range) else { return Stacked::NOTHING };
        let place = ledger.region(slot);
        if let Some(bytes) = range.and_then(|i| found.get_mut(i)) {
            let [start, _] = bytes.unwrap_or([place.first.offset; 2]);
            *bytes = Some([start, ledger.mark()]);
        }
        place
    });
    (table, found)
}

/// Lays only the weights of `model`, in the types that `weight` gives.
pub(super) fn lay_alone<M: Parameters>(
    model: &M,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, Option<Learning<M::Table>>) {
    (model.parameters(&mut |p| ledger.region(p.slot("", Role::Weight, weight(p)))), None)
}

/// Lays the weights of `model` in the types that `weight` gives, and the state of `optimizer` in a single process.
#[inline(never)]
pub(super) fn lay<M: Parameters>(
    model: &M,
    optimizer: &Optimizer,
    profile: &dyn Profile,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, Option<Learning<M::Table>>) {
    let mut groups: heapless::Vec<(Group, Dtype, Option<Matrices>), RANGES> = heapless::Vec::new();
    let mut full = false;
    let mut all = |p: &Parameter, range: Option<usize>| {
        let dtype = weight(p);
        if range.is_some_and(|i| i >= groups.len()) {
            let matrices = optimizer.moves_whole(p).then(|| Matrices::of(p));
            full |= groups.push((p.group, dtype, matrices)).is_err();
        }
        Some(p.slot("", Role::Weight, dtype))
    };
    let (weights, of_weights) = table(model, optimizer, weight, &mut all, ledger);
    let mut learnt = |slot: &dyn Fn(&Parameter) -> Option<Slot>| {
        table(model, optimizer, weight, &mut |p, range| range.and_then(|_| slot(p)), ledger)
    };
    let reduced = groups.iter().any(|(_, dtype, _)| *dtype != Dtype::F32);
    let master = |p: &Parameter| Some(p.slot("master.", Role::Master, optimizer.remainder?));
    let of_masters = if reduced && optimizer.remainder.is_some() { learnt(&master).1 } else { [None; RANGES] };
    let dtype = profile.dtype(Role::Gradient);
    let (gradients, of_gradients) = learnt(&|p| Some(p.slot("gradient.", Role::Gradient, dtype)));
    let of_states: [_; STATES] = from_fn(|i| {
        let state = |p: &Parameter| Some(optimizer.of(p.group).rule.states().get(i)?.slot(p, optimizer.states));
        learnt(&state).1
    });
    let first = |bytes: Option<Bytes>| bytes.map_or(0, |[start, _]| start);
    let averages = optimizer.averages().then(|| lay_averages(model, optimizer, weight, ledger));
    let ranges = from_fn(|i| {
        let (group, dtype, matrices) = *groups.get(i)?;
        let [start, end] = of_weights[i]?;
        Some(Range {
            group,
            dtype,
            // A range with too many rows was refused when it was laid.
            rows: ledger.range("a range of parameters", dtype, start, end).rows(),
            weight: start,
            remainder: of_masters[i].map(|[start, _]| start),
            gradient: first(of_gradients[i]),
            states: of_states.map(|state| first(state[i])),
            matrices,
        })
    });
    let mut laid = of_gradients.into_iter().flatten();
    let [start, end] = laid.next().map_or([0; 2], |[start, end]| [start, laid.last().map_or(end, |[_, end]| end)]);
    let gradient = ledger.range("all gradients", profile.dtype(Role::Gradient), start, end);
    let updater = Updater { optimizer: *optimizer, kept: Kept::Whole(Whole { ranges, gradient, averages, full }) };
    (weights, Some(Learning { gradients, updater }))
}

/// Lays the averages and returns their offset. A function of its own for the same reason as [`Whole::averaged`].
#[inline(never)]
fn lay_averages<M: Parameters>(
    model: &M,
    optimizer: &Optimizer,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> u64 {
    let mut average =
        |p: &Parameter, range: Option<usize>| range.map(|_| p.slot("average.", Role::Average, Dtype::F32));
    let ranges = table(model, optimizer, weight, &mut average, ledger).1;
    ranges.into_iter().flatten().next().map_or(0, |[start, _]| start)
}

/// Rows of a table, from byte `offset` on.
const fn band(dtype: Dtype, offset: u64, rows: u32) -> Region {
    Region { space: Space::Arena, dtype, offset, shape: [1, 1, rows, Layout::GRAIN as u32] }
}

impl Whole {
    /// Clips by the global norm, then updates every range and averages it.
    ///
    /// # Errors
    /// An error of the device; a model of too many ranges.
    pub(super) fn update(
        &self,
        device: &mut dyn Device,
        control: &Control,
        optimizer: &Optimizer,
        room: Option<&Room>,
    ) -> Result<(), OperationError> {
        if self.full {
            return Err(OperationError::Unsupported(TOO_MANY));
        }
        device.emit(SquaredNorm { gradient: self.gradient, results: control.results })?;
        self.move_matrices(device, control, optimizer, room)?;
        let by_element = |range: &&Range| range.rows > 0 && range.matrices.is_none();
        self.ranges.iter().flatten().filter(by_element).try_for_each(|range| {
            let rows = range.rows;
            let of = Rows {
                weight: band(range.dtype, range.weight, rows),
                remainder: range.remainder.zip(optimizer.remainder).map(|(offset, dtype)| band(dtype, offset, rows)),
                gradient: band(self.gradient.dtype, range.gradient, rows),
                states: from_fn(|i| band(optimizer.state_dtype(range.group, i), range.states[i], rows)),
            };
            optimizer.emit(device, control, range.group, of)
        })?;
        self.averaged(optimizer, &mut |averaged| averaged.average(device, control))
    }

    /// Swaps the weights with their averages.
    pub(super) fn exchange(&self, device: &mut dyn Device, optimizer: &Optimizer) -> Result<(), OperationError> {
        self.averaged(optimizer, &mut |averaged| averaged.exchange(device))
    }

    /// Calls `visit` with every range and its averages, if there are any. A function of its own: a chip has no
    /// averages, and no stack space for the work on them.
    #[inline(never)]
    fn averaged(
        &self,
        optimizer: &Optimizer,
        visit: &mut dyn FnMut(Averaged) -> Result<(), OperationError>,
    ) -> Result<(), OperationError> {
        let Some(averages) = self.averages else { return Ok(()) };
        self.ranges.iter().flatten().filter(|range| range.rows > 0).try_for_each(|range| {
            let before = (range.gradient - self.gradient.offset) / self.gradient.dtype.size() * Dtype::F32.size();
            visit(Averaged {
                weight: band(range.dtype, range.weight, range.rows),
                remainder: range
                    .remainder
                    .zip(optimizer.remainder)
                    .map(|(offset, dtype)| band(dtype, offset, range.rows)),
                average: band(Dtype::F32, averages + before, range.rows),
            })
        })
    }

    /// Updates the ranges that are whole matrices.
    #[inline(never)]
    fn move_matrices(
        &self,
        device: &mut dyn Device,
        control: &Control,
        optimizer: &Optimizer,
        room: Option<&Room>,
    ) -> Result<(), OperationError> {
        let place = |range: &Range| {
            let Range { group, dtype, weight, remainder, gradient, states: [momentum, squares], matrices, .. } = *range;
            let stack = |dtype, first| Stack { dtype, first, stride: None };
            Some(MatrixTables {
                group,
                matrices: matrices?,
                weight: stack(dtype, weight),
                remainder: remainder.zip(optimizer.remainder).map(|(first, dtype)| stack(dtype, first)),
                gradient: stack(self.gradient.dtype, gradient),
                momentum: stack(optimizer.state_dtype(group, 0), momentum),
                squares: stack(Dtype::F32, squares),
            })
        };
        let places: heapless::Vec<MatrixTables, RANGES> = self.ranges.iter().flatten().filter_map(place).collect();
        matrices::update(device, control, optimizer, &places, room)
    }
}
