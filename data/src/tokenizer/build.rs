//! Builds the tokenizer that a user requested.

use std::path::Path;

use super::bpe::BpeTokenizer;
use super::byte::ByteTokenizer;
use super::word::{Coverage, WordTokenizer};
use super::{Tokenizer, TokenizerError, load, load_file, train};

/// The error of reading a document.
pub type DocumentError = Box<dyn std::error::Error + Send + Sync>;

/// Documents in their own order.
pub type Documents<'a> = dyn Iterator<Item = Result<String, DocumentError>> + 'a;

/// The default cap of a `word` tokenizer.
pub const WORD_CAP: u32 = 10_000;

/// The default cap of a `bpe` tokenizer.
pub const BPE_CAP: u32 = 8_192;

/// A tokenizer, and statistics of its construction.
pub struct Built {
    /// The tokenizer.
    pub tokenizer: Box<dyn Tokenizer>,
    /// For `word`: how much of the documents its vocabulary covers. The other kinds cover everything, or their files
    /// determine it.
    pub coverage: Option<Coverage>,
}

/// Builds the tokenizer `kind`: `word`, `byte`, `bpe`, or the path of a tokenizer's file or of a directory with such a
/// file.
///
/// `vocab_size` caps the number of ids; a tokenizer that needs fewer ids has fewer. Only `word` and `bpe` read the
/// documents, `bpe` only the first [`super::sample::SAMPLE_BYTES`] of them. `lower_case` applies to `word` alone.
///
/// # Errors
/// Every case of [`TokenizerError`] but `Write`.
pub fn build(
    kind: &str,
    vocab_size: Option<u32>,
    lower_case: bool,
    documents: &mut Documents<'_>,
) -> Result<Built, TokenizerError> {
    let (tokenizer, coverage): (Box<dyn Tokenizer>, _) = match kind {
        "word" => {
            let (tokenizer, coverage) = WordTokenizer::build(vocab_size.unwrap_or(WORD_CAP), lower_case, documents)?;
            (Box::new(tokenizer), Some(coverage))
        }
        "byte" => (Box::new(ByteTokenizer), None),
        "bpe" => (Box::new(BpeTokenizer::build(vocab_size.unwrap_or(BPE_CAP), documents)?), None),
        path => (from_path(Path::new(path), kind)?, None),
    };
    let least = tokenizer.vocab_size();
    match vocab_size {
        Some(asked) if asked < least => Err(TokenizerError::CapTooSmall { kind: kind.to_owned(), asked, least }),
        _ => Ok(Built { tokenizer, coverage }),
    }
}

/// Most bytes that [`build()`] takes, for any documents, in addition to the document that is being read; 0 for
/// tokenizers that read no documents.
pub fn training_bytes(kind: &str, vocab_size: Option<u32>) -> u64 {
    match kind {
        "word" => WordTokenizer::building_bytes(vocab_size.unwrap_or(WORD_CAP)),
        "bpe" => train::training_bytes(vocab_size.unwrap_or(BPE_CAP)),
        _ => 0,
    }
}

fn from_path(path: &Path, kind: &str) -> Result<Box<dyn Tokenizer>, TokenizerError> {
    if path.is_dir() {
        load(path)
    } else if path.exists() || path.extension().is_some_and(|extension| extension == "json") {
        load_file(path)
    } else {
        Err(TokenizerError::UnknownKind(kind.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_from(kind: &str, vocab_size: Option<u32>) -> Result<Built, TokenizerError> {
        build(kind, vocab_size, false, &mut ["a b a", "c"].into_iter().map(|text| Ok(text.to_owned())))
    }

    #[test]
    fn every_kind_is_built_under_its_cap() {
        for (kind, cap, size) in [
            ("word", None, 7),
            ("word", Some(6), 6),
            ("byte", None, 260),
            ("byte", Some(10_000), 260),
            ("bpe", None, 260),
            ("bpe", Some(260), 260),
        ] {
            let built = build_from(kind, cap).unwrap();
            assert_eq!(built.tokenizer.vocab_size(), size, "{kind}");
            assert_eq!(built.coverage.is_some(), kind == "word");
        }
    }

    #[test]
    fn a_saved_tokenizer_is_found_by_its_file_or_directory() {
        let dir = tempfile::tempdir().unwrap();
        let built = build_from("word", None).unwrap().tokenizer;
        built.save(dir.path()).unwrap();
        for path in [dir.path().to_owned(), dir.path().join(super::super::FILE_NAME)] {
            let found = build_from(path.to_str().unwrap(), Some(7)).unwrap().tokenizer;
            assert_eq!(found.fingerprint(), built.fingerprint());
            let error = build_from(path.to_str().unwrap(), Some(6)).err().unwrap();
            assert!(matches!(error, TokenizerError::CapTooSmall { asked: 6, least: 7, .. }));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_in_one_line() {
        let message = |kind, cap| build_from(kind, cap).err().unwrap().to_string();
        assert_eq!(
            message("words", None),
            "there is no tokenizer `words`: give word, byte, bpe or the path of a tokenizer.json"
        );
        assert!(message("none/tokenizer.json", None).starts_with("cannot read the tokenizer none/tokenizer.json: "));
        assert_eq!(
            message("byte", Some(100)),
            "a vocabulary of 100 is too small for the tokenizer `byte`: it needs at least 260"
        );
    }
}
