//! What is said of a key of a file that does not exist.

use super::error::{ConfigError, error};
use super::keys::keys;
use super::nearest::nearest;

/// Where the keys are described.
const PAGE: &str = "docs/configuration.md describes the keys";

/// What the parser says, in one line; of a key that it does not know, the nearest one in the place of all there are.
pub(super) fn told(message: &str) -> String {
    let Some((key, known)) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) else {
        return message.replace('\n', " ");
    };
    no_key(key, known.split('`').skip(1).step_by(2))
}

fn no_key<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = nearest(key, known).map_or_else(String::new, |near| format!("did you mean {near}? "));
    format!("there is no key {key}; {near}{PAGE}")
}

/// Refuses a key of `[model]` that no family has, with its line in `text`.
///
/// # Errors
/// The first such key.
pub(super) fn refuse_in_model(model: &toml::Table, text: &str) -> Result<(), ConfigError> {
    let known = || ["pythia", "neurogen"].into_iter().flat_map(keys).map(|key| key.name).chain(["family"]);
    let Some(key) = model.keys().find(|key| known().all(|name| name != *key)) else { return Ok(()) };
    // Where the table is written otherwise, the key alone is named.
    let says = |line: &str| {
        let line = line.trim_start().trim_start_matches("model.");
        line.strip_prefix(key.as_str()).is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let line = text.lines().position(says).map_or_else(String::new, |at| format!("line {}: ", at + 1));
    error(format!("{line}[model]: {}", no_key(key, known())))
}
