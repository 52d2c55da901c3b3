//! The tokens of a conversation that a model is to answer, and where its answers end.

use minijinja::Value;

use super::super::tokenizer::{EncodeError, Tokenizer};
use super::template::{ChatTemplate, TemplateError};
use super::{encode, messages};

/// Why a conversation has no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// The template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// The ids of `messages` up to where an answer begins. The text is cut into the same parts as in training, so that a
/// model sees the ids that it was trained on.
///
/// # Errors
/// A template that refuses them, or a tokenizer that cannot encode them.
pub fn tokens(tokenizer: &dyn Tokenizer, template: &ChatTemplate, messages: &[Value]) -> Result<Vec<u32>, TurnError> {
    let text = template.render(messages, true)?;
    let answered = template.answers(messages).unwrap_or_default();
    let parts = if text.starts_with(&answered.text) { answered.parts } else { Vec::new() };
    let (mut ids, mut begin) = (Vec::new(), 0);
    for end in parts.iter().map(|part| part.end).chain([text.len()]) {
        encode(tokenizer, begin == 0, &text[begin..end], &mut ids)?;
        begin = end;
    }
    Ok(ids)
}

/// The text or token that ends an answer: a text, or the name of a token that has no text.
///
/// # Errors
/// As [`tokens`].
pub fn stop(tokenizer: &dyn Tokenizer, template: &ChatTemplate) -> Result<Option<String>, TurnError> {
    let (ending, mut ids) = (template.ending()?, Vec::new());
    encode(tokenizer, false, &ending, &mut ids)?;
    let mark = ids.first().filter(|id| tokenizer.silent(**id)).and_then(|id| tokenizer.token(*id));
    Ok(mark.or(Some(ending)).filter(|ending| !ending.is_empty()))
}

/// A conversation to be answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Its messages up to the last one that is not an answer.
    pub messages: Vec<Value>,
    /// The text of the answer that follows these messages, if there is one.
    pub expected: Option<String>,
}

/// The conversations of a file. The file holds a list of messages, an object that has such a list, or such an object on
/// each line.
///
/// # Errors
/// Says what is wrong, and where.
pub fn of_file(text: &str) -> Result<Vec<Question>, String> {
    if let Ok(whole) = serde_json::from_str::<Value>(text) {
        return Ok(vec![asked(&whole)?]);
    }
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let read = lines.map(|(number, line)| {
        let value = serde_json::from_str::<Value>(line).map_err(|e| {
            let reason = e.to_string().replace(" at line 1 column ", ", column ");
            format!("line {number}: not a JSON value ({reason})")
        })?;
        asked(&value).map_err(|e| format!("line {number}: {e}"))
    });
    read.collect()
}

fn asked(value: &Value) -> Result<Question, String> {
    let mut said = messages::of_value(value)?
        .ok_or_else(|| format!("neither a list of messages nor an object with {}", messages::FIELDS))?;
    let answer = said.pop_if(|last| messages::is_answer(last));
    if said.is_empty() {
        return Err("there is no message to answer".to_owned());
    }
    let expected = answer.and_then(|answer| Some(answer.get_attr("content").ok()?.as_str()?.to_owned()));
    Ok(Question { messages: said, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer;

    fn bytes() -> Box<dyn Tokenizer> {
        tokenizer::build("byte", None, true, &mut std::iter::empty()).unwrap().tokenizer
    }

    #[test]
    fn the_tokens_of_a_question_are_those_that_come_before_its_answer() {
        let (bytes, template) = (bytes(), ChatTemplate::default());
        let said = ["user", "assistant", "user"].map(|role| messages::message(role, "x"));
        let ids = tokens(bytes.as_ref(), &template, &said).unwrap();
        let mut whole = Vec::new();
        encode(bytes.as_ref(), true, &template.render(&said, true).unwrap(), &mut whole).unwrap();
        assert_eq!(ids, whole);
        assert_eq!(stop(bytes.as_ref(), &template).unwrap().as_deref(), Some("<eos>"));
        let bare =
            ChatTemplate::new("bare", "{% for m in messages %}{{ m.content }} END{% endfor %}", ["", ""]).unwrap();
        assert_eq!(stop(bytes.as_ref(), &bare).unwrap().as_deref(), Some("END"));
    }

    #[test]
    fn files_hold_one_conversation_or_one_a_line() {
        let user = r#"{"role": "user", "content": "a"}"#;
        let answer = r#"{"role": "assistant", "content": "b"}"#;
        let one = Question { messages: vec![messages::message("user", "a")], expected: None };
        let two = Question { expected: Some("b".to_owned()), ..one.clone() };
        assert_eq!(of_file(&format!("[{user}]")).unwrap(), std::slice::from_ref(&one));
        assert_eq!(of_file(&format!("{{\"messages\": [{user},\n {answer}]}}")).unwrap(), std::slice::from_ref(&two));
        let lines = format!(
            "{{\"messages\": [{user}]}}\n\n{{\"prompt\": \"a\", \"completion\": \"b\"}}\n{{\"prompt\": \"a\"}}"
        );
        assert_eq!(of_file(&lines).unwrap(), [one.clone(), two, one]);
        for (text, expected) in [
            ("7", "neither a list of messages nor an object"),
            ("[]", "there is no message to answer"),
            (&format!("[{answer}]"), "there is no message to answer"),
            ("[{\"role\": \"user\"}]", "message 1 has no \"content\""),
            ("{\"prompt\": \"a\"}\n{\"x\": 1}", "line 2: neither a list"),
            ("{\"prompt\": \"a\"}\nnot json", "line 2: not a JSON value (expected ident, column 2)"),
        ] {
            let error = of_file(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
