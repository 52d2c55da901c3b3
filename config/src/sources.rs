//! The sources of a run, and their weights.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::error;
use super::{Cache, Config, ConfigError, NO_CACHE, Order, is_path};

/// The most sources of a mixture: each has numbers in a line of bounded length.
pub const MOST_SOURCES: usize = 32;

/// One or several sources: in a file a string, or an array of strings.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a source is a string, and several are an array of strings")]
enum Written {
    One(String),
    Several(Vec<String>),
}

/// Sources in written form, at least one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Names(Vec<String>);

impl TryFrom<Written> for Names {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        Ok(match written {
            Written::One(name) => Names(vec![name]),
            Written::Several(names) if names.is_empty() => return Err("there must be one source at least".to_owned()),
            Written::Several(names) => Names(names),
        })
    }
}

impl From<Names> for Written {
    fn from(Names(mut names): Names) -> Self {
        match names.len() {
            1 => Written::One(names.remove(0)),
            _ => Written::Several(names),
        }
    }
}

impl<S: Into<String>> From<S> for Names {
    fn from(name: S) -> Self {
        Names(vec![name.into()])
    }
}

impl Names {
    /// The sources of several words of the command line; `None` for no words.
    pub(super) fn of(names: Vec<String>) -> Option<Names> {
        (!names.is_empty()).then_some(Names(names))
    }

    /// The first source.
    pub fn first(&self) -> &str {
        self.0.first().map_or("", |name| name)
    }

    /// The only source, if there is just one.
    pub fn only(&self) -> Option<&str> {
        self.0.first().filter(|_| self.0.len() == 1).map(|name| &**name)
    }

    /// All sources, as written.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }

    /// Replaces names that are the `same` as the name at the same index of `ours` by that name; weights stay unchanged.
    pub(super) fn called_as(&mut self, ours: &Names, same: &dyn Fn(&str, &str) -> bool) {
        let several = self.0.len() > 1;
        if self.0.len() != ours.0.len() {
            return;
        }
        for (their, our) in self.0.iter_mut().zip(ours.iter()) {
            let [(name, weight), (our, _)] = [their.as_str(), our].map(|written| match several {
                true => apart(written),
                false => (written, None),
            });
            let called = our.to_owned() + &weight.map_or(String::new(), |weight| format!("={weight}"));
            if same(our, name) {
                *their = called;
            }
        }
    }

    /// Gives source `number`, whose data is the same, another name.
    pub fn rename(&mut self, number: usize, name: String) {
        if let Some(ours) = self.0.get_mut(number) {
            *ours = name;
        }
    }

    /// Changes every path, but not the weight after it.
    pub(super) fn change(&mut self, changed: &dyn Fn(&str) -> String) {
        let several = self.0.len() > 1;
        for name in &mut self.0 {
            let (path, weight) = if several { apart(name) } else { (&**name, None) };
            if is_path(path) {
                *name = changed(path) + &weight.map_or(String::new(), |weight| format!("={weight}"));
            }
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

/// A source of a mixture and its weight, if one is written: the text after the last `=` in the last component of the
/// path.
fn apart(written: &str) -> (&str, Option<&str>) {
    match written.rsplit_once('=') {
        Some((name, weight)) if !weight.contains('/') => (name, Some(weight)),
        _ => (written, None),
    }
}

/// The sources of a run, each with its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Sources(Vec<(String, f64)>);

impl Sources {
    /// A single source by its name, which may contain any characters.
    pub fn one(name: impl Into<String>) -> Sources {
        Sources(vec![(name.into(), 1.0)])
    }

    /// Parses the written sources. A single source has no weight: the whole text is its name.
    ///
    /// # Errors
    /// An invalid weight; too many sources.
    pub fn read(names: &Names) -> Result<Sources, String> {
        if let Some(name) = names.only() {
            return Ok(Sources::one(name));
        }
        let Names(names) = names;
        if names.len() > MOST_SOURCES {
            return Err(format!("--data is given {} times; at most {MOST_SOURCES} sources can be mixed", names.len()));
        }
        let mut sources = Vec::with_capacity(names.len());
        for written in names {
            let (name, weight) = apart(written);
            let weight = match weight.map(str::parse::<f64>) {
                None => 1.0,
                Some(Ok(weight)) if weight.is_finite() && weight >= 0.0 => weight,
                Some(_) => {
                    let weight = weight.unwrap_or_default();
                    return Err(format!(
                        "--data {written}: the weight {weight} must be a number of at least 0; of a name that has a = in it \
                         write the weight too, as in {written}=1"
                    ));
                }
            };
            if sources.iter().any(|(other, _): &(String, f64)| other == name) {
                return Err(format!("--data {name} is given twice; give it once, with the sum of the weights"));
            }
            sources.push((name.to_owned(), weight));
        }
        let sum: f64 = sources.iter().map(|(_, weight)| weight).sum();
        match sum > 0.0 && sum.is_finite() {
            true => Ok(Sources(sources)),
            false => {
                Err(format!("the weights of --data add up to {sum}; one of them must be above 0, and none so large"))
            }
        }
    }

    /// The written form, from which the same sources are read.
    pub fn as_names(&self) -> Names {
        match &self.0[..] {
            [(name, _)] => Names(vec![name.clone()]),
            several => Names(several.iter().map(|(name, weight)| format!("{name}={weight}")).collect()),
        }
    }

    /// The name of the first source.
    pub fn first(&self) -> &str {
        self.0.first().map_or("", |(name, _)| name)
    }

    /// The name of the only source, if there is just one.
    pub fn only(&self) -> Option<&str> {
        (!self.is_mixture()).then(|| self.first())
    }

    /// Whether there are several sources.
    pub fn is_mixture(&self) -> bool {
        self.0.len() > 1
    }

    /// The names of all sources.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    /// The weights of all sources.
    pub fn weights(&self) -> Vec<f64> {
        self.0.iter().map(|(_, weight)| *weight).collect()
    }

    /// The share of each source; the shares add up to 1.
    pub fn shares(&self) -> Vec<f64> {
        let sum: f64 = self.0.iter().map(|(_, weight)| weight).sum();
        self.0.iter().map(|(_, weight)| weight / sum).collect()
    }

    /// Gives source `number`, whose data is the same, another name.
    pub fn rename(&mut self, number: usize, name: String) {
        if let Some((ours, _)) = self.0.get_mut(number) {
            *ours = name;
        }
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.only() {
            return f.write_str(name);
        }
        let each = self.names().zip(self.shares()).map(|(name, share)| format!("{name} ({:.4} %)", 100.0 * share));
        f.write_str(&each.collect::<Vec<_>>().join(", ").replace(".0000 %", " %"))
    }
}

impl Config {
    /// Refuses settings that a mixture of sources does not support, and validation sources that do not match the
    /// sources.
    pub(super) fn validate_sources(&self) -> Result<(), ConfigError> {
        let (sources, named) =
            (self.data.names().len(), self.validation.as_ref().map_or(1, |names| names.iter().len()));
        if named > 1 && named != sources {
            return error(format!(
                "--validation is given {named} times and --data {sources}; give one for all, or one for each --data in turn"
            ));
        }
        if !self.data.is_mixture() {
            return Ok(());
        }
        if self.data.names().any(|name| !is_path(name)) {
            return error(
                "--data tales cannot be mixed with other sources: tales have no end, and their sequences no random order"
                    .to_owned(),
            );
        }
        if named > 1 && self.validation.iter().flat_map(|names| names.iter()).any(|name| !is_path(name)) {
            return error("--validation tales is for all sources, not for one of them; give it alone".to_owned());
        }
        if self.order != Order::Random {
            return error(
                "--order consecutive and pool read one stream; several --data are read in random order: leave --order away"
                    .to_owned(),
            );
        }
        if self.cache.as_deref() == Some(NO_CACHE) {
            return error(
                "--cache none keeps no tokens, and several --data are read at any place of theirs; leave it away"
                    .to_owned(),
            );
        }
        if self.epochs.is_some() {
            return error(
                "--epochs are passes over one source, and several --data pass over themselves as often as their weights say; \
                 give --steps"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The same run with only source `number`; its tokens are cached in a subdirectory of `run`. The unchanged run if
    /// it has a single source.
    pub fn of_source(&self, number: usize, run: &std::path::Path) -> Config {
        let mut config = self.clone();
        if !self.data.is_mixture() {
            return config;
        }
        config.data = Sources::one(self.data.names().nth(number).unwrap_or_default());
        if let Some(names) = self.validation.as_ref().filter(|names| names.only().is_none()) {
            config.validation = names.iter().nth(number).map(Names::from);
        }
        if let Some(Cache::Own(dir)) = self.cache(run) {
            config.cache = Some(dir.display().to_string());
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawConfig;

    fn read(names: &[&str]) -> Result<Sources, String> {
        Sources::read(&Names(names.iter().map(|name| (*name).to_owned()).collect()))
    }

    #[test]
    fn weights_are_read_and_written_back_and_one_source_is_its_name() {
        let mixed = read(&["a/=0.7", "b.jsonl", "day=3/x.txt", "c=1=2e-3"]).unwrap();
        assert_eq!(mixed.names().collect::<Vec<_>>(), ["a/", "b.jsonl", "day=3/x.txt", "c=1"]);
        assert_eq!(mixed.weights(), [0.7, 1.0, 1.0, 0.002]);
        assert_eq!(Sources::read(&mixed.as_names()).unwrap(), mixed);
        assert_eq!(read(&["x=0.5"]).unwrap().only(), Some("x=0.5"));
        assert_eq!(read(&["a=7", "b=3"]).unwrap().to_string(), "a (70 %), b (30 %)");
    }

    #[test]
    fn weights_that_are_none_are_refused_in_a_line() {
        for (names, says) in [
            (&["a=x", "b"][..], "a=x: the weight x must be a number"),
            (&["a=-1", "b"], "the weight -1 must be a number of at least 0"),
            (&["a=nan", "b"], "the weight nan"),
            (&["a=inf", "b"], "the weight inf"),
            (&["a=", "b"], "a=: the weight  must be"),
            (&["a=0", "b=0"], "add up to 0; one of them must be above 0"),
            (&["a=1e308", "b=1e308"], "add up to inf"),
            (&["a=1", "b", "a=2"], "--data a is given twice"),
            (&["a"; 33], "given 33 times; at most 32"),
        ] {
            let message = read(names).unwrap_err();
            assert!(message.contains(says) && !message.contains('\n'), "{names:?}: {message}");
        }
    }

    #[test]
    fn what_a_mixture_has_not_is_refused() {
        let resolve = |more: &str| {
            let text = format!("data = ['/no/a=3', '/no/b']\n{more}");
            Config::resolve(toml::from_str::<RawConfig>(&text).unwrap())
        };
        let mixed = resolve("").unwrap();
        assert_eq!((mixed.order, mixed.tokenizer.as_str()), (Order::Random, "bpe"));
        assert_eq!(toml::from_str::<Config>(&toml::to_string(&mixed).unwrap()).unwrap(), mixed);
        for (more, says) in [
            ("order = 'pool'", "leave --order away"),
            ("order = 'consecutive'", "leave --order away"),
            ("cache = 'none'", "--cache none keeps no tokens"),
            ("epochs = 2", "give --steps"),
            ("validation = ['/x', '/y', '/z']", "--validation is given 3 times and --data 2"),
            ("validation = ['tales', '/y']", "for all sources"),
        ] {
            let message = resolve(more).unwrap_err().to_string();
            assert!(message.contains(says) && !message.contains('\n'), "{more}: {message}");
        }
        for (text, says) in [
            ("data = ['tales', '/no/b']", "tales cannot be mixed"),
            ("data = '/no/a'\nvalidation = ['/x', '/y']", "given 2 times and --data 1"),
            ("data = ['/no/a', '/no/a=2']", "given twice"),
        ] {
            let message = Config::resolve(toml::from_str::<RawConfig>(text).unwrap()).unwrap_err().to_string();
            assert!(message.contains(says), "{text}: {message}");
        }
    }

    #[test]
    fn a_source_of_several_has_its_own_validation_and_a_place_for_its_tokens() {
        let config = |more: &str| {
            let text = format!("data = ['/no/a=3', '/no/b']\n{more}");
            Config::resolve(toml::from_str::<RawConfig>(&text).unwrap()).unwrap()
        };
        let part = |more: &str| {
            let part = config(more).of_source(1, "/run".as_ref());
            (part.data.only().map(str::to_owned), part.validation.map(|names| names.to_string()), part.cache)
        };
        let [b, run, shared, x, y] = ["/no/b", "/run/tokens", "/c", "/x", "/y"].map(|text| Some(text.to_owned()));
        assert_eq!(part(""), (b.clone(), None, run.clone()));
        assert_eq!(part("validation = '/x'\ncache = '/c'"), (b.clone(), x, shared));
        assert_eq!(part("validation = ['/x', '/y']"), (b, y, run));
    }
}
