//! The rows that a model's parameters occupy in the sections, and the ranges of adjacent parameters updated alike.

use super::table::COLUMNS;
use crate::memory::{Dtype, Ledger, Section, Sections, Stacked};
use crate::model::{Parameter, Parameters};
use crate::optimizer::learning::{RANGES, TOO_MANY};
use crate::optimizer::matrices::Matrices;
use crate::optimizer::rule::STATES;
use crate::optimizer::{Group, Learns, Optimizer};

/// The error for a model with other parameters, for ranks and for released gradients.
const OTHER: &str = "ranks share parameters that learn at the end of a step and are of one type, and gradients are released of no \
                     others; this model has others";

/// The error for a matrix whose state for rows and columns is larger than the matrix itself, which ranks cannot share.
const NARROW: &str = "ranks share as many bytes of each state as of all parameters, and the rule of some small matrix keeps more of its \
                      rows and columns; use another rule for its group, or --states f32";

/// Adjacent parameters in a section that are updated alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::optimizer) struct Range {
    pub(in crate::optimizer) group: Group,
    /// The section; for layers, the first layer.
    pub(in crate::optimizer) section: Section,
    /// The range's first row in the section, and its number of rows.
    pub(in crate::optimizer) first: u32,
    pub(in crate::optimizer) rows: u32,
    /// The range's first row in each state table of its rule.
    pub(in crate::optimizer) kept: [u32; STATES],
    /// The matrices of the range, where it is one parameter that is updated as whole matrices.
    pub(in crate::optimizer) matrices: Option<Matrices>,
}

/// Rows that a tensor of this shape occupies.
fn grains(shape: [u32; 2]) -> u64 {
    let [rows, columns] = shape.map(u64::from);
    (rows * columns).div_ceil(COLUMNS.into())
}

/// Rows that a tensor of this shape and type occupies in a table whose rows are of type `table`: f32 states may lie
/// between blocks of 8 bits.
pub(super) fn rows_of([.., rows, columns]: [u32; 4], dtype: Dtype, table: Dtype) -> u64 {
    let bytes = grains([rows, columns]).saturating_mul(dtype.row_bytes(COLUMNS));
    bytes.div_ceil(table.row_bytes(COLUMNS))
}

/// The rows that a model's parameters occupy in the sections, accumulated as they are listed.
#[derive(Clone, Copy)]
pub(super) struct Outline {
    /// Rows before the first layer, of each layer, and after the last layer.
    pub(super) rows: [u64; 3],
    layers: u32,
}

impl Outline {
    pub(super) const NOTHING: Outline = Outline { rows: [0; 3], layers: 1 };

    /// Adds the next parameter: returns its section (for layers, the first), its first row there, and its number of
    /// rows.
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

    /// Adds a parameter's state to `section`, `each` rows for each tensor: returns its first row there, and its number
    /// of rows.
    pub(super) fn add(&mut self, p: &Parameter, section: Section, each: u64) -> [u64; 2] {
        // Several tensors of one name that belong to no layer are adjacent.
        let rows = if p.is_layered() { each } else { each.saturating_mul(p.layers.into()) };
        let taken = &mut self.rows[section.kind()];
        let first = *taken;
        *taken = first.saturating_add(rows);
        [first, rows]
    }

    /// The same outline with `layers` layers.
    pub(super) const fn layers(self, layers: u32) -> Outline {
        Outline { layers, ..self }
    }

    /// The sections; empty where they have more rows than 32 bits can count, which `ledger` then refuses.
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

/// The outline of a model's parameters.
pub(super) struct Outlines {
    /// Rows of each section.
    pub(super) sections: Sections,
    /// The sections of each state table, if a rule has it: in one process the rules' rows, with ranks the rows of all
    /// parameters.
    pub(super) kept: [Option<Sections>; STATES],
    pub(super) ranges: [Option<Range>; RANGES],
    /// Which kinds of sections have matrices that are updated as a whole.
    pub(super) whole: [bool; 3],
    /// The reason why the model cannot be updated, if it cannot.
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

/// Adds the next parameter to the last range or to a new one: its first row and number of rows in `section`, and the
/// first rows of its state. Returns whether there was room.
fn extend(
    ranges: &mut heapless::Vec<Range, RANGES>,
    optimizer: &Optimizer,
    (group, section, matrices): (Group, Section, Option<Matrices>),
    rows: [u64; 2],
    kept: [u64; STATES],
) -> bool {
    // A number of rows beyond 32 bits was refused when the tables were laid.
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
