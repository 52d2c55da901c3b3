//! The files of a run's directory, in addition to its metrics.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::read::Curves;
use crate::config::{Config, ConfigError, RawConfig};
use crate::data::found;
use crate::regular;
use crate::run::checkpoint::{self, TrainerState};
use crate::run::directory;
use crate::run::history::History;
use crate::run::sessions::{self, Began, Ended, Event, Sampled};
use crate::run::standing::{self, State};

/// The file to which the output of `host bench --profile --json` is written.
pub const PROFILE: &str = "profile.json";

/// A region of memory, from plan.json.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub role: String,
    /// Its elements' type.
    pub dtype: String,
    /// The number of layers that have such a region.
    #[serde(default)]
    pub layers: u32,
    /// Bytes in all of these layers.
    pub bytes: u64,
    /// Bytes of padding between them.
    pub padding: u64,
}

/// Memory outside the arena.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What the page shows of a plan.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Planned {
    /// Parameters of the model.
    pub params: u64,
    /// Bytes of the single allocation.
    pub arena_bytes: u64,
    /// The regions in the arena.
    pub regions: Vec<Region>,
    /// Memory outside the arena.
    pub outside: Vec<Named>,
    /// The most bytes in use at once.
    pub needed_bytes: u64,
    /// The most bytes that may be used.
    pub budget_bytes: Option<u64>,
    /// Where the budget came from.
    pub budget_from: String,
    /// Floating-point operations of training per token.
    pub flops_per_token: u64,
    /// Roofline seconds of a step.
    pub roofline_seconds: f64,
    /// Tokens of a step.
    pub tokens_per_step: u64,
}

/// All operations of one kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Total {
    /// The operation.
    pub operation: String,
    /// Number of calls.
    pub count: u64,
    /// Seconds in total.
    pub seconds: f64,
    /// Seconds in total on the roofline.
    pub roofline_seconds: f64,
    /// Fraction of the time of all operations.
    pub share: f64,
}

/// Where a step's time went.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Profile {
    /// Seconds of all operations.
    pub seconds: f64,
    /// Operations by kind, the longest first.
    pub totals: Vec<Total>,
}

/// The output of `host bench --json`.
#[derive(Deserialize)]
struct Benched {
    profile: Profile,
}

/// Everything known of a run.
#[derive(Debug, Clone)]
pub struct Known {
    /// Its directory, as it was named.
    pub dir: PathBuf,
    /// The name of its directory.
    pub name: String,
    /// Its configuration.
    pub config: Config,
    /// The configuration of its preset alone, if that resolves and the run began with no other model.
    pub preset: Option<Config>,
    /// Its plan, if it has one.
    pub plan: Option<Planned>,
    /// Its state, and the state in its last checkpoint.
    pub state: State,
    /// See [`Known::state`].
    pub saved: Option<TrainerState>,
    /// The origin of its model, and the changes since.
    pub history: History,
    /// The beginnings of its commands, the samples during the run, and the results of its commands.
    pub began: Vec<Began>,
    /// See [`Known::began`].
    pub sampled: Vec<Sampled>,
    /// See [`Known::began`].
    pub ended: Vec<Ended>,
    /// The time of a step by operation, if it was measured.
    pub profile: Option<Profile>,
    /// Its metrics.
    pub curves: Curves,
}

impl Known {
    /// The run in `dir`.
    ///
    /// # Errors
    /// No run in `dir`; a file that is damaged or of another version.
    pub fn of(dir: &Path) -> Result<Known, ConfigError> {
        let at = |what: &dyn Display| ConfigError(format!("{}: {what}", dir.display()));
        if !dir.is_dir() {
            let what = if dir.exists() { "it is no directory" } else { "no such directory" };
            return Err(at(&format_args!("{what}; --run is the directory of a run")));
        }
        if !directory::holds_run(dir) {
            let run = directory::of_run(dir)?;
            return Err(match run == dir {
                true => at(&format_args!("it holds no run: there is no {} in it", directory::CONFIG)),
                false => at(&format_args!("this is a checkpoint; give its run, --run {}", run.display())),
            });
        }
        let config = directory::read_config(dir)?;
        let last = checkpoint::last(dir).map_err(|e| ConfigError(e.to_string()))?;
        let (state, saved) = standing::of(dir, &config, last.as_deref()).map_err(ConfigError)?;
        let (mut began, mut sampled, mut ended) = (Vec::<Began>::new(), Vec::<Sampled>::new(), Vec::new());
        for event in sessions::read(dir).map_err(ConfigError)? {
            match event {
                Event::Began(one) => {
                    // Steps after the checkpoint that this command continues from are done again, so their samples are
                    // dropped.
                    sampled.retain(|sampled| sampled.step <= one.step);
                    began.push(one);
                }
                Event::Sampled(one) => sampled.push(one),
                Event::Ended(one) => ended.push(one),
            }
        }
        let preset = RawConfig { preset: Some(config.preset.clone()), ..RawConfig::default() };
        let named = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        Ok(Known {
            dir: dir.to_owned(),
            name: named
                .file_name()
                .map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned()),
            preset: found::resolve(preset).ok().filter(|_| config.init_from.is_none()),
            plan: read(&dir.join(directory::PLAN))?,
            state,
            saved,
            history: History::of(dir, &config)?,
            began,
            sampled,
            ended,
            profile: read::<Benched>(&dir.join(PROFILE))?.map(|benched| benched.profile),
            curves: Curves::read(dir)?,
            config,
        })
    }

    /// The result of the command that did the run's last steps.
    pub fn last_end(&self) -> Option<&Ended> {
        self.ended.last().filter(|ended| ended.step >= self.curves.step)
    }

    /// A number of that result.
    pub fn result(&self, key: &str) -> Option<f64> {
        self.last_end()?.result.get(key)?.as_f64()
    }
}

/// A file of JSON; `None` if there is no such file.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ConfigError> {
    let at = |what: &dyn Display| ConfigError(format!("{}: {what}", path.display()));
    let bytes = match regular::read_at_most(path, regular::STATE) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|e| at(&e))?,
    };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|e| at(&format_args!("it is damaged, or of another version of capful ({e})")))
}
