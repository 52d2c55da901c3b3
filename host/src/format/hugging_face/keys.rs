//! Reads the keys of a configuration by their types.

use serde_json::{Map, Value};

/// The keys of an object, and the object's name for error messages.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) object: &'a Map<String, Value>,
    pub(super) within: &'static str,
}

/// The limit of sizes.
const SIZES: i64 = (1 << 28) - 1;
/// The limit of layers: with more, a file's header could not name the tensors.
const LAYERS: i64 = 10_000;

impl Keys<'_> {
    /// The value of a key, if it is present and not null.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// A key's name in error messages.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.within)
    }

    pub(super) fn refused(&self, key: &str, what: &str) -> String {
        let value = self.get(key).map_or("null".to_owned(), |value| shortened(&value.to_string()));
        format!("{} is {value}; {what}", self.name(key))
    }

    /// A positive whole number, at most [`SIZES`].
    pub(super) fn size(&self, key: &str) -> Result<i64, String> {
        match self.get(key) {
            None => Err(format!("it has no {}", self.name(key))),
            Some(_) => self.size_or(key, 0),
        }
    }

    /// The number of layers, with a limit: planning a model takes time for each layer.
    pub(super) fn layers(&self) -> Result<i64, String> {
        let key = "num_hidden_layers";
        match self.size(key)? {
            layers if layers <= LAYERS => Ok(layers),
            _ => Err(self.refused(key, &format!("at most {LAYERS} are covered"))),
        }
    }

    pub(super) fn size_or(&self, key: &str, default: i64) -> Result<i64, String> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let size = value.as_i64().filter(|size| (1..=SIZES).contains(size));
        size.ok_or_else(|| self.refused(key, "it must be a whole number from 1 to 2^28 - 1"))
    }

    /// A positive number; `default` if the key is missing.
    pub(super) fn number(&self, key: &str, default: f64) -> Result<f64, String> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let number = value.as_f64().filter(|x| *x > 0.0 && x.is_finite() && f64::from(*x as f32) > 0.0);
        number.ok_or_else(|| self.refused(key, "it must be a number above 0"))
    }

    pub(super) fn switch(&self, key: &str, default: bool) -> Result<bool, String> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.refused(key, "it must be true or false"))
    }

    /// One of these words; the first if the key is missing.
    pub(super) fn word(&self, key: &str, words: &[&'static str]) -> Result<&'static str, String> {
        let Some(value) = self.get(key) else { return Ok(words.first().copied().unwrap_or_default()) };
        let known = words.iter().find(|word| value.as_str() == Some(word));
        known.copied().ok_or_else(|| self.refused(key, &format!("covered are {}", words.join(", "))))
    }

    /// A positive number; an error if the key is missing.
    pub(super) fn needed(&self, key: &str) -> Result<f64, String> {
        match self.get(key) {
            None => Err(format!("it has no {}", self.name(key))),
            Some(_) => self.number(key, 0.0),
        }
    }

    /// The keys of an object within this one.
    pub(super) fn inside(&self, key: &str, within: &'static str) -> Result<Option<Keys<'_>>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let object = value.as_object().filter(|object| !object.values().any(Value::is_object));
        let object = object.ok_or_else(|| self.refused(key, "covered is one rotation for all layers"))?;
        Ok(Some(Keys { object, within }))
    }
}

/// A value for an error message.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
