//! What lies in a run's directory beside its metrics.

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

/// The file that `host bench --profile --json` was written to.
pub const PROFILE: &str = "profile.json";

/// A region of memory, of plan.json.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub role: String,
    /// Its elements' type.
    pub dtype: String,
    /// How many layers have one.
    #[serde(default)]
    pub layers: u32,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes between them.
    pub padding: u64,
}

/// Something beside the arena.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What the page says of a plan.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Planned {
    /// Parameters of the model.
    pub params: u64,
    /// Bytes of the one allocation.
    pub arena_bytes: u64,
    /// What it holds.
    pub regions: Vec<Region>,
    /// What lies beside it.
    pub outside: Vec<Named>,
    /// The most at once.
    pub needed_bytes: u64,
    /// What could be used.
    pub budget_bytes: Option<u64>,
    /// Where that limit came from.
    pub budget_from: String,
    /// Floating-point operations of training on a token.
    pub flops_per_token: u64,
    /// Seconds of a step on the roofline.
    pub roofline_seconds: f64,
    /// Tokens of a step.
    pub tokens_per_step: u64,
}

/// Operations of a kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Total {
    /// The operation.
    pub operation: String,
    /// How many ran.
    pub count: u64,
    /// Seconds together.
    pub seconds: f64,
    /// Seconds on the roofline.
    pub roofline_seconds: f64,
    /// Their part of all.
    pub share: f64,
}

/// Where a step's time went.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Profile {
    /// Seconds of all operations.
    pub seconds: f64,
    /// By kind, the longest first.
    pub totals: Vec<Total>,
}

/// What `host bench --json` prints.
#[derive(Deserialize)]
struct Benched {
    profile: Profile,
}

/// What is known of a run.
#[derive(Debug, Clone)]
pub struct Known {
    /// Its directory, as it was named.
    pub dir: PathBuf,
    /// What it is called.
    pub name: String,
    /// Its configuration.
    pub config: Config,
    /// What its preset alone would be, where that is one.
    pub preset: Option<Config>,
    /// Its plan, where it has one.
    pub plan: Option<Planned>,
    /// How it stands, and what its last checkpoint says.
    pub state: State,
    /// See [`Known::state`].
    pub saved: Option<TrainerState>,
    /// Where its model came from, and what was changed.
    pub history: History,
    /// How its commands began, what the model said on the way, and what they came to.
    pub began: Vec<Began>,
    /// See [`Known::began`].
    pub sampled: Vec<Sampled>,
    /// See [`Known::began`].
    pub ended: Vec<Ended>,
    /// Where a step's time goes, where that was measured.
    pub profile: Option<Profile>,
    /// Its metrics.
    pub curves: Curves,
}

impl Known {
    /// The run in `dir`.
    ///
    /// # Errors
    /// No run there; a file that is damaged, or of another version.
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
                    // What was behind the checkpoint that it goes on from is done anew.
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

    /// What the command came to that did the run's last steps.
    pub fn last_end(&self) -> Option<&Ended> {
        self.ended.last().filter(|ended| ended.step >= self.curves.step)
    }

    /// A number of what it came to.
    pub fn result(&self, key: &str) -> Option<f64> {
        self.last_end()?.result.get(key)?.as_f64()
    }
}

/// A file of JSON; nothing where it is not there.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ConfigError> {
    let at = |what: &dyn Display| ConfigError(format!("{}: {what}", path.display()));
    let bytes = match regular::read_at_most(path, regular::STATE) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|e| at(&e))?,
    };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|e| at(&format_args!("it is damaged, or of another version of capful ({e})")))
}
