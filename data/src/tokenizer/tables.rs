//! A tokenizer's tables, as an image for a chip stores them.

use capful_core::vocab::bpe::Merge;
use capful_core::vocab::capped::CappedVocabulary;
use capful_core::vocab::pieces::Cut;

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
