//! Tables of parameters in sections, and the place of each parameter in them.

use super::outline::{Outline, rows_of};
use crate::memory::{Dtype, Layout, Ledger, Part, Region, Role, Section, Sections, Slot, Space, Stacked};
use crate::model::{Parameter, Parameters};
use crate::optimizer::Optimizer;

/// Elements in a row.
pub(super) const COLUMNS: u32 = Layout::GRAIN as u32;

/// The offsets of a table's sections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Table {
    pub(super) dtype: Dtype,
    pub(super) before: u64,
    pub(super) layers: u64,
    /// Bytes from the first byte of a layer to that of the next layer in this table; 0 where all layers share one
    /// region.
    pub(super) stride: u64,
    /// The number of layers of the model from one layer in this table to the next.
    pub(super) every: u32,
    pub(super) behind: u64,
}

impl Table {
    /// Reserves a table whose sections are contiguous.
    pub(super) fn lay(
        name: &'static str,
        space: Space,
        dtype: Dtype,
        sections: &Sections,
        ledger: &mut dyn Ledger,
    ) -> Table {
        let bytes = |rows: u64| rows.saturating_mul(dtype.row_bytes(COLUMNS));
        let start = ledger.table(name, space, bytes(sections.total()));
        let at = |section| start.saturating_add(bytes(sections.start(section)));
        Table {
            dtype,
            before: start,
            layers: at(Section::Layer(0)),
            stride: bytes(sections.layer.into()),
            every: 1,
            behind: at(Section::Behind),
        }
    }

    /// Reserves a table of gradients that exist until they are summed: all layers share one region, and so do the
    /// sections before and after the layers where `ends_take_turns`.
    pub(super) fn lay_in_turn(
        sections: &Sections,
        ends_take_turns: bool,
        dtype: Dtype,
        ledger: &mut dyn Ledger,
    ) -> Table {
        let bytes = |rows: u32| u64::from(rows) * dtype.row_bytes(COLUMNS);
        let [before, behind] = [sections.before, sections.behind].map(bytes);
        let start =
            ledger.table("gradients", Space::Arena, if ends_take_turns { before.max(behind) } else { before + behind });
        let layers = ledger.table("gradients", Space::Arena, bytes(sections.layer));
        let behind = if ends_take_turns { start } else { start + before };
        Table { dtype, before: start, layers, stride: 0, every: 1, behind }
    }

    /// Declares the learning parameters of `model` that have a `slot` in this table: contiguous, or in a table that
    /// ranks share at the rows of the weights. Lays the weights of other parameters after the table.
    pub(super) fn show<M: Parameters>(
        &self,
        model: &M,
        (optimizer, space, role): (&Optimizer, Space, Role),
        slot: &dyn Fn(&Parameter) -> Option<Slot>,
        ledger: &mut dyn Ledger,
    ) -> M::Table {
        let (mut all, mut shown) = (Outline::NOTHING, Outline::NOTHING);
        model.parameters(&mut |p| {
            if !optimizer.learns(p) {
                // Parameters that do not learn have weights and nothing else.
                let slot = slot(p).filter(|_| role == Role::Weight);
                return slot.map_or(Stacked::NOTHING, |slot| ledger.region(slot));
            }
            let (section, first, rows) = all.take(p);
            let Some(slot) = slot(p) else { return Stacked::NOTHING };
            let packed = shown.add(p, section, rows_of(slot.shape, slot.dtype, self.dtype));
            let [first, rows] = if space == Space::Shared { [first, rows] } else { packed };
            let offset = self.at(section).saturating_add(first.saturating_mul(self.dtype.row_bytes(COLUMNS)));
            // Where the sections before and after the layers begin at one offset, the latter overlays the bytes of the
            // former.
            let overlay = section == Section::Behind && self.behind == self.before && first < shown.rows[0];
            let apart = (rows / u64::from(p.layers.max(1))).saturating_mul(self.dtype.row_bytes(COLUMNS));
            let stride = if p.is_layered() { self.stride } else { apart };
            ledger.part(slot, Part { space, offset, stride, overlay })
        })
    }

    /// The offset at which `section` begins.
    pub(super) const fn at(&self, section: Section) -> u64 {
        match section {
            Section::Before => self.before,
            Section::Layer(l) => self.layers + (l / self.every) as u64 * self.stride,
            Section::Behind => self.behind,
        }
    }

    /// `rows` rows of `section` from row `first` on.
    pub(super) const fn rows(&self, section: Section, first: u32, rows: u32) -> Region {
        let offset = self.at(section) + first as u64 * self.dtype.row_bytes(COLUMNS);
        Region { space: Space::Arena, dtype: self.dtype, offset, shape: [1, 1, rows, COLUMNS] }
    }
}
