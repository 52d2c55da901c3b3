//! Sequences drawn from a part of a stream: a pool of two halves; sequences are drawn from one half while the other is
//! filled.
//!
//! A half is a [`Window`] of the stream, in the order of [`capful_core::data::Order`]: no tokens but an incomplete
//! grain move from one half to the next, so a resumed run reads only one half again. A half ends when its memory is
//! full, or with the epoch; the incomplete grain at its end then begins the next half.

use capful_core::data::{BatchMut, Order, Stretch, Token, Window};

use super::super::error::SourceError;
use super::super::shards::file::width;
use super::super::stream::{Position, TokenStream};
use super::Sequences;

/// Tokens in a half of a pool of `bytes`, for a vocabulary of `vocab` ids: whole grains of `grain` tokens, at least
/// one.
pub fn half(bytes: u64, vocab: u32, grain: u64) -> u64 {
    // A token takes its id, and a bit for whether it begins a document, stored in words of 64 bits.
    let room = (bytes / 2).saturating_sub(8) * 8 / (8 * width(vocab) + 1);
    // Room for an incomplete grain and for the target of the last token.
    (room.saturating_sub(grain + 1) / grain).max(1).saturating_mul(grain)
}

/// Most bytes that such a pool takes: `bytes`, unless a single grain needs more.
pub fn memory(bytes: u64, vocab: u32, grain: u64) -> u64 {
    let room = half(bytes, vocab, grain).saturating_add(grain + 1);
    let ids = room.saturating_mul(width(vocab));
    bytes.max(ids.saturating_add(room.div_ceil(64) * 8).saturating_mul(2))
}

/// Ids with as many bytes each as the vocabulary needs.
enum Ids {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl Ids {
    fn new(tokens: usize, vocab: u32) -> Self {
        match width(vocab) {
            2 => Self::Narrow(Vec::with_capacity(tokens)),
            _ => Self::Wide(Vec::with_capacity(tokens)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Narrow(ids) => ids.len(),
            Self::Wide(ids) => ids.len(),
        }
    }

    fn get(&self, at: usize) -> u32 {
        match self {
            Self::Narrow(ids) => u32::from(ids[at]),
            Self::Wide(ids) => ids[at],
        }
    }

    fn push(&mut self, id: u32) {
        match self {
            Self::Narrow(ids) => ids.push(id as u16),
            Self::Wide(ids) => ids.push(id),
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Narrow(ids) => ids.clear(),
            Self::Wide(ids) => ids.clear(),
        }
    }
}

/// Consecutive tokens of the stream.
struct Half {
    ids: Ids,
    /// A bit a token: whether it begins a document.
    begins: Vec<u64>,
    /// The stream's position at the half's first token, and at its last grain boundary.
    begin: Position,
    border: Position,
    /// How many tokens are drawn from the half, known once it is full.
    full: Option<u64>,
}

impl Half {
    fn new(tokens: u64, grain: u64, vocab: u32) -> Self {
        // Room for an incomplete grain and for the target of the last token.
        let room = (tokens + grain + 1) as usize;
        let begins = vec![0; room.div_ceil(64)];
        let (begin, border) = (Position::default(), Position::default());
        Self { ids: Ids::new(room, vocab), begins, begin, border, full: None }
    }

    fn clear(&mut self) {
        self.ids.clear();
        self.begins.fill(0);
        self.full = None;
    }

    fn len(&self) -> u64 {
        self.ids.len() as u64
    }

    fn token(&self, at: usize) -> Token {
        let begins = self.begins[at / 64] >> (at % 64) & 1;
        Token { id: self.ids.get(at), offset: u32::from(begins == 0) }
    }

    /// Adds a token from `position` of the stream. Of its offset only whether it is 0 is stored.
    fn push(&mut self, token: Token, position: Position, grain: u64) {
        let at = self.ids.len();
        if at == 0 {
            self.begin = position;
        }
        if (at as u64).is_multiple_of(grain) {
            self.border = position;
        }
        self.begins[at / 64] |= u64::from(token.offset == 0) << (at % 64);
        self.ids.push(token.id);
    }
}

/// A pool over a stream.
pub struct Pool {
    stream: TokenStream,
    seed: u64,
    stretches: Vec<Stretch>,
    /// Most tokens of a half.
    most: u64,
    grain: u64,
    here: Half,
    next: Half,
    /// Tokens that the run has read.
    read: u64,
}

impl Pool {
    /// A pool of `bytes` over `stream`, from its current position, with ids below `vocab`, for a run of these
    /// stretches.
    pub fn new(stream: TokenStream, seed: u64, stretches: Vec<Stretch>, bytes: u64, vocab: u32) -> Self {
        let grain = Order::new(seed, &stretches).grain();
        let most = half(bytes, vocab, grain);
        let (mut here, next) = (Half::new(most, grain, vocab), Half::new(most, grain, vocab));
        here.begin = stream.position();
        let read = here.begin.tokens;
        Self { stream, seed, stretches, most, grain, here, next, read }
    }

    fn window(&self) -> Window {
        let begin = self.here.begin.tokens;
        Window { begin, end: begin + self.here.full.unwrap_or(0) }
    }

    /// Reads into `next` until it holds `tokens` tokens or is full; returns `false` if the stream ends first.
    fn read_ahead(&mut self, tokens: u64) -> Result<bool, SourceError> {
        let Self { stream, next, most, grain, .. } = self;
        while next.full.is_none() && next.len() < tokens {
            let before = stream.position();
            let Some(token) = stream.next_token()? else { return Ok(false) };
            let has = next.len();
            next.push(token, before, *grain);
            // The token that shows that the half is full is the target of the last token and begins the next half.
            let epoch_ended = stream.position().epoch != before.epoch && has >= *grain;
            if has == *most || epoch_ended {
                next.full = Some(has / *grain * *grain);
            }
        }
        Ok(true)
    }

    /// Reads as many tokens into the other half as were drawn from this one; returns `false` if the stream ends
    /// first.
    fn keep_up(&mut self) -> Result<bool, SourceError> {
        let Window { begin, end } = self.window();
        let drawn = u128::from(self.read - begin) * u128::from(self.most) / u128::from((end - begin).max(1));
        self.read_ahead(drawn as u64)
    }

    /// Makes the filled half the one to draw from, and starts the other half with the remaining tokens.
    fn turn(&mut self) -> Result<bool, SourceError> {
        if !self.read_ahead(u64::MAX)? {
            return Ok(false);
        }
        std::mem::swap(&mut self.here, &mut self.next);
        self.next.clear();
        let full = self.here.full.unwrap_or(0) as usize;
        for at in full..self.here.ids.len() {
            // At most one grain of tokens remains: only the first of them is at a grain boundary.
            self.next.push(self.here.token(at), self.here.border, self.grain);
        }
        Ok(true)
    }
}

impl Sequences for Pool {
    fn fill(&mut self, batch: &mut BatchMut<'_>) -> Result<bool, SourceError> {
        for (inputs, targets, offsets) in batch.rows() {
            let mut done = 0;
            while done < inputs.len() {
                if self.read >= self.window().end && !self.turn()? {
                    return Ok(false);
                }
                let window = self.window();
                let run = Order::new(self.seed, &self.stretches).at(window, self.read);
                let count = run.tokens.min((inputs.len() - done) as u64) as usize;
                let (first, mut offset) = ((run.at - window.begin) as usize, 0);
                for i in 0..count {
                    let token = self.here.token(first + i);
                    offset = if token.offset == 0 || i == 0 { 0 } else { offset + 1 };
                    (inputs[done + i], offsets[done + i]) = (token.id, offset);
                    targets[done + i] = self.here.ids.get(first + i + 1);
                }
                done += count;
                self.read += count as u64;
            }
        }
        self.keep_up()
    }

    /// Arithmetic within a half; the halves are filled as if sequences were drawn, since a rank may draw any part of a
    /// half.
    fn skip(&mut self, rows: usize, length: usize) -> Result<bool, SourceError> {
        let mut left = (rows * length) as u64;
        while left > 0 {
            if self.read >= self.window().end && !self.turn()? {
                return Ok(false);
            }
            let here = left.min(self.window().end - self.read);
            self.read += here;
            left -= here;
        }
        self.keep_up()
    }

    fn position(&self) -> Position {
        let window = self.window();
        match self.here.full {
            // The next half begins where this half ended.
            Some(_) if self.read >= window.end => self.here.border,
            _ => Position { drawn: self.read - window.begin, ..self.here.begin },
        }
    }

    fn seek(&mut self, position: Position) -> Result<(), SourceError> {
        // The half is read again before the next sequence is drawn.
        let begin = Position { drawn: 0, ..position };
        self.stream.seek(begin)?;
        self.here.clear();
        self.next.clear();
        self.here.begin = begin;
        self.read = position.tokens + position.drawn;
        Ok(())
    }

    fn require(&mut self, tokens: u64) -> Result<(), SourceError> {
        self.stream.require(tokens)
    }

    fn fingerprint(&self) -> u64 {
        self.stream.fingerprint()
    }
}
