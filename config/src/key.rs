//! The properties of a configuration key, and everything that is generated from the single list of keys: the types of
//! the written and of the resolved configuration, merging, writing back, flags, bounds, and the table of the
//! documentation page.

use clap::builder::ValueParser;
use clap::{Arg, ArgAction};

use super::Values;
use super::error::{ConfigError, error};
use super::value::{Decided, Value};

/// Whether a key may change when a run continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// The key must stay: it determines the run's numbers.
    Stays,
    /// The key may change.
    Changes,
    /// The key may change without an effect on what the run learns.
    Neutral,
}

/// In which runs the saved configuration contains a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    Always,
    /// Runs of earlier versions lack it: they have the default.
    Later,
    /// As `Later`; and the key is saved only if it differs from the default, so that earlier versions can read the run.
    Quiet,
}

/// A key of a run's configuration.
#[derive(Debug, Clone, Copy)]
pub struct RunKey {
    /// Its name in a file.
    pub name: &'static str,
    /// The section of the help.
    pub section: &'static str,
    /// Its meaning, for the help.
    pub help: &'static str,
    parser: fn() -> ValueParser,
    /// Its default if that is a constant; `None` for a key that is not part of a run, but another way to write other
    /// keys.
    default: Option<fn() -> Option<String>>,
    takes: &'static str,
    shown: &'static str,
    resume: Resume,
    saved: Saved,
    pub(super) values: Values,
    beside: &'static str,
    page: &'static str,
    /// Whether the command line may contain it several times.
    several: bool,
}

/// The placeholder for the value of a switch.
const SWITCH: &str = "BOOL";
/// The default of a key whose value differs between presets.
const BY_PRESET: &str = "the preset's";

/// The properties of a key that is also a flag, in addition to its name, type, help and default; `takes` is the
/// placeholder of its value.
pub(super) const fn flag(takes: &'static str) -> RunKey {
    RunKey {
        name: "",
        section: "",
        help: "",
        parser: String::parser,
        default: None,
        takes,
        shown: "",
        resume: Resume::Stays,
        saved: Saved::Always,
        values: Values::Any,
        beside: "",
        page: "",
        several: false,
    }
}

/// The properties of a flag that means `true` without a value.
pub(super) const fn switch() -> RunKey {
    flag(SWITCH)
}

/// The properties of a key that occurs in files only.
pub(super) const fn in_files() -> RunKey {
    flag("")
}

impl RunKey {
    /// The key with these properties and the written type `V`.
    pub(super) const fn of<V: Value>(
        self,
        [section, name, help]: [&'static str; 3],
        default: Option<fn() -> Option<String>>,
    ) -> RunKey {
        RunKey { name, section, help: help.trim_ascii_start(), parser: V::parser, default, several: V::SEVERAL, ..self }
    }

    /// Sets the description of a default that is not a constant.
    pub(super) const fn shown(self, shown: &'static str) -> RunKey {
        RunKey { shown, ..self }
    }

    /// Its value differs between presets.
    pub(super) const fn by_preset(self) -> RunKey {
        self.shown(BY_PRESET)
    }

    /// It may change when a run continues.
    pub(super) const fn changes(self) -> RunKey {
        RunKey { resume: Resume::Changes, ..self }
    }

    /// It may change when a run continues, without any effect on what the run learns.
    pub(super) const fn neutral(self) -> RunKey {
        RunKey { resume: Resume::Neutral, ..self }
    }

    /// Runs of earlier versions lack it: they have the default.
    pub(super) const fn later(self) -> RunKey {
        RunKey { saved: Saved::Later, ..self }
    }

    /// Runs of earlier versions lack it, and a run saves it only if it differs from the default, so that earlier
    /// versions can read the run.
    pub(super) const fn quiet(self) -> RunKey {
        RunKey { saved: Saved::Quiet, ..self }
    }

    /// Sets the permitted numbers.
    pub(super) const fn within(self, values: Values) -> RunKey {
        RunKey { values, ..self }
    }

    /// Names the key that sets the same value in another way.
    pub(super) const fn not_beside(self, beside: &'static str) -> RunKey {
        RunKey { beside, ..self }
    }

    /// Sets the text of the documentation page that replaces the help.
    pub(super) const fn page(self, page: &'static str) -> RunKey {
        RunKey { page, ..self }
    }

    /// The name on the command line.
    pub fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }

    /// Whether it may change when a run continues.
    pub fn may_change(&self) -> bool {
        self.resume != Resume::Stays
    }

    /// Whether a change of it, when a run continues, has no effect on what the run learns.
    pub fn is_neutral(&self) -> bool {
        self.resume == Resume::Neutral
    }

    /// Whether it is part of a run, and not only another way to write other keys.
    pub(super) fn is_of_run(&self) -> bool {
        self.default.is_some()
    }

    /// Whether every run has saved it, although it has a default.
    pub(super) fn is_always_saved(&self) -> bool {
        self.saved == Saved::Always && !self.constant().is_empty()
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.saved == Saved::Quiet
    }

    /// Its default if that is a constant.
    fn constant(&self) -> String {
        self.default.and_then(|default| default()).unwrap_or_default()
    }

    /// Its default value in words.
    fn default_shown(&self) -> String {
        if self.shown.is_empty() { self.constant() } else { self.shown.to_owned() }
    }

    /// The command line text for a value, if it has a flag.
    pub(super) fn with_value(&self, text: &str) -> Option<String> {
        let between = if self.takes == SWITCH { '=' } else { ' ' };
        (!self.takes.is_empty()).then(|| format!("{}{between}{}", self.flag(), quoted(text)))
    }

    /// Its flag, if it has one.
    pub(super) fn arg(&self) -> Option<Arg> {
        let RunKey { takes, beside, .. } = *self;
        let default = self.default_shown();
        let default = if default.is_empty() { default } else { format!(" [default: {default}]") };
        let arg = Arg::new(self.name)
            .long(self.name.replace('_', "-"))
            .value_name(takes)
            .help(format!("{}{default}", self.help));
        let mut arg = arg.help_heading(self.section).value_parser((self.parser)());
        if !beside.is_empty() {
            arg = arg.conflicts_with(beside);
        }
        if self.several {
            arg = arg.action(ArgAction::Append);
        }
        if takes == SWITCH {
            arg = arg.num_args(0..=1).require_equals(true).default_missing_value("true");
        }
        (!takes.is_empty()).then_some(arg)
    }

    /// Refuses a number that is not permitted.
    pub(super) fn check<V: Value>(&self, value: Option<V>) -> Result<(), ConfigError> {
        let Some(text) = value.filter(|_| self.values != Values::Any).map(|value| value.text()) else {
            return Ok(());
        };
        match text.parse().is_ok_and(|number| self.values.has(number)) {
            true => Ok(()),
            false => error(format!("{} is {text}; it must be {}", self.flag(), self.values.shown())),
        }
    }

    /// A row of the documentation page's table.
    fn row(&self) -> String {
        let default = match (self.default_shown(), self.constant()) {
            (shown, constant) if shown == BY_PRESET && !constant.is_empty() => format!("{shown}, else {constant}"),
            (shown, _) if shown.is_empty() => "none".to_owned(),
            (shown, _) => shown,
        };
        let values = if self.values == Values::Any { String::new() } else { self.values.shown() };
        let changes = if self.may_change() { "may change" } else { "" };
        let page = if self.page.is_empty() { self.help } else { self.page };
        format!("| {} | {default} | {values} | {changes} | {page} |\n", self.name)
    }
}

/// A word quoted for a POSIX shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:,+=%@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The table of all keys for docs/configuration.md, in sections.
pub fn page_of_keys() -> String {
    let mut page = String::new();
    let mut sections: Vec<&str> = Vec::new();
    for key in super::RUN_KEYS {
        // Keys that are only another way to write others come after all keys in the list, and last in their section.
        if !sections.contains(&key.section) {
            sections.push(key.section);
        }
    }
    for section in sections {
        page += &format!("\n### {section}\n\n| key | default | values | on resume | meaning |\n");
        page += "| --- | --- | --- | --- | --- |\n";
        page.extend(super::RUN_KEYS.iter().filter(|key| key.section == section).map(RunKey::row));
    }
    page
}

/// The resolved value: from what was `written`, or the `default`.
pub(super) fn decide<W, D: Decided<W>>(name: &str, written: Option<W>, default: Option<D>) -> Result<D, ConfigError> {
    match written {
        Some(written) => D::of(written).map_err(ConfigError),
        None => default.or_else(D::unsaid).ok_or_else(|| ConfigError(format!("missing field `{name}`"))),
    }
}

/// A default in the form that people write.
pub(super) fn shown<V: Value, D: Decided<V>>(default: Option<D>) -> Option<String> {
    default?.written().map(|written| written.text())
}

/// The type of a key in a run: the written type, unless another one is named.
macro_rules! decided {
    ($written:ty) => {
        $written
    };
    ($written:ty, $decided:ty) => {
        $decided
    };
}

/// A default, if there is one.
macro_rules! default {
    () => {
        None
    };
    ($default:expr) => {
        Some($default)
    };
}

/// Generates [`RawConfig`](super::RawConfig), [`Config`](super::Config) and [`RUN_KEYS`](super::RUN_KEYS) from the list
/// of keys.
///
/// A key is `/// Help`, `name: Type`, if a run has another type `=> That`, if its default is a constant `= default`,
/// and its further properties.
macro_rules! keys {
    (
        of a run { $( $section:literal { $(
            $(#[doc = $help:literal])+ $key:ident: $type:ty $(=> $decided:ty)? $(= $default:expr)?, $about:expr;
        )+ } )+ }
        written alone { $( $also_section:literal { $(
            $(#[doc = $also_help:literal])+ $also:ident: $also_type:ty, $also_about:expr;
        )+ } )+ }
    ) => {
        /// Every key, section by section.
        pub const RUN_KEYS: &[RunKey] = &[
            $( $( $about.of::<$type>(
                [$section, stringify!($key), concat!($($help),+)],
                Some(|| shown::<$type, decided!($type $(, $decided)?)>(default!($($default)?))),
            ), )+ )+
            $( $( $also_about.of::<$also_type>([$also_section, stringify!($also), concat!($($also_help),+)], None), )+ )+
        ];

        /// The settings that a user may write, as flags or as keys of a configuration file (`-` becomes `_`).
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct RawConfig {
            $( $(
                $(#[doc = $help])+
                #[serde(deserialize_with = "Value::in_file", skip_serializing_if = "Option::is_none")]
                pub $key: Option<$type>,
            )+ )+
            $( $(
                $(#[doc = $also_help])+
                #[serde(deserialize_with = "Value::in_file", skip_serializing_if = "Option::is_none")]
                pub $also: Option<$also_type>,
            )+ )+
            /// The rank of this process, set by a launcher.
            #[serde(skip)]
            pub rank: Option<u32>,
            /// Number of ranks.
            #[serde(skip)]
            pub ranks: Option<u32>,
            /// The link between ranks, for a plan.
            #[serde(skip)]
            pub link: Option<Link>,
            /// Sizes and parts of the model, as written with `--set`.
            #[serde(skip)]
            pub set: Vec<String>,
            /// Sizes and parts of the model in a file: the table `[model]`.
            #[serde(skip_serializing_if = "toml::Table::is_empty")]
            pub model: toml::Table,
            /// Settings of parameter groups, as written with `--group`.
            #[serde(skip)]
            pub groups: Vec<String>,
            /// Settings of parameter groups in a file: the tables `[group.NAME]`.
            #[serde(skip_serializing_if = "Groups::is_empty")]
            pub group: Groups,
            /// A curriculum: the shapes of steps, each from some step on.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub stage: Vec<RawStage>,
        }

        /// A configuration with nothing left to decide.
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        #[serde(try_from = "RawConfig")]
        pub struct Config {
            $( $(
                $(#[doc = $help])+
                pub $key: decided!($type $(, $decided)?),
            )+ )+
            /// The rank of this process; it is no setting of the run.
            pub rank: u32,
            /// Number of ranks.
            pub ranks: u32,
            /// The link between ranks, if a plan estimates its time.
            pub link: Option<Link>,
            /// The integer format of the weights, if they are integers. A training run has none: commands that score
            /// a trained model or generate may set it.
            pub weights: Option<Integer>,
            /// The model.
            pub model: ModelConfig,
            /// Settings of parameter groups.
            pub group: Groups,
            /// The stages of a curriculum; empty if all steps have the same shape.
            pub stage: Vec<StageConfig>,
        }

        impl RawConfig {
            /// The keys that are set.
            pub(super) fn given(&self) -> impl Iterator<Item = &'static RunKey> {
                let said = [$( $( self.$key.is_some(), )+ )+ $( $( self.$also.is_some(), )+ )+];
                RUN_KEYS.iter().zip(said).filter_map(|(key, said)| said.then_some(key))
            }

            /// The keys that are set, each with its value as users write it; one with several values occurs for each.
            pub(super) fn said(&self) -> impl Iterator<Item = (&'static RunKey, String)> {
                let texts = [
                    $( $( self.$key.as_ref().map(Value::texts), )+ )+
                    $( $( self.$also.as_ref().map(Value::texts), )+ )+
                ];
                let each = |(key, texts): (_, Option<Vec<String>>)| texts.into_iter().flatten().map(move |text| (key, text));
                RUN_KEYS.iter().zip(texts).flat_map(each)
            }

            /// Takes each key that is not set from `other`; tables and `--set` stay as they are.
            pub(super) fn or(self, other: RawConfig) -> RawConfig {
                RawConfig {
                    $( $( $key: self.$key.or(other.$key), )+ )+
                    $( $( $also: self.$also.or(other.$also), )+ )+
                    rank: self.rank.or(other.rank),
                    ranks: self.ranks.or(other.ranks),
                    link: self.link.or(other.link),
                    ..self
                }
            }

            /// Sets the keys from the command line.
            fn take(&mut self, matches: &ArgMatches) {
                $( $( self.$key = Value::said(matches, stringify!($key)); )+ )+
                $( $( self.$also = Value::said(matches, stringify!($also)); )+ )+
                let several = |name| matches.get_many(name).into_iter().flatten().cloned().collect();
                (self.set, self.groups) = (several("set"), several("group"));
            }
        }

        impl Config {
            /// The `written` keys, with the constant defaults for the others.
            ///
            /// # Errors
            /// A key with neither a value nor a default; a value that only a plan can decide.
            pub(super) fn complete(
                written: RawConfig,
                model: ModelConfig,
                group: Groups,
                stage: Vec<StageConfig>,
            ) -> Result<Config, ConfigError> {
                Ok(Config {
                    $( $( $key: decide(stringify!($key), written.$key, default!($($default)?))?, )+ )+
                    rank: written.rank.unwrap_or(0),
                    ranks: written.ranks.unwrap_or(1),
                    link: written.link,
                    weights: None,
                    model,
                    group,
                    stage,
                })
            }

            /// All keys as a user would write them; without the tables.
            pub(super) fn keys_written(&self) -> RawConfig {
                RawConfig {
                    $( $( $key: self.$key.written(), )+ )+
                    rank: Some(self.rank),
                    ranks: Some(self.ranks),
                    link: self.link,
                    ..RawConfig::default()
                }
            }

            /// The keys as a run saves them: some only if they differ from the default.
            pub(super) fn keys_saved(&self) -> RawConfig {
                let mut written = self.keys_written();
                let mut quiet = RUN_KEYS.iter().map(RunKey::is_quiet);
                $( $(
                    if quiet.next() == Some(true) && Some(&self.$key) == default!($($default)?).as_ref() {
                        written.$key = None;
                    }
                )+ )+
                written
            }

            /// Refuses numbers outside the bounds of their keys.
            pub(super) fn require_bounds(&self) -> Result<(), ConfigError> {
                let mut keys = RUN_KEYS.iter();
                $( $( keys.next().map_or(Ok(()), |key| key.check(Decided::<$type>::written(&self.$key)))?; )+ )+
                Ok(())
            }
        }
    };
}

pub(super) use {decided, default, keys};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::super::{ByteSize, Config, RUN_KEYS, RawConfig, presets};
    use super::*;

    fn of_preset(name: &str) -> RawConfig {
        RawConfig { preset: Some(name.to_owned()), ..RawConfig::default() }
    }

    /// The defaults in the help and on the page are those of a run that sets no key.
    #[test]
    fn the_defaults_are_those_of_the_configuration() {
        let all: Vec<Config> = presets().iter().map(|p| Config::resolve(of_preset(p.name)).unwrap()).collect();
        let tables: Vec<_> = all.iter().map(|c| toml::Table::try_from(c.keys_written()).unwrap()).collect();
        let mut said = 0;
        for key in RUN_KEYS.iter().filter(|key| key.is_of_run() && !["preset", "threads", "warmup"].contains(&key.name))
        {
            let default = key.default_shown();
            let text = |value: &toml::Value| match value {
                toml::Value::Float(x) => (*x as f32).text(),
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let values: BTreeSet<String> = tables.iter().filter_map(|table| table.get(key.name)).map(text).collect();
            let sized = default.parse().map(|ByteSize(bytes)| bytes.to_string());
            match values.first() {
                Some(value) if values.len() == 1 => {
                    let same = default.starts_with(value) || key.name == "pool" && sized.as_ref() == Ok(value);
                    assert!(same, "{}: {value} and not {default}", key.flag());
                    said += 1;
                }
                Some(_) => assert!(default.contains("preset"), "{}: {values:?}, not {default}", key.flag()),
                None => assert!(key.constant().is_empty(), "{}", key.flag()),
            }
        }
        assert!(said > 15, "{said}");
    }

    #[test]
    fn a_number_that_its_key_does_not_take_is_named_with_those_it_does() {
        for (text, says) in [
            ("lr_end = 1.5", "--lr-end is 1.5; it must be 0 to 1"),
            ("lr_end = nan", "--lr-end is NaN; it must be 0 to 1"),
            ("eps = 0.0", "--eps is 0; it must be above 0"),
            ("beta1 = 1.0", "--beta1 is 1; it must be at least 0 and below 1"),
            ("dropout = 1.0", "--dropout is 1; it must be at least 0 and below 1"),
            ("lr = -0.1", "--lr is -0.1; it must be at least 0"),
            ("decay = 0.0", "--decay is 0; it must be above 0 and at most 1"),
            ("decay = 1.01", "--decay is 1.01; it must be above 0 and at most 1"),
            ("threads = 1025", "--threads is 1025; it must be 1 to 1024"),
            ("block = 48", "--block is 48; it must be 16, 32, 64"),
            ("eval_tokens = 1", "--eval-tokens is 1; it must be at least 2"),
            ("steps = 0", "--steps is 0; it must be at least 1"),
        ] {
            let refused = Config::resolve(toml::from_str(text).unwrap()).unwrap_err().to_string();
            assert_eq!(refused, says, "{text}");
        }
    }

    #[test]
    fn what_is_quiet_is_saved_where_it_is_not_the_default_and_a_run_without_it_has_that() {
        let saved = |text: &str| toml::to_string(&Config::resolve(toml::from_str(text).unwrap()).unwrap()).unwrap();
        let usual = saved("preset = 'pythia-tiny'");
        let other = saved("preset = 'pythia-tiny'\nlr_end = 0.0\neps = 1e-6");
        assert!(!usual.contains("lr_end") && !usual.contains("\neps ="), "{usual}");
        assert!(other.contains("lr_end = 0.0\n") && other.contains("\neps = "), "{other}");
        let read = |text: &str| toml::from_str::<Config>(text).unwrap();
        assert_eq!((read(&usual).lr_end, read(&usual).eps), (0.1, 1e-8));
        assert_eq!((read(&other).lr_end, read(&other).eps), (0.0, 1e-6));
        assert_eq!(read(&other).lr_schedule().end, 0.0);
        assert_eq!(read(&other).eps, 1e-6);
    }

    /// The page has what [`page_of_keys`] gives, which a failure prints.
    #[test]
    fn the_page_of_the_configuration_has_every_key() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (_, rest) = page.split_once("<!-- The keys, from config/src/table.rs: -->\n").expect("a beginning");
        let (there, _) = rest.split_once("\n<!-- The end of the keys. -->").expect("an end");
        let expected = page_of_keys();
        assert!(there == expected, "the table of docs/configuration.md should be:\n{expected}");
    }
}
