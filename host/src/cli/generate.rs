//! `host generate`.

use std::time::Instant;

use serde_json::json;

use super::output::{say, tell};
use super::sampling::Sampling;
use super::trained::TrainedFlags;
use super::{Failure, request, work};
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
    #[command(flatten)]
    sampling: Sampling,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Generate {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.sampling.check()?;
        self.trained.settle()?;
        let model = generation::of_dir(&directory::of_run(&self.trained.dir)?)?;
        let (settings, told) = self.sampling.settle(&model)?;
        let (config, Trained { mut session, tokenizer }) = self.trained.decoding(self.sampling.context)?;
        told.iter().for_each(|line| tell!("{}: {line}", crate::name::called()));
        let context = config.context();
        let mut prompt: Vec<u32> = tokenizer.bos().or(tokenizer.eos()).into_iter().collect();
        tokenizer.encode(&self.prompt, &mut prompt).map_err(request)?;
        if prompt.is_empty() {
            return Err(request("this tokenizer has no mark of a document's beginning; give a --prompt"));
        }
        if prompt.len() > context as usize {
            return Err(request(format!(
                "the prompt has {} tokens and the context {context}; shorten it",
                prompt.len()
            )));
        }
        let Until { ends, texts } = Until::new(&model, tokenizer.as_ref(), config.vocab_size(), &self.sampling.stop);
        let mut generator = Generator::new(context, config.vocab_size(), settings.seed);
        let mut ids = Vec::with_capacity(settings.max_tokens.min(context) as usize);
        let (most, limit) = (settings.max_tokens as usize, tokenizer.vocab_size() as usize);
        let (mut output, mut text) = (Output::new(tokenizer.as_ref(), &texts), String::new());
        let start = Instant::now();
        let end = generator.run(&mut session, &settings.sampler, &prompt, most, limit, &ends, &mut |id| {
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
            let mut line = json!({ "prompt": self.prompt, "ids": ids, "text": text, "end": end, "seconds": seconds });
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
