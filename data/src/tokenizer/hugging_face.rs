//! Any `tokenizer.json` of Hugging Face's `tokenizers` library, run by that library; usual byte-level BPE is encoded by
//! this program's own encoder, with the same ids.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer as Library,
};

use super::byte_level::ByteLevel;
use super::error::{Refusal, one_line};
use super::expansion::{MOST, expansion};
use super::lossless;
use super::marks::{self, Beside, Marks};
use super::patterns;
use super::splits::THREES;
use super::{EncodeError, Tokenizer};
use capful_base::contain;

/// A tokenizer of another program. Its content is stored as it was read, so that it is saved unchanged.
#[derive(Debug, Clone)]
pub struct HuggingFaceTokenizer {
    library: Library,
    /// Encodes in place of the library, where possible.
    ours: Option<ByteLevel>,
    content: String,
    vocab_size: u32,
    marks: Marks,
    /// The id that the model gives for unknown text.
    unk: Option<u32>,
    /// Whether the names of tokens determine the marks, so that the content alone identifies the tokenizer.
    usual: bool,
    /// The `tokenizer_config.json` that is saved with it.
    config: String,
    /// The other files that are saved with it.
    beside: Vec<(&'static str, String)>,
    /// Whether the normalizer puts the sign for a space before every text.
    prepends: bool,
    /// Whether tokens such as `<0x41>` are bytes, which are decoded together with the bytes next to them.
    bytes_in_rows: bool,
    /// Whether [`THREES`] cuts its numbers; the library's time for that grows with the square of the number of digits.
    threes: bool,
}

/// The most ids: published tokenizers have up to a sixteenth of this number.
const MOST_IDS: u32 = 1 << 24;

/// Numbers with more digits are cut before encoding.
const LONG_NUMBER: usize = 60;

#[derive(Deserialize)]
struct Parts {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    model: Unknown,
}

/// A model's reaction to unknown text: a token, or for Unigram an id.
#[derive(Deserialize, Default)]
struct Unknown {
    unk_token: Option<String>,
    unk_id: Option<u32>,
}

#[derive(Deserialize)]
struct TextParts {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    decoder: Option<Value>,
}

#[derive(Deserialize)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

impl HuggingFaceTokenizer {
    /// The tokenizer of a file, with the settings of the files `beside` it.
    pub(super) fn parse(content: String, beside: &Beside) -> Result<Self, Refusal> {
        refuse_parts(&content)?;
        contain(|| Self::parse_whole(content, beside)).unwrap_or_else(|reason| {
            Err(Refusal::Unsupported(format!("the `tokenizers` library fails on it ({})", one_line(&reason))))
        })
    }

    fn parse_whole(content: String, beside: &Beside) -> Result<Self, Refusal> {
        let mut library: Library = match serde_json::from_str(&content) {
            Ok(library) => library,
            Err(error) => return Err(blame(&content, &error)),
        };
        if let ModelWrapper::BPE(model) = library.get_model()
            && model.dropout.is_some_and(|dropout| dropout > 0.0)
        {
            return Err(Refusal::Unsupported(
                "its model has dropout: the same text would get different ids".to_owned(),
            ));
        }
        // Documents are never truncated or padded here.
        library.with_padding(None);
        library.with_truncation(None).map_err(Refusal::damaged)?;
        // Encoding an unknown character shows whether the model works without the unknown token that it lacks.
        if let Err(error) = library.encode_fast("a \u{10ffff}\0é ﷺ", false) {
            return Err(Refusal::Unsupported(format!("it cannot encode every text: {error}")));
        }
        for token in serde_json::from_str::<AddedTokens>(&content).map_err(Refusal::damaged)?.added_tokens {
            // The library numbers added tokens after the model's tokens, whatever the file says; a model would receive
            // wrong ids.
            let given = library.token_to_id(&token.content);
            if given != Some(token.id) {
                let given = given.map_or("none".to_owned(), |id| id.to_string());
                let AddedToken { id, content } = token;
                return Err(Refusal::Unsupported(format!(
                    "its added token `{content}` has id {id} in the file and would get {given}: ids must leave no gap"
                )));
            }
        }
        let parts: Parts = serde_json::from_str(&content).map_err(Refusal::damaged)?;
        let splits = parts.pre_tokenizer.as_ref().and_then(|part| part.get("pretokenizers")?.as_array());
        let cuts = |part: &Value| part.pointer("/pattern/Regex").and_then(Value::as_str) == Some(THREES);
        let threes = parts.normalizer.is_none() && splits.is_some_and(|splits| splits.iter().any(cuts));
        let vocab_size = vocab_size(library.get_vocab(true))?;
        let added = library.get_added_tokens_decoder();
        let named = |name: &str| added.iter().find(|(_, token)| token.content == name).map(|(&id, _)| id);
        let guessed = marks::guessed(named);
        let marks = beside.marks(&parts.post_processor, guessed, |token| library.token_to_id(token))?;
        let name = |id: Option<u32>| id.and_then(|id| library.id_to_token(id));
        let config = beside.config(marks.bos.is_some(), name(marks.bos), name(marks.eos));
        let unk = parts.model.unk_token.and_then(|token| library.token_to_id(&token)).or(parts.model.unk_id);
        let prepends = parts.normalizer.as_ref().is_some_and(prepends_space);
        let bytes_in_rows = has_byte_fallback(&parts.decoder);
        let ours = ByteLevel::of(&library, &content);
        Ok(Self {
            library,
            ours,
            content,
            vocab_size,
            marks,
            unk,
            usual: marks == guessed,
            config,
            beside: beside.files(),
            prepends,
            bytes_in_rows,
            threes,
        })
    }
}

/// The last id plus one; no two tokens share an id.
fn vocab_size(ids: HashMap<String, u32>) -> Result<u32, Refusal> {
    let mut tokens: Vec<(u32, String)> = ids.into_iter().map(|(token, id)| (id, token)).collect();
    tokens.sort_unstable();
    if let Some([(id, one), (_, other)]) = tokens.array_windows().find(|[(one, _), (other, _)]| one == other) {
        return Err(Refusal::Damaged(format!("its tokens `{one}` and `{other}` have the id {id}")));
    }
    match tokens.last() {
        None => Err(Refusal::damaged("its vocabulary is empty")),
        Some((id, token)) if *id >= MOST_IDS => Err(Refusal::Unsupported(format!(
            "its token `{token}` has an id of {id}, at most {} is allowed",
            MOST_IDS - 1
        ))),
        Some((id, _)) => Ok(id + 1),
    }
}

fn prepends_space(normalizer: &Value) -> bool {
    let within = normalizer.get("normalizers").and_then(Value::as_array);
    let prepend = normalizer.get("type").is_some_and(|kind| kind == "Prepend");
    prepend && normalizer.get("prepend").is_some_and(|text| text == "▁")
        || within.is_some_and(|all| all.iter().any(prepends_space))
}

fn has_byte_fallback(decoder: &Value) -> bool {
    let within = decoder.get("decoders").and_then(Value::as_array);
    decoder.get("type").is_some_and(|kind| kind == "ByteFallback")
        || within.is_some_and(|all| all.iter().any(has_byte_fallback))
}

/// Whether a token stands for one byte, in tokenizers with such tokens.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Refuses a file that may expand text too much, or whose patterns have another meaning in Python.
fn refuse_parts(content: &str) -> Result<(), Refusal> {
    // The library reports a file without a model.
    let parts: TextParts = serde_json::from_str(content).map_err(Refusal::damaged)?;
    for (name, part) in
        [("normalizer", &parts.normalizer), ("pre_tokenizer", &parts.pre_tokenizer), ("decoder", &parts.decoder)]
    {
        part.as_ref().map_or(Ok(()), |part| patterns::require_same(name, part))?;
    }
    for (name, part) in [("normalizer", parts.normalizer), ("decoder", parts.decoder)] {
        let bytes = part.as_ref().map_or(1, expansion);
        if bytes > MOST {
            return Err(Refusal::Unsupported(format!(
                "its {name} may make {bytes} bytes of one, at most {MOST} are allowed"
            )));
        }
    }
    Ok(())
}

/// Where to cut the first number of more than [`LONG_NUMBER`] digits: at an offset where the pattern cuts it too.
fn long_number(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut end = 0;
    loop {
        let begin = end + bytes[end..].iter().position(u8::is_ascii_digit)?;
        end = bytes[begin..].iter().position(|b| !b.is_ascii_digit()).map_or(bytes.len(), |n| begin + n);
        // Adjacent digits of other scripts may belong to the number.
        let other = |c: Option<char>| c.is_some_and(char::is_numeric);
        let whole = !other(text[..begin].chars().next_back()) && !other(text[end..].chars().next());
        if end - begin > LONG_NUMBER && whole {
            return Some(begin + LONG_NUMBER - 3 + (end - begin) % 3);
        }
    }
}

/// Names the part of a file that the library refuses.
fn blame(content: &str, error: &serde_json::Error) -> Refusal {
    let Ok(file) = serde_json::from_str::<Value>(content) else { return Refusal::damaged(error) };
    if file.get("model").is_none() {
        return Refusal::Damaged("it has no `model`, so it is no tokenizer.json".to_owned());
    }
    let parts = [
        part::<NormalizerWrapper>(&file, "normalizer", "normalizers"),
        part::<PreTokenizerWrapper>(&file, "pre_tokenizer", "pretokenizers"),
        part::<ModelWrapper>(&file, "model", ""),
        part::<PostProcessorWrapper>(&file, "post_processor", "processors"),
        part::<DecoderWrapper>(&file, "decoder", "decoders"),
    ];
    match parts.into_iter().flatten().next() {
        Some(what) => Refusal::Unsupported(what),
        None => Refusal::damaged(error),
    }
}

/// The refused member of part `name`, or of the sequence in that part.
fn part<T: DeserializeOwned>(file: &Value, name: &str, members: &str) -> Option<String> {
    let value = file.get(name).filter(|value| !value.is_null())?;
    if let Some(Value::Array(sequence)) = value.get(members) {
        return sequence.iter().find_map(|member| refused::<T>(name, member));
    }
    refused::<T>(name, value)
}

fn refused<T: DeserializeOwned>(name: &str, value: &Value) -> Option<String> {
    let error = serde_json::from_value::<T>(value.clone()).err()?;
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("of no type");
    Some(format!("its {name} `{kind}` is not supported ({})", one_line(&error.to_string())))
}

impl Tokenizer for HuggingFaceTokenizer {
    fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    fn bos(&self) -> Option<u32> {
        self.marks.bos
    }

    fn eos(&self) -> Option<u32> {
        self.marks.eos
    }

    fn unk(&self) -> Option<u32> {
        self.unk
    }

    fn restores_bytes(&self) -> bool {
        lossless::restores_bytes(&self.library)
    }

    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        if let Some(ours) = &self.ours {
            ours.encode(text, ids);
            return Ok(());
        }
        let mut encode = |text: &str| {
            let encoded = contain(|| self.library.encode_fast(text, false));
            let encoded = encoded.and_then(|encoded| encoded.map_err(|error| error.to_string()));
            ids.extend(encoded.map_err(|reason| EncodeError(one_line(&reason)))?.get_ids());
            Ok(())
        };
        let mut rest = text;
        while self.threes
            && let Some(at) = long_number(rest)
        {
            encode(&rest[..at])?;
            rest = &rest[at..];
        }
        encode(rest)
    }

    fn encode_rest(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        let rest = if self.prepends { text.strip_prefix(' ') } else { None };
        self.encode(rest.unwrap_or(text), ids)
    }

    fn decode(&self, ids: &[u32]) -> String {
        // Where the library fails, the text is empty.
        contain(|| self.library.decode(ids, true).unwrap_or_default()).unwrap_or_default()
    }

    fn token(&self, id: u32) -> Option<String> {
        self.library.id_to_token(id)
    }

    fn silent(&self, id: u32) -> bool {
        let special = |token: &str| self.library.get_added_vocabulary().is_special_token(token);
        self.library.id_to_token(id).is_none_or(|token| special(&token))
    }

    fn unsettled(&self, ids: &[u32]) -> usize {
        if !self.bytes_in_rows {
            return 0;
        }
        let mut last = 0;
        for (i, &id) in (1..).zip(ids.iter().rev()) {
            // A token without text does not end a row of bytes.
            if self.silent(id) {
                continue;
            }
            if !self.library.id_to_token(id).is_some_and(|token| is_byte(&token)) {
                break;
            }
            last = i;
        }
        last
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.content.as_bytes())
    }

    fn config(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.config)
    }

    fn beside(&self) -> Vec<(&'static str, Cow<'_, str>)> {
        self.beside.iter().map(|(name, text)| (*name, Cow::Borrowed(text.as_str()))).collect()
    }

    fn write_identity(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out)?;
        if self.usual {
            return Ok(());
        }
        let id = |id: Option<u32>| id.map_or("none".to_owned(), |id| id.to_string());
        write!(out, "\nbos {} eos {}", id(self.marks.bos), id(self.marks.eos))
    }
}

#[cfg(test)]
mod tests;
