//! Sequences of several sources, each drawn in proportion to its share.
//!
//! The source of the run's n-th sequence follows from arithmetic ([`Draw`]), and so does how many tokens of each source
//! its first sequences take: a position is a number of tokens, as for [`Permuted`]. Each source has an order of its own
//! and is repeated as often as its share needs.

use capful_core::data::{BatchMut, Draw, Stretch};
use capful_core::random::stream;

use super::super::error::SourceError;
use super::super::stream::Position;
use super::Sequences;
use super::packed::{Packed, Rows};
use super::permuted::Permuted;
use capful_config::MOST_SOURCES;

/// How much a run draws from each source after a given number of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    seed: u64,
    parts: Vec<u64>,
    stretches: Vec<Stretch>,
}

/// A number for each source of a mixture; empty for a single source. It takes no heap memory.
#[derive(Clone, Copy, PartialEq)]
pub struct BySource {
    numbers: [f64; MOST_SOURCES],
    count: usize,
}

impl BySource {
    /// The value for a run with one source.
    pub const NONE: Self = Self { numbers: [0.0; MOST_SOURCES], count: 0 };

    /// The first [`MOST_SOURCES`] of `numbers`.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut all = Self::NONE;
        for (place, number) in all.numbers.iter_mut().zip(numbers) {
            *place = number;
            all.count += 1;
        }
        all
    }
}

impl Default for BySource {
    fn default() -> Self {
        Self::NONE
    }
}

impl std::ops::Deref for BySource {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.numbers[..self.count]
    }
}

impl std::fmt::Debug for BySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A sequence of the run, or its unread rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    /// The sequence's number.
    number: u64,
    /// The source of the sequence.
    source: usize,
    /// Its tokens that are not read yet, at least 1.
    left: u64,
}

impl Shares {
    /// The shares of a run with `seed` and these stretches, at least one, over sources of these weights: at most
    /// [`MOST_SOURCES`] weights, none negative and not all 0.
    pub fn new(seed: u64, weights: &[f64], stretches: Vec<Stretch>) -> Self {
        let mut parts = vec![0; weights.len().min(MOST_SOURCES)];
        Draw::parts(weights, &mut parts);
        Self { seed, parts, stretches }
    }

    /// The share of each source in the whole run; the shares add up to 1.
    pub fn of_all(&self) -> Vec<f64> {
        let mut left = 1.0;
        let share = |part: &u64| {
            let share = left * (*part as f64 / 2f64.powi(32));
            left -= share;
            share
        };
        self.parts.iter().map(share).collect()
    }

    /// The share of each source among the first `read` tokens of the run.
    pub fn drawn(&self, read: u64) -> BySource {
        BySource::of(self.tokens(read)[..self.parts.len()].iter().map(|tokens| *tokens as f64 / read.max(1) as f64))
    }

    /// The stretches that begin before `read`, each with its end (at most `read`) and the number of its first sequence.
    fn until(&self, read: u64) -> impl Iterator<Item = (Stretch, u64, u64)> {
        let ends = self.stretches.iter().skip(1).map(|next| next.from).chain([u64::MAX]);
        let mut first = 0;
        self.stretches.iter().zip(ends).take_while(move |(stretch, _)| stretch.from <= read).map(
            move |(stretch, end)| {
                let (end, before) = (end.min(read), first);
                // The last sequence of a stretch may be shorter than the others.
                first += (end - stretch.from).div_ceil(stretch.length.max(1));
                (*stretch, end, before)
            },
        )
    }

    /// The sequence that the run reads next after `read` tokens.
    fn slot(&self, read: u64) -> Slot {
        let (stretch, _, first) = self.until(read).last().unwrap_or((Stretch { from: 0, length: 1 }, read, 0));
        let after = self.stretches.iter().map(|next| next.from).find(|from| *from > read).unwrap_or(u64::MAX);
        let length = stretch.length.max(1);
        let inside = (read - stretch.from) / length;
        let end = (stretch.from + (inside + 1) * length).min(after);
        let number = first + inside;
        Slot { number, source: Draw::new(self.seed, &self.parts).at(number), left: end - read }
    }

    /// Tokens of each source among the first `read` tokens of the run. Allocates nothing.
    pub fn tokens(&self, read: u64) -> [u64; MOST_SOURCES] {
        let draw = Draw::new(self.seed, &self.parts);
        let (mut tokens, mut counts) = ([0; MOST_SOURCES], [[0; MOST_SOURCES]; 2]);
        for (stretch, end, first) in self.until(read) {
            let length = stretch.length.max(1);
            let (whole, rest) = ((end - stretch.from) / length, (end - stretch.from) % length);
            draw.counts(first, &mut counts[0][..self.parts.len()]);
            draw.counts(first + whole, &mut counts[1][..self.parts.len()]);
            for (source, tokens) in tokens.iter_mut().enumerate() {
                *tokens += (counts[1][source] - counts[0][source]) * length;
            }
            if rest > 0 {
                tokens[draw.at(first + whole)] += rest;
            }
        }
        tokens
    }

    /// The stretches of one source: each begins at that source's token count when the run's stretch begins.
    pub fn of_source(&self, source: usize) -> Vec<Stretch> {
        self.stretches.iter().map(|stretch| Stretch { from: self.tokens(stretch.from)[source], ..*stretch }).collect()
    }
}

/// The sequences of one source.
#[allow(clippy::large_enum_variant, reason = "a run has a few of them")]
pub enum Part {
    /// Sequences of text.
    Text(Permuted),
    /// Rows of conversations; made without the rows of a step.
    Conversations(Packed),
}

impl Part {
    fn sequences(&mut self) -> &mut dyn Sequences {
        match self {
            Part::Text(permuted) => permuted,
            Part::Conversations(packed) => packed,
        }
    }
}

/// The sequences of a run over several sources.
pub struct Mixture {
    parts: Vec<Part>,
    shares: Shares,
    /// The rows of a run that also learns from conversations.
    rows: Option<Rows>,
    fingerprint: u64,
    /// Tokens read: the only state.
    read: u64,
    /// Rows since the run began or was resumed.
    since: u64,
    /// Targets of the current step.
    targets: u64,
}

impl Mixture {
    /// The mixture of `parts`, drawn in the proportions of `shares`. `rows` are the rows of the run, where all its
    /// steps have the same shape.
    pub fn new(parts: Vec<Part>, shares: Shares, rows: Option<Rows>) -> Self {
        let packed = parts.iter().any(|part| matches!(part, Part::Conversations(_)));
        let fingerprints = parts.iter().zip(&shares.parts).map(|(part, share)| match part {
            Part::Text(permuted) => (permuted.fingerprint(), share),
            Part::Conversations(packed) => (packed.fingerprint(), share),
        });
        let fingerprint = fingerprints.fold(0, |hash, (one, share)| stream(&format!("{hash:x}/{one:x}/{share}")));
        Self { parts, shares, rows: rows.filter(|_| packed), fingerprint, read: 0, since: 0, targets: 0 }
    }

    /// At the first row of a step, counts the step's targets, where some of its positions have no target.
    fn count(&mut self, number: u64) {
        let Some(Rows { length, step }) = self.rows else { return };
        if self.since.is_multiple_of(step) {
            let mut counts = [[0; MOST_SOURCES]; 2];
            let draw = Draw::new(self.shares.seed, &self.shares.parts);
            draw.counts(number, &mut counts[0][..self.parts.len()]);
            draw.counts(number + step, &mut counts[1][..self.parts.len()]);
            let rows = (0..).map(|source: usize| counts[1][source] - counts[0][source]);
            let targets = self.parts.iter_mut().zip(rows).map(|(part, rows)| match part {
                Part::Text(_) => rows * u64::from(length),
                Part::Conversations(packed) => packed.targets_ahead(rows),
            });
            self.targets = targets.sum();
        }
        self.since += 1;
    }

    /// Takes the next sequence, or at most `most` tokens of it: returns its source and the number of tokens.
    fn next(&mut self, most: usize) -> (usize, usize) {
        let Slot { number, source, left } = self.shares.slot(self.read);
        self.count(number);
        let count = left.min(most as u64);
        self.read += count;
        (source, count as usize)
    }
}

impl Sequences for Mixture {
    fn fill(&mut self, batch: &mut BatchMut<'_>) -> Result<bool, SourceError> {
        for (inputs, targets, offsets) in batch.rows() {
            let mut done = 0;
            while done < inputs.len() {
                let (source, count) = self.next(inputs.len() - done);
                let here = done..done + count;
                let (inputs, targets) = (&mut inputs[here.clone()], &mut targets[here.clone()]);
                let mut piece = BatchMut::new(1, count, inputs, targets, &mut offsets[here])
                    .map_err(|_| SourceError::Shape { rows: 1, length: count, capacity: count })?;
                if !self.parts[source].sequences().fill(&mut piece)? {
                    return Ok(false);
                }
                done += count;
            }
        }
        Ok(true)
    }

    fn skip(&mut self, rows: usize, length: usize) -> Result<bool, SourceError> {
        for _ in 0..rows {
            let mut done = 0;
            while done < length {
                let (source, count) = self.next(length - done);
                if !self.parts[source].sequences().skip(1, count)? {
                    return Ok(false);
                }
                done += count;
            }
        }
        Ok(true)
    }

    fn targets_of_step(&self) -> Option<u64> {
        self.rows.map(|_| self.targets)
    }

    fn position(&self) -> Position {
        Position { tokens: self.read, ..Position::default() }
    }

    fn seek(&mut self, position: Position) -> Result<(), SourceError> {
        (self.read, self.since) = (position.tokens, 0);
        let tokens = self.shares.tokens(self.read);
        for (part, tokens) in self.parts.iter_mut().zip(tokens) {
            match part {
                Part::Text(permuted) => permuted.seek(Position { tokens, ..Position::default() })?,
                Part::Conversations(packed) => {
                    packed.seek_row(tokens / self.rows.map_or(1, |rows| u64::from(rows.length.max(1))));
                }
            }
        }
        Ok(())
    }

    /// Each source must hold one of its own sequences: the size of a batch concerns all sources together.
    fn require(&mut self, _: u64) -> Result<(), SourceError> {
        let longest = self.shares.stretches.iter().map(|stretch| stretch.length).max().unwrap_or(1);
        self.parts.iter_mut().try_for_each(|part| part.sequences().require(longest + 1))
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

#[cfg(test)]
#[path = "mixture_tests.rs"]
mod tests;
