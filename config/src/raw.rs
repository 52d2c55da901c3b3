//! Flags and configuration files as written: everything is optional, nothing is resolved.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ConfigError, RawConfig, unknown};
use capful_base::regular;

/// A stage of a curriculum, in written form: the table `[[stage]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawStage {
    /// Steps done when it begins.
    #[serde(deserialize_with = "super::count::one_in_file")]
    pub from: u64,
    /// Tokens of a sequence.
    #[serde(deserialize_with = "super::count::one_in_file")]
    pub seq_len: u32,
    /// Sequences of a micro-batch.
    #[serde(deserialize_with = "super::count::one_in_file")]
    pub batch_size: u32,
    /// Micro-batches of a step; 1 if not given.
    #[serde(default, deserialize_with = "super::count::in_file")]
    pub accumulate: Option<u32>,
    /// Factor of the learning rate; 1 if not given.
    pub lr: Option<f64>,
    /// The largest global norm of the gradient; the run's if not given.
    pub clip: Option<f32>,
}

impl RawConfig {
    /// Reads a configuration file, which may be one that a run saved.
    ///
    /// # Errors
    /// A file that cannot be read, an unknown key, or a key that contradicts the stages; the message names the file,
    /// the key and, where possible, the line.
    pub fn read(path: &Path) -> Result<RawConfig, ConfigError> {
        // Any kind of file: a shell may pass a pipe.
        let text = std::fs::File::open(path)
            .and_then(|file| regular::bounded_text(file, regular::SETTINGS))
            .map_err(|e| ConfigError(format!("cannot read the configuration {}: {e}", path.display())))?;
        super::require_unchanged(&text).map_err(|e| ConfigError(format!("{}: {e}", path.display())))?;
        let raw: RawConfig = toml::from_str(&text).map_err(|e: toml::de::Error| {
            let line = e.span().map_or(0, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            ConfigError(format!("{}: line {line}: {}", path.display(), unknown::told(e.message())))
        })?;
        raw.checked(&text).map_err(|ConfigError(what)| ConfigError(format!("{}: {what}", path.display())))
    }

    /// The configuration in a table of keys, from a file that also has other tables.
    ///
    /// # Errors
    /// As [`RawConfig::read`], but without a file name.
    pub fn of_table(table: toml::Table) -> Result<RawConfig, ConfigError> {
        let raw: RawConfig = table.try_into().map_err(|e: toml::de::Error| ConfigError(unknown::told(e.message())))?;
        raw.checked("")
    }

    /// Refuses settings that are invalid in any configuration; `text` is its source.
    fn checked(self, text: &str) -> Result<RawConfig, ConfigError> {
        if let Some(of_run) = self.of_run() {
            return of_run;
        }
        unknown::refuse_in_model(&self.model, text)?;
        let both =
            |key: &str, other: &str| Err(ConfigError(format!("{key} is given beside {other}; leave one of them away")));
        match self.shape().filter(|_| !self.stage.is_empty()) {
            Some(key) => both(key, "[[stage]], which decides it for each stage"),
            None if self.steps.is_some() && self.epochs.is_some() => both("epochs", "steps"),
            None if self.time.is_some() && self.steps.is_some() => both("time", "steps"),
            None if self.time.is_some() && self.epochs.is_some() => both("time", "epochs"),
            None => Ok(self),
        }
    }

    /// The first key that sets the shape of every step.
    fn shape(&self) -> Option<&'static str> {
        let shape = |name: &&str| ["batch_size", "seq_len", "accumulate", "tokens_per_step"].contains(name);
        self.given().map(|key| key.name).find(shape)
    }

    /// Without stages if `over` sets the shape; keys that `over` lacks then come from the last stage.
    fn without_stages(mut self, over: &RawConfig) -> RawConfig {
        let last = if over.shape().is_some() { self.stage.last().cloned() } else { None };
        if let Some(last) = last {
            self.stage.clear();
            self.batch_size = Some(super::BatchSize::Sequences(last.batch_size));
            self.seq_len = Some(last.seq_len);
            self.accumulate = last.accumulate;
        }
        self
    }

    /// The flags for its keys, its `--set` and its `--group`, quoted for a shell. Tables of files have no flags.
    pub fn flags(&self) -> Vec<String> {
        let keys = self.said().filter_map(|(key, text)| key.with_value(&text));
        let pairs = |flag: &'static str, pairs: &[String]| pairs.iter().map(|pair| format!("{flag} {pair}")).collect();
        let [sets, groups]: [Vec<String>; 2] = [pairs("--set", &self.set), pairs("--group", &self.groups)];
        keys.chain(sets).chain(groups).collect()
    }

    /// Whether it sets the length of a run: steps, epochs and time are three ways to set it.
    pub fn gives_length(&self) -> bool {
        self.steps.is_some() || self.epochs.is_some() || self.time.is_some()
    }

    /// Without a length if `over` sets one.
    fn without_length(mut self, over: &RawConfig) -> RawConfig {
        if over.gives_length() {
            (self.steps, self.epochs, self.time) = (None, None, None);
        }
        self
    }

    /// Without a number of micro-batches if `over` sets one: tokens of a step are another way to set it.
    fn without_step(mut self, over: &RawConfig) -> RawConfig {
        if over.accumulate.is_some() || over.tokens_per_step.is_some() {
            (self.accumulate, self.tokens_per_step) = (None, None);
        }
        self
    }

    /// The settings of `over`, and those of `self` that `over` lacks. A shape or a clip in `over` applies to all steps,
    /// even if `self` has stages.
    pub fn overlaid(self, over: RawConfig) -> RawConfig {
        let from = self.without_stages(&over).without_length(&over).without_step(&over);
        let mut stage = if over.stage.is_empty() { from.stage.clone() } else { over.stage.clone() };
        if over.clip.is_some() && over.stage.is_empty() {
            stage.iter_mut().for_each(|s| s.clip = None);
        }
        let mut model = from.model.clone();
        model.extend(over.model.clone());
        let set = [&from.set[..], &over.set].concat();
        let (mut group, groups) = (from.group.clone(), [&from.groups[..], &over.groups].concat());
        group.extend(over.group.clone());
        RawConfig { set, model, group, groups, stage, ..over.or(from) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_files() {
        let file: RawConfig = toml::from_str("lr = 0.1\nsteps = 5\n[model]\nlayers = 3").unwrap();
        let flags = RawConfig { lr: Some(0.2), ..RawConfig::default() };
        let merged = file.overlaid(flags);
        assert_eq!((merged.lr, merged.steps), (Some(0.2), Some(5)));
        assert_eq!(merged.model["layers"].as_integer(), Some(3));
    }

    #[test]
    fn a_length_over_another_is_the_only_one() {
        let raw = |text: &str| toml::from_str::<RawConfig>(text).unwrap();
        let length = |file: &str, flags: &str| {
            let merged = raw(file).overlaid(raw(flags));
            (merged.steps, merged.epochs)
        };
        assert_eq!(length("epochs = 3", "steps = 7"), (Some(7), None));
        assert_eq!(length("steps = 7", "epochs = 3"), (None, Some(3)));
        assert_eq!(length("epochs = 3", "lr = 0.1"), (None, Some(3)));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, "steps = 7\nepochs = 3\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(message.contains("epochs") && message.contains("steps") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn a_shape_or_a_clip_over_stages_is_that_of_all_steps() {
        let stages = "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 64\nclip = 0.5\n\
                      [[stage]]\nfrom = 9\nseq_len = 32\nbatch_size = 16\naccumulate = 2";
        let over = |flags: RawConfig| toml::from_str::<RawConfig>(stages).unwrap().overlaid(flags);
        let kept = over(RawConfig { clip: Some(2.0), ..RawConfig::default() });
        assert_eq!((kept.stage.len(), kept.stage[0].clip, kept.clip), (2, None, Some(2.0)));
        let fixed = over(RawConfig { seq_len: Some(128), ..RawConfig::default() });
        assert_eq!(
            (fixed.seq_len, fixed.batch_size, fixed.accumulate),
            (Some(128), Some(crate::BatchSize::Sequences(16)), Some(2))
        );
        assert!(fixed.stage.is_empty());
        let other = over(toml::from_str("[[stage]]\nfrom = 0\nseq_len = 4\nbatch_size = 2").unwrap());
        assert_eq!((other.stage.len(), other.stage[0].seq_len), (1, 4));
    }

    #[test]
    fn a_shape_beside_stages_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, "seq_len = 9\n[[stage]]\nfrom = 0\nseq_len = 4\nbatch_size = 2\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(message.contains("seq_len") && message.contains("[[stage]]"), "{message}");
    }

    #[test]
    fn a_key_that_does_not_exist_is_named_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, "lr = 0.1\nlearning_rate = 2\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(message.contains("line 2") && message.contains("learning_rate"), "{message}");
        assert!(message.contains("docs/configuration.md") && message.len() < 200, "{message}");
        assert!(!message.contains('\n'));
        std::fs::write(&path, "lr = 0.1\nbatchsize = 2\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(message.contains("line 2") && message.contains("did you mean batch_size?"), "{message}");
        std::fs::write(&path, "lr = 0.1\n[model]\nlayer = 2\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(
            message.contains("run.toml: line 3: [model]: there is no key layer; did you mean layers?"),
            "{message}"
        );
    }

    #[test]
    fn numbers_in_a_file_are_written_as_on_the_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            RawConfig::read(&path).map_err(|e| e.to_string())
        };
        let raw = read("steps = '10k'\nsave_every = 1e3\neval_tokens = 7\nwarmup = '1_000'").unwrap();
        let counts = (raw.steps, raw.save_every, raw.eval_tokens, raw.warmup);
        assert_eq!(counts, (Some(10_000), Some(1000), Some(7), Some(1000)));
        let stage = &read("[[stage]]\nfrom = '1k'\nseq_len = 1e2\nbatch_size = 4\naccumulate = '2'").unwrap().stage[0];
        assert_eq!((stage.from, stage.seq_len, stage.batch_size, stage.accumulate), (1000, 100, 4, Some(2)));
        assert_eq!(read("[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 4").unwrap().stage[0].accumulate, None);
        for wrong in ["'many'", "1.5", "-1", "true", "1e30"] {
            let message = read(&format!("lr = 1.0\nsteps = {wrong}")).unwrap_err();
            let what = message.contains("whole number") || message.contains("too large");
            assert!(what && message.contains("line 2"), "{wrong}: {message}");
        }
    }
}
