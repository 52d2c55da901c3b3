//! Reads a saved tokenizer of any kind.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::bpe::BpeTokenizer;
use super::byte::ByteTokenizer;
use super::error::Refusal;
use super::hugging_face::HuggingFaceTokenizer;
use super::word::WordTokenizer;
use super::{Tokenizer, TokenizerError};

/// The file of a checkpoint that holds its tokenizer. Ours have a `type` at the top, others are Hugging Face's.
pub const FILE_NAME: &str = "tokenizer.json";

/// The version of our own files.
pub(super) const VERSION: u32 = 1;

/// Loads the tokenizer saved in the directory `dir`.
///
/// # Errors
/// [`TokenizerError::Read`], [`TokenizerError::Damaged`], [`TokenizerError::Unsupported`].
pub fn load(dir: &Path) -> Result<Box<dyn Tokenizer>, TokenizerError> {
    load_file(&dir.join(FILE_NAME))
}

/// Loads a tokenizer from a file: one of ours, or a Hugging Face `tokenizer.json`.
///
/// # Errors
/// As [`load`].
pub fn load_file(path: &Path) -> Result<Box<dyn Tokenizer>, TokenizerError> {
    let content = fs::read_to_string(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
    parse(content).map_err(|refusal| refusal.at(path.to_owned()))
}

#[derive(Deserialize)]
struct Header {
    r#type: Option<String>,
    version: Option<serde_json::Value>,
}

fn parse(content: String) -> Result<Box<dyn Tokenizer>, Refusal> {
    let header: Header = serde_json::from_str(&content).map_err(Refusal::damaged)?;
    let Some(kind) = header.r#type else {
        return Ok(Box::new(HuggingFaceTokenizer::parse(content)?));
    };
    if header.version.as_ref().and_then(serde_json::Value::as_u64) != Some(u64::from(VERSION)) {
        let version = header.version.map_or("none".to_owned(), |version| version.to_string());
        return Err(Refusal::Unsupported(format!("its version is {version}, this program reads version {VERSION}")));
    }
    Ok(match kind.as_str() {
        "word" => Box::new(WordTokenizer::parse(&content)?),
        "byte" => Box::new(ByteTokenizer),
        "bpe" => Box::new(BpeTokenizer::parse(&content)?),
        _ => return Err(Refusal::Unsupported(format!("its type is `{kind}`, known are word, byte and bpe"))),
    })
}
