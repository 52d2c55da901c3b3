//! A tokenizer's tables as a chip reads them.

use capful_core::image::VocabularyHeader;
use capful_core::vocab::bpe::Merge;
use capful_core::vocab::builder::WORD_BYTES;
use capful_core::vocab::capped::CappedVocabulary;
use capful_core::vocab::pieces::Cut;

use crate::data::tokenizer::Tokenizer;
use crate::device::DeviceError;

/// What a tokenizer of ours is made of.
#[derive(Debug, Clone, Copy)]
pub enum Tables<'a> {
    /// The 256 bytes.
    Bytes,
    /// Words.
    Words {
        /// The words.
        words: CappedVocabulary<'a>,
        /// Whether text is lower-cased first.
        lower_case: bool,
    },
    /// BPE.
    Pieces {
        /// How text is cut.
        cut: Cut,
        /// In the order of their ranks.
        merges: &'a [Merge],
        /// Ranks by the pair that they join, as [`capful_core::vocab::bpe::Encoder`] fills it.
        index: &'a [u32],
        /// Where the bytes of each token from id 4 on end.
        ends: &'a [u32],
        /// The tokens' bytes.
        text: &'a [u8],
    },
}

impl Tables<'_> {
    /// The header and the bytes behind it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (header, tables, text): (_, [&[u32]; 3], &[u8]) = match *self {
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
}

/// The vocabulary of `tokenizer`, for a chip.
///
/// # Errors
/// A tokenizer that a chip does not have.
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
    Ok(tables.bytes())
}

/// No vocabulary: ids in, ids out.
pub(super) fn none() -> Vec<u8> {
    VocabularyHeader::NONE.words().into_iter().flat_map(u32::to_le_bytes).collect()
}
