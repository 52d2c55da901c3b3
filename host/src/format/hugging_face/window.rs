//! Refuses attention that sees only a part of the context.

use serde_json::Value;

use super::class::Class;
use super::keys::Keys;

/// The default window of classes with a window.
const USUAL: i64 = 4096;
/// The default for the first layer with a window, in classes with windows from some layer on.
const FIRST: i64 = 28;

impl Keys<'_> {
    /// Refuses attention that does not see the whole context. A window that no layer has, or that is as long as the
    /// context, hides nothing.
    ///
    /// # Errors
    /// The key that hides a part of the context, and its value.
    pub(super) fn refuse_windows(&self, class: Class) -> Result<(), String> {
        let window = self.size_or("sliding_window", USUAL)?;
        let null = self.object.get("sliding_window") == Some(&Value::Null);
        let used = match self.layer_types()? {
            // A layer of this type without a window has no defined behaviour.
            Some(true) if null || !class.has_window() => {
                return Err(self.refused("layer_types", "covered is full_attention in every layer"));
            }
            Some(used) => used,
            None => !null && self.windows_by_class(class)?,
        };
        if used && window < self.size("max_position_embeddings")? {
            return Err(format!(
                "{} is {window}{}; covered is attention to all of the context",
                self.name("sliding_window"),
                if self.get("sliding_window").is_some() { "" } else { ", by default" }
            ));
        }
        Ok(())
    }

    /// Whether a layer has a window according to `layer_types`, if that is present.
    fn layer_types(&self) -> Result<Option<bool>, String> {
        let key = "layer_types";
        let Some(value) = self.get(key) else { return Ok(None) };
        let types: Option<Vec<&str>> = value.as_array().and_then(|types| types.iter().map(Value::as_str).collect());
        let known =
            types.filter(|types| types.iter().all(|kind| ["full_attention", "sliding_attention"].contains(kind)));
        let types = known.ok_or_else(|| self.refused(key, "covered is full_attention in every layer"))?;
        Ok(Some(types.contains(&"sliding_attention")))
    }

    /// Whether a layer has a window if there is no list of types.
    fn windows_by_class(&self, class: Class) -> Result<bool, String> {
        match class {
            Class::GptNeox | Class::Llama | Class::Yxanul => Ok(false),
            Class::Mistral => Ok(true),
            Class::Qwen2 | Class::Qwen3 => {
                let key = "max_window_layers";
                let first = self.get(key).map_or(Some(FIRST), Value::as_i64).filter(|first| *first >= 0);
                let first = first.ok_or_else(|| self.refused(key, "it must be a number of layers"))?;
                Ok(self.switch("use_sliding_window", false)? && first < self.layers()?)
            }
        }
    }
}

impl Class {
    /// Whether `transformers` supports a window for the class.
    const fn has_window(self) -> bool {
        matches!(self, Class::Qwen2 | Class::Qwen3 | Class::Mistral)
    }
}
