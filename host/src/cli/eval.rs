//! `host eval`.

use std::path::Path;

use serde_json::json;

use super::output::say;
use super::trained::TrainedFlags;
use super::{Failure, request, say_warnings, work};
use crate::config::{IMPORTED, absolute_source};
use crate::data::corpus::Corpus;
use crate::plan::Sections;
use crate::run::checkpoint;
use crate::run::directory::Trained;
use crate::run::evaluate::Evaluator;

/// Flags of `host eval`.
#[derive(Debug, clap::Args)]
pub struct Eval {
    #[command(flatten)]
    trained: TrainedFlags,
    /// Another source to score, whole; without it what the run held out, also where this is the run's data, moved here
    #[arg(long, value_name = "SOURCE")]
    data: Option<String>,
    /// The most tokens to score
    #[arg(long, value_name = "N")]
    eval_tokens: Option<u64>,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
    /// In the JSON also each document's nats and tokens, in order: two evaluations of the same documents can be compared
    /// document by document
    #[arg(long, requires = "json")]
    documents: bool,
}

impl Eval {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut config = self.trained.config()?;
        let from = checkpoint::latest(&self.trained.dir).map_err(request)?;
        let mut began = checkpoint::read_source(&from).map_err(request)?;
        if let Some(named) = self.data.map(|data| absolute_source(&data)) {
            // The run's own data, which is no longer where it was, is not another source.
            let gone = config.validation.is_none() && !Path::new(&config.data).exists();
            match began.as_ref().filter(|_| gone).and_then(|began| began.moved(&named).ok()) {
                Some(moved) => (config.data, began) = (named, Some(moved)),
                None => config.validation = Some(named),
            }
        }
        if config.validation.is_none() && config.preset == IMPORTED && !from.join(checkpoint::STATE).exists() {
            let dir = self.trained.dir.display();
            return Err(request(format!(
                "{dir} holds an imported model, which held out no text; name some with --data"
            )));
        }
        let corpus = Corpus::reopen(&config, &from, &self.trained.dir, began, None).map_err(request)?;
        let validation = corpus.validation(self.eval_tokens.unwrap_or(config.eval_tokens)).map_err(request)?;
        let (set, overlap) = (&validation.set, corpus.overlap(&validation.set).map_err(request)?);
        let sections = Sections { evaluation: Some(config.evaluation()), ..Sections::none(&config) };
        let Trained { mut session, .. } = Trained::load(&self.trained.dir, &config, &sections)?;
        say_warnings(&mut session);
        let stage = session.evaluation_stage().map_err(work)?;
        let (mut evaluator, mut documents) = (Evaluator::new(stage.batch, stage.seq_len), Vec::new());
        let mut visit = |document: (f64, usize)| documents.extend((document.1 > 0).then_some(document));
        let score = evaluator.score_each(&mut session, set, &mut visit).map_err(work)?;
        if !score.loss().is_finite() {
            let (from, loss) = (from.display(), score.loss());
            return Err(work(format!(
                "{from}: the loss is {loss}; its weights are of no use, take another checkpoint"
            )));
        }
        let (floor, bits) = (corpus.floor(set), score.bits_per_byte(corpus.tokenizer.as_ref()));
        if self.json {
            let mut line = json!({
                "loss": score.loss(),
                "loss_se": score.standard_error(),
                "perplexity": score.loss().exp(),
                "tokens": score.tokens,
                "bytes": score.bytes,
                "bits_per_byte": bits,
                "overlap": overlap.map(|o| o.share),
                "floor": floor,
            });
            if self.documents {
                line["documents"] = json!(documents);
            }
            say!("{line}")?;
            return Ok(());
        }
        say!("loss {} nats a token, perplexity {:.2}, {} tokens", score.shown(), score.loss().exp(), score.tokens)?;
        say!("{}", validation.describe(overlap))?;
        match bits {
            Some(bits) => say!("{bits:.4} bits a byte over {} bytes", score.bytes)?,
            None if score.bytes > 0 => say!(
                "bits a byte are not given: this tokenizer does not restore the text (it changes letters, or has unknown \
                 words)"
            )?,
            None => {}
        }
        if let Some(floor) = floor {
            say!("floor {floor:.4}")?;
        }
        Ok(())
    }
}
