//! The Jinja templates that write a model's conversations as text, stored for other programs.

use serde_json::Value;

use super::{TEMPLATE_FILE_NAME, Tokenizer};

/// The longest template that is accepted, in bytes.
pub const LONGEST: usize = 1 << 20;

/// A template, and its name where it is not the default template.
pub type Template = (Option<String>, String);

/// The templates of a tokenizer, the default one first: `chat_template.jinja`, or a key of `tokenizer_config.json`,
/// which is one template or a list with names.
pub fn of(tokenizer: &dyn Tokenizer) -> Vec<Template> {
    let beside = tokenizer.beside();
    if let Some((_, text)) = beside.iter().find(|(name, _)| *name == TEMPLATE_FILE_NAME) {
        return vec![(None, text.to_string())];
    }
    let config: Value = serde_json::from_str(&tokenizer.config()).unwrap_or_default();
    let named = |one: &Value| {
        let name = one["name"].as_str().filter(|name| *name != "default").map(str::to_owned);
        Some((name, one["template"].as_str()?.to_owned()))
    };
    let mut all: Vec<Template> = match &config["chat_template"] {
        Value::String(text) => vec![(None, text.clone())],
        Value::Array(list) => list.iter().filter_map(named).collect(),
        _ => Vec::new(),
    };
    all.sort_by_key(|(name, _)| name.is_some());
    all
}
