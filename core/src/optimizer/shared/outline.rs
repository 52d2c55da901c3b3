//! What a model's parameters take of the sections, and which neighbours in them are moved alike.

use super::table::COLUMNS;
use crate::memory::{Dtype, Ledger, Section, Sections, Stacked};
use crate::model::{Parameter, Parameters};
use crate::optimizer::learning::{RANGES, TOO_MANY};
use crate::optimizer::matrices::Matrices;
use crate::optimizer::rule::STATES;
use crate::optimizer::{Group, Learns, Optimizer};

/// Why they do not share a model of other parameters, nor are its gradients released.
const OTHER: &str = "ranks share parameters that learn at the end of a step and are of one type, and gradients are released of no \
                     others; this model has others";

/// Why ranks do not share a matrix that is smaller than what its rule keeps of its rows and columns.
const NARROW: &str = "ranks share as many bytes of each state as of all parameters, and the rule of some small matrix keeps more of its \
                      rows and columns; use another rule for its group, or --states f32";

/// Neighbours in a section that are moved alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::optimizer) struct Range {
    pub(in crate::optimizer) group: Group,
    /// The section; of layers the first.
    pub(in crate::optimizer) section: Section,
    /// Its first row there, and its rows.
    pub(in crate::optimizer) first: u32,
    pub(in crate::optimizer) rows: u32,
    /// Its first row there in each table that its rule keeps.
    pub(in crate::optimizer) kept: [u32; STATES],
    /// What it is taken apart into, where it is one parameter that moves as whole matrices.
    pub(in crate::optimizer) matrices: Option<Matrices>,
}

/// Rows that a tensor of this shape takes.
fn grains(shape: [u32; 2]) -> u64 {
    let [rows, columns] = shape.map(u64::from);
    (rows * columns).div_ceil(COLUMNS.into())
}

/// Rows that a tensor of this shape and type takes of a table whose rows are of type `table`: what is kept in f32 may lie among blocks of 8 bits.
pub(super) fn rows_of([.., rows, columns]: [u32; 4], dtype: Dtype, table: Dtype) -> u64 {
    let bytes = grains([rows, columns]).saturating_mul(dtype.row_bytes(COLUMNS));
    bytes.div_ceil(table.row_bytes(COLUMNS))
}

/// What a model's parameters take of the sections, found as they are listed.
#[derive(Clone, Copy)]
pub(super) struct Outline {
    /// Rows before the layers, of a layer, behind them.
    pub(super) rows: [u64; 3],
    layers: u32,
}

impl Outline {
    pub(super) const NOTHING: Outline = Outline { rows: [0; 3], layers: 1 };

    /// Takes the next parameter: its section, of layers the first, its first row there, and its rows.
    pub(super) fn take(&mut self, p: &Parameter) -> (Section, u64, u64) {
        let section = match p.is_layered() {
            true => Section::Layer(0),
            false if self.rows[1] == 0 => Section::Before,
            false => Section::Behind,
        };
        if p.is_layered() {
            self.layers = p.layers;
        }
        let [first, rows] = self.add(p, section, grains(p.shape));
        (section, first, rows)
    }

    /// Takes what is kept of a parameter in `section`, `each` rows a tensor: its first row there, and its rows.
    pub(super) fn add(&mut self, p: &Parameter, section: Section, each: u64) -> [u64; 2] {
        // Several of one name that belong to no layer follow each other.
        let rows = if p.is_layered() { each } else { each.saturating_mul(p.layers.into()) };
        let taken = &mut self.rows[section.kind()];
        let first = *taken;
        *taken = first.saturating_add(rows);
        [first, rows]
    }

    /// So many layers.
    pub(super) const fn layers(self, layers: u32) -> Outline {
        Outline { layers, ..self }
    }

    /// The sections; nothing where they have more rows than are counted, which `ledger` then refuses.
    pub(super) fn sections(&self, ledger: &mut dyn Ledger) -> Sections {
        let mut counted = |rows: u64| {
            let bytes = rows.saturating_mul(Dtype::F32.row_bytes(COLUMNS));
            ledger.range("all parameters", Dtype::F32, 0, bytes).rows()
        };
        let [before, layer, behind] = self.rows.map(&mut counted);
        let sections = Sections { before, layer, layers: self.layers, behind };
        if u64::from(counted(sections.total())) == sections.total() { sections } else { sections.map(|_| 0) }
    }
}

/// What a model's parameters come to.
pub(super) struct Outlines {
    /// Rows of each section.
    pub(super) sections: Sections,
    /// Those of each table that rules keep, where one does: of one process what they keep, of ranks what all have.
    pub(super) kept: [Option<Sections>; STATES],
    pub(super) ranges: [Option<Range>; RANGES],
    /// Which kinds of sections have matrices that are moved whole.
    pub(super) whole: [bool; 3],
    /// Why the model cannot be updated, where it cannot.
    pub(super) refused: Option<&'static str>,
}

/// Outlines the tables of `model`, whose weights are of type `dtype`.
pub(super) fn outline<M: Parameters>(
    model: &M,
    (alone, optimizer): (bool, &Optimizer),
    dtype: Dtype,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> Outlines {
    let (mut all, mut of_states, mut keeps) = (Outline::NOTHING, [Outline::NOTHING; STATES], [false; STATES]);
    let (mut ranges, mut whole, mut refused) = (heapless::Vec::new(), [false; 3], None);
    model.parameters(&mut |p| {
        let learns = optimizer.learns(p);
        if p.learns == Learns::InBackward || learns && weight(p) != dtype {
            refused = Some(OTHER);
        }
        if learns {
            let (section, first, rows) = all.take(p);
            let states = optimizer.of(p.group).rule.states();
            let kept = core::array::from_fn(|i| {
                let Some(state) = states.get(i) else { return first };
                keeps[i] = true;
                let slot = state.slot(p, optimizer.states);
                let each = rows_of(slot.shape, slot.dtype, optimizer.table_dtype(i));
                let [packed, _] = of_states[i].add(p, section, each);
                if !alone && each > grains(p.shape) {
                    refused = Some(NARROW);
                }
                if alone { packed } else { first }
            });
            let matrices = optimizer.moves_whole(p).then(|| Matrices::of(p));
            whole[section.kind()] |= matrices.is_some();
            if !extend(&mut ranges, optimizer, (p.group, section, matrices), [first, rows], kept) {
                refused = Some(TOO_MANY);
            }
        }
        Stacked::NOTHING
    });
    let sections = all.sections(ledger);
    let kept = core::array::from_fn(|i| {
        let mut own = || of_states[i].layers(sections.layers).sections(ledger);
        keeps[i].then(|| if alone { own() } else { sections })
    });
    Outlines { sections, kept, ranges: core::array::from_fn(|i| ranges.get(i).copied()), whole, refused }
}

/// Takes the next parameter into the last range or a new one: of `section` these rows, the first one and how many, and what
/// its rule keeps from these rows on. Says whether there was room.
fn extend(
    ranges: &mut heapless::Vec<Range, RANGES>,
    optimizer: &Optimizer,
    (group, section, matrices): (Group, Section, Option<Matrices>),
    rows: [u64; 2],
    kept: [u64; STATES],
) -> bool {
    // More rows than are counted were refused as they were laid.
    let counted = |rows: u64| rows.min(u32::MAX.into()) as u32;
    let ([first, rows], kept) = (rows.map(counted), kept.map(counted));
    let neighbour = |range: &&mut Range| {
        let alike = optimizer.of(range.group) == optimizer.of(group) && matrices.or(range.matrices).is_none();
        alike && (range.section, range.first.saturating_add(range.rows)) == (section, first)
    };
    match ranges.iter_mut().find(neighbour) {
        Some(range) => {
            range.rows = range.rows.saturating_add(rows);
            true
        }
        None => ranges.push(Range { group, section, first, rows, kept, matrices }).is_ok(),
    }
}
