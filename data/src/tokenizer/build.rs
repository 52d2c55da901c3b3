//! Makes the tokenizer that a user asked for.

use std::path::Path;

use super::bpe::BpeTokenizer;
use super::byte::ByteTokenizer;
use super::word::{Coverage, WordTokenizer};
use super::{Tokenizer, TokenizerError, load, load_file, train};

/// What the reader of a document reports.
pub type DocumentError = Box<dyn std::error::Error + Send + Sync>;

/// Documents as they come.
pub type Documents<'a> = dyn Iterator<Item = Result<String, DocumentError>> + 'a;

/// The cap of a `word` tokenizer where none is asked for.
pub const WORD_CAP: u32 = 10_000;

/// The cap of a `bpe` tokenizer where none is asked for.
pub const BPE_CAP: u32 = 8_192;

/// A tokenizer, and how it was found.
pub struct Built {
    /// The tokenizer.
    pub tokenizer: Box<dyn Tokenizer>,
    /// For `word`: how much of the documents it covers. The others cover everything, or their files say.
    pub coverage: Option<Coverage>,
}

/// Makes the tokenizer `kind`: `word`, `byte`, `bpe`, or the path of a tokenizer's file or of a directory with one.
///
/// `vocab_size` caps the number of ids; a tokenizer that needs fewer has fewer. Only `word` and `bpe` look at the
/// documents, `bpe` only at the first [`super::sample::SAMPLE_BYTES`] of them. `lower_case` concerns `word` alone.
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

/// Bytes that [`build()`] needs at most, whatever the documents hold; the document that is being read comes on top.
/// Nothing for tokenizers that look at no document.
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
