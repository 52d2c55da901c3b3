//! `host chat`.

use capful_base::human_bytes;
use std::fs;
use std::io::{self, BufRead, Write as _};
use std::path::Path;
use std::time::Instant;

use super::output::{part, say, tell};
use super::sampling::{Sampling, Settings};
use super::trained::TrainedFlags;
use super::{Failure, request, work};
use crate::config::Config;
use crate::data::conversation::ChatTemplate;
use crate::data::conversation::messages::message;
use crate::data::conversation::turn::{self, TurnError};
use crate::data::tokenizer::{Tokenizer, template};
use crate::plan::memory;
use crate::regular;
use crate::run::conversation::{Conversation, Event};
use crate::run::directory::{self, Trained};
use crate::run::generation;
use crate::run::transcript::{self, Turn};
use crate::run::until::Until;

/// Flags of `host chat`.
#[derive(Debug, clap::Args)]
pub struct Chat {
    #[command(flatten)]
    trained: TrainedFlags,
    #[command(flatten)]
    sampling: Sampling,
    /// What the model is told before the conversation, where it has a chat template
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Shows the model each line as it is written, without its chat template
    #[arg(long)]
    raw: bool,
}

const HELP: &str = "\
type a line and the model goes on; it sees the conversation as far back as the context reaches
/params             shows the parameters, the context, tokens/s and memory
/params NAME VALUE  sets one: max-tokens, temperature, top-k, top-p, repetition-penalty, seed
/clear              forgets the conversation
/save FILE          writes the conversation to a file
/load FILE          goes on with a conversation that was saved
/help               shows this
/quit               ends, as the end of the input does";

impl Chat {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.sampling.check()?;
        self.trained.settle()?;
        let model = generation::of_dir(&directory::of_run(&self.trained.dir)?)?;
        let (settings, told) = self.sampling.settle(&model)?;
        let (config, trained) = self.trained.decoding(self.sampling.context)?;
        let tokenizer = trained.tokenizer.as_ref();
        let chat = if self.raw { None } else { template::of(tokenizer).first().map(|_| ChatTemplate::of(tokenizer)) };
        if chat.is_none() && self.system.is_some() {
            return Err(request("--system needs a model with a chat template, used without --raw"));
        }
        let ending = chat.as_ref().map(|chat| turn::stop(tokenizer, chat)).transpose().map_err(request)?.flatten();
        let stop: Vec<String> = self.sampling.stop.iter().cloned().chain(ending).collect();
        let until = Until::new(&model, tokenizer, config.vocab_size(), &stop);
        let conversation = begun(&config, settings.seed, &until);
        tell!("{} with {} positions; /help for help", self.trained.dir.display(), config.context());
        told.iter().for_each(|line| tell!("{line}"));
        if chat.is_some() {
            tell!("the model's chat template is applied; --raw shows it each line as it is");
        }
        let chat = chat.map(|template| Chatting { template, system: self.system, forgotten: 0 });
        let mut talk = Talk { config, trained, settings, until, conversation, chat, turns: Vec::new(), speed: None };
        let mut input = io::stdin().lock();
        while let Some(line) = next_line(&mut input).map_err(work)? {
            let (command, rest) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
            let rest = rest.trim();
            let done = match command {
                "" => Ok(()),
                "/quit" => break,
                "/help" => {
                    tell!("{HELP}");
                    Ok(())
                }
                "/clear" => {
                    talk.clear();
                    Ok(())
                }
                "/params" => talk.params(rest),
                "/save" => talk.save(rest),
                "/load" => talk.load(rest),
                other if other.starts_with('/') => Err(format!("no command {other}; /help for help")),
                _ => talk.answer(&line)?,
            };
            if let Err(why) = done {
                tell!("{}", super::shown(&why));
            }
        }
        Ok(())
    }
}

/// An empty conversation with the model of `config`.
fn begun(config: &Config, seed: u64, until: &Until) -> Conversation {
    Conversation::new(config.context(), config.vocab_size(), seed, until.clone())
}

/// The most bytes of a line: more than most contexts can hold.
const LONGEST: u64 = 64 << 10;

/// The most bytes of a file with a conversation.
const MOST_SAVED: u64 = 64 << 20;

/// The next line without its end; `None` after the last line. The part of a line beyond [`LONGEST`] is skipped, and
/// bytes that are not UTF-8 are replaced.
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

/// Converts turns to the input of a model that has learnt to answer.
struct Chatting {
    template: ChatTemplate,
    system: Option<String>,
    /// Number of the first turns that no longer fit in the context.
    forgotten: usize,
}

impl Chatting {
    /// The ids of the turns that fit in the context, followed by `line`, and the number of turns that no longer fit:
    /// there must be room for an answer of `most` tokens, or of a quarter of the context.
    fn ids(
        &mut self,
        tokenizer: &dyn Tokenizer,
        turns: &[Turn],
        line: &str,
        (context, most): (usize, usize),
    ) -> Result<(Vec<u32>, usize), TurnError> {
        let before = self.forgotten;
        loop {
            let system = self.system.iter().map(|text| message("system", text));
            let said = turns[self.forgotten..].iter();
            let said = said.flat_map(|turn| [message("user", &turn.line), message("assistant", &turn.answer)]);
            let messages: Vec<_> = system.chain(said).chain([message("user", line)]).collect();
            let ids = turn::tokens(tokenizer, &self.template, &messages)?;
            if self.forgotten == turns.len() || ids.len() + most.min(context / 4).max(1) <= context {
                return Ok((ids, self.forgotten - before));
            }
            self.forgotten += 1;
        }
    }
}

/// A conversation with a model, including all of its turns.
struct Talk {
    config: Config,
    trained: Trained,
    settings: Settings,
    /// Where answers end.
    until: Until,
    conversation: Conversation,
    /// `None` if the model receives lines unchanged.
    chat: Option<Chatting>,
    turns: Vec<Turn>,
    /// Tokens of the last answer and its seconds.
    speed: Option<(usize, f64)>,
}

/// The result of a chat command; the error is a message for the user.
type Told = Result<(), String>;

impl Talk {
    /// Continues after `line` and shows the answer as it is generated.
    fn answer(&mut self, line: &str) -> Result<Told, Failure> {
        let (context, tokenizer) = (self.config.context() as usize, self.trained.tokenizer.as_ref());
        let most = self.settings.max_tokens as usize;
        let ids = match &mut self.chat {
            Some(chat) => chat.ids(tokenizer, &self.turns, line, (context, most)).map_err(|e| e.to_string()),
            None => self.conversation.encode(tokenizer, line).map(|ids| (ids, 0)).map_err(|e| e.to_string()),
        };
        let (ids, dropped) = match ids {
            Ok(ids) => ids,
            Err(e) => return Ok(Err(e)),
        };
        if ids.is_empty() {
            return Ok(Err("the tokenizer finds nothing in this line; write something else".to_owned()));
        }
        if ids.len() >= context {
            let tokens = ids.len();
            return Ok(Err(format!("{tokens} tokens leave no room in a context of {context}; write a shorter line")));
        }
        if dropped > 0 {
            let of = if dropped == 1 { "turn".to_owned() } else { format!("{dropped} turns") };
            tell!("[the context of {context} is full: the oldest {of} dropped]");
        }
        let (sampler, start) = (self.settings.sampler, Instant::now());
        let mut written = Ok(());
        let mut hear = |event: Event<'_>| match event {
            Event::Text(text) if written.is_ok() => written = part(text),
            Event::Text(_) => {}
            Event::Dropped { turns, tokens } => {
                let of = if turns == 1 { "turn".to_owned() } else { format!("{turns} turns") };
                tell!("[the context of {context} is full: the oldest {of}, {tokens} tokens, dropped]");
            }
            Event::Full => tell!("[the context of {context} is full: the answer ends here]"),
        };
        let answer = if self.chat.is_some() {
            self.conversation.replace(&self.trained, ids);
            self.conversation.reply(&mut self.trained, &sampler, most, &mut hear)
        } else {
            self.conversation.answer(&mut self.trained, &ids, &sampler, most, &mut hear)
        };
        let answer = answer.map_err(work)?;
        written.and_then(|()| say!(""))?;
        self.speed = Some((answer.tokens, start.elapsed().as_secs_f64()));
        self.turns.push(Turn { line: line.trim_end().to_owned(), answer: answer.text, ended: answer.ended });
        Ok(Ok(()))
    }

    fn clear(&mut self) {
        self.conversation.clear();
        self.turns.clear();
        self.chat.iter_mut().for_each(|chat| chat.forgotten = 0);
    }

    /// Sets the parameter that `words` names, or shows all parameters.
    fn params(&mut self, words: &str) -> Told {
        let words: Vec<_> = words.split_whitespace().collect();
        match words[..] {
            [] => self.show(),
            ["max-tokens", "0"] => return Err("max-tokens 0 leaves no answer; it must be at least 1".to_owned()),
            [name, value] => {
                self.settings.set(name, value)?;
                if name == "seed" {
                    self.conversation.reseed(self.settings.seed);
                }
            }
            _ => return Err("/params NAME VALUE, for example /params temperature 0.5".to_owned()),
        }
        Ok(())
    }

    fn show(&mut self) {
        let (turns, tokens) = self.conversation.size();
        tell!("{}", self.settings.shown());
        tell!("context: {tokens} of {} positions, {turns} of {} turns", self.config.context(), self.turns.len());
        match self.speed {
            Some((tokens, seconds)) => tell!("last answer: {tokens} tokens, {:.0} tokens/s", tokens as f64 / seconds),
            None => tell!("last answer: none yet"),
        }
        let resident = memory::resident().map_or("unknown".to_owned(), human_bytes);
        tell!("memory: {} in the arena, {resident} resident", human_bytes(self.trained.session.device.arena_bytes()));
    }

    /// Writes the conversation to a file, completely or not at all. Of existing files, only saved conversations are
    /// replaced.
    fn save(&self, path: &str) -> Told {
        if path.is_empty() {
            return Err("/save FILE".to_owned());
        }
        let file = Path::new(path);
        if file.exists() {
            turns(file).map_err(|e| format!("{e}; not replaced, name another file"))?;
        }
        let temporary = Path::new(&format!("{path}.tmp")).to_owned();
        let written = fs::File::create_new(&temporary).and_then(|mut file| {
            file.write_all(transcript::write(&self.turns).as_bytes())?;
            file.sync_all()
        });
        let written = written.and_then(|()| fs::rename(&temporary, file));
        if written.as_ref().is_err_and(|e| e.kind() != io::ErrorKind::AlreadyExists) {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(|e| format!("{}: {e}", temporary.display()))?;
        tell!("{} turns saved in {path}", self.turns.len());
        Ok(())
    }

    /// Continues with the conversation in a file. The current one stays if the file is invalid.
    fn load(&mut self, path: &str) -> Told {
        if path.is_empty() {
            return Err("/load FILE".to_owned());
        }
        let turns = turns(Path::new(path))?;
        let mut conversation = begun(&self.config, self.settings.seed, &self.until);
        if let Some(chat) = &mut self.chat {
            chat.forgotten = 0;
            tell!("{} turns loaded from {path}", turns.len());
            (self.conversation, self.turns) = (conversation, turns);
            return Ok(());
        }
        for turn in &turns {
            conversation.recall(self.trained.tokenizer.as_ref(), turn).map_err(|e| format!("{path}: {e}"))?;
        }
        let kept = conversation.size().0;
        tell!("{} turns loaded from {path}; the context holds the last {kept}", turns.len());
        (self.conversation, self.turns) = (conversation, turns);
        Ok(())
    }
}

/// The turns in a file.
fn turns(file: &Path) -> Result<Vec<Turn>, String> {
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let length = fs::metadata(file).map_err(|e| named(&e))?.len();
    if length > MOST_SAVED {
        let [length, most] = [length, MOST_SAVED].map(human_bytes);
        return Err(named(&format!("{length} are no saved conversation; {most} are the most")));
    }
    transcript::read(&regular::read_to_string(file).map_err(|e| named(&e))?).map_err(|e| named(&e))
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
