//! Conversations: prompts with their answers, of which a model learns the answers alone.
//!
//! [`messages`] finds one in a JSON value, [`template`] makes its text, and says which parts of it are answers;
//! [`turn`] makes the tokens of a conversation that a model is to answer.

pub mod messages;
pub mod template;
pub mod turn;

pub use template::{ChatTemplate, Part, TemplateError};

use minijinja::Value;

use super::flaws::Flaws;
use super::source::Document;
use super::tokenizer::{EncodeError, Tokenizer};

/// Puts the text of `messages` and its parts into the empty `document`.
///
/// # Errors
/// The messages hold no answer; the template cannot run, or writes nothing for an answer.
pub fn put(
    template: &ChatTemplate,
    messages: &[Value],
    document: &mut Document,
    flaws: &mut Flaws,
) -> Result<(), String> {
    if !messages.iter().any(messages::is_answer) {
        return Err("there is no message of the role \"assistant\", so there is nothing to learn".to_owned());
    }
    let rendered = template.answers(messages).map_err(|e| e.to_string())?;
    if !rendered.parts.iter().any(|part| part.answer) {
        return Err(format!("the chat template {} writes nothing of its answers", template.name()));
    }
    flaws.rewritten += rendered.rewritten;
    (document.text, document.parts) = (rendered.text, rendered.parts);
    Ok(())
}

/// Appends the ids of `text`, a part of a conversation. Templates write a tokenizer's marks by their names: tokenizers
/// from others' files read those names themselves; for this program's own tokenizers it is done here. A part that
/// `begins` a conversation is encoded as the beginning of a text.
///
/// # Errors
/// A tokenizer of others' files that cannot encode the text.
pub fn encode(tokenizer: &dyn Tokenizer, begins: bool, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
    let plain = |begins: bool, text: &str, ids: &mut Vec<u32>| match begins {
        _ if text.is_empty() => Ok(()),
        true => tokenizer.encode(text, ids),
        false => tokenizer.encode_rest(text, ids),
    };
    if tokenizer.tables().is_none() {
        return plain(begins, text, ids);
    }
    let named = |id: Option<u32>| id.and_then(|id| Some((id, tokenizer.token(id)?)));
    let marks: Vec<(u32, String)> = [tokenizer.bos(), tokenizer.eos()].into_iter().filter_map(named).collect();
    let (mut rest, mut begins) = (text, begins);
    loop {
        let found = marks.iter().filter_map(|(id, name)| Some((rest.find(name.as_str())?, *id, name.len())));
        let Some((at, id, length)) = found.min() else { return plain(begins, rest, ids) };
        plain(begins, &rest[..at], ids)?;
        ids.push(id);
        (rest, begins) = (&rest[at + length..], false);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use capful_core::data::CONTEXT;

    use super::*;
    use crate::error::SourceError;
    use crate::files::Files;
    use crate::shards::build::open_or_build;
    use crate::shards::documents::ShardDocuments;
    use crate::shards::{Origin, Shards};
    use crate::source::{Document, Documents as _, SourceOptions};
    use crate::split::{Part as Side, Split};
    use crate::stream::{Feed, TokenStream};
    use crate::tokenizer;
    use crate::validation::ValidationSet;

    fn feed(documents: Box<dyn crate::source::Documents>) -> Feed {
        let tokenizer = tokenizer::build("byte", None, true, &mut std::iter::empty()).unwrap().tokenizer;
        Feed { documents, tokenizer: Some(tokenizer.into()), split: Split::new(0, 0.0).unwrap(), part: Side::All }
    }

    fn files(path: &Path) -> Feed {
        feed(Box::new(Files::open(path, &SourceOptions::default()).unwrap()))
    }

    fn shards(dir: &Path, file: &Path) -> Shards {
        let origin = Origin { source: 1, tokenizer: 2 };
        open_or_build(dir, origin, || Ok(None), || Ok(files(file)), 0, &mut |_| {}).unwrap()
    }

    /// Ids of bytes, with [`CONTEXT`] or without.
    fn ids(text: &str, answer: bool) -> Vec<u32> {
        text.bytes().map(|b| (4 + u32::from(b)) | if answer { 0 } else { CONTEXT }).collect()
    }

    #[test]
    fn what_has_no_answer_is_refused() {
        let mut document = Document::default();
        for messages in [vec![], vec![messages::message("user", "a")]] {
            let reason = put(&ChatTemplate::default(), &messages, &mut document, &mut Flaws::default()).unwrap_err();
            assert!(reason.starts_with("there is no message of the role \"assistant\""), "{reason}");
        }
    }

    #[test]
    fn a_conversation_becomes_tokens_of_which_answers_are_targets() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("chats.jsonl");
        let one = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;
        let two = r#"{"prompt": "p", "completion": "q"}"#;
        fs::write(&file, format!("{one}\n{{\"text\": \"plain\"}}\n{two}\n")).unwrap();
        let made = shards(&dir.path().join("set"), &file);
        assert_eq!(made.manifest().template(), Some(ChatTemplate::default().key()));
        // The bytes of answers with their ends, and all bytes of a text.
        assert_eq!(made.manifest().bytes, ("ho<eos>".len() + "plain".len() + "q<eos>".len()) as u64);
        let mark = |id: u32, answer: bool| vec![id | if answer { 0 } else { CONTEXT }];
        let prompt = |said: &str| {
            [ids(&format!("<|user|>\n{said}"), false), mark(3, false), ids("\n<|assistant|>\n", false)].concat()
        };
        let chat = |said: &str, answer: &str| [prompt(said), ids(answer, true), mark(3, true)].concat();
        let made = std::sync::Arc::new(made);
        let mut documents = ShardDocuments::new(std::sync::Arc::clone(&made));
        let (mut document, mut all) = (Document::default(), Vec::new());
        while documents.next(&mut document).unwrap() {
            all.push(document.ids.clone());
        }
        assert_eq!(all, [chat("hi", "ho"), ids("plain", true), chat("p", "q")]);
        // The scored tokens are the same from the files and from the shards.
        for feed in [files(&file), feed(Box::new(ShardDocuments::new(made)))] {
            let set = ValidationSet::first(feed, 1000).unwrap();
            let plain = [vec![2], ids("plain", true), vec![3]].concat();
            assert_eq!(set.tokens(), [chat("hi", "ho"), plain, chat("p", "q")].concat());
            assert_eq!((set.targets(), set.bytes()), (3 + 6 + 2, 7 + 5 + 6));
        }
        // A token stream would learn prompts too.
        let mut stream = TokenStream::new(files(&file)).unwrap();
        assert!(matches!(stream.next_token(), Err(SourceError::StreamedConversations { .. })));
    }

    #[test]
    fn damaged_bits_are_seen_and_sets_of_another_template_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (file, set) = (dir.path().join("chats.jsonl"), dir.path().join("set"));
        fs::write(&file, "{\"prompt\": \"p\", \"completion\": \"q\"}\n").unwrap();
        let made = shards(&set, &file);
        let error = made.written_by(5).unwrap_err().to_string();
        assert!(error.contains("token shards of another chat template than this run's"), "{error}");
        let shard = set.join("00000.shard");
        let mut bytes = fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&shard, bytes).unwrap();
        let open = Shards::open(&set, None).unwrap().unwrap();
        assert!(open.verify().unwrap_err().to_string().contains("its content is not what was written"));
    }

    #[test]
    fn a_conversation_that_cannot_be_used_is_named_or_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("chats.jsonl");
        let good = r#"{"prompt": "p", "completion": "q"}"#;
        let bad = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
        fs::write(&file, format!("{good}\n{bad}\n{good}\n")).unwrap();
        let read = |options: &SourceOptions| {
            let (mut files, mut document) = (Files::open(&file, options).unwrap(), Document::default());
            let mut count = 0;
            while files.next(&mut document)? {
                count += 1;
            }
            Ok::<_, SourceError>(count)
        };
        let error = read(&SourceOptions::default()).unwrap_err().to_string();
        assert!(
            error.ends_with("pass it over with --skip-bad-lines") && error.contains("line 2: a conversation"),
            "{error}"
        );
        assert_eq!(read(&SourceOptions { skip_bad_lines: true, ..SourceOptions::default() }).unwrap(), 2);
        let template = ChatTemplate::new("strict", "{{ raise_exception('no') }}", ["", ""]).unwrap();
        let error = read(&SourceOptions { template, ..SourceOptions::default() }).unwrap_err().to_string();
        assert!(
            error.contains("line 1: a conversation that cannot be used (the chat template strict refuses it: no)"),
            "{error}"
        );
        fs::write(&file, "{\"prompt\": \"p\", \"completion\": \"\"}\n").unwrap();
        let nothing =
            ChatTemplate::new("bare", "{% for m in messages %}{{ m.content }}{% endfor %}", ["", ""]).unwrap();
        let error = read(&SourceOptions { template: nothing, ..SourceOptions::default() }).unwrap_err().to_string();
        assert!(error.contains("(the chat template bare writes nothing of its answers)"), "{error}");
    }

    #[test]
    fn marks_are_read_by_their_names() {
        let bytes = tokenizer::build("byte", None, true, &mut std::iter::empty()).unwrap().tokenizer;
        let mut ids = Vec::new();
        encode(bytes.as_ref(), true, "<bos>a<eos>\n<eo", &mut ids).unwrap();
        let of = |text: &str| text.bytes().map(|b| 4 + u32::from(b)).collect::<Vec<_>>();
        assert_eq!(ids, [vec![2], of("a"), vec![3], of("\n<eo")].concat());
    }
}
