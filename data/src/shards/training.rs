//! The tokens of a set of shards that a run trains on: its documents without the held-out ones, as a sequence that
//! starts again at its end and can be read at any offset.

use std::sync::Arc;

use super::super::error::SourceError;
use super::super::source::SourcePosition;
use super::super::split::{Part, Split};
use super::Shards;

/// The end of every 64th document is stored in memory; the ends between are read from the shard when needed.
const STRIDE: usize = 64;

/// Consecutive documents that are held out.
#[derive(Debug, Clone, Copy)]
struct Gap {
    /// Number of training tokens before the gap.
    at: u64,
    /// Number of held-out tokens up to the end of the gap.
    skipped: u64,
}

/// The training side of a set.
#[derive(Debug)]
pub struct TrainingTokens {
    name: String,
    shards: Arc<Shards>,
    /// Tokens before each shard.
    begins: Vec<u64>,
    gaps: Vec<Gap>,
    /// For each shard the ends of its documents 63, 127, …
    ends: Vec<Vec<u64>>,
    tokens: u64,
    /// Document ends that were read last: their shard, the number of the first document, and the ends.
    found: (usize, usize, Vec<u64>),
    bytes: Vec<u8>,
}

/// Bytes of memory for a set of `documents`, one in twenty of them held out.
pub fn bytes(documents: u64) -> u64 {
    documents / 20 * size_of::<Gap>() as u64 + documents / STRIDE as u64 * 8 + (64 << 10)
}

impl TrainingTokens {
    /// The training documents under `split`, from the source called `name`.
    ///
    /// # Errors
    /// A shard that cannot be read; a set without a token for training.
    pub fn new(shards: Arc<Shards>, split: &Split, name: &str) -> Result<Self, SourceError> {
        let mut line = Self {
            name: name.to_owned(),
            begins: Vec::with_capacity(shards.shards.len()),
            ends: vec![Vec::new(); shards.shards.len()],
            gaps: Vec::new(),
            tokens: 0,
            found: (0, 0, Vec::with_capacity(STRIDE)),
            bytes: Vec::new(),
            shards: Arc::clone(&shards),
        };
        let (mut begin, mut skipped) = (0, 0);
        for shard in &shards.shards {
            line.begins.push(begin);
            begin += shard.contents().tokens;
        }
        shards.each_document(|SourcePosition { file, offset, document, .. }, tokens, hash| {
            let (file, end) = (file as usize, offset + tokens);
            if !split.has(Part::Training, hash) {
                skipped += tokens;
                line.gap(line.begins[file] + end - skipped, skipped);
            }
            if (document + 1).is_multiple_of(STRIDE as u64) {
                line.ends[file].push(end);
            }
        })?;
        line.gaps.shrink_to_fit();
        line.tokens = begin - skipped;
        if line.tokens == 0 {
            let name = line.name;
            return Err(match begin {
                0 => SourceError::NoDocuments { name },
                _ => SourceError::EmptyPart { name, part: Part::Training.name() },
            });
        }
        Ok(line)
    }

    fn gap(&mut self, at: u64, skipped: u64) {
        match self.gaps.last_mut() {
            Some(last) if last.at == at => last.skipped = skipped,
            _ => self.gaps.push(Gap { at, skipped }),
        }
    }

    /// Calls `visit` with the number of tokens of each training document, in order.
    ///
    /// # Errors
    /// A shard that cannot be read.
    pub fn documents(&self, split: &Split, mut visit: impl FnMut(u64)) -> Result<(), SourceError> {
        self.shards.each_document(|_, tokens, hash| {
            if split.has(Part::Training, hash) {
                visit(tokens);
            }
        })
    }

    /// Number of training tokens before the sequence starts again, at least 1.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The source's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next contiguous piece from `at` on within a single shard, at most `most` tokens: the shard, the number of
    /// the piece's first token in the shard, and the number of its tokens.
    fn piece(&self, at: u64, most: u64) -> (usize, u64, u64) {
        let at = at % self.tokens;
        let gap = self.gaps.partition_point(|gap| gap.at <= at);
        let skipped = gap.checked_sub(1).map_or(0, |i| self.gaps[i].skipped);
        let until = self.gaps.get(gap).map_or(self.tokens, |gap| gap.at);
        let place = at + skipped;
        let shard = self.begins.partition_point(|&begin| begin <= place).saturating_sub(1);
        let inside = place - self.begins[shard];
        let left = self.shards.shards[shard].contents().tokens - inside;
        (shard, inside, most.min(until - at).min(left))
    }

    /// Reads the tokens from `at` on into `ids`; ids that are no targets have the bit
    /// [`CONTEXT`](capful_core::data::CONTEXT).
    ///
    /// # Errors
    /// A shard that cannot be read, or is damaged.
    pub fn read(&mut self, mut at: u64, ids: &mut [u32]) -> Result<(), SourceError> {
        let mut done = 0;
        while done < ids.len() {
            let (shard, inside, count) = self.piece(at, (ids.len() - done) as u64);
            let (into, vocab) = (&mut ids[done..done + count as usize], self.shards.manifest.vocab);
            self.shards.shards[shard].ids(inside, into, &mut self.bytes, vocab)?;
            (at, done) = (at + count, done + count as usize);
        }
        Ok(())
    }

    /// Computes how many tokens of the same document precede each of the tokens from `at` on, counting only tokens from
    /// `at` on.
    ///
    /// # Errors
    /// A shard that cannot be read.
    pub fn offsets(&mut self, mut at: u64, offsets: &mut [u32]) -> Result<(), SourceError> {
        let (mut done, mut before) = (0, 0);
        while done < offsets.len() {
            let (shard, inside, count) = self.piece(at, (offsets.len() - done) as u64);
            let (begin, end) = self.document(shard, inside)?;
            let count = count.min(end - inside);
            if begin == inside {
                before = 0;
            }
            for offset in &mut offsets[done..done + count as usize] {
                *offset = before;
                before += 1;
            }
            (at, done) = (at + count, done + count as usize);
        }
        Ok(())
    }

    /// Beginning and end of the document that contains token `at` of a shard.
    fn document(&mut self, shard: usize, at: u64) -> Result<(u64, u64), SourceError> {
        let block = self.ends[shard].partition_point(|&end| end <= at);
        if (self.found.0, self.found.1) != (shard, block) || self.found.2.is_empty() {
            let first = (block * STRIDE) as u64;
            let count = (self.shards.shards[shard].contents().documents - first).min(STRIDE as u64);
            self.found.2.resize(count as usize, 0);
            self.shards.shards[shard].ends(first, &mut self.found.2)?;
            (self.found.0, self.found.1) = (shard, block);
        }
        let ends = &self.found.2;
        let number = ends.partition_point(|&end| end <= at);
        let before = block.checked_sub(1).map_or(0, |block| self.ends[shard][block]);
        let begin = number.checked_sub(1).map_or(before, |i| ends[i]);
        Ok((begin, ends.get(number).copied().unwrap_or(self.shards.shards[shard].contents().tokens)))
    }
}
