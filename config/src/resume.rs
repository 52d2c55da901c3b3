//! Which settings a command line may have when a saved run continues.

use std::fs;

use super::error::error;
use super::{
    BatchSize, Config, ConfigError, Found, FoundSource, RUN_KEYS, RawConfig, RawStage, RecomputeChoice, RunKey,
    StageConfig, StatesChoice, TokenizerChoice,
};

impl Config {
    /// This saved configuration as it continues with the `written` settings: settings that may change are taken from
    /// there, and settings that are not written stay the run's, whatever their defaults. Epochs that are not yet
    /// converted leave 0 steps.
    ///
    /// # Errors
    /// Another setting differs, and the message has both values; or the written settings are no valid configuration.
    pub fn resumed(&self, written: RawConfig) -> Result<Config, ConfigError> {
        self.resumed_with(written, &Found::unread).map(|(config, _)| config)
    }

    /// As [`Config::resumed`], and returns the information about the data.
    ///
    /// # Errors
    /// As [`Config::resumed`]; those of `find`.
    pub fn resumed_with(
        &self,
        written: RawConfig,
        find: &dyn Fn(&RawConfig) -> Result<Found, ConfigError>,
    ) -> Result<(Config, FoundSource), ConfigError> {
        let mut written = written.rooted();
        if written.epochs.is_some() && written.epochs == self.epochs {
            // The epochs were converted to steps.
            written.epochs = None;
            written.steps = written.steps.filter(|steps| *steps != self.steps);
        }
        for (key, given) in [("epochs", written.epochs.is_some()), ("time", written.time.is_some())] {
            if given && written.steps.is_some() {
                return error(format!("{key} is given beside steps; leave one of them away"));
            }
        }
        self.same_shape(&mut written, find)?;
        self.same_places(&mut written);
        let length = written.gives_length();
        if written.time.is_some() {
            // The planned number of steps; the run determines its real number as it continues.
            written.steps = Some(self.steps);
        }
        // A device that supports only f32 uses it, unless another precision is requested.
        let here = self.clone().on(written.device.clone())?;
        let written = here.as_written()?.overlaid(written);
        let found = find(&written)?;
        let mut config = Config::decide(written, &found)?;
        if !length {
            config.epochs = self.epochs;
        }
        self.require_same(&config)?;
        Ok((config, found.source))
    }

    /// Removes settings that were resolved when this run began: the batch, the activations and the states that fitted
    /// then, and the factor of its stages.
    fn same_shape(
        &self,
        written: &mut RawConfig,
        find: &dyn Fn(&RawConfig) -> Result<Found, ConfigError>,
    ) -> Result<(), ConfigError> {
        if written.batch_size == Some(BatchSize::Auto) {
            (written.batch_size, written.tokens_per_step) = (None, None);
        }
        if let Some(RecomputeChoice::Fit(_)) = written.recompute {
            written.recompute = None;
        }
        if written.states == Some(StatesChoice::Auto) {
            written.states = None;
        }
        if let Some(scale) = written.stage_scale {
            let preset = written.preset.clone().unwrap_or_else(|| self.preset.clone());
            let raw = RawConfig { preset: Some(preset), ..written.clone() }.rooted();
            let found = find(&raw)?;
            let begun = Config::resolve_with(raw, &found)?;
            if begun.stage != self.stage {
                return error(format!(
                    "--stage-scale {scale} cannot change when a run goes on: its stages are others; leave it away or begin \
                     another run"
                ));
            }
            written.stage_scale = None;
            written.stage.clear();
        }
        Ok(())
    }

    /// The configuration as if a user had written every key, so that no default applies.
    ///
    /// # Errors
    /// A model that cannot be written as a table.
    pub fn as_written(&self) -> Result<RawConfig, ConfigError> {
        Ok(RawConfig {
            // The epochs were converted to steps.
            epochs: None,
            model: toml::Table::try_from(self.model).map_err(|e| ConfigError(e.to_string()))?,
            group: self.group.clone(),
            stage: self.stage.iter().map(StageConfig::as_written).collect(),
            ..self.keys_written()
        })
    }

    /// Replaces paths in `written` by this run's spelling of the same files and directories.
    fn same_places(&self, written: &mut RawConfig) {
        let same = |a: &str, b: &str| matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b);
        written.tokenizer = written.tokenizer.take().map(|named| TokenizerChoice::written(&named));
        for (ours, theirs) in
            [(Some(&self.data.as_names()), &mut written.data), (self.validation.as_ref(), &mut written.validation)]
        {
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                theirs.called_as(ours, &same);
            }
        }
        for (ours, theirs) in [
            (Some(&self.tokenizer), &mut written.tokenizer),
            (self.cache.as_ref(), &mut written.cache),
            (self.init_from.as_ref(), &mut written.init_from),
        ] {
            if let (Some(ours), Some(theirs)) = (ours, theirs)
                && same(ours, theirs)
            {
                theirs.clone_from(ours);
            }
        }
    }

    /// Refuses a `config` with differences that are not permitted.
    fn require_same(&self, config: &Config) -> Result<(), ConfigError> {
        let table =
            |config: &Config| toml::Table::try_from(config.as_written()?).map_err(|e| ConfigError(e.to_string()));
        let [ours, theirs] = [table(self)?, table(config)?];
        let may_change = || RUN_KEYS.iter().filter(|key| key.may_change());
        let keys = ours.keys().chain(theirs.keys().filter(|key| !ours.contains_key(*key)));
        for key in keys.filter(|key| may_change().all(|other| other.name != **key)) {
            let difference = difference(key, ours.get(key), theirs.get(key));
            let Some((name, [ours, theirs])) = difference else { continue };
            let may = may_change().map(RunKey::flag).collect::<Vec<_>>().join(", ");
            return error(format!(
                "{name} cannot change when a run goes on: the run has {ours}, the command says {theirs}; leave it away or \
                 begin another run; only {may} can, and --data, --validation and --tokenizer name the same at another place"
            ));
        }
        Ok(())
    }
}

impl StageConfig {
    pub(super) fn as_written(&self) -> RawStage {
        let StageConfig { from, seq_len, batch_size, accumulate, lr, clip } = *self;
        RawStage { from, seq_len, batch_size, accumulate: Some(accumulate), lr: Some(lr), clip: Some(clip) }
    }
}

/// The name of a key on the command line.
fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// The name of a differing key, and both of its values.
fn difference(key: &str, ours: Option<&toml::Value>, theirs: Option<&toml::Value>) -> Option<(String, [String; 2])> {
    let shown =
        |value: Option<&toml::Value>| value.map_or("none".to_owned(), |value| value.to_string().replace('\n', " "));
    match (key, ours, theirs) {
        (_, ours, theirs) if ours == theirs => None,
        ("model", Some(toml::Value::Table(ours)), Some(toml::Value::Table(theirs))) => {
            let keys = ours.keys().chain(theirs.keys());
            let size = keys.into_iter().find(|key| ours.get(*key) != theirs.get(*key))?;
            let name = if size == "vocab_size" { flag(size) } else { format!("--set {size}") };
            Some((name, [shown(ours.get(size)), shown(theirs.get(size))]))
        }
        ("stage", ..) => {
            let stages = |value: Option<&toml::Value>| {
                let number = value.and_then(toml::Value::as_array).map_or(0, Vec::len);
                format!("{number} stages")
            };
            let [ours, theirs] = [stages(ours), stages(theirs)];
            let theirs = if ours == theirs { "others".to_owned() } else { theirs };
            Some(("[[stage]]".to_owned(), [ours, theirs]))
        }
        _ => Some((flag(key), [shown(ours), shown(theirs)])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Precision, presets};

    fn raw(text: &str) -> RawConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_says_the_same_changes_nothing_and_what_is_not_said_stays() {
        for preset in presets() {
            for more in
                ["", "lr = 0.5\nwarmup = 7\nseed = 3\nbudget = '3GiB'\npool = '1MiB'\nclip = 0.25", "seq_len = 64"]
            {
                let written = raw(&format!("preset = '{}'\n{more}", preset.name));
                let run = Config::resolve(written.clone()).unwrap();
                assert_eq!(run.resumed(written).unwrap(), run, "{} {more}", preset.name);
                assert_eq!(run.resumed(RawConfig::default()).unwrap(), run, "{} {more}", preset.name);
            }
        }
        let run = Config::resolve(raw("attention = 'mixed'\n[model]\nlayers = 3")).unwrap();
        let set = RawConfig { set: vec!["layers=3".to_owned()], ..raw("attention = 'mixed'") };
        assert_eq!(run.resumed(set).unwrap(), run);
    }

    #[test]
    fn what_may_differ_is_then_the_runs() {
        let run = Config::resolve(raw("steps = 20\nthreads = 3\nsave_every = 5\nlr = 0.5")).unwrap();
        let on = run.resumed(raw("steps = 40\nsave_every = 7\nkeep = 9\nlog_every = 2\nbudget = '1GiB'")).unwrap();
        let expected = Config { steps: 40, save_every: 7, keep: 9, log_every: 2, budget: Some(1 << 30), ..run.clone() };
        assert_eq!(on, expected);
        assert_eq!(
            run.resumed(raw("cache = '/there'")).unwrap(),
            Config { cache: Some("/there".to_owned()), ..run.clone() }
        );
        assert_eq!(run.resumed(raw("zero = 2")).unwrap(), Config { zero: 2, ..run.clone() });
        // The warm-up was determined when the run began.
        assert_eq!(run.resumed(raw("steps = 400000")).unwrap().warmup, run.warmup);
    }

    #[test]
    fn passes_are_counted_again_where_they_differ() {
        let begun = Config::resolve(raw("epochs = 3")).unwrap();
        let run = Config { steps: 77, ..begun };
        assert_eq!(run.resumed(raw("epochs = 3")).unwrap(), run);
        let more = run.resumed(raw("epochs = 4")).unwrap();
        assert_eq!((more.steps, more.epochs), (0, Some(4)));
        let steps = run.resumed(raw("steps = 80")).unwrap();
        assert_eq!((steps.steps, steps.epochs), (80, None));
    }

    #[test]
    fn a_device_without_the_runs_precision_goes_on_in_f32() {
        let run = Config::resolve(raw("device = 'cuda'\nprecision = 'bf16'")).unwrap();
        let here = run.resumed(raw("device = 'cpu'")).unwrap();
        assert_eq!((here.precision, here.chunk), (Precision::F32, run.chunk));
        assert!(run.resumed(raw("device = 'cpu'\nprecision = 'bf16'")).is_err());
    }

    #[test]
    fn what_else_differs_is_named_with_both_values() {
        let run = "preset = 'pythia-tiny'\nlr = 0.5\nvocab_size = 300\nvalidation = 'here.txt'";
        let run = Config::resolve(raw(run)).unwrap();
        let set = |pair: &str| RawConfig { set: vec![pair.to_owned()], ..raw("") };
        let stages = "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2";
        for (written, says) in [
            (raw("lr = 1.0"), ["--lr", "0.5", "1.0"]),
            (raw("preset = 'pythia-14m'"), ["--preset", "pythia-tiny", "pythia-14m"]),
            (raw("vocab_size = 400"), ["--vocab-size", "300", "400"]),
            (raw("seed = 4"), ["--seed", "0", "4"]),
            (raw("validation = 'there.txt'"), ["--validation", "here.txt", "there.txt"]),
            (set("layers=1"), ["--set layers", "4", "1"]),
            (raw(stages), ["", "the run has", "the command says"]),
        ] {
            let message = run.resumed(written).unwrap_err().to_string();
            assert!(says.iter().all(|what| message.contains(what)) && !message.contains('\n'), "{says:?}: {message}");
            assert!(message.contains("--save-minutes") && message.contains("--data"), "{message}");
        }
        let skips = Config::resolve(raw("skip_bad_lines = true")).unwrap();
        let message = skips.resumed(raw("skip_bad_lines = false")).unwrap_err().to_string();
        assert!(message.contains("the run has true, the command says false"), "{message}");
    }
}
