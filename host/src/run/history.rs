//! Where a run's model came from, and what was changed during its training: the information of a model card in addition
//! to the run's current configuration. Runs of earlier versions have no such file.

use std::fs;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::{checkpoint, directory};
use crate::config::{Config, ConfigError, IMPORTED, LrSchedule, RUN_KEYS};
use crate::format::hugging_face::Ancestor;
use crate::{digest, disk, regular};

/// The file in a run's directory.
pub const FILE_NAME: &str = "history.json";

/// The known history of a run's model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The models that it was made from, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<Ancestor>,
    /// What was changed when it went on, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// The file's content: a history and the digest of its JSON.
#[derive(Serialize, Deserialize)]
struct File {
    #[serde(flatten)]
    history: History,
    xxh3: String,
}

/// What was changed at a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Steps done by then.
    pub step: u64,
    /// The configuration key.
    pub key: String,
    /// The key's value before and after.
    pub values: [String; 2],
}

impl History {
    /// The history of the run in `dir`. For a run without the file, the history is derived from its configuration.
    ///
    /// # Errors
    /// A file that is damaged.
    pub fn of(dir: &Path, config: &Config) -> Result<History, ConfigError> {
        let path = dir.join(FILE_NAME);
        match regular::read_to_string(&path) {
            Ok(text) => {
                let damaged = |e: &dyn std::fmt::Display| {
                    ConfigError(format!("{}: {e}; take it away, and model cards say less", path.display()))
                };
                let file: File =
                    serde_json::from_str(&text).map_err(|e| damaged(&format_args!("it does not parse ({e})")))?;
                if digest::of_json(&file.history).map_err(|e| damaged(&e))? != file.xxh3 {
                    return Err(damaged(&"it is damaged: its content is not what was written, by its digest"));
                }
                Ok(file.history)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(History::begun(config, dir)),
            Err(e) => Err(ConfigError(format!("{}: {e}", path.display()))),
        }
    }

    /// The history of a model that is imported from `dir`.
    pub fn imported(dir: &Path) -> History {
        let source = Ancestor { name: name_of(dir), elsewhere: true, imported: true };
        History { from: vec![source], changes: Vec::new() }
    }

    /// The history of the run of `config` in `dir`, which is starting.
    pub(super) fn begun(config: &Config, dir: &Path) -> History {
        let Some(from) = config.init_from.as_ref().map(Path::new) else {
            // A model imported by an earlier version has an unknown source.
            let imported = config.preset == IMPORTED;
            let unknown = Ancestor { name: String::new(), elsewhere: true, imported: true };
            return History { from: imported.then_some(unknown).into_iter().collect(), changes: Vec::new() };
        };
        let run = match from.parent() {
            Some(run) if !directory::holds_run(from) && directory::holds_run(run) => run,
            _ => from,
        };
        let own = directory::read_config(run).ok().filter(|_| run != dir);
        let source = Ancestor { name: name_of(run), elsewhere: own.is_none(), imported: false };
        let before = own.and_then(|config| History::of(run, &config).ok()).unwrap_or_default();
        History { from: [vec![source], before.from].concat(), changes: Vec::new() }
    }

    /// The model that this one is derived from, if there is one.
    pub fn base(&self) -> Option<&Ancestor> {
        let mut known = self.from.iter().filter(|source| !source.name.is_empty());
        known.clone().find(|source| source.elsewhere).or(known.next())
    }

    /// Adds the differences between `before` and `after`, as far as they change what the run in `dir` learns.
    pub(super) fn add(&mut self, dir: &Path, before: &Config, after: &Config) {
        let table = |config: &Config| toml::Table::try_from(config).unwrap_or_default();
        let (old, new) = (table(before), table(after));
        // Steps added at a constant rate have the effect of that many steps from the start.
        let constant = after.schedule == LrSchedule::Constant && after.steps >= before.steps;
        let step = checkpoint::complete(dir).ok().and_then(|all| checkpoint::read_state(all.last()?).ok());
        let step = step.map_or(0, |state| state.step);
        let is_neutral = |key: &str| RUN_KEYS.iter().any(|known| known.name == key && known.is_neutral());
        // The same holds for a decay that is still ahead in both configurations.
        let ahead = after.decays_ahead(before, step);
        // The time limit determines these keys.
        let timed = after.time.is_some();
        let neutral = |key: &str| {
            is_neutral(key) || key == "steps" && (constant || ahead || timed) || key.starts_with("decay") && ahead
        };
        let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
        for key in keys.filter(|key| old.get(*key) != new.get(*key) && !neutral(key)) {
            let shown = |value: Option<&toml::Value>| {
                value.map_or("none".to_owned(), |value| value.to_string().trim_matches('"').replace('\n', " "))
            };
            let values = [shown(old.get(key)), shown(new.get(key))];
            let change = Change { step, key: key.clone(), values };
            // Written before the configuration: after an interruption between the two, the change is recorded again.
            if !self.changes.contains(&change) {
                self.changes.push(change);
            }
        }
    }

    fn to_text(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(&File { history: self.clone(), xxh3: digest::of_json(self)? })
    }

    /// Writes the history into the run's directory `dir`, where it is not empty.
    ///
    /// # Errors
    /// The file system; the old history stays.
    pub(super) fn keep(&self, dir: &Path) -> Result<(), ConfigError> {
        if *self == History::default() {
            return Ok(());
        }
        let path = dir.join(FILE_NAME);
        let failed = |e: &dyn std::fmt::Display| ConfigError(format!("{}: {e}", path.display()));
        let text = self.to_text().map_err(|e| failed(&e))?;
        disk::replace(&path, text.as_bytes()).map_err(|e| failed(&e))
    }
}

/// The name of a model in `dir`.
fn name_of(dir: &Path) -> String {
    // The Hub's cache: models--OWNER--NAME/snapshots/…
    let names = dir.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    let cached = names.iter().rev().find_map(|name| name.strip_prefix("models--"));
    if let Some(cached) = cached.filter(|_| names.contains(&"snapshots")) {
        return cached.replace("--", "/");
    }
    let own = dir.file_name().map(|name| name.to_string_lossy().into_owned());
    let whole = || Some(fs::canonicalize(dir).ok()?.file_name()?.to_string_lossy().into_owned());
    own.or_else(whole).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    #[test]
    fn a_model_has_the_name_of_its_directory_or_of_the_hub() {
        for (path, name) in [
            ("models/SmolLM2-135M", "SmolLM2-135M"),
            ("models/SmolLM2-135M/", "SmolLM2-135M"),
            ("/c/hub/models--Org--Small-1/snapshots/0a1b", "Org/Small-1"),
            ("/c/models--Org--Small-1", "models--Org--Small-1"),
        ] {
            assert_eq!(name_of(Path::new(path)), name);
        }
    }

    #[test]
    fn what_changes_what_a_run_learns_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let of_a_preset = |text: &str| toml::from_str::<RawConfig>(&format!("preset = 'pythia-tiny'\n{text}")).unwrap();
        let resolve = |text: &str| Config::resolve(of_a_preset(text)).unwrap();
        let changed = |before: &str, after: &str| {
            let mut history = History::default();
            history.add(dir.path(), &resolve(before), &resolve(after));
            let shown = |change: Change| format!("{} {} {}", change.key, change.values[0], change.values[1]);
            history.changes.into_iter().map(shown).collect::<Vec<_>>()
        };
        let none: [String; 0] = [];
        assert_eq!(changed("steps = 30", "steps = 30\nsave_every = 7\nkeep = 9\nthreads = 3\nbudget = '1GiB'"), none);
        assert_eq!(changed("warmup = 1\nsteps = 30", "warmup = 1\nsteps = 50"), ["steps 30 50"]);
        let constant = "schedule = 'constant'\nwarmup = 1\nsteps =";
        assert_eq!(changed(&format!("{constant} 30"), &format!("{constant} 50")), none);
        assert_eq!(changed(&format!("{constant} 30"), &format!("{constant} 20")), ["steps 30 20"]);
        let wsd = |steps: u64, decay: f64| format!("schedule = 'wsd'\nwarmup = 1\nsteps = {steps}\ndecay = {decay}");
        assert_eq!(changed(&wsd(30, 0.1), &wsd(50, 0.5)), none);
        assert_eq!(changed(&wsd(30, 0.1), &wsd(20, 0.1)), none);
        assert!(changed("", "device = 'cuda'").contains(&"device cpu cuda".to_owned()));
        // The history is read as it was written; for a run without a file it is derived from its configuration.
        let mut history = History::imported(Path::new("models/x"));
        history.changes.push(Change { step: 3, key: "steps".to_owned(), values: ["1".to_owned(), "2".to_owned()] });
        history.keep(dir.path()).unwrap();
        assert_eq!(History::of(dir.path(), &resolve("")).unwrap(), history);
        fs::write(dir.path().join(FILE_NAME), "{").unwrap();
        assert!(History::of(dir.path(), &resolve("")).unwrap_err().to_string().contains("take it away"));
        fs::remove_file(dir.path().join(FILE_NAME)).unwrap();
        assert_eq!(History::of(dir.path(), &resolve("")).unwrap(), History::default());
        let begun = Config { init_from: Some("models/y".to_owned()), ..resolve("") };
        let base = History::of(dir.path(), &begun).unwrap().base().cloned();
        assert_eq!(base, Some(Ancestor { name: "y".to_owned(), elsewhere: true, imported: false }));
    }
}
