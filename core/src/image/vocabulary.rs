//! The vocabulary of an image: converts text to ids and back, with the image's bytes and scratch of the caller.

use core::fmt;

use super::ImageError;
use crate::vocab::bpe::{BpeError, Encoder, Merge, Node};
use crate::vocab::capped::CappedVocabulary;
use crate::vocab::pieces::Cut;
use crate::vocab::{BOS, BYTES, EOS, SPECIALS, UNK};

/// The header of a vocabulary in an image: eight words. The tables follow it in the order of the fields, and then the
/// text, padded with zeros to a whole word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VocabularyHeader {
    /// 0 none: ids in, ids out; 1 the 256 bytes; 2 words; 3 BPE on [`Cut::Runs`]; 4 BPE on [`Cut::Gpt2`].
    pub kind: u32,
    /// Whether text is lower-cased first; words only.
    pub lower_case: bool,
    /// The number of line ends for words, or of token ends from id 4 on.
    pub ends: u32,
    /// The number of BPE merges, three words each.
    pub merges: u32,
    /// The number of slots in the index of words or merges.
    pub index: u32,
    /// Bytes of the text.
    pub text: u32,
}

impl VocabularyHeader {
    /// The number of its words.
    pub const WORDS: usize = 8;
    /// No vocabulary.
    pub const NONE: VocabularyHeader =
        VocabularyHeader { kind: 0, lower_case: false, ends: 0, merges: 0, index: 0, text: 0 };
    /// The 256 bytes.
    pub const BYTES: VocabularyHeader = VocabularyHeader { kind: 1, ..VocabularyHeader::NONE };

    /// The words of the header in an image.
    pub fn words(&self) -> [u32; Self::WORDS] {
        [self.kind, self.lower_case.into(), self.ends, self.merges, self.index, self.text, 0, 0]
    }
}

/// Why text was not encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextError {
    /// There are more ids than slots for them.
    Full {
        /// The number of slots.
        places: usize,
    },
    /// The scratch has fewer nodes than this, the number of bytes of a piece of the text.
    Scratch(usize),
    /// A word that is not in the vocabulary begins at this byte.
    Unknown(usize),
    /// The image has no vocabulary: the model works on ids.
    None,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::Full { places } => write!(f, "the text is of more than {places} tokens"),
            TextError::Scratch(nodes) => write!(f, "encoding a piece of the text needs {nodes} nodes"),
            TextError::Unknown(at) => write!(f, "the word at byte {at} is not in the vocabulary"),
            TextError::None => f.write_str("the image has no vocabulary; give ids"),
        }
    }
}

impl core::error::Error for TextError {}

impl From<BpeError> for TextError {
    fn from(error: BpeError) -> Self {
        match error {
            BpeError::Scratch(nodes) => TextError::Scratch(nodes),
            _ => TextError::Scratch(usize::MAX),
        }
    }
}

/// How to treat words that are not in a vocabulary of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// `<unk>`, as in training.
    Mark,
    /// [`TextError::Unknown`].
    Refuse,
}

/// The tokenizer of an image's model.
#[derive(Debug, Clone, Copy)]
pub enum Tokens<'a> {
    /// No tokenizer.
    None,
    /// One token for each byte: four special ids, then the bytes.
    Bytes,
    /// One token for each word, split at white space.
    Words {
        /// The words.
        words: CappedVocabulary<'a>,
        /// Whether text is lower-cased first.
        lower_case: bool,
    },
    /// Byte-level BPE on pieces of text.
    Pieces {
        /// How text is split into pieces.
        cut: Cut,
        /// The merges.
        encoder: Encoder<'a>,
        /// The end in `text` of the bytes of each token from id 4 on.
        ends: &'a [u32],
        /// The bytes of the tokens, contiguous.
        text: &'a [u8],
    },
}

/// The conversion between text and ids.
#[derive(Debug, Clone, Copy)]
pub struct Vocabulary<'a> {
    tokens: Tokens<'a>,
    size: u32,
}

/// The id of byte 0.
const FIRST_BYTE: u32 = SPECIALS.len() as u32;

/// The bytes' ids.
static BYTE_IDS: [u32; 256] = {
    let mut ids = [0; 256];
    let mut byte = 0;
    while byte < ids.len() {
        ids[byte] = FIRST_BYTE + byte as u32;
        byte += 1;
    }
    ids
};

/// The largest size in bytes of a word to lower-case; longer words are unknown, as when vocabularies are built.
const WORD_BYTES: usize = crate::vocab::builder::WORD_BYTES;

fn wrong(what: &'static str) -> ImageError {
    ImageError::Vocabulary(what)
}

impl<'a> Vocabulary<'a> {
    /// The vocabulary in `part`, all of whose bytes it takes, for a model of `ids` ids.
    ///
    /// # Errors
    /// [`ImageError::Vocabulary`].
    pub(super) fn open(part: &'a [u8], ids: u32) -> Result<Vocabulary<'a>, ImageError> {
        let words = bytemuck::try_cast_slice::<u8, u32>(part).map_err(|_| wrong("an odd place"))?;
        let Some((&[kind, lower_case, ends, merges, index, text, 0, 0], rest)) = words.split_first_chunk() else {
            return Err(wrong("no header"));
        };
        let too_short = || wrong("its tables end beyond it");
        let (ends, rest) = rest.split_at_checked(ends as usize).ok_or_else(too_short)?;
        let places = (merges as usize).checked_mul(3).ok_or_else(too_short)?;
        let (merges, rest) = rest.split_at_checked(places).ok_or_else(too_short)?;
        let (index, rest) = rest.split_at_checked(index as usize).ok_or_else(too_short)?;
        if rest.len() != (text as usize).div_ceil(4) || lower_case > 1 {
            return Err(too_short());
        }
        let text = bytemuck::cast_slice::<u32, u8>(rest).get(..text as usize).ok_or_else(too_short)?;
        let merges: &[Merge] = bytemuck::try_cast_slice(merges).map_err(|_| too_short())?;
        let tokens = match kind {
            0 => Tokens::None,
            1 => Tokens::Bytes,
            2 => {
                let text = core::str::from_utf8(text).map_err(|_| wrong("its words are no UTF-8"))?;
                let words = CappedVocabulary::from_parts(text, ends, index).map_err(|_| wrong("its words"))?;
                Tokens::Words { words, lower_case: lower_case == 1 }
            }
            3 | 4 => {
                let cut = if kind == 3 { Cut::Runs } else { Cut::Gpt2 };
                let encoder = Encoder::from_parts(&BYTE_IDS, merges, index).map_err(|_| wrong("its index"))?;
                let last = ends.last().copied().unwrap_or(0) as usize;
                let sorted = ends.iter().zip(ends.iter().skip(1)).all(|(end, next)| end <= next);
                if ends.len() < 256 || !sorted || last != text.len() {
                    return Err(wrong("its tokens"));
                }
                if merges.iter().any(|merge| merge.id as usize >= SPECIALS.len() + ends.len()) {
                    return Err(wrong("its merges"));
                }
                Tokens::Pieces { cut, encoder, ends, text }
            }
            _ => return Err(wrong("of a kind that is not known")),
        };
        let size = match &tokens {
            Tokens::None => ids,
            Tokens::Bytes => FIRST_BYTE + 256,
            Tokens::Words { words, .. } => words.len(),
            Tokens::Pieces { ends, .. } => FIRST_BYTE + ends.len() as u32,
        };
        if size > ids {
            return Err(wrong("it has more ids than the model"));
        }
        Ok(Vocabulary { tokens, size })
    }

    /// The tokenizer.
    pub fn tokens(&self) -> &Tokens<'a> {
        &self.tokens
    }

    /// The number of ids; the model may have more, which must not be chosen.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The ids that begin and end a document, if there is a tokenizer.
    pub fn marks(&self) -> Option<[u32; 2]> {
        (!matches!(self.tokens, Tokens::None)).then_some([BOS, EOS])
    }

    /// Writes the ids of `text` to `ids` and returns their number. `scratch` needs a node for every byte of the longest
    /// piece of text that BPE processes; other tokenizers need none.
    ///
    /// Where text is lower-cased, Σ becomes ς after the last letter of a run of letters and σ elsewhere.
    ///
    /// # Errors
    /// [`TextError`]; the ids written until then are those of a prefix of the text.
    pub fn encode(
        &self,
        text: &str,
        unknown: Unknown,
        scratch: &mut [Node],
        ids: &mut [u32],
    ) -> Result<usize, TextError> {
        let full = TextError::Full { places: ids.len() };
        let mut places = ids.iter_mut();
        let mut count = 0;
        let mut push = |id: u32| -> Result<(), TextError> {
            *places.next().ok_or(full)? = id;
            count += 1;
            Ok(())
        };
        match &self.tokens {
            Tokens::None => return Err(TextError::None),
            Tokens::Bytes => text.bytes().try_for_each(|byte| push(FIRST_BYTE + u32::from(byte)))?,
            Tokens::Words { words, lower_case } => {
                for word in text.split_whitespace() {
                    let id = if *lower_case { lower(words, word) } else { words.id(word) };
                    if id == UNK && unknown == Unknown::Refuse && word != SPECIALS[UNK as usize] {
                        return Err(TextError::Unknown(word.as_ptr().addr() - text.as_ptr().addr()));
                    }
                    push(id)?;
                }
            }
            Tokens::Pieces { cut, encoder, .. } => {
                for piece in cut.pieces(text) {
                    encoder.encode(piece.as_bytes(), scratch)?.try_for_each(&mut push)?;
                }
            }
        }
        Ok(count)
    }

    /// The bytes of `id`; `None` for special ids, except `<unk>` of a word vocabulary, and for ids out of range. The
    /// bytes of several ids can form one character.
    pub fn bytes(&self, id: u32) -> Option<&'a [u8]> {
        let place = id.checked_sub(FIRST_BYTE).map(|place| place as usize);
        match self.tokens {
            Tokens::None => None,
            Tokens::Bytes => BYTES.get(place?..=place?),
            Tokens::Words { words, .. } if id == UNK || place.is_some() => words.word(id).map(str::as_bytes),
            Tokens::Words { .. } => None,
            Tokens::Pieces { ends, text, .. } => {
                let end = *ends.get(place?)? as usize;
                let start = place?.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
                text.get(start as usize..end)
            }
        }
    }

    /// The separator between the texts of two ids: a space between words, otherwise nothing.
    pub fn separator(&self) -> &'static [u8] {
        if matches!(self.tokens, Tokens::Words { .. }) { b" " } else { b"" }
    }
}

/// The id of the lower-cased `word`.
fn lower(words: &CappedVocabulary<'_>, word: &str) -> u32 {
    let mut kept = [0; WORD_BYTES];
    let mut length = 0;
    let mut before = false;
    let mut rest = word.chars();
    while let Some(c) = rest.next() {
        let last = before && !rest.clone().next().is_some_and(char::is_alphabetic);
        before = c.is_alphabetic();
        // Σ is the only letter whose lower case depends on its position.
        let sigma = if last { 'ς' } else { 'σ' };
        for c in c.to_lowercase().map(|small| if c == 'Σ' { sigma } else { small }) {
            let Some(place) = kept.get_mut(length..length + c.len_utf8()) else { return UNK };
            length += c.encode_utf8(place).len();
        }
    }
    kept.get(..length).and_then(|bytes| core::str::from_utf8(bytes).ok()).map_or(UNK, |word| words.id(word))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::String;
    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::vocab::capped::{write, written_len};
    use crate::vocab::index_len;

    #[test]
    fn words_are_lower_cased_as_whole_texts_are() {
        let known = ["the", "οδος", "οδοσ", "σα", "ärger", "i̇x", "ας-σ"];
        let mut text = vec![0; written_len(known, 99)];
        let text = write(known, 99, &mut text).unwrap();
        let count = CappedVocabulary::words_in(text);
        let (mut ends, mut index) = (vec![0; count], vec![0; index_len(count)]);
        let words = CappedVocabulary::read(text, &mut ends, &mut index).unwrap();
        let long: String = "A".repeat(65);
        for word in ["THE", "ΟΔΟΣ", "ΟΔΟσ", "ΣΑ", "ÄRGER", "İX", "ΑΣ-Σ", "Unknown", "<UNK>", long.as_str()]
        {
            assert_eq!(lower(&words, word), words.id(&word.to_lowercase()), "{word}");
        }
        let vocabulary = Vocabulary { tokens: Tokens::Words { words, lower_case: true }, size: words.len() };
        let mut ids = [0; 3];
        assert_eq!(vocabulary.encode(" The\tÄrger ", Unknown::Refuse, &mut [], &mut ids), Ok(2));
        assert_eq!(ids, [4, 8, 0]);
        assert_eq!(vocabulary.encode("the cat", Unknown::Mark, &mut [], &mut ids), Ok(2));
        assert_eq!(vocabulary.encode("the cat", Unknown::Refuse, &mut [], &mut ids), Err(TextError::Unknown(4)));
        assert_eq!(
            vocabulary.encode("the the the the", Unknown::Refuse, &mut [], &mut ids),
            Err(TextError::Full { places: 3 })
        );
        let said: Vec<_> = (0..6).map(|id| vocabulary.bytes(id)).collect();
        assert_eq!(said, [None, Some(&b"<unk>"[..]), None, None, Some(b"the"), Some("οδος".as_bytes())]);
    }

    #[test]
    fn bytes_and_merged_bytes_come_back() {
        let bytes = Vocabulary { tokens: Tokens::Bytes, size: 260 };
        let mut ids = [0; 8];
        let count = bytes.encode("aé", Unknown::Refuse, &mut [], &mut ids).unwrap();
        assert_eq!(ids[..count], [4 + 97, 4 + 0xc3, 4 + 0xa9]);
        assert_eq!(bytes.bytes(4 + 0xc3), Some(&[0xc3][..]));
        assert_eq!((bytes.bytes(3), bytes.bytes(260)), (None, None));

        let merges = [Merge { left: 4 + 97, right: 4 + 98, id: 260 }];
        let mut index = [0; index_len(1)];
        let encoder = Encoder::new(&BYTE_IDS, &merges, &mut index).unwrap();
        let ends: Vec<u32> = (1..=256).chain([258]).collect();
        let text: Vec<u8> = (0..=255).chain(*b"ab").collect();
        let tokens = Tokens::Pieces { cut: Cut::Gpt2, encoder, ends: &ends, text: &text };
        let pieces = Vocabulary { tokens, size: 261 };
        let count = pieces.encode("aab c", Unknown::Refuse, &mut [Node::EMPTY; 3], &mut ids).unwrap();
        assert_eq!(ids[..count], [4 + 97, 260, 4 + 32, 4 + 99]);
        assert_eq!((pieces.bytes(260), pieces.bytes(4), pieces.bytes(261)), (Some(&b"ab"[..]), Some(&[0][..]), None));
        assert_eq!(
            pieces.encode("aab c", Unknown::Refuse, &mut [Node::EMPTY; 2], &mut ids),
            Err(TextError::Scratch(3))
        );
    }
}
