//! Rows of whole conversations: as many conversations as fit into each row, with padding after the last.
//!
//! An epoch's conversations are permuted and cut into windows. The conversations of a window are packed, the longest
//! first, each into the row that has least room for it (best fit decreasing); the rows are then permuted. All of this
//! follows from the seed, the epoch and the window, so a run can resume from three numbers.

use std::collections::BTreeSet;
use std::sync::Arc;

use capful_core::data::{BatchMut, CONTEXT, IGNORE, as_input, as_target};
use capful_core::permutation::Permutation;
use capful_core::random::{Random, stream};

use super::super::error::SourceError;
use super::super::shards::training::TrainingTokens;
use super::super::source::SourcePosition;
use super::super::split::Split;
use super::super::stream::Position;
use super::Sequences;
use capful_config::Overflow;

/// Conversations that are packed together, in one window.
const WINDOW: u64 = 4096;
/// Tokens that are read at once to count targets.
const PIECE: usize = 1 << 14;

/// Bytes that the table of `documents` conversations takes, and the rows of a window.
pub fn bytes(documents: u64) -> u64 {
    documents * size_of::<Entry>() as u64 + 3 * WINDOW * 32
}

/// The shape of a run's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Positions of a row.
    pub length: u32,
    /// Rows of a step, over all its micro-batches and ranks; 0 where a step also has other rows, and its targets are
    /// counted elsewhere.
    pub step: u64,
}

/// A conversation to train on.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Offset of its first token in the training tokens.
    begin: u64,
    /// Number of its tokens that are read.
    tokens: u32,
    /// How many of these are targets.
    targets: u32,
}

impl Entry {
    /// Number of positions in a row: the last token is a target only.
    fn positions(&self) -> u32 {
        self.tokens - 1
    }
}

/// The result of packing conversations into rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packing {
    /// Conversations to train on.
    pub conversations: u64,
    /// Conversations among these whose end does not fit into a row and is left out.
    pub cut: u64,
    /// Conversations that are left out: too long, or without a target in the part that fits.
    pub dropped: u64,
    /// Rows of the first epoch.
    pub rows: u64,
    /// Tokens of an epoch that are targets.
    pub targets: u64,
    /// Positions of an epoch that are no padding.
    pub positions: u64,
}

impl Packing {
    /// Describes the packing, for people.
    pub fn describe(&self, length: u32) -> String {
        let Self { conversations, cut, dropped, rows, targets, positions } = *self;
        let full = 100.0 * positions as f64 / (rows * u64::from(length)).max(1) as f64;
        let mut line = format!(
            "{conversations} conversations in {rows} rows of {length}, {full:.1} % full; {targets} tokens of answers to learn"
        );
        if cut > 0 {
            line += &format!("; {cut} are longer and cut (--overflow cut)");
        }
        if dropped > 0 {
            line += &format!("; {dropped} left out, whose answers do not fit");
        }
        line
    }
}

/// The place of a row: its epoch, its window, its number in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Cursor {
    epoch: u32,
    window: u64,
    row: usize,
}

/// A window's rows, each as the numbers of its conversations.
#[derive(Debug, Default)]
struct Window {
    of: Option<(u32, u64)>,
    rows: Vec<Vec<u32>>,
}

/// The rows of a run.
pub struct Packed {
    tokens: TrainingTokens,
    entries: Arc<[Entry]>,
    seed: u64,
    rows: Rows,
    fingerprint: u64,
    packing: Packing,
    /// The window that is being read, and the window of the last look-ahead.
    here: Window,
    ahead: Window,
    cursor: Cursor,
    /// Rows read in all, rows read in this epoch, and rows read since the run began or was resumed.
    read: u64,
    epoch_read: u64,
    since: u64,
    /// Targets of the current step.
    targets: u64,
    ids: Vec<u32>,
}

/// The conversations that a run trains on: found by one pass over all of their tokens, and shared by all users.
#[derive(Debug, Clone)]
pub struct Table {
    entries: Arc<[Entry]>,
    /// The packing without its number of rows, which depends on the seed too.
    packing: Packing,
}

impl Table {
    /// The conversations of the training side `tokens` under `split`, for rows of `length`.
    ///
    /// # Errors
    /// A shard that cannot be read; conversations without any target.
    pub fn of(
        tokens: &mut TrainingTokens,
        split: &Split,
        length: u32,
        overflow: Overflow,
    ) -> Result<Self, SourceError> {
        let (mut lengths, mut packing) = (Vec::new(), Packing::default());
        tokens.documents(split, |tokens| lengths.push(tokens))?;
        let mut entries = Vec::with_capacity(lengths.len());
        let (mut begin, most) = (0, u64::from(length) + 1);
        let mut add = |begin, tokens: u64, targets: u64| {
            packing.targets += targets;
            packing.positions += tokens - 1;
            entries.push(Entry { begin, tokens: tokens as u32, targets: targets as u32 });
        };
        for all in lengths {
            let fits = all <= most;
            let (found, mut first) = (targets(tokens, begin, all)?, [0]);
            tokens.read(begin, &mut first)?;
            if !fits && found + 1 == all && first[0] & CONTEXT == 0 {
                // A text among conversations continues in further rows.
                (0..all - 1).step_by(length as usize).for_each(|at| {
                    let tokens = (all - at).min(most);
                    add(begin + at, tokens, tokens - 1);
                });
            } else {
                let found = match overflow {
                    _ if fits => found,
                    Overflow::Cut => targets(tokens, begin, most)?,
                    Overflow::Drop => 0,
                };
                match found {
                    0 => packing.dropped += 1,
                    _ => {
                        packing.cut += u64::from(!fits);
                        add(begin, all.min(most), found);
                    }
                }
            }
            begin += all;
        }
        if entries.is_empty() {
            return Err(SourceError::NothingFits { name: tokens.name().to_owned(), length });
        }
        packing.conversations = entries.len() as u64;
        Ok(Self { entries: entries.into(), packing })
    }
}

impl Packed {
    /// The rows, in the order of `seed`, of the conversations of `table`. `table` was made from `tokens`, whose source
    /// has this fingerprint.
    pub fn new(tokens: TrainingTokens, table: Table, fingerprint: u64, seed: u64, rows: Rows) -> Self {
        let mut packed = Self {
            tokens,
            entries: table.entries,
            seed,
            rows,
            fingerprint,
            packing: table.packing,
            here: Window::default(),
            ahead: Window::default(),
            cursor: Cursor::default(),
            read: 0,
            epoch_read: 0,
            since: 0,
            targets: 0,
            ids: Vec::new(),
        };
        packed.packing.rows = (0..packed.windows()).map(|window| packed.pack(0, window).len() as u64).sum();
        packed
    }

    /// The result of packing the conversations.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// Positions of the first epoch, padding included; other epochs differ by a few rows.
    pub fn epoch_tokens(&self) -> u64 {
        self.packing.rows * u64::from(self.rows.length)
    }

    fn windows(&self) -> u64 {
        (self.entries.len() as u64).div_ceil(WINDOW)
    }

    /// The random numbers of an epoch and a window.
    fn random(&self, epoch: u32, window: u64, what: &str) -> Random {
        let key = Random::new(self.seed, stream("packed")).bits(u64::from(epoch) << 32 | window);
        Random::new(key, stream(what))
    }

    /// The rows of a window.
    fn pack(&self, epoch: u32, window: u64) -> Vec<Vec<u32>> {
        let count = self.entries.len() as u64;
        let order = Permutation::new(self.random(epoch, u64::from(u32::MAX), "conversations"), count);
        let mut those: Vec<u32> =
            (window * WINDOW..count.min((window + 1) * WINDOW)).map(|at| order.at(at) as u32).collect();
        let positions = |number: u32| self.entries[number as usize].positions();
        // A stable sort: conversations of equal length stay in random order.
        those.sort_by_key(|&number| std::cmp::Reverse(positions(number)));
        let (mut rows, mut room): (Vec<Vec<u32>>, BTreeSet<(u32, usize)>) = (Vec::new(), BTreeSet::new());
        for number in those {
            let needed = positions(number);
            let (space, row) = match room.range((needed, 0)..).next().copied() {
                Some(place) => {
                    room.remove(&place);
                    place
                }
                None => {
                    rows.push(Vec::new());
                    (self.rows.length, rows.len() - 1)
                }
            };
            rows[row].push(number);
            room.insert((space - needed, row));
        }
        let order = Permutation::new(self.random(epoch, window, "rows"), rows.len() as u64);
        (0..rows.len() as u64).map(|at| std::mem::take(&mut rows[order.at(at) as usize])).collect()
    }

    /// Returns the row at `cursor` and moves `cursor` to the next row.
    fn next(&mut self, cursor: &mut Cursor, ahead: bool) -> Vec<u32> {
        let of = (cursor.epoch, cursor.window);
        if self.here.of != Some(of) && self.ahead.of == Some(of) {
            std::mem::swap(&mut self.here, &mut self.ahead);
        }
        if self.here.of != Some(of) {
            let window = Window { of: Some(of), rows: self.pack(cursor.epoch, cursor.window) };
            *(if ahead && self.here.of.is_some() { &mut self.ahead } else { &mut self.here }) = window;
        }
        let window = if self.here.of == Some(of) { &self.here } else { &self.ahead };
        let row = window.rows[cursor.row].clone();
        cursor.row += 1;
        if cursor.row == window.rows.len() {
            *cursor = Cursor { epoch: cursor.epoch, window: cursor.window + 1, row: 0 };
            if cursor.window == self.windows() {
                *cursor = Cursor { epoch: cursor.epoch + 1, ..Cursor::default() };
            }
        }
        row
    }

    /// Targets of the next `rows` rows.
    pub fn targets_ahead(&mut self, rows: u64) -> u64 {
        let (mut cursor, mut targets) = (self.cursor, 0);
        for _ in 0..rows {
            let row = self.next(&mut cursor, true);
            targets += row.iter().map(|&n| u64::from(self.entries[n as usize].targets)).sum::<u64>();
        }
        targets
    }

    /// Goes to the place after the first `rows` rows. The rows of all windows before it are packed again: only packing
    /// tells the number of an epoch's rows.
    pub fn seek_row(&mut self, rows: u64) {
        let (mut cursor, mut left) = (Cursor::default(), rows);
        (self.read, self.epoch_read, self.since) = (rows, rows, 0);
        loop {
            let window = self.pack(cursor.epoch, cursor.window).len() as u64;
            if left < window {
                self.cursor = Cursor { row: left as usize, ..cursor };
                return;
            }
            left -= window;
            cursor.window += 1;
            if cursor.window == self.windows() {
                cursor = Cursor { epoch: cursor.epoch + 1, ..Cursor::default() };
                self.epoch_read = left;
            }
        }
    }

    /// Moves past the next row and returns it. At the first row of a step, that step's targets are counted.
    fn advance(&mut self) -> Vec<u32> {
        if self.since.is_multiple_of(self.rows.step) {
            self.targets = self.targets_ahead(self.rows.step);
        }
        let (mut cursor, epoch) = (self.cursor, self.cursor.epoch);
        let row = self.next(&mut cursor, false);
        self.cursor = cursor;
        (self.read, self.since, self.epoch_read) = (self.read + 1, self.since + 1, self.epoch_read + 1);
        if self.cursor.epoch != epoch {
            self.epoch_read = 0;
        }
        row
    }

    fn check(&self, length: usize) -> Result<(), SourceError> {
        match length as u64 == u64::from(self.rows.length) {
            true => Ok(()),
            false => Err(SourceError::PackedRows { length: self.rows.length, other: length }),
        }
    }
}

/// How many of `count` tokens from `begin` on are targets, without the first token.
fn targets(tokens: &mut TrainingTokens, begin: u64, count: u64) -> Result<u64, SourceError> {
    let (mut ids, mut at, mut found) = (vec![0; PIECE.min(count as usize)], 1, 0);
    while at < count {
        let piece = &mut ids[..PIECE.min((count - at) as usize)];
        tokens.read(begin + at, piece)?;
        found += piece.iter().filter(|id| **id & CONTEXT == 0).count() as u64;
        at += piece.len() as u64;
    }
    Ok(found)
}

impl Sequences for Packed {
    fn fill(&mut self, batch: &mut BatchMut<'_>) -> Result<bool, SourceError> {
        for (inputs, targets, offsets) in batch.rows() {
            self.check(inputs.len())?;
            let mut at = 0;
            for number in self.advance() {
                let Entry { begin, tokens, .. } = self.entries[number as usize];
                self.ids.resize(tokens as usize, 0);
                self.tokens.read(begin, &mut self.ids)?;
                for (offset, pair) in (0..).zip(self.ids.windows(2)) {
                    (inputs[at], targets[at], offsets[at]) = (as_input(pair[0]), as_target(pair[1]), offset);
                    at += 1;
                }
            }
            inputs[at..].fill(0);
            targets[at..].fill(IGNORE);
            offsets[at..].fill(0);
        }
        Ok(true)
    }

    fn skip(&mut self, rows: usize, length: usize) -> Result<bool, SourceError> {
        self.check(length)?;
        (0..rows).for_each(|_| drop(self.advance()));
        Ok(true)
    }

    fn targets_of_step(&self) -> Option<u64> {
        Some(self.targets)
    }

    fn position(&self) -> Position {
        let (Cursor { epoch, window, row }, length) = (self.cursor, u64::from(self.rows.length));
        Position {
            epoch,
            place: SourcePosition { document: window, ..SourcePosition::default() },
            token: row as u32,
            epoch_tokens: self.epoch_read * length,
            tokens: self.read * length,
            drawn: 0,
        }
    }

    fn seek(&mut self, position: Position) -> Result<(), SourceError> {
        let length = u64::from(self.rows.length);
        self.cursor = Cursor { epoch: position.epoch, window: position.place.document, row: position.token as usize };
        (self.read, self.epoch_read, self.since) = (position.tokens / length, position.epoch_tokens / length, 0);
        let rows =
            if self.cursor.window < self.windows() { self.pack(position.epoch, self.cursor.window) } else { vec![] };
        if self.cursor.row >= rows.len() {
            let SourcePosition { file, document, .. } = position.place;
            return Err(SourceError::Changed { name: self.tokens.name().to_owned(), file, document });
        }
        Ok(())
    }

    fn require(&mut self, tokens: u64) -> Result<(), SourceError> {
        // The last position's target belongs to the same row.
        let has = self.epoch_tokens() + 1;
        match has < tokens {
            true => Err(SourceError::TooShort { name: self.tokens.name().to_owned(), has, needed: tokens }),
            false => Ok(()),
        }
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

#[cfg(test)]
#[path = "packed_tests.rs"]
mod tests;
