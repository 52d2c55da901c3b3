//! Batches, made ahead by a thread of their own in a fixed number of slots.
//!
//! Every slot is allocated at the start and reused: [`Loader::take`] moves a slot out and dropping the [`Batch`] moves
//! the slot back, so the training thread allocates nothing. The reader thread's memory in addition to the slots is
//! bounded by the longest document ([`super::source::SourceOptions::max_document`]).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use capful_core::data::BatchMut;

use super::error::SourceError;
use super::sequences::Sequences;
use super::stream::Position;
use capful_base::allocations::{self, Activity};

/// Stack of the reader thread, in bytes.
pub const STACK_BYTES: usize = 2 << 20;

/// Number of rows of one batch, and positions in each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows, B.
    pub rows: usize,
    /// Positions a row, T.
    pub length: usize,
}

/// The shape of each batch, counted from 0 at the beginning of the run.
pub type Shapes = Box<dyn Fn(u64) -> Shape + Send>;

/// A batch's index in a block: a block is a number of consecutive batches in which each row continues where it ended in
/// the batch before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InBlock {
    /// Index of the batch in the block.
    pub index: usize,
    /// Number of batches in the block.
    pub batches: usize,
}

/// The place of each batch in its block, for a model whose rows are streams with a persistent state. Batches are
/// counted as in [`Shapes`]. Without blocks, consecutive rows are consecutive pieces of the token stream.
pub type Blocks = Box<dyn Fn(u64) -> InBlock + Send>;

/// Divides the batches among ranks: of `ranks` ranks, rank number `rank` takes every batch whose number is `rank`
/// modulo `ranks`. A round is one batch for each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Number of this rank, below `ranks`.
    pub rank: u32,
    /// Number of ranks, at least 1.
    pub ranks: u32,
}

impl Turn {
    /// A single rank that takes every batch.
    pub const ALONE: Turn = Turn { rank: 0, ranks: 1 };

    /// Checks that the rank exists and that it can continue from batch `first`, with or without blocks.
    fn check(self, first: u64, blocks: bool) -> Result<(), SourceError> {
        let Self { rank, ranks } = self;
        if rank >= ranks {
            return Err(SourceError::Rank { rank, ranks });
        }
        if blocks && ranks > 1 {
            return Err(SourceError::RanksOfStreams { ranks });
        }
        if !first.is_multiple_of(u64::from(ranks)) {
            return Err(SourceError::Round { first, ranks });
        }
        Ok(())
    }
}

/// How many batches are made ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Number of slots, at least 1. A slot is in use while it is being filled, while it waits, and while the consumer
    /// has it.
    pub count: usize,
    /// Positions a slot holds: the largest B·T of the schedule.
    pub capacity: usize,
    /// Positions of the largest block; 0 if there are none.
    pub block: usize,
}

impl Slots {
    /// Bytes of the slots' tokens, targets and offsets: their whole memory but for a few words a slot.
    pub fn bytes(&self) -> u64 {
        (self.count as u64 * self.capacity as u64 + self.block as u64) * 12
    }
}

/// One slot's storage and its batch.
struct Slot {
    tokens: Box<[u32]>,
    targets: Box<[u32]>,
    offsets: Box<[u32]>,
    shape: Shape,
    number: u64,
    position: Position,
    targets_of_step: Option<u64>,
}

impl Slot {
    fn new(capacity: usize) -> Self {
        let zeros = || vec![0; capacity].into_boxed_slice();
        let shape = Shape { rows: 0, length: 0 };
        let position = Position::default();
        Self { tokens: zeros(), targets: zeros(), offsets: zeros(), shape, number: 0, position, targets_of_step: None }
    }

    fn size(&self) -> usize {
        self.shape.rows * self.shape.length
    }
}

/// Makes batches of a run's sequences, on the calling thread.
struct Filler {
    sequences: Box<dyn Sequences>,
    schedule: Shapes,
    number: u64,
    block: Option<Block>,
    turn: Turn,
}

/// A block of batches, read from the sequences at once.
struct Block {
    blocks: Blocks,
    storage: [Box<[u32]>; 3],
    /// The number of the first batch of the block in memory.
    first: Option<u64>,
    /// The positions of the sequences before and after that block.
    begin: Position,
    end: Position,
}

impl Filler {
    /// Fills a slot with the next batch; returns `false` after the last whole batch.
    fn fill(&mut self, slot: &mut Slot) -> Result<bool, SourceError> {
        match self.block.take() {
            None => self.fill_whole(slot),
            Some(mut block) => {
                let filled = self.fill_from_block(&mut block, slot);
                self.block = Some(block);
                filled
            }
        }
    }

    /// Copies the next batch's columns out of its block; the block is read with its first batch. A row has no context
    /// from before its block.
    fn fill_from_block(&mut self, block: &mut Block, slot: &mut Slot) -> Result<bool, SourceError> {
        let Shape { rows, length } = (self.schedule)(self.number);
        let InBlock { index, batches } = (block.blocks)(self.number);
        let (first, row) = (self.number - index as u64, length * batches);
        let capacity = slot.tokens.len().min(block.storage[0].len() / batches.max(1));
        let size = rows.checked_mul(length).filter(|&size| (1..=capacity).contains(&size));
        let (Some(size), true) = (size, index < batches) else {
            return Err(SourceError::Shape { rows, length, capacity });
        };
        if block.first != Some(first) {
            let [tokens, targets, offsets] = block.storage.each_mut().map(|s| &mut s[..rows * row]);
            let Ok(mut batch) = BatchMut::new(rows, row, tokens, targets, offsets) else {
                return Err(SourceError::Shape { rows, length, capacity });
            };
            block.begin = self.sequences.position();
            if !self.sequences.fill(&mut batch)? {
                return Ok(false);
            }
            block.end = self.sequences.position();
            block.first = Some(first);
        }
        let [tokens, targets, offsets] = &block.storage;
        for r in 0..rows {
            let (from, to) = (r * row + index * length, r * length);
            slot.tokens[to..to + length].copy_from_slice(&tokens[from..from + length]);
            slot.targets[to..to + length].copy_from_slice(&targets[from..from + length]);
            for (i, offset) in slot.offsets[to..to + length].iter_mut().enumerate() {
                *offset = offsets[from + i].min((index * length + i) as u32);
            }
        }
        debug_assert_eq!(size, rows * length);
        let position = if index + 1 == batches { block.end } else { block.begin };
        (slot.shape, slot.number, slot.position) = (Shape { rows, length }, self.number, position);
        self.number += 1;
        Ok(true)
    }

    /// Fills this rank's batch of the next round. A round counts only if every rank gets a batch, so all ranks end with
    /// the same round.
    fn fill_whole(&mut self, slot: &mut Slot) -> Result<bool, SourceError> {
        for rank in 0..self.turn.ranks {
            let whole = if rank == self.turn.rank { self.fill_own(slot)? } else { self.skip(slot.tokens.len())? };
            if !whole {
                return Ok(false);
            }
            self.number += 1;
        }
        slot.position = self.sequences.position();
        Ok(true)
    }

    /// The next batch's shape and its size; an error where a slot of `capacity` positions cannot hold it.
    fn shape(&self, capacity: usize) -> Result<(Shape, usize), SourceError> {
        let Shape { rows, length } = (self.schedule)(self.number);
        let size = rows.checked_mul(length).filter(|&size| (1..=capacity).contains(&size));
        let Some(size) = size else { return Err(SourceError::Shape { rows, length, capacity }) };
        Ok((Shape { rows, length }, size))
    }

    /// Skips another rank's batch. A batch that no slot can hold is refused here too: otherwise a single rank would
    /// stop.
    fn skip(&mut self, capacity: usize) -> Result<bool, SourceError> {
        let (Shape { rows, length }, _) = self.shape(capacity)?;
        self.sequences.skip(rows, length)
    }

    fn fill_own(&mut self, slot: &mut Slot) -> Result<bool, SourceError> {
        let capacity = slot.tokens.len();
        let (Shape { rows, length }, size) = self.shape(capacity)?;
        let (tokens, targets, offsets) =
            (&mut slot.tokens[..size], &mut slot.targets[..size], &mut slot.offsets[..size]);
        let Ok(mut batch) = BatchMut::new(rows, length, tokens, targets, offsets) else {
            return Err(SourceError::Shape { rows, length, capacity });
        };
        (slot.shape, slot.number) = (Shape { rows, length }, self.number);
        let filled = self.sequences.fill(&mut batch)?;
        slot.targets_of_step = self.sequences.targets_of_step();
        Ok(filled)
    }
}

/// State shared by the two threads. Slots move between the lists, which never grow beyond the number of slots.
struct State {
    free: Vec<Slot>,
    /// Filled slots, the next one last.
    ready: Vec<Slot>,
    error: Option<SourceError>,
    /// The reader has ended: with an error, or in good order after the last batch.
    ended: bool,
    complete: bool,
    /// The consumer was dropped.
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    /// A panic in the other thread leaves the lists consistent: every change is a single move.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the consumer that the reader has ended, however it ended.
struct EndOfReader<'a>(&'a Shared);

impl Drop for EndOfReader<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

fn read(shared: &Shared, mut filler: Filler) {
    let _end = EndOfReader(shared);
    loop {
        let mut state = shared.lock();
        let mut slot = loop {
            if state.stop {
                return;
            }
            match state.free.pop() {
                Some(slot) => break slot,
                None => state = shared.wait(state),
            }
        };
        drop(state);
        let filled = filler.fill(&mut slot);
        let mut state = shared.lock();
        match filled {
            Ok(true) => state.ready.insert(0, slot),
            Ok(false) => {
                state.complete = true;
                return;
            }
            Err(error) => {
                state.error = Some(error);
                return;
            }
        }
        shared.changed.notify_all();
    }
}

/// Batches of a run's sequences, in order, made ahead by a thread.
pub struct Loader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts to read `sequences` from their current position. `first` is the number of the first batch, for the
    /// schedule: 0 at the beginning of a run, and on resume the number of batches already taken, with the sequences at
    /// the position that the last of them reported. With several ranks this rank gets the batches of `turn`, and a
    /// batch's position is the position after its round.
    ///
    /// # Errors
    /// A rank that does not exist; several ranks with blocks, or from the middle of a round; a thread that cannot be
    /// started.
    pub fn start(
        sequences: Box<dyn Sequences>,
        schedule: Shapes,
        blocks: Option<Blocks>,
        first: u64,
        turn: Turn,
        slots: Slots,
    ) -> Result<Self, SourceError> {
        turn.check(first, blocks.is_some())?;
        let count = slots.count.max(1);
        let mut free = Vec::with_capacity(count);
        free.extend((0..count).map(|_| Slot::new(slots.capacity)));
        let ready = Vec::with_capacity(count);
        let state = State { free, ready, error: None, ended: false, complete: false, stop: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let block = blocks.map(|blocks| {
            let storage = [(); 3].map(|()| vec![0; slots.block].into_boxed_slice());
            Block { blocks, storage, first: None, begin: Position::default(), end: Position::default() }
        });
        let filler = Filler { sequences, schedule, number: first, block, turn };
        let thread = thread::Builder::new().name("reader".to_owned()).stack_size(STACK_BYTES).spawn({
            let shared = Arc::clone(&shared);
            move || allocations::during(Activity::Read, || read(&shared, filler))
        });
        let thread = Some(thread.map_err(|reason| SourceError::Thread { reason })?);
        Ok(Self { shared, thread })
    }

    /// The next batch, after waiting for it if needed; `None` after the last whole round of a finite stream (a
    /// remainder smaller than a batch for every rank is dropped).
    ///
    /// Batches already made come before an error; the error itself comes once, and [`SourceError::ReaderLost`] after
    /// it. A caller that owns as many batches as there are slots must drop one before it takes another, or it waits for
    /// ever.
    pub fn take(&self) -> Result<Option<Batch<'_>>, SourceError> {
        let mut state = self.shared.lock();
        loop {
            if let Some(slot) = state.ready.pop() {
                return Ok(Some(Batch { slot: Some(slot), shared: &self.shared }));
            }
            if state.ended {
                return match state.error.take() {
                    Some(error) => Err(error),
                    None if state.complete => Ok(None),
                    None => Err(SourceError::ReaderLost),
                };
            }
            state = self.shared.wait(state);
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the reader was already reported as ReaderLost.
            let _ = thread.join();
        }
    }
}

/// A batch borrowed from its loader. Dropping it returns its slot.
pub struct Batch<'a> {
    slot: Option<Slot>,
    shared: &'a Shared,
}

impl Batch<'_> {
    fn slot(&self) -> &Slot {
        match &self.slot {
            Some(slot) => slot,
            // Only `drop` takes the slot out.
            None => unreachable!("a batch on loan has its slot"),
        }
    }

    /// Rows and positions a row.
    pub fn shape(&self) -> Shape {
        self.slot().shape
    }

    /// The batch's number among those of all ranks, which the schedule received.
    pub fn number(&self) -> u64 {
        self.slot().number
    }

    /// The inputs, B·T, row after row.
    pub fn tokens(&self) -> &[u32] {
        &self.slot().tokens[..self.slot().size()]
    }

    /// The token after each input, B·T.
    pub fn targets(&self) -> &[u32] {
        &self.slot().targets[..self.slot().size()]
    }

    /// How many tokens of its document precede each input, B·T: 0 marks a document's start.
    pub fn offsets(&self) -> &[u32] {
        &self.slot().offsets[..self.slot().size()]
    }

    /// See [`Sequences::targets_of_step`].
    pub fn targets_of_step(&self) -> Option<u64> {
        self.slot().targets_of_step
    }

    /// The position of the sequences after this batch's round, where the next round continues: the same for all ranks.
    /// Within a block it is the position where the block begins.
    pub fn position(&self) -> Position {
        self.slot().position
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.shared.lock().free.push(slot);
            self.shared.changed.notify_all();
        }
    }
}

#[cfg(test)]
#[path = "loader_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "loader_turn_tests.rs"]
mod turn_tests;
