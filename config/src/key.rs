//! What is said of a key of a run's configuration, and what one list of keys makes: the types of what is written and of
//! what is decided, merging, writing back, flags, bounds, and the page's table.

use clap::builder::ValueParser;
use clap::{Arg, ArgAction};

use super::Values;
use super::error::{ConfigError, error};
use super::value::{Decided, Value};

/// What may become of a key when a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// It stays: it decides the run's numbers.
    Stays,
    /// It may change.
    Changes,
    /// The same, and what the run learns does not.
    Neutral,
}

/// When the configuration of a run has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    Always,
    /// Runs of earlier versions do not have it: theirs is the default.
    Later,
    /// The same, and it is saved only where it is not the default, so that earlier versions read the run.
    Quiet,
}

/// A key of a run's configuration.
#[derive(Debug, Clone, Copy)]
pub struct RunKey {
    /// Its name in a file.
    pub name: &'static str,
    /// The part of the help that it stands in.
    pub section: &'static str,
    /// What it means, for the help.
    pub help: &'static str,
    parser: fn() -> ValueParser,
    /// Its default where that is a constant; none where it is no key of a run, only a way to write others.
    default: Option<fn() -> Option<String>>,
    takes: &'static str,
    shown: &'static str,
    resume: Resume,
    saved: Saved,
    pub(super) values: Values,
    beside: &'static str,
    page: &'static str,
    /// Whether the command line may give it several times.
    several: bool,
}

/// What stands for the value of a switch.
const SWITCH: &str = "BOOL";
/// The default of a key that presets differ in.
const BY_PRESET: &str = "the preset's";

/// What is said of a key that is a flag too, beside its name, type, help and default; `takes` is what stands for its value.
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

/// The same of a flag that says yes by itself.
pub(super) const fn switch() -> RunKey {
    flag(SWITCH)
}

/// The same of a key of files alone.
pub(super) const fn in_files() -> RunKey {
    flag("")
}

impl RunKey {
    /// The key of which this is said, which is written as a `V`.
    pub(super) const fn of<V: Value>(
        self,
        [section, name, help]: [&'static str; 3],
        default: Option<fn() -> Option<String>>,
    ) -> RunKey {
        RunKey { name, section, help: help.trim_ascii_start(), parser: V::parser, default, several: V::SEVERAL, ..self }
    }

    /// What its default is, where that is no constant.
    pub(super) const fn shown(self, shown: &'static str) -> RunKey {
        RunKey { shown, ..self }
    }

    /// Presets differ in it.
    pub(super) const fn by_preset(self) -> RunKey {
        self.shown(BY_PRESET)
    }

    /// It may change when a run goes on.
    pub(super) const fn changes(self) -> RunKey {
        RunKey { resume: Resume::Changes, ..self }
    }

    /// The same, and nothing that the run learns changes with it.
    pub(super) const fn neutral(self) -> RunKey {
        RunKey { resume: Resume::Neutral, ..self }
    }

    /// Runs of earlier versions do not have it: theirs is the default.
    pub(super) const fn later(self) -> RunKey {
        RunKey { saved: Saved::Later, ..self }
    }

    /// The same, and a run does not save it where it is the default, so that earlier versions read the run.
    pub(super) const fn quiet(self) -> RunKey {
        RunKey { saved: Saved::Quiet, ..self }
    }

    /// Which numbers it takes.
    pub(super) const fn within(self, values: Values) -> RunKey {
        RunKey { values, ..self }
    }

    /// The key that says the same otherwise.
    pub(super) const fn not_beside(self, beside: &'static str) -> RunKey {
        RunKey { beside, ..self }
    }

    /// What the page says in place of the help.
    pub(super) const fn page(self, page: &'static str) -> RunKey {
        RunKey { page, ..self }
    }

    /// As it is written on the command line.
    pub fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }

    /// Whether it may change when a run goes on.
    pub fn may_change(&self) -> bool {
        self.resume != Resume::Stays
    }

    /// Whether a change of it, when a run goes on, changes nothing of what the run learns.
    pub fn is_neutral(&self) -> bool {
        self.resume == Resume::Neutral
    }

    /// Whether it is one of a run, and not only a way to write others.
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

    /// Its default where that is a constant.
    fn constant(&self) -> String {
        self.default.and_then(|default| default()).unwrap_or_default()
    }

    /// What it is where nobody says it, in words.
    fn default_shown(&self) -> String {
        if self.shown.is_empty() { self.constant() } else { self.shown.to_owned() }
    }

    /// How a shell is told a value of it, where it has a flag.
    pub(super) fn with_value(&self, text: &str) -> Option<String> {
        let between = if self.takes == SWITCH { '=' } else { ' ' };
        (!self.takes.is_empty()).then(|| format!("{}{between}{}", self.flag(), quoted(text)))
    }

    /// Its flag, where it has one.
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

    /// Refuses a number that it does not take.
    pub(super) fn check<V: Value>(&self, value: Option<V>) -> Result<(), ConfigError> {
        let Some(text) = value.filter(|_| self.values != Values::Any).map(|value| value.text()) else {
            return Ok(());
        };
        match text.parse().is_ok_and(|number| self.values.has(number)) {
            true => Ok(()),
            false => error(format!("{} is {text}; it must be {}", self.flag(), self.values.shown())),
        }
    }

    /// A row of the page's table.
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

/// A word as a POSIX shell reads it back.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:,+=%@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The table of all keys for docs/configuration.md, section by section.
pub fn page_of_keys() -> String {
    let mut page = String::new();
    let mut sections: Vec<&str> = Vec::new();
    for key in super::RUN_KEYS {
        // What is written alone is behind all of them in the list, and last in its section.
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

/// What `written` decides, or the `default`.
pub(super) fn decide<W, D: Decided<W>>(name: &str, written: Option<W>, default: Option<D>) -> Result<D, ConfigError> {
    match written {
        Some(written) => D::of(written).map_err(ConfigError),
        None => default.or_else(D::unsaid).ok_or_else(|| ConfigError(format!("missing field `{name}`"))),
    }
}

/// A default as people write it.
pub(super) fn shown<V: Value, D: Decided<V>>(default: Option<D>) -> Option<String> {
    default?.written().map(|written| written.text())
}

/// The type of a key of a run: another than the one that it is written in, where one is named.
macro_rules! decided {
    ($written:ty) => {
        $written
    };
    ($written:ty, $decided:ty) => {
        $decided
    };
}

/// A default, where there is one.
macro_rules! default {
    () => {
        None
    };
    ($default:expr) => {
        Some($default)
    };
}

/// Makes [`RawConfig`](super::RawConfig), [`Config`](super::Config) and [`RUN_KEYS`](super::RUN_KEYS) of the list of keys.
///
/// A key is `/// Help`, `name: Type`, where a run has it in another type `=> That`, where its default is a constant
/// `= default`, and what else is said of it.
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

        /// What a user may write, on the command line or as keys of a configuration file (`-` becomes `_`).
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
            /// The rank that this process is; a launcher says it.
            #[serde(skip)]
            pub rank: Option<u32>,
            /// How many there are.
            #[serde(skip)]
            pub ranks: Option<u32>,
            /// What they are connected by, for a plan.
            #[serde(skip)]
            pub link: Option<Link>,
            /// Sizes and parts of the model, as `--set` says them.
            #[serde(skip)]
            pub set: Vec<String>,
            /// The same in a file: the table `[model]`.
            #[serde(skip_serializing_if = "toml::Table::is_empty")]
            pub model: toml::Table,
            /// What groups of parameters have of their own, as `--group` says it.
            #[serde(skip)]
            pub groups: Vec<String>,
            /// The same in a file: the tables `[group.NAME]`.
            #[serde(skip_serializing_if = "Groups::is_empty")]
            pub group: Groups,
            /// A curriculum: what a step is from some step on.
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
            /// This rank: of a process and not of a run.
            pub rank: u32,
            /// How many there are.
            pub ranks: u32,
            /// What they are connected by, where a plan asks for their time.
            pub link: Option<Link>,
            /// What the weights are kept in where it is integers. No run has them: who scores a trained model, or
            /// generates, asks for them.
            pub weights: Option<Integer>,
            /// The model.
            pub model: ModelConfig,
            /// What groups of parameters have of their own.
            pub group: Groups,
            /// The stages of a curriculum; empty where all steps are of one shape.
            pub stage: Vec<StageConfig>,
        }

        impl RawConfig {
            /// The keys that it says.
            pub(super) fn given(&self) -> impl Iterator<Item = &'static RunKey> {
                let said = [$( $( self.$key.is_some(), )+ )+ $( $( self.$also.is_some(), )+ )+];
                RUN_KEYS.iter().zip(said).filter_map(|(key, said)| said.then_some(key))
            }

            /// The keys that it says, each with its value as people write it; one of several values with each of them.
            pub(super) fn said(&self) -> impl Iterator<Item = (&'static RunKey, String)> {
                let texts = [
                    $( $( self.$key.as_ref().map(Value::texts), )+ )+
                    $( $( self.$also.as_ref().map(Value::texts), )+ )+
                ];
                let each = |(key, texts): (_, Option<Vec<String>>)| texts.into_iter().flatten().map(move |text| (key, text));
                RUN_KEYS.iter().zip(texts).flat_map(each)
            }

            /// What it says, and of the keys that it does not say, what `other` says; tables and `--set` are its own.
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

            /// Takes what the command line says.
            fn take(&mut self, matches: &ArgMatches) {
                $( $( self.$key = Value::said(matches, stringify!($key)); )+ )+
                $( $( self.$also = Value::said(matches, stringify!($also)); )+ )+
                let several = |name| matches.get_many(name).into_iter().flatten().cloned().collect();
                (self.set, self.groups) = (several("set"), several("group"));
            }
        }

        impl Config {
            /// What is `written`, and of the keys that it does not say, the constant defaults.
            ///
            /// # Errors
            /// A key without either; what only a plan decides.
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

            /// Its keys as they would be written, all of them; without the tables.
            pub(super) fn keys_written(&self) -> RawConfig {
                RawConfig {
                    $( $( $key: self.$key.written(), )+ )+
                    rank: Some(self.rank),
                    ranks: Some(self.ranks),
                    link: self.link,
                    ..RawConfig::default()
                }
            }

            /// The same as a run saves it: some keys only where they are not the default.
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

            /// Refuses numbers that their keys do not take.
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

    /// What help and page say is what a run gets that says nothing.
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
