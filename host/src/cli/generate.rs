//! `host generate`.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use super::output::{say, tell};
use super::sampling::{Sampling, Settings};
use super::trained::TrainedFlags;
use super::{Failure, request, work};
use crate::data::conversation::ChatTemplate;
use crate::data::conversation::turn::{self, Question};
use crate::data::tokenizer::Tokenizer;
use crate::regular;
use crate::run::Session;
use crate::run::directory::{self, Trained};
use crate::run::generate::{End, Generator};
use crate::run::generation;
use crate::run::until::{Output, Until};

/// Flags of `host generate`.
#[derive(Debug, clap::Args)]
pub struct Generate {
    #[command(flatten)]
    trained: TrainedFlags,
    /// The text to continue; without it the beginning of a document
    #[arg(long, value_name = "TEXT", default_value = "")]
    prompt: String,
    /// Answers conversations instead, by the model's chat template: a JSON list of messages, or an object with them (or a
    /// prompt) on each line; - for standard input. A last answer is left out, and given in --json as `expected`
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    messages: Option<PathBuf>,
    #[command(flatten)]
    sampling: Sampling,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

/// The input that a model continues, and its description in JSON.
struct Prompt {
    ids: Vec<u32>,
    said: serde_json::Value,
}

/// The most bytes of a file of conversations.
const MOST_ASKED: u64 = 64 << 20;

/// The conversations of a file, or of standard input.
fn asked(path: &Path, chat: &ChatTemplate, tokenizer: &dyn Tokenizer) -> Result<Vec<Prompt>, Failure> {
    let named = |e: &dyn std::fmt::Display| request(format!("{}: {e}", path.display()));
    let text = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().take(MOST_ASKED).read_to_string(&mut text).map_err(|e| named(&e))?;
        text
    } else {
        regular::text_at_most(path, MOST_ASKED).map_err(|e| named(&e))?
    };
    let conversations = turn::of_file(&text).map_err(|e| named(&e))?;
    if conversations.is_empty() {
        return Err(named(&"it holds no conversation"));
    }
    let prompts = (1..).zip(conversations).map(|(number, Question { messages, expected })| {
        let ids = turn::tokens(tokenizer, chat, &messages);
        let ids = ids.map_err(|e| named(&format!("conversation {number}: {e}")))?;
        let mut said = json!({ "messages": messages });
        if let Some(expected) = expected {
            said["expected"] = expected.into();
        }
        Ok(Prompt { ids, said })
    });
    prompts.collect()
}

impl Generate {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.sampling.check()?;
        self.trained.settle()?;
        let model = generation::of_dir(&directory::of_run(&self.trained.dir)?)?;
        let (settings, told) = self.sampling.settle(&model)?;
        let (config, Trained { mut session, tokenizer }) = self.trained.decoding(self.sampling.context)?;
        told.iter().for_each(|line| tell!("{}: {line}", crate::name::called()));
        let chat = self.messages.as_ref().map(|_| ChatTemplate::of(tokenizer.as_ref()));
        let prompts = match (&self.messages, &chat) {
            (Some(path), Some(chat)) => asked(path, chat, tokenizer.as_ref())?,
            _ => vec![self.beginning(tokenizer.as_ref())?],
        };
        let ending = chat.as_ref().map(|chat| turn::stop(tokenizer.as_ref(), chat));
        let stop: Vec<String> =
            self.sampling.stop.iter().cloned().chain(ending.transpose().map_err(request)?.flatten()).collect();
        let context = config.context();
        if let Some((number, Prompt { ids, .. })) =
            (1..).zip(&prompts).find(|(_, prompt)| prompt.ids.len() > context as usize)
        {
            let which =
                if self.messages.is_some() { format!("conversation {number}") } else { "the prompt".to_owned() };
            return Err(request(format!("{which} has {} tokens and the context {context}; shorten it", ids.len())));
        }
        let until = Until::new(&model, tokenizer.as_ref(), config.vocab_size(), &stop);
        let mut generator = Generator::new(context, config.vocab_size(), settings.seed);
        for prompt in &prompts {
            generator.clear();
            self.answer(prompt, &mut generator, &mut session, tokenizer.as_ref(), &until, &settings)?;
        }
        Ok(())
    }

    /// The beginning of a text.
    fn beginning(&self, tokenizer: &dyn Tokenizer) -> Result<Prompt, Failure> {
        let mut ids: Vec<u32> = tokenizer.bos().or(tokenizer.eos()).into_iter().collect();
        tokenizer.encode(&self.prompt, &mut ids).map_err(request)?;
        if ids.is_empty() {
            return Err(request("this tokenizer has no mark of a document's beginning; give a --prompt"));
        }
        Ok(Prompt { ids, said: json!({ "prompt": self.prompt }) })
    }

    /// Continues one prompt, and returns how it ended.
    fn answer(
        &self,
        prompt: &Prompt,
        generator: &mut Generator,
        session: &mut Session,
        tokenizer: &dyn Tokenizer,
        Until { ends, texts }: &Until,
        settings: &Settings,
    ) -> Result<(), Failure> {
        let mut ids = Vec::with_capacity(settings.max_tokens.min(1 << 20) as usize);
        let (most, limit) = (settings.max_tokens as usize, tokenizer.vocab_size() as usize);
        let (mut output, mut text) = (Output::new(tokenizer, texts), String::new());
        let start = Instant::now();
        let end = generator.run(session, &settings.sampler, &prompt.ids, most, limit, ends, &mut |id| {
            ids.push(id);
            if !texts.is_empty() {
                text.push_str(&output.push(id));
            }
            output.flow()
        });
        let end = end.map_err(work)?;
        let seconds = start.elapsed().as_secs_f64();
        if texts.is_empty() {
            text = tokenizer.decode(&ids);
        } else {
            text.push_str(&output.finish());
        }
        if self.json {
            let end = match end {
                _ if output.stopped() => "stop",
                End::Enough => "stop",
                End::Eos(_) => "eos",
                End::MaxTokens => "max-tokens",
                End::Context => "context",
            };
            let gpu_seconds = session.device.gpu().map(|gpu| gpu.busy_seconds());
            let mut line = prompt.said.clone();
            for (key, value) in
                [("ids", json!(ids)), ("text", json!(text)), ("end", json!(end)), ("seconds", json!(seconds))]
            {
                line[key] = value;
            }
            if let Some(gpu_seconds) = gpu_seconds {
                line["gpu_seconds"] = gpu_seconds.into();
            }
            say!("{line}")?;
        } else {
            say!("{text}")?;
        }
        Ok(())
    }
}
