//! The paths of the files and directories in a configuration.

use std::convert::Infallible;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use super::{Config, IMPORTED, NO_CACHE, RawConfig, TokenizerChoice};

/// What a user can name as data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The built-in corpus, named `tales`.
    Tales,
    /// A file, or a directory of files.
    Path(PathBuf),
}

impl FromStr for Source {
    type Err = Infallible;

    /// `tales` is the built-in corpus (a file of that name is `./tales`); anything else is a path.
    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(if name == "tales" { Self::Tales } else { Self::Path(name.into()) })
    }
}

/// `path` as an absolute path, so that it has the same meaning in every directory. Links are not resolved. A path
/// without an absolute form in UTF-8 stays unchanged.
pub fn absolute(path: &str) -> String {
    let rooted = std::path::absolute(path).ok().and_then(|path| path.into_os_string().into_string().ok());
    rooted.unwrap_or_else(|| path.to_owned())
}

/// A source with an absolute path; the built-in source is no path.
pub fn absolute_source(source: &str) -> String {
    if is_path(source) { absolute(source) } else { source.to_owned() }
}

/// Whether a source is a path, and not the built-in source.
pub fn is_path(source: &str) -> bool {
    matches!(source.parse(), Ok(Source::Path(_)))
}

/// The last component of a path.
fn last(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

impl RawConfig {
    /// The configuration with absolute paths.
    #[must_use]
    pub fn rooted(self) -> Self {
        self.with_places(absolute)
    }

    /// The configuration with only the last component of every path: the others may name a person or a machine.
    #[must_use]
    pub fn without_directories(self) -> Self {
        self.with_places(last)
    }

    fn with_places(mut self, changed: impl Fn(&str) -> String) -> Self {
        let change = |place: &mut Option<String>, is_place: &dyn Fn(&str) -> bool| {
            if let Some(path) = place.as_mut().filter(|path| is_place(path)) {
                *path = changed(path);
            }
        };
        for names in [&mut self.data, &mut self.validation].into_iter().flatten() {
            names.change(&changed);
        }
        change(&mut self.cache, &|cache| cache != NO_CACHE);
        change(&mut self.tokenizer, &|kind| matches!(TokenizerChoice::parse(kind), Ok(TokenizerChoice::File(_))));
        change(&mut self.init_from, &|_| true);
        self
    }
}

impl Config {
    /// The origin of the run, for people: its preset, or the model that its weights come from.
    pub fn begun_as(&self) -> String {
        match &self.init_from {
            Some(from) if self.preset == IMPORTED => format!("from {}", last(from)),
            _ => self.preset.clone(),
        }
    }

    /// Updates paths that were saved relative to another directory, if `written` names the same files from here: if
    /// nothing exists at the saved path, and the written path ends with it.
    pub fn follow(&mut self, written: &RawConfig) {
        let written = written.clone().rooted();
        let seen = |ours: &mut String, theirs: &Option<String>| {
            if let Some(theirs) = theirs.as_deref().filter(|theirs| seen_from_elsewhere(ours, theirs)) {
                theirs.clone_into(ours);
            }
        };
        seen(&mut self.tokenizer, &written.tokenizer);
        if let (Some(ours), Some(theirs)) = (&mut self.validation, &written.validation)
            && let (Some(our), Some(their)) = (ours.only(), theirs.only())
            && is_path(our)
            && seen_from_elsewhere(our, their)
        {
            ours.clone_from(theirs);
        }
        for (ours, theirs) in [(&mut self.cache, &written.cache), (&mut self.init_from, &written.init_from)] {
            if let Some(ours) = ours {
                seen(ours, theirs);
            }
        }
    }
}

/// Whether `theirs` is an absolute path that may be the file `ours` in the directory in which a run began.
fn seen_from_elsewhere(ours: &str, theirs: &str) -> bool {
    let ours: PathBuf = Path::new(ours).components().filter(|part| *part != Component::CurDir).collect();
    let theirs = Path::new(theirs);
    theirs.is_absolute() && ours.is_relative() && !ours.exists() && theirs.ends_with(ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Names;

    const PLACES: &str = "data = 'texts/a.txt'\nvalidation = './b'\ncache = 'c/'\ntokenizer = 'd/tokenizer.json'";

    fn raw(text: &str) -> RawConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_run_is_called_what_it_began_as() {
        let run = Config::resolve(raw("")).unwrap();
        assert_eq!(run.begun_as(), run.preset);
        let from = Config { preset: IMPORTED.to_owned(), init_from: Some("/runs/base".to_owned()), ..run };
        assert_eq!(from.begun_as(), "from base");
        assert_eq!(Config { init_from: None, ..from }.begun_as(), IMPORTED);
    }

    #[test]
    fn paths_are_kept_from_the_root_and_words_as_they_are() {
        let here = std::env::current_dir().unwrap();
        let at = |path: &str| Some(here.join(path).display().to_string());
        let config = Config::resolve(raw(&format!("{PLACES}\nvocab_size = 300"))).unwrap();
        assert_eq!(Some(config.data.to_string()), at("texts/a.txt"));
        assert_eq!((config.validation.map(|names| names.to_string()), config.cache), (at("b"), at("c/")));
        assert_eq!(Some(config.tokenizer), at("d/tokenizer.json"));
        let words = Config::resolve(raw("validation = 'tales'\ncache = 'none'\ntokenizer = 'bpe'")).unwrap();
        let validation = words.validation.as_ref().map(Names::first);
        assert_eq!((words.data.first(), validation), ("tales", Some("tales")));
        assert_eq!((words.cache.as_deref(), words.tokenizer.as_str()), (Some("none"), "bpe"));
        // `..` stays: after a link it does not lead to the directory before the link.
        assert_eq!(absolute("/a/../b"), "/a/../b");
    }

    #[test]
    fn what_is_published_has_no_directories() {
        let shown = raw(&format!("{PLACES}\ninit_from = '/home/anna/run'")).rooted().without_directories();
        assert_eq!([&shown.data, &shown.validation].map(|names| names.as_ref().unwrap().first()), ["a.txt", "b"]);
        let places = [&shown.cache, &shown.tokenizer, &shown.init_from];
        assert_eq!(places.map(|place| place.as_deref().unwrap()), ["c", "tokenizer.json", "run"]);
        let mixed = raw("data = ['x/a=2', 'x=y/b', 'tales=3']").rooted();
        let there = mixed.data.as_ref().unwrap().iter().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(there, [absolute("x/a") + "=2", absolute("x=y/b"), "tales=3".to_owned()]);
        assert_eq!(mixed.without_directories().data.unwrap().to_string(), "a=2, b, tales=3");
    }

    #[test]
    fn a_place_that_was_saved_as_written_is_followed_from_another_directory() {
        for (ours, theirs, same) in [
            ("texts/a.txt", "/x/texts/a.txt", true),
            ("./texts/a.txt", "/x/texts/a.txt", true),
            ("texts/a.txt", "/x/other/a.txt", false),
            ("/x/texts/a.txt", "/y/x/texts/a.txt", false),
            ("../a.txt", "/x/a.txt", false),
            ("word", "word", false),
            // This path exists.
            ("src", "/x/src", false),
        ] {
            assert_eq!(seen_from_elsewhere(ours, theirs), same, "{ours} {theirs}");
        }
        let begun = Config::resolve(raw("")).unwrap();
        // Words are not paths.
        let mut words = begun.clone();
        words.follow(&raw("tokenizer = 'word'\nvalidation = 'tales'\ncache = 'none'"));
        assert_eq!(words, begun);
        let mut run = Config { validation: Some("texts/b.txt".into()), ..begun };
        let written = raw("validation = '/x/texts/b.txt'");
        assert!(run.resumed(written.clone()).is_err());
        run.follow(&written);
        assert_eq!(run.resumed(written).unwrap().validation, Some("/x/texts/b.txt".into()));
    }
}
