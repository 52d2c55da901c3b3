//! What ranks share: each keeps its part of masters and moments, moves its part of the weights and gives it to the others
//! (ZeRO stage 1, Rajbhandari et al. 2020).
//!
//! All gradients are one table of rows. A rank's share of it is whole pieces of [`SquaredNorm::PIECE`] elements, so that the
//! norm is made of the same sums whatever the number of ranks. A gradient is added up in the order of the ranks: a piece of
//! the share at a time comes from every rank ([`AllToAll`]) and is summed ([`SumParts`]). Where that has to be exact it
//! happens after every micro-batch, and micro-batch k is formed by rank k mod n, so that the order of the additions is that
//! of the micro-batches.
//!
//! What emits these operations is never inlined: one process, on a chip for one, has no room for them on its stack.

use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Layout, Ledger, Region, Role, Share, Slot};
use crate::model::Control;
use crate::ops::{AllGather, AllToAll, PieceNorms, SquaredNorm, SumNorms, SumParts};
use crate::train::Ranks;

/// Rows of a piece, which is never cut.
const PIECE_ROWS: u32 = SquaredNorm::PIECE as u32 / Layout::GRAIN as u32;
/// Bytes of gradients that come from all ranks at once: enough to hide what a message costs, little beside a model. Of so
/// many ranks that a message would have less than a piece, it has that.
const INCOMING: u64 = 16 << 20;

/// A rank's share of the optimizer, and what gradients are added up with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shared {
    ranks: Ranks,
    /// Of the rows of all gradients.
    share: Share,
    /// [rows, 128]: every gradient of this rank's micro-batches.
    gradient: Region,
    /// [rows, 128]: the sum of all ranks' of this rank's share. Beyond its end there is nothing.
    sum: Region,
    /// [1, ranks, rows, 128]: pieces of it on their way.
    incoming: Option<Region>,
    /// `[pieces]`: the squared norm of each.
    norms: Option<Region>,
}

impl Shared {
    /// Lays what one of `ranks` needs to add up `gradient`.
    pub fn lay(ranks: Ranks, gradient: Region, ledger: &mut dyn Ledger) -> Shared {
        let (rows, columns) = (gradient.rows(), Layout::GRAIN as u32);
        let pieces = rows.div_ceil(PIECE_ROWS);
        let share = Share::of_pieces(ranks.rank, ranks.count, pieces, PIECE_ROWS);
        let own = share.own(0, rows);
        let mut region = |name, role, shape| ledger.region(Slot::new(name, role, Dtype::F32, shape)).first;
        let sum = if ranks.exact {
            let all = region("gradient sum", Role::Gradient, [1, 1, share.rows, columns]);
            all.slice_rows(0, own.len() as u32)
        } else {
            // What comes from this rank has left its place by then.
            gradient.slice_rows(own.start, own.len() as u32)
        };
        let others = ranks.count > 1;
        let bytes = u64::from(columns) * Dtype::F32.size() * u64::from(ranks.count);
        let most = (INCOMING / bytes).max(PIECE_ROWS.into()).min(share.rows.into()) as u32;
        let incoming = others.then(|| region("gradients of ranks", Role::Work, [1, ranks.count, most, columns]));
        let norms = others.then(|| region("norms of pieces", Role::Work, [1, 1, pieces, 1]));
        Shared { ranks, share, gradient, sum, incoming, norms }
    }

    /// Lays this rank's share of a table as long as that of the gradients; `begins` is where that table begins in the
    /// shared space.
    pub fn window(&self, name: &'static str, role: Role, begins: u64, ledger: &mut dyn Ledger) -> Region {
        let columns = Layout::GRAIN as u32;
        let slot = Slot::new(name, role, Dtype::F32, [1, 1, self.share.rows, columns]);
        let own = self.share.own(0, self.gradient.rows());
        ledger.window(slot, [own.start, own.end].map(|row| begins + u64::from(row) * Dtype::F32.row_bytes(columns)))
    }

    /// This rank's rows among `count` rows of all gradients from row `first` on, counted from `first`, and where they are in
    /// its share.
    pub fn own(&self, first: u32, count: u32) -> (core::ops::Range<u32>, u32) {
        let rows = self.share.own(first, count);
        let before = (u64::from(self.share.rank) * u64::from(self.share.rows)).min(u32::MAX.into()) as u32;
        let at = (first + rows.start).saturating_sub(before);
        (rows, at)
    }

    /// The gradients of this rank's share, added up.
    pub const fn sum(&self) -> Region {
        self.sum
    }

    /// Whether every micro-batch forms its gradient by itself.
    pub fn exact(&self) -> bool {
        self.ranks.exact
    }

    /// Adds up the gradients and results of all ranks, to those before where it `adds`.
    ///
    /// # Errors
    /// What the device could not do.
    #[inline(never)]
    pub fn reduce(&self, device: &mut dyn Device, control: &Control, adds: bool) -> Result<(), OperationError> {
        if let Some(all) = control.of_ranks {
            let Ranks { rank, count, .. } = self.ranks;
            let each = all.slice_rows(1, count);
            if count > 1 {
                device.emit(AllGather { whole: each, first: 0, share: Share { rank, ranks: count, rows: 1 } })?;
            }
            let parts = each.reshaped([1, count, 1, Control::RANK]);
            device.emit(SumParts { parts, sum: all.slice_rows(0, 1), adds })?;
        }
        let Some(to) = self.incoming else {
            let parts = self.gradient.reshaped([1, 1, self.gradient.rows(), self.gradient.columns()]);
            return device.emit(SumParts { parts, sum: self.sum, adds });
        };
        let rows = to.shape[2];
        (0..self.share.rows).step_by(rows as usize).try_for_each(|first| {
            device.emit(AllToAll { from: self.gradient, to, share: self.share, first })?;
            match self.sum.rows().saturating_sub(first).min(rows) {
                0 => Ok(()),
                here => device.emit(SumParts { parts: to, sum: self.sum.slice_rows(first, here), adds }),
            }
        })
    }

    /// The norm of the sum.
    ///
    /// # Errors
    /// What the device could not do.
    #[inline(never)]
    pub fn norm(&self, device: &mut dyn Device, results: Region) -> Result<(), OperationError> {
        let Some(norms) = self.norms else {
            return device.emit(SquaredNorm { gradient: self.sum, results });
        };
        let share = Share { rows: self.share.rows / PIECE_ROWS, ..self.share };
        let own = share.own(0, norms.rows());
        if !own.is_empty() {
            let norms = norms.slice_rows(own.start, own.len() as u32);
            device.emit(PieceNorms { gradient: self.sum, norms })?;
        }
        device.emit(AllGather { whole: norms, first: 0, share })?;
        device.emit(SumNorms { norms, results })
    }

    /// Gives the others this rank's rows of `whole`, whose first row is row `first` of the table, and takes theirs.
    ///
    /// # Errors
    /// What the device could not do.
    #[inline(never)]
    pub fn gather(&self, device: &mut dyn Device, whole: Region, first: u32) -> Result<(), OperationError> {
        if self.ranks.count == 1 {
            return Ok(());
        }
        device.emit(AllGather { whole, first, share: self.share })
    }
}
