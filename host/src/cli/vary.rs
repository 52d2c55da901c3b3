//! The individual settings of a sweep's runs: lists of values and their product, and tables of runs.

use std::path::Path;

use clap::{Args as _, FromArgMatches as _};
use toml::{Table, Value};

use super::refused::one_line;
use crate::config::{ConfigError, RUN_KEYS, RawConfig, nearest};
use crate::regular;

/// The most runs of a sweep.
const MOST: usize = 1000;
/// The most bytes of a run's name, which is the name of a directory.
const LONGEST: usize = 120;

/// Keys and values, as on the command line; a key of the model or of a group begins with its table, `model.d_model`.
pub(super) type Varied = Vec<(String, String)>;

/// The settings that a sweep varies.
#[derive(Debug, Default)]
pub(super) struct Vary {
    /// Each key with its values: the sweep has a run for each combination of values.
    lists: Vec<(String, Vec<String>)>,
    /// Individual runs, each combined with every combination of the lists.
    runs: Vec<Varied>,
}

fn error<T>(text: String) -> Result<T, ConfigError> {
    Err(ConfigError(text))
}

impl Vary {
    /// Reads a file of a sweep: the keys of a configuration, and in addition `[vary]` or `[[run]]`.
    pub fn read(path: &Path) -> Result<(RawConfig, Vary), ConfigError> {
        let named = |what: &dyn std::fmt::Display| ConfigError(format!("{}: {what}", path.display()));
        let file = std::fs::File::open(path).and_then(|file| regular::bounded_text(file, regular::SETTINGS));
        let text = file.map_err(|e| named(&e))?;
        let mut table: Table = text.parse().map_err(|e: toml::de::Error| {
            let line = e.span().map_or(0, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            named(&format_args!("line {line}: {}", e.message().replace('\n', " ")))
        })?;
        let (vary, runs) = (table.remove("vary"), table.remove("run"));
        let raw = RawConfig::of_table(table).map_err(|e| named(&e))?;
        let vary = Vary::of(vary, runs).map_err(|e| named(&e))?;
        Ok((raw, vary))
    }

    fn of(vary: Option<Value>, runs: Option<Value>) -> Result<Vary, ConfigError> {
        let mut all = Vary::default();
        for (key, value) in leaves("vary", vary.unwrap_or_else(|| Table::new().into()))? {
            let Value::Array(values) = value else { return error(format!("[vary]: {key} is no list of values")) };
            let values = values.into_iter().map(|value| word(&key, value)).collect::<Result<_, _>>()?;
            all.list(key, values)?;
        }
        let Value::Array(runs) = runs.unwrap_or_else(|| Value::Array(Vec::new())) else {
            return error("run is no list of tables; write [[run]] before the keys of each run".to_owned());
        };
        for run in runs {
            let own = leaves("run", run)?.into_iter();
            let own = own.map(|(key, value)| word(&key, value).map(|value| (key, value)));
            all.runs.push(own.collect::<Result<_, _>>()?);
        }
        Ok(all)
    }

    /// Adds a list in the form of `--vary`, `KEY=V1,V2`.
    pub fn flag(&mut self, written: &str) -> Result<(), ConfigError> {
        let Some((key, values)) = written.split_once('=') else {
            return error(format!("--vary {written}: it is written KEY=V1,V2,… as in lr=1e-3,2e-3"));
        };
        let key = if key.contains('.') { key.to_owned() } else { key.replace('-', "_") };
        self.list(key, values.split(',').map(|value| value.trim().to_owned()).collect())
    }

    fn list(&mut self, key: String, values: Vec<String>) -> Result<(), ConfigError> {
        if values.is_empty() || values.iter().any(String::is_empty) {
            return error(format!("--vary {key}: a value is missing; write for example {key}=V1,V2"));
        }
        if self.lists.iter().any(|(other, _)| *other == key) {
            return error(format!("--vary {key}: it is given twice; give all values in one list"));
        }
        self.lists.push((key, values));
        Ok(())
    }

    /// Every run: its individual settings, and the common configuration overridden by these.
    pub fn all(&self) -> Result<Vec<(Varied, RawConfig)>, ConfigError> {
        let count = self.lists.iter().try_fold(self.runs.len().max(1), |n, (_, v)| n.checked_mul(v.len()));
        match count.filter(|count| *count <= MOST) {
            None => return error(format!("a sweep has at most {MOST} runs; these are more: give fewer values")),
            Some(1) if self.runs.is_empty() && self.lists.is_empty() => {
                return error("nothing varies; give --vary KEY=V1,V2,… or a FILE with [vary] or [[run]]".to_owned());
            }
            Some(_) => {}
        }
        let mut all = if self.runs.is_empty() { vec![Varied::new()] } else { self.runs.clone() };
        for (key, values) in &self.lists {
            let with = |own: &Varied| {
                let own = own.clone();
                values.iter().map(move |value| [&own[..], &[(key.clone(), value.clone())]].concat())
            };
            all = all.iter().flat_map(with).collect();
        }
        all.into_iter().map(|varied| overlay(&varied).map(|raw| (varied, raw))).collect()
    }
}

/// The keys of nested tables, each with the keys above it, and their values.
fn leaves(what: &str, value: Value) -> Result<Vec<(String, Value)>, ConfigError> {
    let Value::Table(table) = value else { return error(format!("{what} is no table of keys")) };
    let mut all = Vec::new();
    for (key, value) in table {
        match value {
            Value::Table(_) => {
                let below = leaves(&key, value)?.into_iter();
                all.extend(below.map(|(below, value)| (format!("{key}.{below}"), value)));
            }
            value => all.push((key, value)),
        }
    }
    Ok(all)
}

/// A value of a file in the form of the command line.
fn word(key: &str, value: Value) -> Result<String, ConfigError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Ok(value.to_string()),
        _ => error(format!("{key}: {value} is no value; a number, a word or true is")),
    }
}

/// The configuration from the flags for `varied`.
fn overlay(varied: &Varied) -> Result<RawConfig, ConfigError> {
    let mut words = Vec::new();
    for (key, value) in varied {
        if let Some(key) = key.strip_prefix("model.") {
            words.push(format!("--set={key}={value}"));
        } else if let Some(key) = key.strip_prefix("group.") {
            words.push(format!("--group={key}={value}"));
        } else if key == "budget" {
            return error("--vary budget: --budget is of the whole sweep".to_owned());
        } else if let Some(known) = RUN_KEYS.iter().find(|known| known.name == *key) {
            words.push(format!("{}={value}", known.flag()));
        } else {
            let near = nearest(key, RUN_KEYS.iter().map(|known| known.name));
            let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            return error(format!("--vary {key}: there is no such key{near}"));
        }
    }
    let command = RawConfig::augment_args(clap::Command::new("train").no_binary_name(true));
    let read = super::with_negative_numbers(command).try_get_matches_from(words);
    read.and_then(|matches| RawConfig::from_arg_matches(&matches))
        .map_err(|e| ConfigError(format!("--vary: {}", one_line(&e, &[]))))
}

/// A run's name: its individual settings, in a form that is valid for a directory.
pub(super) fn name(varied: &Varied) -> String {
    let pairs: Vec<_> = varied.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-+=,".contains(c) { c } else { '-' };
    let name: String = pairs.join(",").chars().map(safe).take(LONGEST).collect();
    if name.is_empty() { "base".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sweep.toml");
        std::fs::write(&path, text).unwrap();
        let all = Vary::read(&path).and_then(|(_, vary)| vary.all());
        all.map(|all| all.iter().map(|(varied, _)| name(varied)).collect()).map_err(|e| e.to_string())
    }

    fn flags(lists: &[&str]) -> Result<Vec<(Varied, RawConfig)>, String> {
        let mut vary = Vary::default();
        let added = lists.iter().try_for_each(|list| vary.flag(list));
        added.and_then(|()| vary.all()).map_err(|e| e.to_string())
    }

    #[test]
    fn lists_make_their_product_and_runs_stand_beside_it() {
        let all = flags(&["lr=1e-3,2e-3", "seed=0,1", "model.d_model=32", "group.matrix.lr=0.5"]).unwrap();
        assert_eq!(name(&all[1].0), "lr=1e-3,seed=1,model.d_model=32,group.matrix.lr=0.5");
        let raw = RawConfig {
            lr: Some(2e-3),
            seed: Some(0),
            set: vec!["d_model=32".to_owned()],
            groups: vec!["matrix.lr=0.5".to_owned()],
            ..RawConfig::default()
        };
        assert_eq!((all.len(), &all[2].1), (4, &raw));
        let file = "steps = 4\n[vary]\nlr = [1e-3, 2e-3]\nmodel.d_model = [32]\n[[run]]\nseed = 3\n[[run]]\n\
                    data = 'a/b c.txt'\nmodel.layers = 2";
        let names = of(file).unwrap();
        assert_eq!(names[0], "seed=3,lr=0.001,model.d_model=32");
        assert_eq!((names.len(), &*names[3]), (4, "data=a-b-c.txt,model.layers=2,lr=0.002,model.d_model=32"));
        assert_eq!(of("[[run]]\n").unwrap(), ["base"]);
    }

    #[test]
    fn what_is_no_list_of_values_is_refused_in_one_line() {
        let hundred = format!("seed={}", (0..100).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        for (lists, says) in [
            (&["lrr=1,2"][..], "--vary lrr: there is no such key; did you mean lr?"),
            (&["lr"], "KEY=V1,V2"),
            (&["lr="], "--vary lr: a value is missing"),
            (&["lr=1,,2"], "--vary lr: a value is missing"),
            (&["lr=1,x"], "invalid value 'x' for '--lr"),
            (&["lr=1", "lr=2"], "given twice"),
            (&["budget=1GiB"], "of the whole sweep"),
            (&["gpu_precision=f32"], "unexpected argument"),
            (&[], "nothing varies"),
            (&[&hundred, "lr=1,2,3,4,5,6,7,8,9,10,11"], "at most 1000 runs"),
        ] {
            let message = flags(lists).unwrap_err();
            assert!(message.contains(says) && !message.contains('\n'), "{lists:?}: {message}");
        }
        for (file, says) in [
            ("stepz = 4\n[vary]\nlr = [1]", "sweep.toml: there is no key stepz; did you mean steps?"),
            ("[vary]\nlr = 1", "[vary]: lr is no list"),
            ("[vary]\nlr = []", "a value is missing"),
            ("[vary]\nlr = [[1]]", "lr: [1] is no value"),
            ("run = 3", "write [[run]]"),
            ("vary = 3", "vary is no table"),
            ("[vary", "line 1"),
        ] {
            let message = of(file).unwrap_err();
            assert!(message.contains(says) && !message.contains('\n'), "{file}: {message}");
        }
    }
}
