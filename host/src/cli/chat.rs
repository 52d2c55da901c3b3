//! `host chat`.

use std::io::{self, BufRead};

use super::output::{say, tell};
use super::sampling::Sampling;
use super::trained::TrainedFlags;
use super::{Failure, request, work};
use crate::run::directory::Trained;
use crate::run::generate::{End, Generator};

/// Flags of `host chat`.
#[derive(Debug, clap::Args)]
pub struct Chat {
    #[command(flatten)]
    trained: TrainedFlags,
    #[command(flatten)]
    sampling: Sampling,
}

const HELP: &str = "\
type a beginning and the model goes on; the conversation is remembered up to the context
/params          shows the sampling flags; /params NAME VALUE sets one (temperature, top-k, top-p, ...)
/clear           forgets the conversation
/save FILE       writes the conversation to a file
/quit            ends";

impl Chat {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.sampling.sampler()?;
        let (config, trained) = self.trained.decoding()?;
        let generator = Generator::new(config.context(), config.vocab_size(), self.sampling.seed);
        let mut conversation = Conversation { trained, generator, transcript: String::new(), fresh: true };
        tell!("{} with {} positions; /help for help", self.trained.dir.display(), config.context());
        let mut input = io::stdin().lock();
        while let Some(line) = next_line(&mut input).map_err(work)? {
            let mut words = line.split_whitespace();
            match words.next() {
                None => continue,
                Some("/quit") => break,
                Some("/help") => tell!("{HELP}"),
                Some("/clear") => {
                    conversation.generator.clear();
                    conversation.transcript.clear();
                    conversation.fresh = true;
                }
                Some("/params") => match (words.next(), words.next()) {
                    (Some(name), Some(value)) => self.set(name, value),
                    _ => tell!("{:?}", self.sampling),
                },
                Some("/save") => match words.next() {
                    Some(path) => match std::fs::write(path, &conversation.transcript) {
                        Ok(()) => tell!("saved in {path}"),
                        Err(e) => tell!("{path}: {e}"),
                    },
                    None => tell!("/save FILE"),
                },
                Some(other) if other.starts_with('/') => tell!("no command {other}; /help for help"),
                Some(_) => conversation.answer(&line, &self.sampling)?,
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str) {
        let before = self.sampling;
        let sampling = &mut self.sampling;
        let known = match name {
            "max-tokens" => value.parse().map(|v| sampling.max_tokens = v).is_ok(),
            "temperature" => value.parse().map(|v| sampling.temperature = v).is_ok(),
            "top-k" => value.parse().map(|v| sampling.top_k = v).is_ok(),
            "top-p" => value.parse().map(|v| sampling.top_p = v).is_ok(),
            "repetition-penalty" => value.parse().map(|v| sampling.repetition_penalty = v).is_ok(),
            _ => false,
        };
        if !known {
            tell!("{name} {value}: no such parameter, or no number");
        } else if let Err(e) = self.sampling.sampler() {
            tell!("{e}");
            self.sampling = before;
        }
    }
}

/// The most bytes of a line: more than what most contexts hold.
const LONGEST: u64 = 64 << 10;

/// The next line without its end; none behind the last. Of a longer one than [`LONGEST`] the rest is passed over, and
/// bytes that are no UTF-8 are replaced.
fn next_line(input: &mut dyn BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    if io::Read::take(&mut *input, LONGEST).read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if bytes.len() as u64 == LONGEST && input.skip_until(b'\n')? > 0 {
        tell!("a line has at most {LONGEST} bytes; the rest of this one is left out");
    }
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end_matches('\r').to_owned()))
}

/// A conversation with a model.
struct Conversation {
    trained: Trained,
    generator: Generator,
    transcript: String,
    /// Whether the next line begins a document.
    fresh: bool,
}

impl Conversation {
    /// Continues `line` and shows how.
    fn answer(&mut self, line: &str, sampling: &Sampling) -> Result<(), Failure> {
        let (Trained { session, tokenizer }, room) = (&mut self.trained, self.generator.room());
        let begin = self.fresh.then(|| tokenizer.bos().or(tokenizer.eos())).flatten();
        let mut prompt: Vec<u32> = begin.into_iter().collect();
        tokenizer.encode(line, &mut prompt).map_err(request)?;
        if prompt.is_empty() || prompt.len() >= room {
            tell!("{} tokens and {room} positions left; /clear begins anew", prompt.len());
            return Ok(());
        }
        let mut ids = Vec::new();
        let (sampler, most) = (sampling.sampler()?, sampling.max_tokens as usize);
        let (limit, eos) = (tokenizer.vocab_size() as usize, tokenizer.eos());
        let end = self.generator.run(session, &sampler, &prompt, most, limit, eos, &mut |id| ids.push(id));
        let end = end.map_err(work)?;
        let text = tokenizer.decode(&ids);
        say!("{text}")?;
        self.transcript.push_str(&format!("> {line}\n{text}\n"));
        self.fresh = end != End::MaxTokens;
        if self.fresh {
            // The document ended or the context is full: the next line begins another.
            self.generator.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_what_is_no_text_is_replaced() {
        let long = vec![b'x'; 3 * LONGEST as usize];
        let input = [b"one\r\ntw\xff\n\n".as_slice(), &long, b"\nlast"].concat();
        let mut input = input.as_slice();
        let mut next = || next_line(&mut input).unwrap();
        assert_eq!([next(), next(), next()].map(Option::unwrap), ["one", "tw\u{fffd}", ""]);
        let line = next().unwrap();
        assert_eq!((line.len() as u64, line.capacity() <= 2 * line.len()), (LONGEST, true));
        assert_eq!((next().as_deref(), next()), (Some("last"), None));
    }
}
