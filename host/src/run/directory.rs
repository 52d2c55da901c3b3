//! A run's directory: its configuration, plan, tokenizer, metrics and checkpoints.
//!
//! The configuration begins with the digest of its remaining text, since it changes when a run continues; the plan and
//! the tokenizer do not change, and their digests are in a separate list.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config::{CONFIG_FILE, Config, ConfigError, FoundSource, OWN, PLAN_FILE, require_unchanged, sealed};
use crate::data::tokenizer::{self, Tokenizer};
use crate::device::{Choice, DeviceError};
use crate::digest::{self, DigestError, Digests};
use crate::format::hugging_face::{self, Generation};
use crate::plan::{Laid, Machine, Sections};
use crate::run::base::Base;
use crate::run::checkpoint::{Wanted, Weights};
use crate::run::claim::LOCK;
use crate::run::history::{self, History};
use crate::run::{Session, checkpoint, generation, metrics, sessions};
use crate::{disk, regular};

/// The configuration's file.
pub const CONFIG: &str = CONFIG_FILE;
pub(crate) const PLAN: &str = PLAN_FILE;
/// The digests of the files that a run writes once.
pub const DIGESTS: &str = "DIGESTS";

/// Why a run's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A wrong request.
    #[error("{0}")]
    Refused(String),
    /// A failure while working.
    #[error("{0}")]
    Failed(String),
}

impl DirectoryError {
    /// An error of the file system at `path`.
    pub(super) fn io(path: &Path, error: &std::io::Error) -> Self {
        let text = format!("{}: {error}", path.display());
        if disk::is_full(error) { Self::Failed(text) } else { Self::Refused(text) }
    }
}

impl From<DirectoryError> for DeviceError {
    fn from(error: DirectoryError) -> Self {
        match error {
            DirectoryError::Refused(text) => DeviceError::Refused(text),
            DirectoryError::Failed(text) => DeviceError::Failed(text),
        }
    }
}

/// Whether `dir` contains a run.
pub fn holds_run(dir: &Path) -> bool {
    dir.join(CONFIG).exists()
}

/// The directory of the run that `dir` names: `dir` itself, or, if it is a complete checkpoint of a run, the run's
/// directory. Readers then use that checkpoint: see [`checkpoint::latest`].
///
/// # Errors
/// An incomplete checkpoint of a run; the message lists the complete ones.
pub fn of_run(dir: &Path) -> Result<PathBuf, ConfigError> {
    if holds_run(dir) {
        return Ok(dir.to_owned());
    }
    // A path that ends in a name has its parent before the name; for other paths, such as `.`, the file system knows
    // the parent.
    let above = match (dir.file_name(), dir.parent()) {
        (Some(_), Some(parent)) if parent.as_os_str().is_empty() => PathBuf::from("."),
        (Some(_), Some(parent)) => parent.to_owned(),
        _ => dir.join(".."),
    };
    if !holds_run(&above) {
        return Ok(dir.to_owned());
    }
    if dir.join(checkpoint::DONE).is_file() {
        return Ok(above);
    }
    let named = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("checkpoint-"));
    if !named {
        return Ok(dir.to_owned());
    }
    let complete = checkpoint::complete(&above).map_err(|e| ConfigError(e.to_string()))?;
    let names = complete.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
    let names: Vec<_> = names.collect();
    let there = if names.is_empty() { "none is".to_owned() } else { names.join(", ") };
    Err(failed(dir, &format_args!("this is no complete checkpoint; of this run, complete are: {there}")))
}

fn failed(path: &Path, e: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!("{}: {e}", path.display()))
}

/// Whether a new run may use `dir`: it does not exist, or contains nothing but tokens, a claim and the remains of a run
/// that was stopped before it started.
///
/// # Errors
/// A directory that contains anything else, or cannot be read.
pub fn require_free(dir: &Path) -> Result<(), ConfigError> {
    let run = of_run(dir)?;
    if run != dir {
        let run = run.display();
        return Err(failed(
            dir,
            &format_args!("this is a checkpoint of {run}; the run goes on with --resume --out {run}"),
        ));
    }
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|e| failed(dir, &e))?,
    };
    for entry in entries {
        let name = entry.map_err(|e| failed(dir, &e))?.file_name();
        if ![OWN, LOCK, UNNAMED].iter().any(|own| name == *own) {
            return Err(taken(dir));
        }
    }
    Ok(())
}

/// Why no run can start in `dir`, which contains something else.
fn taken(dir: &Path) -> ConfigError {
    match checkpoint::complete(dir) {
        Ok(there) if !there.is_empty() => {
            let path = dir.join(CONFIG);
            failed(
                &path,
                &"it is missing, and checkpoints are beside it; restore it from a copy, or name another with --out",
            )
        }
        _ => failed(dir, &"the directory is not empty; name another with --out"),
    }
}

/// Writes the configuration, the plan, the tokenizer and the model's settings for generation into a directory without a
/// run. For a run that starts again it writes all but the configuration, which stays until the new one is known to
/// work.
///
/// # Errors
/// The file system; files written so far are removed.
pub fn create(dir: &Path, config: &Config, plan: &str, tokenizer: &dyn Tokenizer) -> Result<(), ConfigError> {
    let generation = generation::of_run(dir, config, tokenizer.eos())?;
    create_of(dir, config, plan, tokenizer, (&generation, &History::begun(config, dir)))
}

/// As [`create`], for a model with the settings `generation` and a `history`.
///
/// # Errors
/// As in [`create`].
pub fn create_of(
    dir: &Path,
    config: &Config,
    plan: &str,
    tokenizer: &dyn Tokenizer,
    (generation, history): (&Generation, &History),
) -> Result<(), ConfigError> {
    let fresh = !holds_run(dir);
    // The configuration is written first: a directory with a configuration contains a run, which starts again if it has
    // nothing else.
    let begun = if fresh { write_config(dir, config) } else { Ok(()) };
    let written = begun.and_then(|()| write_rest(dir, plan, tokenizer, generation, history));
    if written.is_err() && fresh {
        discard(dir);
    }
    written
}

/// Writes the files that a run writes once, and their digests last.
fn write_rest(
    dir: &Path,
    plan: &str,
    tokenizer: &dyn Tokenizer,
    generation: &Generation,
    history: &History,
) -> Result<(), ConfigError> {
    let (list, path) = (dir.join(DIGESTS), dir.join(PLAN));
    match fs::remove_file(&list) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(&list, &e)),
        _ => {}
    }
    generation::keep(dir, generation)?;
    history.keep(dir)?;
    tokenizer.save(dir).map_err(|e| ConfigError(e.to_string()))?;
    disk::replace(&path, plan.as_bytes()).map_err(|e| failed(&path, &e))?;
    let (mut digests, mut piece) = (Digests::default(), vec![0; digest::PIECE]);
    let once = [PLAN, hugging_face::generation::FILE_NAME].into_iter().chain(tokenizer::FILES);
    for name in once.filter(|name| dir.join(name).exists()) {
        let path = dir.join(name);
        digests.add(name, digest::of_file(&path, &mut piece).map_err(|e| failed(&path, &e))?);
    }
    disk::replace(&list, digests.to_string().as_bytes()).map_err(|e| failed(&list, &e))
}

/// The digests of the files that the run in `dir` writes once; `None` where an earlier version wrote them.
///
/// # Errors
/// A list that cannot be read or is damaged.
pub fn digests(dir: &Path) -> Result<Option<Digests>, DigestError> {
    Digests::read(&dir.join(DIGESTS))
}

/// Makes `config` the saved configuration of the run in `dir`, and records the changes in the history. A reader finds
/// either the old or the new configuration, complete.
///
/// # Errors
/// The file system; the old configuration stays.
pub fn keep_config(dir: &Path, config: &Config) -> Result<(), ConfigError> {
    let before = read_config(dir)?;
    if before == *config {
        return Ok(());
    }
    let mut history = History::of(dir, &before)?;
    history.add(dir, &before, config);
    history.keep(dir)?;
    write_config(dir, config)
}

/// The configuration before it receives its name.
const UNNAMED: &str = "config.toml.tmp";

fn write_config(dir: &Path, config: &Config) -> Result<(), ConfigError> {
    let (text, path) = (toml::to_string(config).map_err(|e| failed(dir, &e))?, dir.join(CONFIG));
    disk::replace(&path, sealed(&text).as_bytes()).map_err(|e| failed(&path, &e))
}

/// Removes the files of a run that never started from its directory; its tokens stay.
pub fn discard(dir: &Path) {
    let own = [
        PLAN,
        hugging_face::generation::FILE_NAME,
        history::FILE_NAME,
        metrics::LINES,
        metrics::DIGEST,
        sessions::FILE_NAME,
        DIGESTS,
    ];
    for name in own.into_iter().chain(tokenizer::FILES) {
        let _ = fs::remove_file(disk::temporary(&dir.join(name)));
        let _ = fs::remove_file(dir.join(name));
    }
    let _ = fs::remove_dir_all(dir.join(metrics::EVENTS));
    // The configuration is removed last: remaining files next to it belong to a run that starts again.
    for name in [UNNAMED, CONFIG] {
        let _ = fs::remove_file(dir.join(name));
    }
}

/// Reads the saved configuration of the run that `dir` names: see [`of_run`].
///
/// # Errors
/// No run there, or a configuration that was changed or cannot be parsed.
pub fn read_config(dir: &Path) -> Result<Config, ConfigError> {
    let path = of_run(dir)?.join(CONFIG);
    let text = regular::text_at_most(&path, regular::SETTINGS)
        .map_err(|e| ConfigError(format!("{} holds no run ({CONFIG}: {e})", dir.display())))?;
    require_unchanged(&text).map_err(|e| failed(&path, &e))?;
    if text.trim().is_empty() {
        return Err(failed(&path, &"it is empty; restore it from a copy"));
    }
    let config: Config = toml::from_str(&text).map_err(|e| failed(&path, &e.message().replace('\n', " ")))?;
    config.validate()?;
    Ok(config)
}

/// Reads the algorithms from a run's plan.json.
///
/// # Errors
/// A file that cannot be read or contains no algorithms.
pub fn read_algorithms(path: &Path) -> Result<Vec<Choice>, ConfigError> {
    let text = regular::text_at_most(path, regular::STATE).map_err(|e| failed(path, &e))?;
    let plan: serde_json::Value = serde_json::from_str(&text).map_err(|e| failed(path, &e))?;
    let none = |_| failed(path, &"it names no algorithms; give the plan.json of a run on a GPU");
    serde_json::from_value(plan["algorithms"].clone()).map_err(none)
}

/// A trained model, ready for use.
pub struct Trained {
    /// The model with its weights.
    pub session: Session,
    /// Its tokenizer.
    pub tokenizer: Box<dyn Tokenizer>,
}

impl Trained {
    /// Loads these `weights` of the last checkpoint of the run in `dir`, or of `dir` if it is a checkpoint, with memory
    /// for `sections` only.
    ///
    /// # Errors
    /// No complete checkpoint, a damaged one, or a device that cannot be started.
    pub fn load(dir: &Path, weights: Weights, config: &Config, sections: &Sections) -> Result<Trained, DeviceError> {
        let error = |e: &dyn std::fmt::Display| DeviceError::Refused(e.to_string());
        let from = checkpoint::latest(dir)?;
        weights.require(&from)?;
        let tokenizer = tokenizer::load(&from).map_err(|e| error(&e))?;
        let (mut algorithms, mut base) = (Vec::new(), None);
        if from.join(checkpoint::STATE).exists() {
            let state = checkpoint::read_state(&from)?;
            if state.tokenizer != tokenizer.fingerprint() {
                let path = from.join(tokenizer::FILE_NAME);
                let what = "this is not the vocabulary that the checkpoint was trained with; restore it";
                return Err(error(&failed(&path, &what)));
            }
            base = Base::named(config, Some(&state))?;
            algorithms = state.algorithms;
        }
        let profile = crate::plan::profile(config).map_err(|e| error(&e))?;
        // Nothing is trained: where the data lies does not matter.
        let machine = Machine::with(config, FoundSource::default()).map_err(|e| error(&e))?;
        let (family, rates) = (config.family(), machine.rates);
        let laid = Laid::new(&family, &profile, rates, sections).map_err(|e| error(&e))?;
        if !config.device.starts_with("cuda") {
            let advice = match sections.decoding {
                Some(positions) => format!("lower --context {positions}"),
                None => "end other programs, or use a machine with more".to_owned(),
            };
            let needed = laid.bytes.saturating_add(laid.program_bytes);
            machine.require_room("this model", needed, &advice).map_err(|e| error(&e))?;
        }
        let laid = laid.recorded(&family, &profile).map_err(|e| error(&e))?;
        let mut session = Session::start(laid, &profile, None, config.vocab_size())?;
        session.reuse(&algorithms);
        let lasting = session.laid.lasting.clone();
        if let Some(base) = base {
            base.restore(&lasting, &family, &mut session.device)?;
        }
        checkpoint::restore(&from, &lasting, Wanted::Weights(weights), &mut session.device)?;
        Ok(Trained { session, tokenizer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_names_its_run() {
        let temporary = tempfile::tempdir().unwrap();
        let run = temporary.path().join("run");
        let [whole, half] = ["checkpoint-00000005", "checkpoint-00000007"].map(|name| run.join(name));
        for dir in [&whole, &half] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::write(whole.join(checkpoint::DONE), "").unwrap();
        // Not yet a checkpoint of a run: a directory stands for itself.
        assert_eq!(of_run(&whole), Ok(whole.clone()));
        fs::write(run.join(CONFIG), "").unwrap();
        assert_eq!((of_run(&run), of_run(&whole)), (Ok(run.clone()), Ok(run.clone())));
        assert_eq!(of_run(&run.join("tokens")), Ok(run.join("tokens")));
        let refused = [&whole, &run].map(|dir| require_free(dir).unwrap_err().to_string());
        assert!(refused[0].ends_with(&format!("--resume --out {}", run.display())), "{refused:?}");
        assert!(read_config(&run).unwrap_err().to_string().contains("it is empty; restore it"));
        fs::rename(run.join(CONFIG), run.join("kept")).unwrap();
        let refused = require_free(&run).unwrap_err().to_string();
        assert!(refused.contains("config.toml: it is missing"), "{refused}");
        fs::rename(run.join("kept"), run.join(CONFIG)).unwrap();
        for other in [half, run.join("checkpoint-9")] {
            let refused = of_run(&other).unwrap_err().to_string();
            assert_eq!(require_free(&other).unwrap_err().to_string(), refused);
            assert!(
                refused.contains("no complete checkpoint") && refused.ends_with("checkpoint-00000005"),
                "{refused}"
            );
        }
    }
}
