//! The capped vocabulary, its bounded builder, and the byte-level BPE encoder.
//!
//! - [`builder`] counts the words of an unbounded stream in storage of fixed size.
//! - [`capped`] stores the most frequent of them: word to id and back, everything else is `<unk>`.
//! - [`bpe`] splits bytes into trained pieces, so that nothing is ever unknown; [`pieces`] splits text before that.

pub mod bpe;
pub mod builder;
pub mod capped;
mod gpt2;
pub mod pieces;

/// Id of `<pad>`: fills a batch, never predicted.
pub const PAD: u32 = 0;
/// Id of `<unk>`: stands for every word outside the vocabulary.
pub const UNK: u32 = 1;
/// Id of `<bos>`: begins a document.
pub const BOS: u32 = 2;
/// Id of `<eos>`: ends a document.
pub const EOS: u32 = 3;

/// The texts of the special ids, in the order of the ids. All of our vocabularies begin with them.
pub const SPECIALS: [&str; 4] = ["<pad>", "<unk>", "<bos>", "<eos>"];

/// Number of ids of a vocabulary of bytes: the special ids and 256.
pub const BYTE_IDS: u32 = SPECIALS.len() as u32 + 256;

/// All bytes in ascending order: the bytes of the tokens of a byte vocabulary.
pub static BYTES: [u8; 256] = {
    let mut all = [0; 256];
    let mut byte = 0;
    while byte < all.len() {
        all[byte] = byte as u8;
        byte += 1;
    }
    all
};

/// The id of the special token whose text is `word`.
pub fn special(word: &str) -> Option<u32> {
    // Nearly every word returns here.
    if !word.starts_with('<') {
        return None;
    }
    SPECIALS.iter().position(|s| *s == word).map(|id| id as u32)
}

/// Length of a hash index (in u32) for `entries` entries: a power of two, at least half of it empty.
///
/// ```
/// assert_eq!(capful_core::vocab::index_len(10_000), 32_768);
/// ```
pub const fn index_len(entries: usize) -> usize {
    match entries.saturating_mul(2).checked_next_power_of_two() {
        Some(0 | 1) => 2,
        Some(len) => len,
        None => usize::MAX,
    }
}

/// Where [`fingerprint`] starts: the offset basis of FNV-1a, 64 bits.
pub const FINGERPRINT: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, 64 bits, of `bytes` appended to the bytes hashed so far. Start with [`FINGERPRINT`].
pub const fn fingerprint(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
}

/// Marks a free slot of a hash index.
const EMPTY: u32 = u32::MAX;

/// Spreads 64 bits over the low 32 (one multiplication and a fold: FNV's low bits alone cluster).
const fn fold(hash: u64) -> u32 {
    let h = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (h >> 32) as u32
}

/// The hash of a word in the indexes of [`builder`] and [`capped`].
const fn hash_word(word: &[u8]) -> u32 {
    fold(fingerprint(FINGERPRINT, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_gives_the_published_vectors() {
        // Test suite of the FNV reference code (Fowler, Noll, Vo).
        assert_eq!(fingerprint(FINGERPRINT, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(FINGERPRINT, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fingerprint(FINGERPRINT, b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fingerprint(fingerprint(FINGERPRINT, b"foo"), b"bar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn an_index_is_a_power_of_two_and_half_empty() {
        for (entries, len) in [(0, 2), (1, 2), (2, 4), (3, 8), (4, 8), (5, 16), (10_000, 32_768)] {
            assert_eq!(index_len(entries), len, "{entries}");
        }
        assert_eq!(index_len(usize::MAX), usize::MAX);
    }

    #[test]
    fn specials_are_found_by_their_text() {
        assert_eq!(SPECIALS.map(special), [Some(PAD), Some(UNK), Some(BOS), Some(EOS)]);
        assert_eq!(special("<mask>"), None);
        assert_eq!(special(""), None);
    }
}
