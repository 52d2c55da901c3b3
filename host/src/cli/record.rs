//! The events that a training run records when it begins and when it ends.

use std::path::Path;

use super::{Failure, words, work};
use crate::data::corpus::Corpus;
use crate::name;
use crate::run::sessions::{self, Began, Ended, Event};

/// Records that the run in `dir` continues from `step` on `device`, with the lines `told` about its data.
pub(super) fn began(device: &str, dir: &Path, step: u64, told: Vec<String>) -> Result<(), Failure> {
    let command = std::iter::once(name::called().to_owned()).chain(words()).collect();
    let began = Began {
        step,
        at: sessions::now(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        device: device.strip_prefix("device ").unwrap_or(device).to_owned(),
        command,
        data: told,
    };
    keep(dir, &Event::Began(began))
}

/// Records the result of the run in `dir` after `step` steps.
pub(super) fn ended(
    corpus: &Corpus,
    dir: &Path,
    step: u64,
    result: &serde_json::Value,
    sample: Option<String>,
) -> Result<(), Failure> {
    let source = corpus.encoded();
    let ended = Ended {
        step,
        at: sessions::now(),
        result: result.clone(),
        sample,
        documents: source.map(|(documents, _)| documents),
        source_tokens: source.map(|(_, tokens)| tokens),
        flaws: corpus.flaws(),
    };
    keep(dir, &Event::Ended(ended))
}

fn keep(dir: &Path, event: &Event) -> Result<(), Failure> {
    sessions::add(dir, event).map_err(|e| work(format_args!("{}: {e}", dir.join(sessions::FILE_NAME).display())))
}
