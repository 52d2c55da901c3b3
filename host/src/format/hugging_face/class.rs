//! Finds the class of `transformers` that a configuration belongs to.

use super::keys::Keys;

/// The class of a model, named by its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    GptNeox,
    Llama,
    Qwen2,
    Qwen3,
    Mistral,
    /// The class that `write` uses for a combination of parts that no other class has.
    Yxanul,
}

/// The supported classes: their names without `ForCausalLM`, and their `model_type`.
const CLASSES: [(&str, &str, Class); 6] = [
    ("GPTNeoX", "gpt_neox", Class::GptNeox),
    ("Llama", "llama", Class::Llama),
    ("Qwen2", "qwen2", Class::Qwen2),
    ("Qwen3", "qwen3", Class::Qwen3),
    ("Mistral", "mistral", Class::Mistral),
    ("Yxanul", "yxanul", Class::Yxanul),
];
/// The suffix of a class with a head.
const HEAD: &str = "ForCausalLM";

impl Keys<'_> {
    /// The class in `architectures`, or if that is empty, the class of `model_type`. A model that was saved without its
    /// head (`LlamaModel`) belongs to the same class.
    ///
    /// # Errors
    /// No class, several classes, or an unsupported one.
    pub(super) fn class(&self) -> Result<Class, String> {
        let covered = || format!("covered are {}", CLASSES.map(|(name, ..)| format!("{name}{HEAD}")).join(", "));
        let Some(named) = self.get("architectures").filter(|named| named.as_array().is_none_or(|all| !all.is_empty()))
        else {
            let Some(kind) = self.get("model_type") else {
                return Err(format!("it has neither architectures nor model_type; {}", covered()));
            };
            let known = CLASSES.into_iter().find(|(_, of_class, _)| kind.as_str() == Some(of_class));
            let kinds = CLASSES.map(|(_, kind, _)| kind).join(", ");
            return known
                .map(|(.., class)| class)
                .ok_or_else(|| self.refused("model_type", &format!("covered are {kinds}")));
        };
        let Some([class]) = named.as_array().map(Vec::as_slice) else {
            return Err(format!("architectures names no single class; {}", covered()));
        };
        let name = class.as_str().and_then(|name| name.strip_suffix(HEAD).or_else(|| name.strip_suffix("Model")));
        let known = CLASSES.into_iter().find(|(of_class, ..)| name.is_some_and(|n| n.eq_ignore_ascii_case(of_class)));
        known.map(|(.., class)| class).ok_or_else(|| self.refused("architectures", &covered()))
    }
}
