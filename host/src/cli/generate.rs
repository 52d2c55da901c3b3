//! `host generate`.

use std::time::Instant;

use serde_json::json;

use super::output::say;
use super::sampling::Sampling;
use super::trained::TrainedFlags;
use super::{Failure, request, work};
use crate::run::directory::Trained;
use crate::run::generate::{End, Generator};

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
    pub(super) fn run(self) -> Result<(), Failure> {
        let sampler = self.sampling.sampler()?;
        let (config, Trained { mut session, tokenizer }) = self.trained.decoding(self.sampling.context)?;
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
        let mut generator = Generator::new(context, config.vocab_size(), self.sampling.seed);
        let mut ids = Vec::with_capacity(self.sampling.max_tokens.min(context) as usize);
        let (most, limit) = (self.sampling.max_tokens as usize, tokenizer.vocab_size() as usize);
        let start = Instant::now();
        let end = generator.run(&mut session, &sampler, &prompt, most, limit, tokenizer.eos(), &mut |id| {
            ids.push(id);
        });
        let end = end.map_err(work)?;
        let seconds = start.elapsed().as_secs_f64();
        let text = tokenizer.decode(&ids);
        if self.json {
            let end = match end {
                End::Eos => "eos",
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
