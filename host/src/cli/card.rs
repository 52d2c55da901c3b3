//! The information about a run's model for a model card.

use std::path::{Path, PathBuf};

use super::{Failure, work};
use crate::config::{Config, RawConfig};
use crate::data::tokenizer::Tokenizer;
use crate::format::hugging_face::{Card, Recipe, Score};
use crate::run::checkpoint::{TrainerState, Weights};
use crate::run::history::{Change, History};
use crate::run::metrics::{self, EvalMetrics};

/// The information about the run in `dir`, whose checkpoint has `state` if it was trained by this program, with these
/// `weights`.
pub(super) fn of_run(
    dir: &Path,
    config: &Config,
    state: Option<&TrainerState>,
    tokenizer: &dyn Tokenizer,
    weights: Weights,
) -> Result<Card, Failure> {
    let name = |source: &str| {
        let path = PathBuf::from(source);
        path.file_name().map_or(source.to_owned(), |name| name.to_string_lossy().into_owned())
    };
    let step = state.map(|state| state.step);
    let history = History::of(dir, config)?;
    let score = metrics::last_evaluation(dir, step.unwrap_or(u64::MAX)).map_err(work)?;
    let (score, averaging) = match weights {
        Weights::Last => (score, None),
        Weights::Averaged => (score.and_then(EvalMetrics::of_averages), config.averaging()),
    };
    Ok(Card {
        base: history.base().cloned(),
        recipe: recipe(config, step, &history)?,
        from: history.from,
        data: state.map(|_| config.data.names().map(name).collect::<Vec<_>>().join(", ")),
        tokenizer: name(&config.tokenizer),
        tokenizer_size: tokenizer.vocab_size(),
        step,
        tokens: state.map(|state| state.tokens),
        score: score.map(|score| Score {
            step: score.step,
            loss: score.val_loss,
            standard_error: score.val_loss_se,
            bits_per_byte: score.val_bits_per_byte,
            tokens: score.val_tokens,
        }),
        averaging,
        trained_by: state.map(|state| state.version.clone()).filter(|version| !version.is_empty()),
    })
}

/// The command that trains the model of step `step` again, if a single run can do that.
fn recipe(config: &Config, step: Option<u64>, history: &History) -> Result<Recipe, Failure> {
    let Some(step) = step else {
        return Ok(Recipe::None("it was not trained with capful, and how it was is not known here".to_owned()));
    };
    if let [Change { step, key, values: [before, after] }, more @ ..] = &history.changes[..] {
        let others = if more.is_empty() { "" } else { ", and other changes came after it" };
        return Ok(Recipe::None(format!(
            "after {step} steps the run went on with {key} = {after} in place of {before}{others}; a run with either from the \
             beginning is another model"
        )));
    }
    let mut notes = Vec::new();
    let whole = config.as_written()?;
    let mut written = whole.clone().without_directories();
    if written != whole {
        notes.push("Files and directories are named without what lies above them; give their paths.".to_owned());
    }
    if config.init_from.is_some() {
        notes.push("It begins from the model in the directory that `init_from` names.".to_owned());
        // The description comes with the model that the weights are from; only the context may be shorter.
        let context = written.model.remove("context").map(|context| ("context".to_owned(), context));
        written = RawConfig { preset: None, tokenizer: None, model: context.into_iter().collect(), ..written };
    }
    if step < config.steps {
        notes.push(format!("That trains all of its {} steps; this is its checkpoint after {step}.", config.steps));
    }
    Ok(Recipe::Config { text: toml::to_string(&written).map_err(work)?, notes })
}
