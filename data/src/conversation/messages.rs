//! Reads a conversation from a JSON value: `messages`, a list of roles and contents, or a `prompt` with its
//! `completion`, each a text or such a list.

use minijinja::Value;
use minijinja::value::ValueKind;

/// The fields that make an object a conversation.
pub const FIELDS: &str = "messages, or prompt and completion";

/// The messages of the value `json`, each an object with a `role`; `None` if the value is no conversation.
///
/// # Errors
/// Says which message is wrong, and why.
pub fn of_json(json: &[u8]) -> Result<Option<Vec<Value>>, String> {
    let Ok(object) = serde_json::from_slice::<Value>(json) else { return Ok(None) };
    let has = |name: &str| object.get_attr(name).is_ok_and(|value| !value.is_undefined());
    if !(has("messages") || has("prompt") && has("completion")) {
        return Ok(None);
    }
    of_value(&object).map(|messages| Some(messages.unwrap_or_default()))
}

/// The messages of a list, or of an object that has them; a prompt may be without a completion. `None` if the value
/// is neither.
///
/// # Errors
/// As [`of_json`].
pub fn of_value(object: &Value) -> Result<Option<Vec<Value>>, String> {
    let field = |name: &str| object.get_attr(name).ok().filter(|value| !value.is_undefined());
    let messages = if let Some(messages) = list(object) {
        messages
    } else if let Some(messages) = field("messages") {
        list(&messages).ok_or("\"messages\" is not a list")?
    } else if let Some(prompt) = field("prompt") {
        let completion = field("completion").map(|said| side("completion", "assistant", said));
        [side("prompt", "user", prompt)?, completion.transpose()?.unwrap_or_default()].concat()
    } else {
        return Ok(None);
    };
    for (number, message) in (1..).zip(&messages) {
        check(message).map_err(|what| format!("message {number} {what}"))?;
    }
    Ok(Some(messages))
}

fn list(value: &Value) -> Option<Vec<Value>> {
    (value.kind() == ValueKind::Seq).then(|| value.try_iter().ok().map(Iterator::collect)).flatten()
}

/// A message of this role.
pub fn message(role: &str, content: &str) -> Value {
    minijinja::context! { role, content }
}

/// The messages of a prompt or a completion.
fn side(field: &str, role: &str, said: Value) -> Result<Vec<Value>, String> {
    match said.as_str() {
        Some(text) => Ok(vec![message(role, text)]),
        None => list(&said).ok_or_else(|| format!("{field:?} is neither a text nor a list of messages")),
    }
}

/// Whether a model learns to write this message.
pub fn is_answer(message: &Value) -> bool {
    message.get_attr("role").is_ok_and(|role| role.as_str() == Some("assistant"))
}

fn check(message: &Value) -> Result<(), &'static str> {
    if message.kind() != ValueKind::Map {
        return Err("is not an object");
    }
    let kind = |name: &str| message.get_attr(name).map_or(ValueKind::Undefined, |value| value.kind());
    match kind("role") {
        ValueKind::String => {}
        ValueKind::Undefined => return Err("has no \"role\""),
        _ => return Err("has a \"role\" that is not a text"),
    }
    match kind("content") {
        // The content may be parts with a type, or a tool call may take its place: the template knows how to write
        // them.
        ValueKind::String | ValueKind::Seq => Ok(()),
        ValueKind::None | ValueKind::Undefined if kind("tool_calls") != ValueKind::Undefined => Ok(()),
        ValueKind::Undefined => Err("has no \"content\""),
        _ => Err("has a \"content\" that is not a text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<Option<Vec<Value>>, String> {
        of_json(json.as_bytes())
    }

    #[test]
    fn prompts_and_completions_are_two_messages_or_two_lists_of_them() {
        let two = vec![message("user", "a"), message("assistant", "b")];
        for json in [
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "x": 1}"#,
            r#"{"prompt": "a", "completion": "b"}"#,
            r#"{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}"#,
        ] {
            assert_eq!(of(json).unwrap(), Some(two.clone()), "{json}");
        }
        for json in [r#"{"text": "a"}"#, r#"{"prompt": "a"}"#, "\"a\"", "not json"] {
            assert_eq!(of(json), Ok(None), "{json}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_the_message_s_number() {
        for (json, expected) in [
            (r#"{"messages": 7}"#, "\"messages\" is not a list"),
            (r#"{"messages": [{"role": "user", "content": "a"}, 7]}"#, "message 2 is not an object"),
            (r#"{"messages": [{"content": "a"}]}"#, "message 1 has no \"role\""),
            (r#"{"messages": [{"role": 1, "content": "a"}]}"#, "message 1 has a \"role\" that is not a text"),
            (r#"{"messages": [{"role": "user"}]}"#, "message 1 has no \"content\""),
            (r#"{"messages": [{"role": "user", "content": 3}]}"#, "message 1 has a \"content\" that is not a text"),
            (r#"{"prompt": 3, "completion": "a"}"#, "\"prompt\" is neither a text nor a list"),
        ] {
            let error = of(json).unwrap_err();
            assert!(error.starts_with(expected), "{json}: {error}");
        }
    }
}
