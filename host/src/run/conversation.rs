//! A conversation with a trained model, with as many turns as the context has room for.

use std::collections::VecDeque;

use capful_core::generate::Sampler;

use super::directory::Trained;
use super::generate::{End, Generator};
use super::transcript::Turn;
use super::until::{Output, Until};
use crate::data::tokenizer::{EncodeError, Tokenizer};
use crate::device::DeviceError;

/// The turns that the model still sees.
#[derive(Debug)]
pub struct Conversation {
    generator: Generator,
    context: usize,
    /// Everything that the model sees; the generator was fed a prefix of it.
    tokens: Vec<u32>,
    /// The number of tokens in each turn.
    turns: VecDeque<usize>,
    /// Whether the last document ended.
    ended: bool,
    /// Where answers end.
    until: Until,
}

/// Events while a model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// More of the answer.
    Text(&'a str),
    /// The context was full, so the oldest turns were dropped.
    Dropped {
        /// Number of dropped turns.
        turns: usize,
        /// Number of their tokens.
        tokens: usize,
    },
    /// The turn alone fills the context, so its answer ends.
    Full,
}

/// An answer of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub tokens: usize,
    /// Whether it ended the document.
    pub ended: bool,
}

impl Conversation {
    /// An empty conversation with `context` positions; the random choices follow `seed`, and answers end at `until`.
    pub fn new(context: u32, vocab_size: u32, seed: u64, until: Until) -> Conversation {
        Conversation {
            generator: Generator::new(context, vocab_size, seed),
            context: context as usize,
            tokens: Vec::new(),
            turns: VecDeque::new(),
            ended: false,
            until,
        }
    }

    /// Restarts the random choices with `seed`.
    pub fn reseed(&mut self, seed: u64) {
        self.generator.reseed(seed);
    }

    /// Drops all turns.
    pub fn clear(&mut self) {
        self.generator.clear();
        self.tokens.clear();
        self.turns.clear();
        self.ended = false;
    }

    /// Numbers of turns and tokens that the model sees.
    pub fn size(&self) -> (usize, usize) {
        (self.turns.len(), self.tokens.len())
    }

    /// The tokens of `line` at this point of the conversation: at its beginning, and where a document ended, another
    /// document begins; otherwise only a line.
    ///
    /// # Errors
    /// The tokenizer is that of another program and cannot encode the line.
    pub fn encode(&self, tokenizer: &dyn Tokenizer, line: &str) -> Result<Vec<u32>, EncodeError> {
        let begin = match (self.tokens.is_empty(), self.ended) {
            (true, _) => tokenizer.bos().or(tokenizer.eos()),
            (false, true) => tokenizer.bos(),
            (false, false) => None,
        };
        let mut ids: Vec<u32> = begin.into_iter().collect();
        if self.tokens.is_empty() || self.ended {
            tokenizer.encode(line, &mut ids)?;
        } else {
            tokenizer.encode(&format!("\n{line}"), &mut ids)?;
        }
        Ok(ids)
    }

    /// Adds a turn of an earlier conversation.
    ///
    /// # Errors
    /// As [`Conversation::encode`].
    pub fn recall(&mut self, tokenizer: &dyn Tokenizer, turn: &Turn) -> Result<(), EncodeError> {
        let mut ids = self.encode(tokenizer, &turn.line)?;
        tokenizer.encode(&turn.answer, &mut ids)?;
        ids.extend(tokenizer.eos().filter(|_| turn.ended));
        self.begin(&ids);
        self.ended = turn.ended;
        self.make_room(1);
        Ok(())
    }

    fn begin(&mut self, ids: &[u32]) {
        self.turns.push_back(ids.len());
        self.tokens.extend_from_slice(ids);
        self.ended = false;
    }

    /// Drops the oldest turns, never the last one, until there is room for `more` tokens. Returns how many turns and
    /// tokens were dropped.
    fn make_room(&mut self, more: usize) -> Option<(usize, usize)> {
        let (mut turns, mut tokens) = (0, 0);
        while self.turns.len() > 1 && self.tokens.len() - tokens + more > self.context {
            tokens += self.turns.pop_front().unwrap_or(0);
            turns += 1;
        }
        if turns == 0 {
            return None;
        }
        self.tokens.drain(..tokens);
        // The remaining turns have other positions now.
        self.generator.clear();
        Some((turns, tokens))
    }

    /// Lets the model continue after `ids`, which are fewer than the context's positions, with at most `most` tokens;
    /// `hear` receives the events.
    ///
    /// # Errors
    /// A lost device.
    pub fn answer(
        &mut self,
        model: &mut Trained,
        ids: &[u32],
        sampler: &Sampler,
        most: usize,
        hear: &mut dyn FnMut(Event<'_>),
    ) -> Result<Answer, DeviceError> {
        self.begin(ids);
        self.reply(model, sampler, most, hear)
    }

    /// Replaces all turns by `ids`, as a single turn: a common prefix need not be fed again.
    pub fn replace(&mut self, model: &Trained, ids: Vec<u32>) {
        let fed = &self.tokens[..self.generator.position()];
        let same = fed.iter().zip(&ids).take_while(|(a, b)| a == b).count();
        // The last token is fed with the answer.
        self.generator.keep(&model.session, same.min(ids.len().saturating_sub(1)));
        self.turns = [ids.len()].into();
        (self.tokens, self.ended) = (ids, false);
    }

    /// Lets the model continue after the last turn, as [`Conversation::answer`] does.
    ///
    /// # Errors
    /// A lost device.
    pub fn reply(
        &mut self,
        model: &mut Trained,
        sampler: &Sampler,
        most: usize,
        hear: &mut dyn FnMut(Event<'_>),
    ) -> Result<Answer, DeviceError> {
        let (Trained { session, tokenizer }, mut said) = (model, Vec::new());
        let limit = tokenizer.vocab_size() as usize;
        let until = std::mem::take(&mut self.until);
        let (mut output, mut text) = (Output::new(tokenizer.as_ref(), &until.texts), String::new());
        let mut show = |more: String, hear: &mut dyn FnMut(Event<'_>)| {
            hear(Event::Text(&more));
            text.push_str(&more);
        };
        loop {
            let begun = said.len();
            // The remaining turns are fed again after each drop: so it is better to drop much rarely than little often.
            if let Some((turns, tokens)) = self.make_room((most - begun).min(self.context / 4).max(1)) {
                hear(Event::Dropped { turns, tokens });
            }
            let unread = self.tokens[self.generator.position()..].to_vec();
            let end = self.generator.run(session, sampler, &unread, most - begun, limit, &until.ends, &mut |id| {
                said.push(id);
                show(output.push(id), hear);
                output.flow()
            })?;
            self.extend(&said[begun..]);
            match end {
                End::Context if self.turns.len() > 1 => continue,
                End::Context => hear(Event::Full),
                End::Eos(id) => {
                    self.ended = true;
                    self.extend(&[id]);
                }
                End::MaxTokens | End::Enough => {}
            }
            break;
        }
        show(output.finish(), hear);
        if output.stopped() {
            let kept = self.cut(tokenizer.as_ref(), &said, &text);
            self.generator.keep(session, kept);
        } else if until.texts.is_empty() {
            text = tokenizer.decode(&said);
        }
        self.until = until;
        Ok(Answer { text, tokens: said.len(), ended: self.ended })
    }

    /// Cuts the last answer, which has the tokens `said`, and the mark after it down to its shown text, `text`. Returns
    /// how many tokens of the conversation are still those that the model was fed.
    fn cut(&mut self, tokenizer: &dyn Tokenizer, said: &[u32], text: &str) -> usize {
        let before = self.tokens.len();
        let begin = before - said.len() - usize::from(std::mem::take(&mut self.ended));
        let shown = |count: &usize| text.starts_with(&tokenizer.decode(&said[..*count]));
        let whole = (0..=said.len()).rev().find(shown).unwrap_or(0);
        self.tokens.truncate(begin + whole);
        // The text ends inside a token: the rest of the text.
        let mut rest = Vec::new();
        let left = text.get(tokenizer.decode(&said[..whole]).len()..).unwrap_or_default();
        if tokenizer.encode_rest(left, &mut rest).is_ok() {
            self.tokens.extend(rest);
        }
        if let Some(turn) = self.turns.back_mut() {
            *turn = *turn + self.tokens.len() - before;
        }
        begin + whole
    }

    /// Adds `ids` to the last turn.
    fn extend(&mut self, ids: &[u32]) {
        self.tokens.extend_from_slice(ids);
        if let Some(turn) = self.turns.back_mut() {
            *turn += ids.len();
        }
    }
}
