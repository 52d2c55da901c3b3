//! The second pass of sums over rows. While a graph is recorded it waits for the second passes of other sums, so that
//! one launch computes several: each is too short for a launch of its own.

use capful_core::device::{Op, OperationError};
use capful_core::memory::Dtype;

use crate::arguments::{FinishArgs, SumsArgs};
use crate::device::{Cuda, blocks, reduced};
use crate::profile::{SUMS, WORKSPACE};

/// Constants of columns.cu: columns of a block, pieces that a thread adds where there are few, and the most threads of
/// a block.
const COLUMNS: u32 = 8;
const EACH: u32 = 4;
const MOST: u32 = 1024;

/// Number of operations whose sums one launch computes.
const TOGETHER: usize = 8;

impl SumsArgs {
    const NOTHING: SumsArgs =
        SumsArgs { partial: 0, out: [0; 5], copy: 0, pieces: 0, sums: 0, columns: 0, accumulate: 0, reduced: 0 };

    /// The single sum over this number of pieces and columns.
    pub(crate) fn of(partial: u64, [pieces, columns]: [u32; 2], to: Places) -> SumsArgs {
        let Places { to, copy, accumulate, dtype } = to;
        let reduced = reduced(dtype);
        SumsArgs {
            partial,
            out: [to, 0, 0, 0, 0],
            copy,
            pieces,
            sums: 1,
            columns,
            accumulate: accumulate.into(),
            reduced,
        }
    }

    /// Bytes of one of its sums.
    fn bytes(&self) -> u64 {
        (if self.reduced > 0 { Dtype::Bf16 } else { Dtype::F32 }).size() * u64::from(self.columns)
    }

    /// Whether one of its sums is written to these bytes.
    fn writes(&self, [first, end]: [u64; 2]) -> bool {
        let bytes = self.bytes();
        self.out.iter().chain([&self.copy]).any(|&to| to != 0 && to < end && first < to + bytes)
    }
}

/// The target addresses of a sum; the copy's address may be null.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub to: u64,
    pub copy: u64,
    pub accumulate: bool,
    pub dtype: Dtype,
}

/// The address of pieces of sums, and whether their second pass may wait.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    pub at: u64,
    pub wait: bool,
}

/// Sums whose second pass waits.
pub(crate) struct Waiting {
    sums: heapless::Vec<SumsArgs, TOGETHER>,
    /// Bytes of scratch for their pieces.
    bytes: u64,
}

impl Waiting {
    pub(crate) const fn new() -> Waiting {
        Waiting { sums: heapless::Vec::new(), bytes: 0 }
    }

    /// Drops the waiting sums.
    pub(crate) fn clear(&mut self) {
        self.sums.clear();
    }

    /// Number of operations whose sums wait.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.sums.len()
    }

    /// Whether one of the waiting sums is written to these bytes.
    fn writes(&self, place: [u64; 2]) -> bool {
        self.sums.iter().any(|sums| sums.writes(place))
    }
}

impl Cuda {
    /// Scratch for `bytes` of pieces, for an operation that also uses `before` bytes. Where the second pass may wait,
    /// the pieces are outside the scratch of other operations; otherwise they follow the operation's `before` bytes.
    /// The scratch of a step has the size that its matrix multiplications need ([`WORKSPACE`] and [`SUMS`]).
    pub(crate) fn pieces_at(&mut self, before: u64, bytes: u64) -> Result<Pieces, OperationError> {
        let room = self.scratch().bytes() >= WORKSPACE + SUMS && before <= WORKSPACE && bytes <= SUMS;
        // Communication on the exchange stream may read such sums.
        if !(self.graphs.recording && room && self.ranks.stream.is_none()) {
            return Ok(Pieces { at: self.scratch_at(before, bytes)?, wait: false });
        }
        if self.deferred.sums.sums.is_full() || self.deferred.sums.bytes + bytes > SUMS {
            self.finish_all()?;
        }
        if self.deferred.sums.sums.is_empty() {
            self.deferred.sums.bytes = 0;
        }
        let at = self.scratch_beside(WORKSPACE + self.deferred.sums.bytes, bytes)?;
        self.deferred.sums.bytes = (self.deferred.sums.bytes + bytes).next_multiple_of(256);
        Ok(Pieces { at, wait: true })
    }

    /// Computes sums whose pieces are queued, at once or later.
    pub(crate) fn finish_columns(&mut self, sums: SumsArgs, wait: bool) -> Result<(), OperationError> {
        // The same bias may have waiting sums of another micro-batch.
        let bytes = sums.bytes();
        let places = sums.out.iter().chain([&sums.copy]).filter(|to| **to != 0);
        if places.into_iter().any(|to| self.deferred.sums.writes([*to, to + bytes])) {
            self.finish_all()?;
        }
        if !wait {
            return self.finish(&[sums]);
        }
        self.deferred.sums.sums.push(sums).map_err(|_| OperationError::Device)
    }

    /// Queues the waiting sums.
    pub(crate) fn finish_all(&mut self) -> Result<(), OperationError> {
        let sums = self.deferred.sums.sums.clone();
        self.deferred.sums.clear();
        if sums.is_empty() { Ok(()) } else { self.finish(&sums) }
    }

    /// Queues the waiting sums if `op` touches one of them.
    pub(crate) fn finish_before(&mut self, op: &Op) -> Result<(), OperationError> {
        if self.deferred.sums.sums.is_empty() {
            return Ok(());
        }
        let [arena, _] = self.arena_range();
        let mut touched = false;
        op.operands(&mut |operand| {
            let place = [operand.region.offset, operand.region.end()].map(|offset| arena + offset);
            touched |= self.deferred.sums.writes(place);
        });
        if touched { self.finish_all() } else { Ok(()) }
    }

    fn finish(&mut self, sums: &[SumsArgs]) -> Result<(), OperationError> {
        let mut arguments = FinishArgs { of: [SumsArgs::NOTHING; TOGETHER], ends: [0; TOGETHER] };
        let (mut grid, mut most) = (0, 0);
        for (i, sums) in sums.iter().enumerate() {
            grid += blocks(sums.columns.into(), COLUMNS) * sums.sums;
            most = most.max(sums.pieces);
            (arguments.of[i], arguments.ends[i]) = (*sums, grid);
        }
        let threads = (most.div_ceil(EACH) * COLUMNS).clamp(1, MOST).next_multiple_of(32);
        self.launch("columns", "finish_columns", [grid, 1, 1], threads, &arguments)
    }
}
