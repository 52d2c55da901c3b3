//! A tokenizer's tables in the form that a chip reads.

use capful_core::image::VocabularyHeader;
use capful_core::vocab::builder::WORD_BYTES;
use capful_core::vocab::pieces::Cut;

use crate::data::tokenizer::{Tables, Tokenizer};
use crate::device::DeviceError;

/// The header and the bytes behind it.
pub(super) fn bytes_of(tables: &Tables<'_>) -> Vec<u8> {
    let (header, tables, text): (_, [&[u32]; 3], &[u8]) = match *tables {
        Tables::Bytes => (VocabularyHeader::BYTES, [&[]; 3], &[]),
        Tables::Words { words, lower_case } => {
            let (ends, index) = words.parts();
            let text = words.as_str().as_bytes();
            (VocabularyHeader { kind: 2, lower_case, ..VocabularyHeader::NONE }, [ends, &[], index], text)
        }
        Tables::Pieces { cut, merges, index, ends, text } => {
            let kind = if cut == Cut::Runs { 3 } else { 4 };
            let header = VocabularyHeader { kind, ..VocabularyHeader::NONE };
            (header, [ends, bytemuck::cast_slice(merges), index], text)
        }
    };
    let [ends, merges, index] = tables.map(|table| table.len() as u32);
    let header = VocabularyHeader { ends, merges: merges / 3, index, text: text.len() as u32, ..header };
    let words = header.words().into_iter().chain(tables.into_iter().flatten().copied());
    let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    bytes.extend_from_slice(text);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The vocabulary of `tokenizer` for a chip.
///
/// # Errors
/// A tokenizer that a chip does not support.
pub fn tables(tokenizer: &dyn Tokenizer) -> Result<Vec<u8>, DeviceError> {
    let refused = |what: &str| Err(DeviceError::Refused(what.to_owned()));
    let Some(tables) = tokenizer.tables() else {
        return refused(
            "a chip reads and writes text with a tokenizer of our own: train with --tokenizer byte, word or bpe, or \
             export ids only with --no-tokenizer",
        );
    };
    if let Tables::Words { words, lower_case: true } = tables
        && words.words().any(|word| word.len() > WORD_BYTES)
    {
        return refused("a word of the lower-cased vocabulary is longer than 64 bytes, which a chip does not look up");
    }
    Ok(bytes_of(&tables))
}

/// No vocabulary: input and output are ids.
pub fn none() -> Vec<u8> {
    VocabularyHeader::NONE.words().into_iter().flat_map(u32::to_le_bytes).collect()
}
