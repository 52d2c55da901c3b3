//! Finds the tokens that begin and end a document in a tokenizer of another program.
//!
//! The files that `transformers` stores next to a `tokenizer.json` name them: `tokenizer_config.json`, or else
//! `special_tokens_map.json`. Whether a document begins with the first mark follows `transformers`: `add_bos_token`, or
//! else the template of the file's post-processor. Where no file names the marks, they are found by their usual names.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::error::Refusal;
use super::template::LONGEST;
use super::{CLASS_FILE_NAME, TokenizerError};
use capful_base::regular;

/// The file in which older versions of `transformers` name special tokens.
pub const MAP_FILE_NAME: &str = "special_tokens_map.json";
/// The file with the template by which `transformers` writes a conversation as text; older versions store the template
/// in [`CLASS_FILE_NAME`].
pub const TEMPLATE_FILE_NAME: &str = "chat_template.jinja";

/// Usual names of the token that begins a document, the likeliest first.
const BOS_NAMES: [&str; 8] =
    ["<bos>", "<s>", "<|begin_of_text|>", "<|startoftext|>", "<|bos|>", "<|begin▁of▁sentence|>", "[BOS]", "[CLS]"];

/// Usual names of the token that ends a document, the likeliest first.
const EOS_NAMES: [&str; 9] = [
    "<eos>",
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eos|>",
    "<|im_end|>",
    "<|end▁of▁sentence|>",
    "[EOS]",
    "[SEP]",
];

/// All keys of this program's own files of earlier versions, which did not say whether documents begin with a mark: in
/// those files a named beginning mark is used.
const FIRST_KEYS: [&str; 4] = ["bos_token", "clean_up_tokenization_spaces", "eos_token", "tokenizer_class"];

/// The ids that begin and end a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
}

/// The settings in the files next to a tokenizer.
#[derive(Debug, Clone, Default)]
pub(super) struct Beside {
    /// `tokenizer_config.json`; empty if the file does not exist.
    config: Map<String, Value>,
    /// `special_tokens_map.json`; empty if the file does not exist.
    map: Map<String, Value>,
    /// `chat_template.jinja`, where the file exists.
    template: Option<String>,
}

/// What the files say about a mark.
enum Said {
    Nothing,
    /// There is no such mark.
    None,
    /// The mark's text, and the file that names it.
    Token(String, &'static str),
}

impl Beside {
    /// Reads the files in `dir`; missing files give no settings.
    ///
    /// # Errors
    /// [`TokenizerError::Read`] and [`TokenizerError::Damaged`], with the file's path.
    pub(super) fn read(dir: &Path) -> Result<Self, TokenizerError> {
        let template = text(dir, TEMPLATE_FILE_NAME)?.map(|(_, text)| text);
        if let Some(long) = template.as_ref().filter(|text| text.len() > LONGEST) {
            let what = format!("{} bytes are more than a template has", long.len());
            return Err(TokenizerError::Damaged { path: dir.join(TEMPLATE_FILE_NAME), what });
        }
        Ok(Self { config: object(dir, CLASS_FILE_NAME)?, map: object(dir, MAP_FILE_NAME)?, template })
    }

    /// A template and nothing else.
    pub(super) fn of_template(template: &str) -> Self {
        Self { template: Some(template.to_owned()), ..Self::default() }
    }

    /// The files that are stored as they were read.
    pub(super) fn files(&self) -> Vec<(&'static str, String)> {
        let map = (!self.map.is_empty()).then(|| (MAP_FILE_NAME, format!("{:#}\n", Value::Object(self.map.clone()))));
        map.into_iter().chain(self.template.clone().map(|text| (TEMPLATE_FILE_NAME, text))).collect()
    }

    /// Drops `tokenizer_config.json` where it equals `ours`.
    pub(super) fn forget_config(&mut self, ours: &str) {
        if serde_json::from_str::<Map<String, Value>>(ours).is_ok_and(|ours| ours == self.config) {
            self.config = Map::new();
        }
    }

    /// Whether `tokenizer_config.json` has any content.
    pub(super) fn has_config(&self) -> bool {
        !self.config.is_empty()
    }

    /// Whether there is nothing to store.
    pub(super) fn is_empty(&self) -> bool {
        self.config.is_empty() && self.map.is_empty() && self.template.is_none()
    }

    fn said(&self, key: &str) -> Said {
        for (file, name) in [(&self.config, CLASS_FILE_NAME), (&self.map, MAP_FILE_NAME)] {
            match file.get(key) {
                Some(Value::Null) => return Said::None,
                // A string, or the object of an added token.
                Some(value) => match value.as_str().or(value.get("content").and_then(Value::as_str)) {
                    Some(token) => return Said::Token(token.to_owned(), name),
                    None => return Said::Nothing,
                },
                None => {}
            }
        }
        Said::Nothing
    }

    /// Whether documents begin with the mark, where a file says so.
    fn begins(&self) -> Option<bool> {
        let ours = self.config.get("capful").and_then(|ours| ours.get("begins")).and_then(Value::as_bool);
        let all = self.config.len() == FIRST_KEYS.len() && FIRST_KEYS.iter().all(|key| self.config.contains_key(*key));
        let first = || all.then_some(true);
        ours.or_else(|| self.config.get("add_bos_token").and_then(Value::as_bool)).or_else(first)
    }

    /// The marks of a tokenizer whose file has the post-processor `post`; `id` gives the ids of its tokens. `guessed`
    /// are the marks found by name.
    ///
    /// # Errors
    /// A file names a token that the tokenizer does not have.
    pub(super) fn marks(
        &self,
        post: &Value,
        guessed: Marks,
        id: impl Fn(&str) -> Option<u32>,
    ) -> Result<Marks, Refusal> {
        let known = |token: &str, key: &str, file: &str| {
            let message = || {
                format!("{file} beside it has the {key} `{token}`, which is not among its tokens: correct one of them")
            };
            id(token).ok_or_else(|| Refusal::Unsupported(message()))
        };
        let eos = match self.said("eos_token") {
            Said::Nothing => guessed.eos,
            Said::None => None,
            Said::Token(token, file) => Some(known(&token, "eos_token", file)?),
        };
        let first = template(post).map(|first| first.and_then(&id));
        let (bos, usual) = match self.said("bos_token") {
            Said::Nothing => match first {
                Some(first) => (first, first.is_some()),
                None => (guessed.bos, true),
            },
            Said::None => (None, false),
            Said::Token(token, file) => {
                let bos = Some(known(&token, "bos_token", file)?);
                (bos, first == Some(bos))
            }
        };
        // A single token between documents counts as the end of the one before.
        let bos = bos.filter(|_| self.begins().unwrap_or(usual)).filter(|&bos| Some(bos) != eos);
        Ok(Marks { bos, eos })
    }

    /// The text of `tokenizer_config.json` for a tokenizer that is saved: the content that was read, with the marks
    /// that were found. References to code that is not saved are removed.
    pub(super) fn config(&self, begins: bool, bos: Option<String>, eos: Option<String>) -> String {
        let mut config = self.config.clone();
        config.remove("auto_map");
        let mut add = |key: &str, value: Value| _ = config.entry(key).or_insert(value);
        add("tokenizer_class", json!("PreTrainedTokenizerFast"));
        add("clean_up_tokenization_spaces", json!(false));
        for (key, token) in [("bos_token", bos), ("eos_token", eos)] {
            add(key, self.map.get(key).cloned().unwrap_or(json!(token)));
        }
        config.insert("capful".to_owned(), json!({ "begins": begins }));
        format!("{:#}\n", Value::Object(config))
    }
}

/// The path and the text of a file of `dir`; `None` if the file does not exist.
fn text(dir: &Path, name: &str) -> Result<Option<(PathBuf, String)>, TokenizerError> {
    let path = dir.join(name);
    match regular::text_at_most(&path, regular::MARKS) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TokenizerError::Read { path, source }),
        Ok(text) => Ok(Some((path, text))),
    }
}

/// The object in a file of `dir`; empty if the file does not exist.
fn object(dir: &Path, name: &str) -> Result<Map<String, Value>, TokenizerError> {
    let Some((path, content)) = text(dir, name)? else { return Ok(Map::new()) };
    serde_json::from_str(&content)
        .map_err(|error| TokenizerError::Damaged { path, what: super::error::one_line(&error.to_string()) })
}

/// The marks among the tokens, found by their usual names.
pub(super) fn guessed(id: impl Fn(&str) -> Option<u32>) -> Marks {
    let named = |names: &[&str]| names.iter().find_map(|name| id(name));
    Marks { bos: named(&BOS_NAMES), eos: named(&EOS_NAMES) }
}

/// The text of the token that the post-processor puts before a text, or `Some(None)` if it puts none; `None` where
/// the post-processor does not tell.
fn template(post: &Value) -> Option<Option<&str>> {
    let kind = post.get("type").and_then(Value::as_str)?;
    match kind {
        "Sequence" => post.get("processors")?.as_array()?.iter().rev().find_map(template),
        "TemplateProcessing" => {
            let first = post.get("single")?.as_array()?.first()?;
            Some(first.pointer("/SpecialToken/id").and_then(Value::as_str))
        }
        "BertProcessing" | "RobertaProcessing" => Some(post.pointer("/cls/0").and_then(Value::as_str)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Ids of a tokenizer with `<s>` 1, `</s>` 2, `<|endoftext|>` 3, `<x>` 4.
    fn id(token: &str) -> Option<u32> {
        (1..).zip(["<s>", "</s>", "<|endoftext|>", "<x>"]).find(|(_, name)| *name == token).map(|(id, _)| id)
    }

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn marks(config: Value, map: Value, post: &Value) -> Result<[u32; 2], String> {
        let beside = Beside { config: object(config), map: object(map), template: None };
        let marks = beside.marks(post, guessed(id), id).map_err(|refusal| refusal.at("t".into()).to_string())?;
        // The saved settings give the same marks.
        let name = |id: Option<u32>| id.map(|id| ["<s>", "</s>", "<|endoftext|>", "<x>"][id as usize - 1].to_owned());
        let saved = beside.config(marks.bos.is_some(), name(marks.bos), name(marks.eos));
        let again = Beside { config: serde_json::from_str(&saved).unwrap(), ..Beside::default() };
        assert_eq!(again.marks(post, guessed(id), id).unwrap(), marks, "{saved}");
        Ok([marks.bos, marks.eos].map(|id| id.unwrap_or(0)))
    }

    fn begins_with(token: Option<&str>) -> Value {
        let special = |token| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let single: Vec<Value> = token.into_iter().map(special).chain([text]).collect();
        json!({"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
            {"type": "TemplateProcessing", "single": single}]})
    }

    #[test]
    fn marks_are_what_the_files_say_else_the_template_else_the_usual_names() {
        let none = || json!({});
        for (config, map, post, expected) in [
            // Found by name alone; by the template.
            (none(), none(), Value::Null, [1, 2]),
            (none(), none(), begins_with(Some("<x>")), [4, 2]),
            (none(), none(), begins_with(None), [0, 2]),
            (none(), none(), json!({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<x>", 4]}), [4, 2]),
            // Named, as a string and as an object; the map counts second.
            (
                json!({"bos_token": "<s>", "eos_token": {"content": "<|endoftext|>"}}),
                json!({"eos_token": "</s>"}),
                begins_with(Some("<s>")),
                [1, 3],
            ),
            (json!({"model_max_length": 9}), json!({"eos_token": "<x>"}), Value::Null, [1, 4]),
            // Named, but not put before a text.
            (json!({"bos_token": "<s>", "eos_token": "</s>"}), none(), Value::Null, [0, 2]),
            (json!({"bos_token": "<s>", "eos_token": "</s>"}), none(), begins_with(None), [0, 2]),
            (json!({"bos_token": "<s>", "add_bos_token": true}), none(), Value::Null, [1, 2]),
            (json!({"bos_token": "<s>", "add_bos_token": false}), none(), begins_with(Some("<s>")), [0, 2]),
            // A null mark is no mark, and a single token for both ends documents.
            (json!({"bos_token": null, "eos_token": null}), none(), begins_with(Some("<s>")), [0, 0]),
            (json!({"bos_token": "<x>", "eos_token": "<x>", "add_bos_token": true}), none(), Value::Null, [0, 4]),
            // A file that this program wrote.
            (
                json!({"tokenizer_class": "P", "bos_token": "<s>", "eos_token": "<x>",
                    "clean_up_tokenization_spaces": false}),
                none(),
                begins_with(None),
                [1, 4],
            ),
        ] {
            let shown = format!("{config} {map} {post}");
            assert_eq!(marks(config, map, &post).unwrap(), expected, "{shown}");
        }
    }

    #[test]
    fn a_token_that_is_not_there_is_refused() {
        for key in ["bos_token", "eos_token"] {
            let error = marks(json!({"bos_token": null}), json!({key: "<y>"}), &Value::Null);
            if key == "bos_token" {
                assert_eq!(error, Ok([0, 2]));
                continue;
            }
            assert_eq!(
                error.unwrap_err(),
                "the tokenizer t cannot be used: special_tokens_map.json beside it has the eos_token `<y>`, which is not \
                 among its tokens: correct one of them"
            );
        }
    }

    #[test]
    fn damaged_files_are_named_and_missing_ones_say_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Beside::read(dir.path()).unwrap().config.is_empty());
        for (content, what) in [("[1]", "invalid type"), ("{\"a\": ", "EOF")] {
            fs::write(dir.path().join(MAP_FILE_NAME), content).unwrap();
            let error = Beside::read(dir.path()).unwrap_err().to_string();
            assert!(error.contains("special_tokens_map.json is damaged: ") && error.contains(what), "{error}");
        }
    }
}
