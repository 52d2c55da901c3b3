//! A tokenizer in llama.cpp's form, if llama.cpp gives the same ids for every text.
//!
//! llama.cpp's `gpt2` is byte-level BPE after a split that it knows by name. Everything else is refused, and the error
//! names the difference. One difference is known and accepted, as in every published conversion: the patterns of Llama
//! 3 and Qwen treat the long s after an apostrophe as an s in another case, llama.cpp does not.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizer::splits::Split;
use crate::data::tokenizer::template::{self, Template};
use crate::format::export::ExportError;
use crate::format::hugging_face::Generation;

/// The kinds of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// The number of end tokens for which the format has names.
pub const ENDS: usize = 3;

/// Byte-level BPE in the form of GGUF.
#[derive(Debug, Clone, PartialEq)]
pub struct Vocabulary {
    /// llama.cpp's name of the split.
    pub split: &'static str,
    /// The text of every id of the model; bytes are written as GPT-2's characters.
    pub tokens: Vec<String>,
    /// The type of each token.
    pub types: Vec<i32>,
    /// Both parts with a space between them, in the order of the merges' ranks.
    pub merges: Vec<String>,
    /// The id that begins a document.
    pub bos: Option<u32>,
    /// The ids that end a document, the tokenizer's own first.
    pub ends: Vec<u32>,
    /// The chat templates.
    pub templates: Vec<Template>,
    /// The id of unknown text.
    pub unk: Option<u32>,
    /// The id of padding.
    pub pad: Option<u32>,
}

/// The vocabulary of `tokenizer` for a model of `size` ids with the settings `generation`.
///
/// # Errors
/// llama.cpp would give other ids: names the difference, and alternatives.
pub fn vocabulary(tokenizer: &dyn Tokenizer, size: u32, generation: &Generation) -> Result<Vocabulary, ExportError> {
    let mut content = Vec::new();
    tokenizer.write(&mut content).map_err(|e| refused(&e.to_string()))?;
    let file: Value = serde_json::from_slice(&content).map_err(|e| refused(&e.to_string()))?;
    let split = split(&file, tokenizer)?;
    let added = added(&file)?;
    let (tokens, types) = tokens(&file, &added, size)?;
    let id = |name: &str| added.iter().find(|token| token.content == name).map(|token| token.id);
    Ok(Vocabulary {
        split,
        tokens,
        types,
        merges: merges(&file)?,
        bos: tokenizer.bos(),
        ends: generation.ends(tokenizer, size),
        templates: template::of(tokenizer),
        unk: tokenizer.unk(),
        pad: id("<pad>").or_else(|| id("[PAD]")),
    })
}

fn refused(what: &str) -> ExportError {
    ExportError::Refused(format!(
        "llama.cpp would cut text into other ids: {what}; export with --no-tokenizer and give llama.cpp ids, or train with \
         --tokenizer bpe, byte or a byte-level tokenizer.json (GPT-2's, Llama 3's or Qwen's split, no normalizer)"
    ))
}

/// The name of the split; checks that everything else that affects ids is the same in llama.cpp.
fn split(file: &Value, tokenizer: &dyn Tokenizer) -> Result<&'static str, ExportError> {
    let model = &file["model"];
    match model.pointer("/capful/type").and_then(Value::as_str) {
        // Without merges every byte is a token, for any split.
        Some("byte") => return Ok("gpt-2"),
        Some("bpe") if Split::of_file(&file["pre_tokenizer"]) == Some(Split::Gpt2) => return Ok("gpt-2"),
        Some("bpe") => {
            return Err(refused(
                "the tokenizer `bpe` of this run, which an earlier version made, cuts words at marks and digits as no \
                 split of llama.cpp's does",
            ));
        }
        Some(kind) => return Err(refused(&format!("it has no tokenizer like `{kind}`, which knows whole words only"))),
        None => {}
    }
    let kind = model["type"].as_str().unwrap_or("of no type");
    if kind != "BPE" || model["byte_fallback"] == true {
        return Err(refused(&format!(
            "its model is `{kind}`{}",
            if kind == "BPE" { " with byte fallback" } else { "" }
        )));
    }
    if !file["normalizer"].is_null() {
        let name = file.pointer("/normalizer/type").and_then(Value::as_str).unwrap_or("of no type");
        return Err(refused(&format!("its normalizer `{name}` changes text, and llama.cpp does not")));
    }
    let part = |key: &str| model[key].as_str().is_some_and(|text| !text.is_empty());
    if let Some(key) =
        ["unk_token", "continuing_subword_prefix", "end_of_word_suffix"].into_iter().find(|key| part(key))
    {
        return Err(refused(&format!("its model has a `{key}`")));
    }
    if !tokenizer.restores_bytes() {
        return Err(refused("it is not byte-level, or its added tokens take white space with them"));
    }
    let ignore_merges = model["ignore_merges"] == true;
    match (Split::of_file(&file["pre_tokenizer"]), ignore_merges) {
        (Some(Split::Gpt2), false) => Ok("gpt-2"),
        (Some(Split::Modern { digits: 1 }), false) => Ok("qwen2"),
        (Some(Split::Modern { digits: 3 }), true) => Ok("llama-bpe"),
        // The same split, in a tokenizer that applies merges.
        (Some(Split::Modern { digits: 3 }), false) => Ok("smaug-bpe"),
        // llama.cpp counts only ASCII digits, the pattern the digits of every script.
        (Some(Split::Threes), _) => Err(refused("it cuts the digits of every script in threes")),
        (Some(_), true) => Err(refused("it takes whole words past its merges (`ignore_merges`)")),
        (Some(Split::Modern { .. }) | None, _) => Err(refused("its pre-tokenizer is none of those that llama.cpp has")),
    }
}

struct Added {
    id: u32,
    content: String,
    special: bool,
}

fn added(file: &Value) -> Result<Vec<Added>, ExportError> {
    let list = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let one = |token: &Value| {
        let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok())?;
        Some(Added { id, content: token["content"].as_str()?.to_owned(), special: token["special"] == true })
    };
    let damaged = || refused("its added tokens cannot be read");
    let all: Vec<Added> = list.iter().map(one).collect::<Option<_>>().ok_or_else(damaged)?;
    if list.iter().any(|token| token["single_word"] == true) {
        return Err(refused("an added token is found in whole words only (`single_word`)"));
    }
    // llama.cpp searches the longest token first, and not the leftmost: if no token ends with the beginning of another,
    // the result is the same.
    let overlap = |a: &Added, b: &Added| {
        let ends = a.content.char_indices().skip(1).map(|(at, _)| &a.content[at..]);
        ends.into_iter().any(|end| end.len() < b.content.len() && b.content.starts_with(end))
    };
    for a in &all {
        if let Some(b) = all.iter().find(|b| overlap(a, b)) {
            return Err(refused(&format!("its added token `{}` ends as `{}` begins", a.content, b.content)));
        }
    }
    Ok(all)
}

fn tokens(file: &Value, added: &[Added], size: u32) -> Result<(Vec<String>, Vec<i32>), ExportError> {
    let vocabulary = file["model"]["vocab"].as_object().ok_or_else(|| refused("its vocabulary cannot be read"))?;
    let mut all: HashMap<u32, (String, i32)> = HashMap::new();
    for (text, id) in vocabulary {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| refused("an id of its vocabulary is out of range"))?;
        all.insert(id, (text.clone(), NORMAL));
    }
    for token in added {
        let kind = if token.special { CONTROL } else { USER_DEFINED };
        all.insert(token.id, (token.content.clone(), kind));
    }
    if let Some(id) = all.keys().find(|&&id| id >= size) {
        return Err(refused(&format!("its id {id} is outside the model's vocabulary of {size}")));
    }
    let mut texts: HashSet<String> = HashSet::with_capacity(all.len());
    if !all.values().all(|(text, _)| texts.insert(text.clone())) {
        return Err(refused("two of its ids have the same text"));
    }
    // Rows of the model without a token: no text gives these ids.
    let unused = |id: u32| {
        let mut name = format!("[PAD{id}]");
        while texts.contains(&name) {
            name.push('_');
        }
        (name, UNUSED)
    };
    Ok((0..size).map(|id| all.remove(&id).unwrap_or_else(|| unused(id))).unzip())
}

fn merges(file: &Value) -> Result<Vec<String>, ExportError> {
    let list = file["model"]["merges"].as_array().map(Vec::as_slice).unwrap_or_default();
    let merge = |merge: &Value| {
        let text = match merge {
            Value::String(text) => text.clone(),
            pair => format!("{} {}", pair[0].as_str()?, pair[1].as_str()?),
        };
        // A single space with text on either side: llama.cpp cuts there.
        text.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' ')).map(|_| text.clone())
    };
    let lines = list.iter().filter(|line| !line.as_str().is_some_and(|line| line.starts_with("#version")));
    lines
        .map(merge)
        .collect::<Option<_>>()
        .ok_or_else(|| refused("its merges cannot be read, or have spaces in a token"))
}
