//! Opens the data of a run, reports it, and applies its effect on the run's length.

use capful_base::human_bytes;
use std::path::Path;

use capful_core::train::Curriculum;

use super::output::tell;
use super::{Failure, request, work};
use crate::config::{Cache, Config};
use crate::data::corpus::{self, Corpus, CorpusError};
use crate::data::error::SourceError;
use crate::data::shards::build::Event;
use crate::data::snapshot::Began;

/// Settings that the user made, so that the data does not determine them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decided {
    /// Whether the user set the steps of the warm-up.
    pub warmup: bool,
    /// Whether the user set the number of the model's ids.
    pub vocabulary: bool,
    /// Whether the user set the steps or the epochs.
    pub length: bool,
    /// The number of steps that the epochs must give.
    pub steps: Option<u64>,
}

/// Opens the data of a new run and converts its epochs to steps. The source must contain a batch; this is checked
/// before a directory is created.
pub(super) fn open(config: &mut Config, dir: &Path, decided: Decided, quiet: bool) -> Result<Corpus, Failure> {
    tell_of_data(config, None, quiet);
    let text = if decided.vocabulary { None } else { Corpus::text_bytes(config).map_err(encoded)? };
    let fitted = text.and_then(|bytes| config.fit_text(bytes));
    let mut corpus = Corpus::open(config, dir, &mut encoding(config, dir, quiet)).map_err(encoded)?;
    corpus.require(config).map_err(request)?;
    if let Some(line) = fitted {
        tell!("{line}");
    }
    count_epochs(config, &corpus, decided.warmup)?;
    if let (Some(steps), Some(epochs)) = (decided.steps.filter(|steps| *steps != config.steps), config.epochs) {
        return Err(request(format_args!(
            "--epochs {epochs} are {} steps with this data, and the configuration says {steps}; give --epochs or --steps",
            config.steps
        )));
    }
    fit_length(config, &corpus, decided)?;
    config.validate_schedule()?;
    if !decided.vocabulary
        && let Some(line) = config.fit_vocabulary(corpus.tokenizer.vocab_size())
    {
        config.validate()?;
        tell!("{line}");
    }
    Ok(corpus)
}

/// Reports which files are read and which are not.
pub(super) fn tell_of_data(config: &Config, began: Option<&Began>, quiet: bool) {
    if !quiet {
        corpus::reading(config, began).iter().for_each(|line| tell!("{line}"));
    }
}

/// Reports skipped and repaired text, if that was not reported yet.
pub(super) fn tell_of_flaws(corpus: &Corpus) {
    corpus.noticed().iter().for_each(|line| tell!("{line}"));
}

/// Reports that all text is encoded before the run begins.
pub(super) fn encoding(config: &Config, dir: &Path, quiet: bool) -> impl FnMut(Event) + use<> {
    let (mut data, cache) = (config.data.to_string(), config.cache(dir).filter(|_| !quiet));
    move |event| {
        let Some(Cache::Own(dir) | Cache::Shared(dir)) = &cache else { return };
        match event {
            Event::Of(source) => data = source,
            Event::Waiting => tell!("waiting for another process that encodes {data} into {}", dir.display()),
            Event::Begun { about, found } => {
                let about = about.map_or(String::new(), |bytes| format!(", about {}", human_bytes(bytes)));
                let found = if found > 0 { format!(", {found} tokens are there") } else { String::new() };
                tell!("encoding {data} into {}{about}{found}", dir.display());
            }
            Event::Encoded(tokens) => tell!("  {tokens} tokens"),
        }
    }
}

/// An output that cannot be written is not a wrong request.
pub(super) fn encoded(error: CorpusError) -> Failure {
    match error {
        CorpusError::Source(SourceError::Write { .. }) => work(error),
        _ => request(error),
    }
}

/// Converts epochs to steps, if that was not done yet, and sets a default warm-up to its share of them.
pub(super) fn count_epochs(config: &mut Config, corpus: &Corpus, warmup: bool) -> Result<(), Failure> {
    let Some(epochs) = config.epochs.filter(|_| config.steps == 0) else { return Ok(()) };
    let tokens = corpus.training_tokens().map_err(request)? * u64::from(epochs);
    let stages = config.stages();
    config.steps = Curriculum::new(&stages).map_err(request)?.steps(tokens.saturating_sub(1));
    if config.steps == 0 {
        return Err(request(format!(
            "{tokens} tokens are less than one step of {}; lower --batch-size or --accumulate",
            stages[0].step_tokens()
        )));
    }
    if !warmup {
        config.warmup = config.default_warmup();
    }
    Ok(())
}

/// Refuses an end before the current step of the run in `dir`. Epochs that are not yet converted have no known end, and
/// a run with a time limit determines its end itself.
pub(super) fn require_ahead(config: &Config, dir: &Path, step: u64) -> Result<(), Failure> {
    let ends = match (config.epochs, config.steps) {
        (Some(_), 0) => return Ok(()),
        _ if config.time.is_some() => return Ok(()),
        (_, steps) if steps >= step => return Ok(()),
        (Some(epochs), steps) => format!("the end of --epochs {epochs}, which is step {steps}"),
        (None, steps) => format!("--steps {steps}"),
    };
    Err(request(format_args!("{} is at step {step} already, past {ends}; give more than {step} steps", dir.display())))
}

/// The default for the most epochs of a run on a user's own text.
pub(super) const MOST_EPOCHS: u64 = 4;

/// Limits a run of default length to some epochs of a text whose tokens are counted. Its warm-up, unless the user set
/// it, keeps its share. A curriculum is not shortened: its last stages are its purpose.
fn fit_length(config: &mut Config, corpus: &Corpus, decided: Decided) -> Result<(), Failure> {
    if decided.length || corpus.encoded().is_none() || !config.stage.is_empty() {
        return Ok(());
    }
    let tokens = MOST_EPOCHS * corpus.training_tokens().map_err(request)?;
    let stages = config.stages();
    let fitting = Curriculum::new(&stages).map_err(request)?.steps(tokens.saturating_sub(1)).max(1);
    if fitting < config.steps {
        if !decided.warmup {
            config.warmup = (u128::from(config.warmup) * u128::from(fitting) / u128::from(config.steps)).max(1) as u64;
        }
        config.steps = fitting;
    }
    Ok(())
}
