//! Generates token by token from a trained model.

use std::ops::ControlFlow;

use capful_core::generate::Sampler;
use capful_core::ops::{MostLikely, Sample};
use capful_core::random::{Random, stream};

use super::Session;
use super::session::{After, Choosing};
use crate::device::DeviceError;
use crate::plan::Programs;

/// Continues a sequence, with storage allocated beforehand.
#[derive(Debug)]
pub struct Generator {
    /// All tokens fed so far; their number is the next position.
    history: Vec<u32>,
    context: usize,
    order: Vec<u32>,
    random: Random,
    /// Number of random numbers drawn so far.
    drawn: u64,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// This token, an end token, was generated.
    Eos(u32),
    /// The receiver of the tokens stopped the generation.
    Enough,
    /// The requested number of tokens was generated.
    MaxTokens,
    /// The context is full.
    Context,
}

impl Generator {
    /// A generator with `context` positions; its random choices follow `seed`.
    pub fn new(context: u32, vocab_size: u32, seed: u64) -> Generator {
        Generator {
            history: Vec::with_capacity(context as usize),
            context: context as usize,
            order: vec![0; vocab_size as usize],
            random: Random::new(seed, stream("sample")),
            drawn: 0,
        }
    }

    /// Drops all tokens fed after the first `count`; if the model cannot drop only the last tokens, drops all.
    pub fn keep(&mut self, session: &Session, count: usize) {
        if count < self.history.len() {
            self.history.truncate(if session.remembers_by_position() { count } else { 0 });
        }
    }

    /// Drops all tokens fed.
    pub fn clear(&mut self) {
        self.history.clear();
    }

    /// Restarts the random choices with `seed`.
    pub fn reseed(&mut self, seed: u64) {
        (self.random, self.drawn) = (Random::new(seed, stream("sample")), 0);
    }

    /// Number of tokens fed.
    pub fn position(&self) -> usize {
        self.history.len()
    }

    /// Number of positions left.
    pub fn room(&self) -> usize {
        self.context - self.history.len()
    }

    /// Feeds `prompt`, then chooses up to `max_tokens` tokens and passes each to `visit`, until one of `ends` (which is
    /// not passed on) or until `visit` breaks. `limit` is the number of ids of the tokenizer: rows of the model beyond
    /// it are never chosen. Allocates nothing.
    ///
    /// # Errors
    /// A prompt longer than the remaining positions, or an empty prompt at the beginning; a lost device.
    #[allow(clippy::too_many_arguments, reason = "each is one of the command's flags")]
    pub fn run(
        &mut self,
        session: &mut Session,
        sampler: &Sampler,
        prompt: &[u32],
        max_tokens: usize,
        limit: usize,
        ends: &[u32],
        visit: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<End, DeviceError> {
        if prompt.is_empty() || prompt.len() > self.room() {
            return Err(DeviceError::Failed(format!(
                "a prompt of {} tokens; it must have 1 to {} (the context is {})",
                prompt.len(),
                self.room(),
                self.context
            )));
        }
        for &id in &prompt[..prompt.len() - 1] {
            self.feed(session, id)?;
        }
        let mut next = prompt[prompt.len() - 1];
        if let Some((turn, how)) = session.turn().and_then(|turn| Some((turn, self.there(sampler, turn)?))) {
            return self.choose(session, (turn, how), next, max_tokens, limit, ends, visit);
        }
        for _ in 0..max_tokens {
            if self.room() == 0 {
                return Ok(End::Context);
            }
            let position = self.history.len() as u32;
            self.history.push(next);
            let logits = &mut session.decode(next, position)?[..limit];
            let drawn = sampler.sample(logits, &mut self.order, &self.history, &self.random, self.drawn);
            next = drawn.ok_or_else(no_numbers)?;
            self.drawn += 1;
            if let Some(end) = ended(next, ends, visit) {
                return Ok(end);
            }
        }
        self.end(session, next, max_tokens)
    }

    /// How `sampler` chooses on the device where the logits are. On a CPU the host's sampler is as close to the logits,
    /// and reuses its sorted order.
    fn there(&self, sampler: &Sampler, turn: usize) -> Option<Choosing> {
        if sampler.is_greedy() {
            return Some(Choosing::MostLikely);
        }
        Sample::settings(sampler, &self.random).filter(|_| turn > 1).map(Choosing::Drawn)
    }

    /// As [`Generator::run`] after its prompt, with the last token `next`, for tokens that are chosen on the device,
    /// `turn` tokens at a time.
    #[allow(clippy::too_many_arguments, reason = "as of what it is a part of")]
    fn choose(
        &mut self,
        session: &mut Session,
        (turn, how): (usize, Choosing),
        mut next: u32,
        max_tokens: usize,
        limit: usize,
        ends: &[u32],
        visit: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<End, DeviceError> {
        let (begun, count) = (self.history.len(), max_tokens.min(self.room()));
        let (position, limit) = (begun as u32, limit as u32);
        let (mut queued, mut after) = (0, Some(After { id: next, position, limit, drawn: self.drawn }));
        let mut queue = |session: &mut Session| match count - queued {
            0 => Ok(None),
            left => {
                let tokens = if left < turn { 1 } else { turn };
                queued += tokens;
                session.choose(tokens, how, after.take()).map(|ticket| Some((ticket, tokens)))
            }
        };
        let mut waiting = queue(session)?;
        while let Some((ticket, tokens)) = waiting {
            // A launch of one token is finished when it is queued.
            let ahead = if turn > 1 { queue(session)? } else { None };
            let chosen = session.chosen(ticket)?;
            for _ in 0..tokens {
                let after = chosen[self.history.len() % Programs::TOGETHER];
                self.history.push(next);
                next = after;
                if next == MostLikely::NO_TOKEN {
                    return Err(no_numbers());
                }
                self.drawn += u64::from(how != Choosing::MostLikely);
                if let Some(end) = ended(next, ends, visit) {
                    // A launch may have gone past the end token. Later tokens overwrite its state, or everything is fed
                    // again from the beginning.
                    if turn > 1 && !session.remembers_by_position() {
                        self.clear();
                    }
                    return Ok(end);
                }
            }
            waiting = if turn > 1 { ahead } else { queue(session)? };
        }
        if count < max_tokens { Ok(End::Context) } else { self.end(session, next, max_tokens) }
    }

    /// Ends after the requested number of tokens; the last token belongs to the sequence that the next call continues.
    fn end(&mut self, session: &mut Session, last: u32, max_tokens: usize) -> Result<End, DeviceError> {
        if self.room() > 0 && max_tokens > 0 {
            self.feed(session, last)?;
        }
        Ok(End::MaxTokens)
    }

    fn feed(&mut self, session: &mut Session, id: u32) -> Result<(), DeviceError> {
        let position = self.history.len() as u32;
        self.history.push(id);
        session.decode(id, position)?;
        Ok(())
    }
}

/// Whether the text ends with the token `id`, which is passed to `visit` unless it is an end token.
fn ended(id: u32, ends: &[u32], visit: &mut dyn FnMut(u32) -> ControlFlow<()>) -> Option<End> {
    if ends.contains(&id) {
        return Some(End::Eos(id));
    }
    visit(id).is_break().then_some(End::Enough)
}

fn no_numbers() -> DeviceError {
    let what = "the model's logits are not numbers: its training diverged or its weights are damaged";
    DeviceError::Failed(format!("{what}; generate from an earlier checkpoint"))
}
