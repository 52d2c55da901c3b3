//! Ranks that share the optimizer: each rank stores its share of masters and state, updates its share of the weights
//! and sends it to the other ranks (ZeRO stage 1, Rajbhandari et al. 2020).
//!
//! Every table of the learning parameters is laid in sections ([`Sections`]): the parameters before the first layer,
//! each layer's, and those after the last layer. A section is a table of rows. A rank's share of a section consists of
//! whole pieces of [`SquaredNorm::PIECE`] elements, so that the norm adds the same partial sums whatever the number of
//! ranks. A section with matrices that are updated as a whole (Muon) is not split: layers are assigned to the ranks in
//! turn, so that the update needs no message before that of the weights, and its work is shared as well. Gradients are
//! summed in the order of the ranks: each rank receives one piece of its share at a time from every rank ([`AllToAll`])
//! and sums them ([`SumParts`]). Where the sum has to be exact this happens after every micro-batch, and rank k mod n
//! computes micro-batch k, so that the additions are in the order of the micro-batches.
//!
//! Parameters that do not learn lie after the weights, complete on every rank. Where rules have different numbers of
//! state tables, each table is as long as that of all learning parameters.
//!
//! Ranks that also share gradients (stage 2) store only the sum of their share. A micro-batch forms the gradients of a
//! layer in a region that all layers use in turn, and they are summed before the next layer overwrites it.
//!
//! One process that releases gradients lays its tables in the same way ([`super::released`]); it shares nothing, and
//! each state table has only the rows that the rules need.
//!
//! The functions that lay and emit this are never inlined: a single process on a chip has no stack space for them.

mod outline;
mod table;

use super::learning::{Kept, Learning, RANGES, Updater};
use super::matrices::{self, MatrixTables, Stack};
use super::rule::STATES;
use super::{Averaged, Optimizer, Room, Rows};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Layers, Ledger, Region, Role, Section, Sections, Share, Sharing, Slot, Space, Window};
use crate::model::{Control, Parameter, Parameters};
use crate::ops::{AllGather, AllToAll, PieceNorms, SquaredNorm, SumNorms, SumParts};
use crate::train::Ranks;
use outline::{Outlines, Range, outline, rows_of};
use table::{COLUMNS, Table};

/// Rows of a piece, which is never split.
const PIECE_ROWS: u32 = SquaredNorm::PIECE as u32 / COLUMNS;
/// Bytes of gradients that a rank receives from all ranks at once: enough to hide the latency of a message, and small
/// next to a model. With so many ranks that a message would be smaller than a piece, a message is one piece.
const INCOMING: u64 = 32 << 20;
/// The reason why ranks release no gradients.
const RANKS: &str = "ranks that share a step add up gradients behind it, and release none";

/// Receives a rank's part of a range, with its averages if there are any.
type Visit<'v> = &'v mut dyn FnMut(&Range, Rows, Option<Averaged>) -> Result<(), OperationError>;

/// The names of a rank's share of a table: before the first layer, of the layers, after the last layer.
type Names = [&'static str; 3];

/// The names of the shares of the state tables.
const STATE_NAMES: [Names; STATES] = [
    ["before.share of first states", "layers.share of first states", "behind.share of first states"],
    ["before.share of second states", "layers.share of second states", "behind.share of second states"],
];

/// A rank's share of the optimizer, and the regions for summing gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shared {
    ranks: Ranks,
    /// Which kinds of sections are assigned to ranks as a whole, as [`Sharing::whole`].
    whole: [bool; 3],
    /// Rows of each section.
    sections: Sections,
    ranges: [Option<Range>; RANGES],
    weights: Table,
    /// The gradients of this rank's micro-batches.
    gradients: Table,
    /// The sum over all ranks of this rank's share, where it does not overwrite this rank's own gradients.
    sums: Option<Table>,
    /// This rank's share.
    masters: Option<Table>,
    /// As many as the rules have.
    states: [Table; STATES],
    averages: Option<Table>,
    /// [1, ranks, rows, 128]: pieces of gradients in transfer.
    incoming: Option<Region>,
    /// The offset of the pieces' squared norms. It is no [`Region`], because a chip that learns has this struct on its
    /// stack.
    norms: u64,
    /// The reason why the model cannot be updated, if it cannot.
    pub(super) refused: Option<&'static str>,
}

/// Lays the weights of `model` and the state of `optimizer` for one of several ranks.
#[inline(never)]
pub(super) fn lay<M: Parameters>(
    model: &M,
    (ranks, optimizer): (Ranks, &Optimizer),
    profile: &dyn Profile,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, Option<Learning<M::Table>>) {
    let (own, gradients, mut shared) = lay_tables(model, (ranks, optimizer), profile, weight, ledger);
    if optimizer.releases() {
        shared.refused = Some(RANKS);
    }
    let updater = Updater { optimizer: *optimizer, kept: Kept::Shared(shared) };
    (own, Some(Learning { gradients, updater }))
}

/// Lays the tables of `model` in sections: weights, gradients and optimizer state. A single process has whole tables,
/// and its sections' gradients use one region in turn.
pub(super) fn lay_tables<M: Parameters>(
    model: &M,
    (ranks, optimizer): (Ranks, &Optimizer),
    profile: &dyn Profile,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, M::Table, Shared) {
    let (alone, dtype) = (!ranks.shares(), profile.dtype(Role::Weight));
    let Outlines { sections, kept, ranges, whole, refused } = outline(model, (alone, optimizer), dtype, weight, ledger);
    let lay = |name, role, ledger: &mut dyn Ledger| {
        let dtype = profile.dtype(role);
        Table::lay(name, Space::Arena, dtype, &sections, ledger)
    };
    let weights = lay("weights", Role::Weight, ledger);
    let slot = |p: &Parameter| Some(p.slot("", Role::Weight, weight(p)));
    let own = weights.show(model, (optimizer, Space::Arena, Role::Weight), &slot, ledger);
    let gradients = match ranks.gradients || alone {
        true => Table::lay_in_turn(&sections, model.ends_take_turns(), profile.dtype(Role::Gradient), ledger),
        false => lay("gradients", Role::Gradient, ledger),
    };
    let slot = |p: &Parameter| Some(p.slot("gradient.", Role::Gradient, profile.dtype(Role::Gradient)));
    let formed = gradients.show(model, (optimizer, Space::Arena, Role::Gradient), &slot, ledger);
    let mut shared = Shared {
        ranks,
        whole,
        sections,
        ranges,
        weights,
        gradients,
        sums: None,
        masters: None,
        states: [gradients; STATES],
        averages: None,
        incoming: None,
        norms: 0,
        refused,
    };
    shared.lay_sums(ledger);
    let space = if alone { Space::Arena } else { Space::Shared };
    let mut share = |names: &Names, (role, dtype), sections: &Sections, slot: &dyn Fn(&Parameter) -> Option<Slot>| {
        let whole = Table::lay("a table of parameters", space, dtype, sections, ledger);
        whole.show(model, (optimizer, space, role), slot, ledger);
        if alone { whole } else { shared.lay_share(names, (role, dtype), Some(&whole), ledger) }
    };
    let masters = optimizer.remainder.filter(|_| dtype != Dtype::F32).map(|remainder| {
        let names = ["before.share of masters", "layers.share of masters", "behind.share of masters"];
        let slot = |p: &Parameter| Some(p.slot("master.", Role::Master, remainder));
        share(&names, (Role::Master, remainder), &sections, &slot)
    });
    let mut states = [gradients; STATES];
    for (i, (state, names)) in states.iter_mut().zip(&STATE_NAMES).enumerate() {
        let slot = |p: &Parameter| Some(optimizer.of(p.group).rule.states().get(i)?.slot(p, optimizer.states));
        if let Some(sections) = &kept[i] {
            *state = share(names, (Role::Moment, optimizer.table_dtype(i)), sections, &slot);
        }
    }
    let averages = optimizer.averages().then(|| {
        let names = ["before.share of averages", "layers.share of averages", "behind.share of averages"];
        let slot = |p: &Parameter| Some(p.slot("average.", Role::Average, Dtype::F32));
        share(&names, (Role::Average, Dtype::F32), &sections, &slot)
    });
    (shared.masters, shared.states, shared.averages) = (masters, states, averages);
    (own, formed, shared)
}

impl Shared {
    const fn sharing(&self) -> Sharing {
        Sharing { ranks: self.ranks.count, whole: self.whole }
    }

    /// The number of pieces in each section.
    fn pieces(&self) -> Sections {
        self.sections.map(|rows| rows.div_ceil(PIECE_ROWS))
    }

    fn share(&self, section: Section) -> Share {
        self.sharing().of(self.ranks.rank, &self.pieces(), section, PIECE_ROWS)
    }

    /// The layers of which this rank owns rows.
    const fn layers(&self) -> Layers {
        self.sharing().layers_of(self.ranks.rank, self.sections.layers)
    }

    /// Lays the regions for summing gradients.
    fn lay_sums(&mut self, ledger: &mut dyn Ledger) {
        let count = self.ranks.count;
        let names = ["before.gradient sum", "layers.gradient sum", "behind.gradient sum"];
        self.sums = self.ranks.each().then(|| self.lay_share(&names, (Role::Gradient, Dtype::F32), None, ledger));
        let mut region = |name, shape| ledger.region(Slot::new(name, Role::Work, Dtype::F32, shape)).first;
        let bytes = u64::from(COLUMNS) * Dtype::F32.size() * u64::from(count);
        let shares = self.sharing().most(&self.pieces());
        let longest = u64::from(shares.before.max(shares.layer).max(shares.behind)) * u64::from(PIECE_ROWS);
        let most = (INCOMING / bytes).max(PIECE_ROWS.into()).min(longest) as u32;
        self.incoming = (count > 1).then(|| region("gradients of ranks", [1, count, most, COLUMNS]));
        let pieces = shares.total().min(u32::MAX.into()) as u32;
        self.norms = region("norms of pieces", [1, count, pieces, 1]).offset;
    }

    /// Lays this rank's share of a table that is as long as the gradients', as a window of `whole` where that is given.
    fn lay_share(
        &self,
        names: &Names,
        (role, dtype): (Role, Dtype),
        whole: Option<&Table>,
        ledger: &mut dyn Ledger,
    ) -> Table {
        let Layers { first, every, count, most } = self.layers();
        let mut lay = |name, section, layers: [u32; 2]| {
            let (share, rows) = (self.share(section), self.sections.len(section));
            let slot = Slot::new(name, role, dtype, [1, 1, share.rows, COLUMNS]).layers(layers[1]);
            let Some(whole) = whole else { return ledger.region(slot).first.offset };
            let own = share.own(0, rows);
            let own = whole.rows(section, own.start, own.len() as u32);
            let stride = u64::from(every) * whole.stride;
            ledger.window(slot, Window { of: [own.offset, own.end()], stride, layers: layers[0] }).offset
        };
        // A rank without layers still has room for as many as any other rank.
        let layer = Section::Layer(if count > 0 { first } else { 0 });
        Table {
            dtype,
            before: lay(names[0], Section::Before, [1; 2]),
            layers: lay(names[1], layer, [count, most]),
            stride: u64::from(self.share(layer).rows) * dtype.row_bytes(COLUMNS),
            every,
            behind: lay(names[2], Section::Behind, [1; 2]),
        }
    }

    /// The gradients of `section` from this rank's micro-batches.
    fn gradient(&self, section: Section) -> Region {
        self.gradients.rows(section, 0, self.sections.len(section))
    }

    /// `rows` rows of the sum, from row `first` of this rank's share of `section` on.
    fn sum(&self, section: Section, first: u32, rows: u32) -> Region {
        match self.sums {
            Some(sums) => sums.rows(section, first, rows),
            // The sum overwrites this rank's gradients, which were copied before.
            None => {
                let own = self.share(section).own(0, self.sections.len(section));
                self.gradients.rows(section, own.start + first, rows)
            }
        }
    }

    /// The ranks, and what they share.
    pub(super) const fn ranks(&self) -> Ranks {
        self.ranks
    }

    /// Ends a micro-batch: sums the results of all ranks, and their gradients unless that is done. Adds the sums to the
    /// earlier ones if `adds`.
    ///
    /// # Errors
    /// An error of the device.
    #[inline(never)]
    pub(super) fn reduce(&self, device: &mut dyn Device, control: &Control, adds: bool) -> Result<(), OperationError> {
        if let Some(all) = control.of_ranks {
            let Ranks { rank, count, .. } = self.ranks;
            let each = all.slice_rows(1, count);
            if count > 1 {
                device.emit(AllGather { whole: each, first: 0, share: Share::of_rows(rank, count, 1) })?;
            }
            let parts = each.reshaped([1, count, 1, Control::RANK]);
            device.emit(SumParts { parts, sum: all.slice_rows(0, 1), adds })?;
        }
        if self.ranks.gradients {
            return Ok(());
        }
        // On a device with two streams, the transfer of one section overlaps with the sums of others.
        self.sections.as_formed().try_for_each(|section| self.exchange(device, section, adds))
    }

    /// Sums the gradients of `section` over all ranks, and adds the sum to the earlier one if `adds`.
    ///
    /// # Errors
    /// An error of the device.
    #[inline(never)]
    pub(super) fn exchange(&self, device: &mut dyn Device, section: Section, adds: bool) -> Result<(), OperationError> {
        let (from, share) = (self.gradient(section), self.share(section));
        if from.rows() == 0 {
            return Ok(());
        }
        let own = share.own(0, from.rows()).len() as u32;
        let Some(incoming) = self.incoming else {
            let parts = from.reshaped([1, 1, from.rows(), COLUMNS]);
            return device.emit(SumParts { parts, sum: self.sum(section, 0, own), adds });
        };
        let rows = incoming.shape[2].min(share.rows).max(1);
        let to = incoming.reshaped([1, self.ranks.count, rows, COLUMNS]);
        (0..share.rows).step_by(rows as usize).try_for_each(|first| {
            device.emit(AllToAll { from, to, share, first })?;
            match own.saturating_sub(first).min(rows) {
                0 => Ok(()),
                here => device.emit(SumParts { parts: to, sum: self.sum(section, first, here), adds }),
            }
        })
    }

    /// The squared norms of all ranks' pieces, [ranks, the pieces of a rank].
    fn norms(&self) -> Region {
        // There are fewer pieces than rows, and the number of rows was checked when they were laid.
        let each = self.sharing().most(&self.pieces()).total() as u32;
        Region { space: Space::Arena, dtype: Dtype::F32, offset: self.norms, shape: [1, 1, self.ranks.count, each] }
    }

    /// Computes the norms of this rank's pieces of `section`, `[pieces]`; `None` if it has no pieces.
    pub(super) fn norms_of(&self, device: &mut dyn Device, section: Section) -> Result<Option<Region>, OperationError> {
        let own = self.share(section).own(0, self.sections.len(section)).len() as u32;
        if own == 0 {
            return Ok(None);
        }
        let whole = self.norms();
        let first = self.ranks.rank * whole.columns() + self.sharing().most(&self.pieces()).start(section) as u32;
        let rows = whole.reshaped([1, 1, whole.rows() * whole.columns(), 1]);
        let norms = rows.slice_rows(first, own.div_ceil(PIECE_ROWS));
        device.emit(PieceNorms { gradient: self.sum(section, 0, own), norms })?;
        Ok(Some(norms))
    }

    /// Computes the norm of the summed gradients from the norms of all ranks' pieces.
    pub(super) fn norm(&self, device: &mut dyn Device, results: Region) -> Result<(), OperationError> {
        let (Ranks { rank, count, .. }, norms) = (self.ranks, self.norms());
        if count > 1 {
            let each = norms.columns();
            let whole = norms.reshaped([1, count, each, 1]);
            device.emit(AllGather { whole, first: 0, share: Share::of_rows(rank, count, each) })?;
        }
        device.emit(SumNorms { norms, sections: self.pieces(), whole: self.whole, results })
    }

    /// The ranges of `section`.
    pub(super) fn ranges(&self, section: Section) -> impl Iterator<Item = &Range> {
        let kind = if let Section::Layer(_) = section { Section::Layer(0) } else { section };
        self.ranges.iter().flatten().filter(move |range| range.section == kind)
    }

    /// Sums the gradients of all ranks unless that is done, clips by their global norm, updates this rank's part of
    /// every range, averages it and sends it to the other ranks.
    ///
    /// # Errors
    /// An error of the device; a model that ranks cannot share.
    #[inline(never)]
    pub(super) fn update(
        &self,
        device: &mut dyn Device,
        control: &Control,
        optimizer: &Optimizer,
        room: Option<&Room>,
    ) -> Result<(), OperationError> {
        if let Some(why) = self.refused {
            return Err(OperationError::Unsupported(why));
        }
        if !self.ranks.each() {
            self.reduce(device, control, false)?;
        }
        for section in self.sections.as_formed() {
            self.norms_of(device, section)?;
        }
        self.norm(device, control.results)?;
        self.each(optimizer, &mut |range, of, _| match range.matrices {
            None => optimizer.emit(device, control, range.group, of),
            Some(_) => Ok(()),
        })?;
        let places: heapless::Vec<MatrixTables, RANGES> =
            self.ranges.iter().flatten().filter_map(|range| self.place(optimizer, range, self.layers())).collect();
        matrices::update(device, control, optimizer, &places, room)?;
        self.each(optimizer, &mut |_, _, averaged| {
            averaged.map_or(Ok(()), |averaged| averaged.average(device, control))
        })?;
        self.gather(device)
    }

    /// Swaps this rank's part of the weights with its averages, and sends it to the other ranks.
    ///
    /// # Errors
    /// An error of the device.
    #[inline(never)]
    pub(super) fn exchange_averages(
        &self,
        device: &mut dyn Device,
        optimizer: &Optimizer,
    ) -> Result<(), OperationError> {
        self.each(optimizer, &mut |_, _, averaged| averaged.map_or(Ok(()), |averaged| averaged.exchange(device)))?;
        self.gather(device)
    }

    /// Calls `visit` with this rank's part of every range of every section.
    pub(super) fn each(&self, optimizer: &Optimizer, visit: Visit<'_>) -> Result<(), OperationError> {
        self.sections.all().try_for_each(|section| self.each_of(optimizer, section, visit))
    }

    /// Calls `visit` with this rank's part of every range of `section`.
    pub(super) fn each_of(
        &self,
        optimizer: &Optimizer,
        section: Section,
        visit: Visit<'_>,
    ) -> Result<(), OperationError> {
        let (share, begins) = (self.share(section), self.share(section).own(0, self.sections.len(section)).start);
        for range in self.ranges(section) {
            let own = share.own(range.first, range.rows);
            let (first, rows) = (range.first + own.start, own.len() as u32);
            if rows == 0 {
                continue;
            }
            let here = |table: Table| table.rows(section, first - begins, rows);
            let of = Rows {
                weight: self.weights.rows(section, first, rows),
                remainder: self.masters.map(here),
                gradient: self.sum(section, first - begins, rows),
                states: core::array::from_fn(|i| {
                    let here = self.states[i].rows(section, range.kept[i] + own.start - begins, rows);
                    Region { dtype: optimizer.state_dtype(range.group, i), ..here }
                }),
            };
            let averages = self.averages.map(here);
            let Rows { weight, remainder, .. } = of;
            visit(range, of, averages.map(|average| Averaged { weight, remainder, average }))?;
        }
        Ok(())
    }

    /// Sends this rank's part of the weights to the other ranks, and receives theirs.
    fn gather(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        if self.ranks.count == 1 {
            return Ok(());
        }
        self.sections.all().filter(|section| self.sections.len(*section) > 0).try_for_each(|section| {
            let whole = self.weights.rows(section, 0, self.sections.len(section));
            device.emit(AllGather { whole, first: 0, share: self.share(section) })
        })
    }

    /// The tables of the matrices of `range` that this rank updates, if it updates any; of the layers, those in
    /// `layers`.
    pub(super) fn place(&self, optimizer: &Optimizer, range: &Range, layers: Layers) -> Option<MatrixTables> {
        let (Range { group, section, first, rows, kept, .. }, matrices) = (*range, range.matrices?);
        let (section, every, matrices) = match section {
            Section::Layer(_) => (Section::Layer(layers.first), layers.every, matrices.of_layers(layers.count)?),
            _ if self.share(section).own(first, rows).is_empty() => return None,
            _ => (section, 1, matrices),
        };
        // For matrices that belong to no layer: rows from one matrix to the next.
        let apart = rows / matrices.layers();
        let strided = |table: Table, first, apart: u64| {
            let stride = match section {
                Section::Layer(_) => table.stride * u64::from(every / table.every),
                _ => apart * table.dtype.row_bytes(COLUMNS),
            };
            Stack { dtype: table.dtype, first: table.rows(section, first, rows).offset, stride: Some(stride) }
        };
        let stack = |table, first| strided(table, first, apart.into());
        let [momentum, squares] = core::array::from_fn(|i| {
            let (table, dtype) = (self.states[i], optimizer.state_dtype(group, i));
            // In a single process the state has only the rows that the rule needs.
            let state = optimizer.of(group).rule.states().get(i).filter(|_| !self.ranks.shares());
            let own = state.map(|state| rows_of(state.shape(matrices.shape()), dtype, table.dtype));
            Stack { dtype, ..strided(table, kept[i], own.unwrap_or(apart.into())) }
        });
        Some(MatrixTables {
            group,
            matrices,
            weight: stack(self.weights, first),
            remainder: self.masters.map(|table| stack(table, first)),
            gradient: stack(self.sums.unwrap_or(self.gradients), first),
            momentum,
            squares,
        })
    }
}
