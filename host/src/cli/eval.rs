//! `host eval`.

use serde_json::json;

use super::opened::{tell_of_data, tell_of_flaws};
use super::output::{say, tell};
use super::reading::OtherReading;
use super::trained::TrainedFlags;
use super::{Failure, request, work};
use crate::config::{Config, IMPORTED, Names, absolute_source};
use crate::data::choice::{self, Validation};
use crate::data::corpus::Corpus;
use crate::data::coverage::{self, Words};
use crate::data::overlap::Overlap;
use crate::data::validation::ValidationSet;
use crate::data::whole::Whole;
use crate::plan::{Machine, Sections};
use crate::run::directory::{self, Trained};
use crate::run::evaluate::{Evaluator, Score};
use crate::run::{Session, checkpoint, moved};

/// Flags of `host eval`.
#[derive(Debug, clap::Args)]
pub struct Eval {
    #[command(flatten)]
    trained: TrainedFlags,
    /// Another source to score: all of it, or with --eval-tokens a sample; what the run held out where it is not given, or is
    /// the run's own data, wherever that lies now
    #[arg(long, value_name = "SOURCE")]
    data: Option<String>,
    #[command(flatten)]
    reading: OtherReading,
    /// The most tokens to score, of documents drawn at random; without it the run's own number, or all of --data
    #[arg(long, value_name = "N", value_parser = crate::config::scored_tokens)]
    eval_tokens: Option<u64>,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
    /// In the JSON also each document's nats and tokens, and its number in the source, counted from 0, in that order: two
    /// evaluations of the same documents can be compared document by document
    #[arg(long, requires = "json")]
    documents: bool,
}

/// The documents to score.
enum Scored {
    /// All documents of a source.
    Whole(Box<Whole>),
    /// Some documents of it.
    Sample(Validation, Option<Overlap>),
}

/// A document's number, nats and tokens.
type Line = (u64, f64, usize);

/// The result of an evaluation.
struct Found {
    score: Score,
    /// The line of each document, in the order of the source.
    lines: Vec<Line>,
    floor: Option<f64>,
    overlap: Option<Overlap>,
    /// The share of words that are unknown to the tokenizer.
    unknown: Option<f64>,
    /// A description of what was scored, for people.
    about: String,
}

impl Eval {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.trained.settle()?;
        let mut config = self.trained.config()?;
        let run = directory::of_run(&self.trained.dir)?;
        let from = checkpoint::latest(&self.trained.dir).map_err(request)?;
        let mut began = checkpoint::read_began(&from).map_err(request)?;
        let mut other = self.data.as_deref();
        let trained = from.join(checkpoint::STATE).exists();
        if let Some(named) = self.data.as_deref().map(absolute_source) {
            // The run's own data, at any path, does not count as another source: most of it was trained on.
            let own = trained && moved::is_own(&mut config, &mut began, &named);
            if own && self.reading != OtherReading::default() {
                return Err(request(format!(
                    "{named} is the run's own data, which is read as the run reads it; leave --text-field, --invalid-utf8 \
                     and --skip-bad-lines away"
                )));
            }
            if own && config.validation.is_none() {
                match config.data.is_mixture() {
                    true => {
                        tell!("{named} is of the run's own data; what the run held out of all its sources is scored")
                    }
                    false => tell!("{named} is the run's own data; only what the run held out of it is scored"),
                }
                other = None;
            } else {
                if own {
                    tell!("{named} is the run's own data: it has learnt from all that is scored");
                }
                config.validation = Some(named.into());
            }
        } else if let Some(gone) = config.validation.iter().flat_map(Names::iter).find(|source| moved::is_gone(source))
        {
            return Err(request(format!(
                "the run's validation data {gone} is not there; put it back, or name its new place with --data"
            )));
        }
        if config.validation.is_none() && config.preset == IMPORTED && !trained {
            let dir = self.trained.dir.display();
            return Err(request(format!(
                "{dir} holds an imported model, which held out no text; name some with --data"
            )));
        }
        if began.source.is_some() {
            tell_of_data(&config, Some(&began), self.json);
        }
        let mut corpus = Corpus::reopen(&config, &from, &run, began, None).map_err(request)?;
        corpus.read_validation(|options| self.reading.clone().over(options));
        let scored = self.chosen(&config, &corpus, other)?;
        let sections = Sections { evaluation: Some(config.evaluation()), ..Sections::none(&config) };
        let Trained { mut session, .. } = self.trained.load(&config, &sections)?;
        let Found { score, lines, floor, overlap, unknown, about } = self.score(scored, &corpus, &mut session)?;
        if !score.loss().is_finite() {
            let (from, loss) = (from.display(), score.loss());
            return Err(work(format!(
                "{from}: the loss is {loss}; its weights are of no use, take another checkpoint"
            )));
        }
        let bits = score.bits_per_byte(corpus.tokenizer.as_ref());
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
                "unknown": unknown,
            });
            if !score.by_source.is_empty() {
                line["val_by_source"] = json!(*score.by_source);
            }
            if self.documents {
                let object =
                    |(document, nats, tokens): &Line| json!({ "document": document, "nats": nats, "tokens": tokens });
                line["documents"] = lines.iter().map(object).collect();
            }
            say!("{line}")?;
            return Ok(());
        }
        say!("loss {} nats a token, perplexity {:.2}, {} tokens", score.shown(), score.loss().exp(), score.tokens)?;
        say!("{about}")?;
        for (name, loss) in config.data.names().zip(score.by_source.iter()) {
            say!("  {loss:.4} on {name}")?;
        }
        if let Some(line) = unknown.and_then(coverage::of_score) {
            say!("{line}")?;
        }
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

    /// The documents to score, determined before a model is loaded: of the `other` source, if one other than the run's
    /// own is named.
    fn chosen(&self, config: &Config, corpus: &Corpus, other: Option<&str>) -> Result<Scored, Failure> {
        if other.is_some()
            && self.eval_tokens.is_none()
            && let Some(whole) = corpus.whole_validation().map_err(request)?
        {
            return Ok(Scored::Whole(Box::new(whole)));
        }
        let most = self.eval_tokens.unwrap_or(config.eval_tokens);
        let tokens = usize::try_from(most).unwrap_or(usize::MAX).min(u32::MAX as usize);
        let needed = ValidationSet::storage(tokens) + choice::storage(tokens);
        let lower = "lower it, or name the source with --data alone, which holds some at a time";
        Machine::here(1).require_room(&format!("--eval-tokens {most}"), needed, lower)?;
        let validation = corpus.validation(most).map_err(request)?;
        let overlap = corpus.overlap(&validation.set).map_err(request)?;
        if let (Some(data), Some(among)) = (other, validation.among)
            && among > validation.set.documents() as u64
        {
            let (documents, tokens) = (validation.set.documents(), validation.set.targets());
            tell!(
                "only {documents} of the {among} documents of {data} are scored, {tokens} tokens; without --eval-tokens all \
                 of them are"
            );
        }
        Ok(Scored::Sample(validation, overlap))
    }

    fn score(&self, scored: Scored, corpus: &Corpus, session: &mut Session) -> Result<Found, Failure> {
        let stage = session.evaluation_stage().map_err(work)?;
        let mut evaluator = Evaluator::new(stage.batch, stage.seq_len);
        let mut lines: Vec<Line> = Vec::new();
        let mut words = Words::default();
        let mut score = |set: &ValidationSet, numbers: &[u64]| {
            let mut numbers = numbers.iter();
            let mut visit = |(nats, tokens): (f64, usize)| {
                if tokens > 0
                    && let Some(number) = numbers.next()
                    && self.documents
                {
                    lines.push((*number, nats, tokens));
                }
            };
            words.add(set, corpus.tokenizer.as_ref());
            evaluator.score_each(session, set, &mut visit).map_err(work)
        };
        let mut found = match scored {
            Scored::Sample(validation, overlap) => Found {
                score: score(&validation.set, &validation.numbers)?,
                lines: Vec::new(),
                floor: corpus.floor(&validation.set),
                overlap,
                unknown: None,
                about: validation.describe(overlap),
            },
            Scored::Whole(mut whole) => {
                let (mut sum, mut overlap) = (Score::default(), None);
                while let Some(some) = whole.more().map_err(request)? {
                    // Searching for more documents in the training side would read it again each time.
                    if sum.documents == 0 && whole.is_done() {
                        overlap = corpus.overlap(&some.set).map_err(request)?;
                    }
                    sum = sum.and(score(&some.set, &some.numbers)?);
                }
                let about = format!("validation: all {} documents; {} tokens", sum.documents, sum.tokens);
                let about = about + &overlap.map(Overlap::describe).unwrap_or_default();
                Found { score: sum, lines: Vec::new(), floor: None, overlap, unknown: None, about }
            }
        };
        lines.sort_by_key(|(number, ..)| *number);
        (found.lines, found.unknown) = (lines, words.unknown());
        tell_of_flaws(corpus);
        Ok(found)
    }
}
