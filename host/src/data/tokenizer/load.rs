//! Reads a saved tokenizer of any kind.

use std::path::Path;

use serde::Deserialize;

use super::bpe::BpeTokenizer;
use super::byte::ByteTokenizer;
use super::error::Refusal;
use super::hugging_face::HuggingFaceTokenizer;
use super::word::WordTokenizer;
use super::{Tokenizer, TokenizerError};
use crate::regular;

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
/// As [`load()`].
pub fn load_file(path: &Path) -> Result<Box<dyn Tokenizer>, TokenizerError> {
    let content =
        regular::read_to_string(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::bpe::tests::{TRAINED, encode};
    use super::super::build;
    use super::*;

    fn word() -> Box<dyn Tokenizer> {
        let text = "der Bär \"sprach\" <unk> \\ u\u{301} der Bär 🐻".to_owned();
        build("word", Some(9), true, &mut [Ok(text)].into_iter()).unwrap().tokenizer
    }

    fn written(tokenizer: &dyn Tokenizer) -> String {
        let mut out = vec![];
        tokenizer.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let all: [Box<dyn Tokenizer>; 3] = [word(), Box::new(ByteTokenizer), Box::new(TRAINED.clone())];
        let mut fingerprints = vec![];
        for tokenizer in &all {
            let dir = tempfile::tempdir().unwrap();
            tokenizer.save(dir.path()).unwrap();
            let loaded = load(dir.path()).unwrap();
            assert_eq!(loaded.vocab_size(), tokenizer.vocab_size());
            assert_eq!((loaded.bos(), loaded.eos()), (Some(2), Some(3)));
            for id in 0..=tokenizer.vocab_size() {
                assert_eq!(loaded.token(id), tokenizer.token(id));
            }
            let text = "DER Bär karito, 17 neu \"sprach\" 🐻\n";
            assert_eq!(encode(&*loaded, text), encode(&**tokenizer, text));
            assert_eq!(written(&*loaded), written(&**tokenizer));
            assert_eq!(loaded.fingerprint(), tokenizer.fingerprint());
            fingerprints.push(loaded.fingerprint());
        }
        fingerprints.sort_unstable();
        fingerprints.dedup();
        assert_eq!(fingerprints.len(), all.len());
    }

    #[test]
    fn the_files_are_what_is_documented() {
        assert_eq!(
            written(&*word()),
            r#"{"type":"word","version":1,"lower_case":true,"words":["<pad>","<unk>","<bos>","<eos>","der","bär","\"sprach\"","\\","ú"]}"#
                .replace('ú', "u\u{301}")
        );
        assert_eq!(written(&ByteTokenizer), r#"{"type":"byte","version":1}"#);
        let head = format!(
            r#"{{"type":"bpe","version":1,"merges":[[{},{}],"#,
            TRAINED.merges()[0].left,
            TRAINED.merges()[0].right
        );
        assert!(written(&*TRAINED).starts_with(&head));
    }

    #[test]
    fn bytes_are_restored_where_no_letter_is_changed_or_unknown() {
        let restores = [&*word() as &dyn Tokenizer, &ByteTokenizer, &*TRAINED].map(Tokenizer::restores_bytes);
        assert_eq!(restores, [false, true, true]);
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        for tokenizer in [&*word(), &ByteTokenizer, &*TRAINED] {
            let content = written(tokenizer);
            for (end, _) in content.char_indices() {
                assert!(matches!(parse(content[..end].to_owned()), Err(Refusal::Damaged(_))), "{}", &content[..end]);
            }
        }
    }

    #[test]
    fn damaged_files_are_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let specials = r#""<pad>","<unk>","<bos>","<eos>""#;
        for (content, expected) in [
            (String::new(), "damaged: EOF while parsing"),
            ("[1, 2]".to_owned(), "damaged: invalid type: integer"),
            ("{}".to_owned(), "damaged: it has no `model`"),
            (r#"{"type":"words","version":1}"#.to_owned(), "cannot be used: its type is `words`"),
            (r#"{"type":"byte"}"#.to_owned(), "cannot be used: its version is none"),
            (
                r#"{"type":"byte","version":2}"#.to_owned(),
                "cannot be used: its version is 2, this program reads version 1",
            ),
            (r#"{"type":"word","version":1,"words":[]}"#.to_owned(), "damaged: missing field `lower_case`"),
            (
                r#"{"type":"word","version":1,"lower_case":true,"words":[]}"#.to_owned(),
                "damaged: the vocabulary does not start",
            ),
            (
                format!(r#"{{"type":"word","version":1,"lower_case":true,"words":[{specials},"a","a"]}}"#),
                "damaged: word 5 of the",
            ),
            (
                format!(r#"{{"type":"word","version":1,"lower_case":true,"words":[{specials},"a\nb"]}}"#),
                "damaged: a word holds a line end",
            ),
            (r#"{"type":"bpe","version":1,"merges":[[4,999]]}"#.to_owned(), "damaged: merge 0 joins id 999"),
            (r#"{"type":"bpe","version":1,"merges":[[4,-1]]}"#.to_owned(), "damaged: invalid value: integer `-1`"),
        ] {
            fs::write(&path, &content).unwrap();
            let error = load(dir.path()).err().expect(&content).to_string();
            assert!(error.starts_with(&format!("the tokenizer {}", path.display())), "{error}");
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(load(dir.path()), Err(TokenizerError::Read { .. })));
    }

    #[test]
    fn missing_places_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let error = load(&missing).err().unwrap().to_string();
        assert!(error.starts_with(&format!("cannot read the tokenizer {}", missing.display())), "{error}");
        let error = ByteTokenizer.save(&missing).unwrap_err().to_string();
        assert!(error.starts_with("cannot write the tokenizer"), "{error}");
    }
}
