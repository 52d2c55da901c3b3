//! A run's saved configuration, read as a configuration file: it describes the same run from the beginning.

use serde::{Serialize, Serializer};

use super::error::error;
use super::{Config, ConfigError, Groups, IMPORTED, ModelConfig, RUN_KEYS, RawConfig, StageConfig};
use capful_base::digest;

/// The file of a run's configuration, in its directory.
pub const CONFIG_FILE: &str = "config.toml";
/// The file of a run's plan, next to it.
pub const PLAN_FILE: &str = "plan.json";
/// The first line of a saved configuration, before the digest of the following text.
const FIRST_LINE: &str = "# XXH3 of what follows: ";

/// A configuration's `text` after a line with its digest.
pub fn sealed(text: &str) -> String {
    format!("{FIRST_LINE}{:016x}\n{text}", digest::of(text.as_bytes()))
}

/// Whether a saved configuration begins with its digest.
pub fn is_sealed(content: &str) -> bool {
    content.starts_with(FIRST_LINE)
}

/// Refuses a saved configuration that has changed. Earlier versions, and people, write no digest.
///
/// # Errors
/// Advice.
pub fn require_unchanged(content: &str) -> Result<(), ConfigError> {
    let (first, rest) = content.split_once('\n').unwrap_or((content, ""));
    let same = match first.strip_prefix(FIRST_LINE) {
        Some(digits) => format!("{:016x}", digest::of(rest.as_bytes())) == digits,
        // A damaged first line still contains one of these halves.
        None => !(first.starts_with('#') && (first.contains("XXH3") || first.contains("of what follows"))),
    };
    if same {
        return Ok(());
    }
    error(
        "it is damaged or was edited since a run wrote it: its first line has the digest of the rest; restore it, or remove \
         that line to use it as it is"
            .to_owned(),
    )
}

impl Serialize for Config {
    /// In the saved form: the keys in order, then the model and the stages.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Saved<'a> {
            #[serde(flatten)]
            keys: RawConfig,
            model: ModelConfig,
            #[serde(skip_serializing_if = "Groups::is_empty")]
            group: &'a Groups,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            stage: &'a [StageConfig],
        }
        Saved { keys: self.keys_saved(), model: self.model, group: &self.group, stage: &self.stage }.serialize(to)
    }
}

impl TryFrom<RawConfig> for Config {
    type Error = ConfigError;

    /// The configuration that a run saved. A configuration by a person is refused: it lacks keys that every run saves.
    fn try_from(saved: RawConfig) -> Result<Config, ConfigError> {
        if let Some(key) = saved.given().find(|key| !key.is_of_run()) {
            return error(format!("unknown field `{}`", key.name));
        }
        let given: Vec<&str> = saved.given().map(|key| key.name).collect();
        if let Some(key) = RUN_KEYS.iter().find(|key| key.is_always_saved() && !given.contains(&key.name)) {
            return error(format!("missing field `{}`", key.name));
        }
        if saved.model.is_empty() {
            return error("missing field `model`".to_owned());
        }
        let model = ModelConfig::try_from(saved.model.clone()).map_err(ConfigError)?;
        let stage = StageConfig::scaled(&saved.stage, saved.clip.unwrap_or(1.0), None)?;
        let group = saved.group.clone();
        Config::complete(saved, model, group, stage)
    }
}

impl RawConfig {
    /// The written settings, if this is the saved configuration of a run: such a configuration has every key, unlike
    /// one by a person.
    pub(super) fn of_run(&self) -> Option<Result<RawConfig, ConfigError>> {
        Config::try_from(self.clone()).ok().map(|config| config.given_back())
    }
}

impl Config {
    fn given_back(&self) -> Result<RawConfig, ConfigError> {
        let last = self.stage.last();
        let shape = (self.seq_len, self.batch_size, self.accumulate);
        if let Some(last) = last.filter(|last| (last.seq_len, last.batch_size, last.accumulate) != shape) {
            return error(format!(
                "seq_len, batch_size and accumulate are {}, {} and {}, and those of the last [[stage]] {}, {} and {}; make \
                 them the same",
                shape.0, shape.1, shape.2, last.seq_len, last.batch_size, last.accumulate
            ));
        }
        let staged = last.is_some();
        let raw = self.as_written()?;
        // A model that weights were read from has its tokenizer next to them; that file of its checkpoint may no longer
        // exist.
        let tokenizer = raw.tokenizer.filter(|_| self.preset != IMPORTED || self.init_from.is_none());
        Ok(RawConfig {
            // The stages set these.
            seq_len: raw.seq_len.filter(|_| !staged),
            batch_size: raw.batch_size.filter(|_| !staged),
            accumulate: raw.accumulate.filter(|_| !staged),
            // Both keys: the epochs are converted again, and must give the same number of steps.
            epochs: self.epochs,
            tokenizer,
            // These belong to a process and not to a run.
            rank: None,
            ranks: None,
            link: None,
            ..raw
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    fn raw(text: &str) -> RawConfig {
        toml::from_str(text).unwrap()
    }

    /// Reads a text as a `--config` file.
    fn read(text: &str) -> Result<RawConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        RawConfig::read(&path).map_err(|e| e.to_string())
    }

    fn saved(config: &Config) -> String {
        toml::to_string(config).unwrap()
    }

    #[test]
    fn every_saved_configuration_is_the_same_again() {
        let attention = "attention = 'mixed'\nwindow = 3\nblock = 16";
        let sizes = "budget = '3GiB'\npool = '1MiB'\norder = 'pool'\nrecompute = 'full'\nclip = 0.25\ncache = 'none'";
        let gpu = "device = 'cuda'\nprecision = 'bf16'\ngradients = 'bf16'\ngpu = 'h200'\nbatch_size = 4\nseq_len = 32";
        for preset in presets() {
            for more in ["", "lr = 0.5\nwarmup = 2\nsteps = 9\nseed = 3", sizes, "seq_len = 64", attention, gpu] {
                let written = raw(&format!("preset = '{}'\n{more}", preset.name));
                let Ok(run) = Config::resolve(written) else {
                    // This family lacks such attention and gradients.
                    assert!(preset.name.contains("neurogen") || preset.name.contains("gtx"), "{} {more}", preset.name);
                    continue;
                };
                let again = Config::resolve(read(&saved(&run)).unwrap()).unwrap();
                assert_eq!(again, run, "{} {more}", preset.name);
                // The run continues with its own file, too.
                assert_eq!(run.resumed(read(&saved(&run)).unwrap()).unwrap(), run, "{} {more}", preset.name);
            }
        }
    }

    #[test]
    fn passes_are_counted_again_and_flags_win() {
        let run = Config { steps: 77, ..Config::resolve(raw("epochs = 3")).unwrap() };
        let file = read(&saved(&run)).unwrap();
        assert_eq!((file.steps, file.epochs), (Some(77), Some(3)));
        assert_eq!(Config::resolve(file.clone()).unwrap(), Config { steps: 0, ..run.clone() });
        assert_eq!(run.resumed(file.clone()).unwrap(), run);
        let over = |flags: &str| Config::resolve(file.clone().overlaid(raw(flags))).unwrap();
        assert_eq!((over("steps = 5").steps, over("steps = 5").epochs), (5, None));
        assert_eq!((over("epochs = 2").steps, over("epochs = 2").epochs), (0, Some(2)));
        // It is unknown which of the two keys was changed.
        let other = read(&saved(&run).replace("epochs = 3", "epochs = 4")).unwrap();
        let message = run.resumed(other).unwrap_err().to_string();
        assert!(message.contains("epochs") && message.contains("steps"), "{message}");
    }

    #[test]
    fn what_people_change_in_a_saved_configuration_is_read_too() {
        let stages =
            "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2\n[[stage]]\nfrom = 5\nseq_len = 16\nbatch_size = 1";
        let run = Config::resolve(raw(&format!("budget = 3221225472\n{stages}"))).unwrap();
        let sized =
            saved(&run).replace("budget = 3221225472", "budget = '1GiB'").replace("pool = 134217728", "pool = '1MiB'");
        let again = Config::resolve(read(&sized).unwrap()).unwrap();
        assert_eq!(again, Config { budget: Some(1 << 30), pool: 1 << 20, ..run.clone() });
        let shape = saved(&run).replacen("seq_len = 16", "seq_len = 32", 1);
        let message = read(&shape).unwrap_err();
        assert!(
            message.contains("config.toml") && message.contains("[[stage]]") && !message.contains('\n'),
            "{message}"
        );
    }

    #[test]
    fn a_model_that_weights_were_read_from_says_its_tokenizer_itself() {
        let run = Config {
            preset: IMPORTED.to_owned(),
            init_from: Some("/a/run".to_owned()),
            tokenizer: "/a/run/checkpoint-00000008/tokenizer.json".to_owned(),
            ..Config::resolve(raw("")).unwrap()
        };
        assert_eq!(read(&saved(&run)).unwrap().tokenizer, None);
        let imported = Config { init_from: None, ..run };
        assert!(read(&saved(&imported)).unwrap().tokenizer.is_some());
    }
}
