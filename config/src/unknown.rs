//! The message for an unknown key in a file.

use super::error::{ConfigError, error};
use super::keys::keys;
use super::nearest::nearest;

/// Where the keys are documented.
const PAGE: &str = "docs/configuration.md describes the keys";

/// The parser's message in one line; for an unknown key it names the closest known key in place of the list of all
/// keys.
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

/// Refuses an unknown key of `[model]`, with its line in `text`.
///
/// # Errors
/// The first unknown key.
pub(super) fn refuse_in_model(model: &toml::Table, text: &str) -> Result<(), ConfigError> {
    let known = || ["pythia", "neurogen"].into_iter().flat_map(keys).map(|key| key.name).chain(["family"]);
    let Some(key) = model.keys().find(|key| known().all(|name| name != *key)) else { return Ok(()) };
    // If the table is written in another notation, only the key is named.
    let says = |line: &str| {
        let line = line.trim_start().trim_start_matches("model.");
        line.strip_prefix(key.as_str()).is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    let line = text.lines().position(says).map_or_else(String::new, |at| format!("line {}: ", at + 1));
    error(format!("{line}[model]: {}", no_key(key, known())))
}
