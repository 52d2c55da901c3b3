//! Byte-level BPE, trained under a cap: 4 special ids, the 256 bytes, then the merged tokens.

use std::collections::HashMap;
use std::io::{self, Write};

use capful_core::vocab::BYTE_IDS;
use capful_core::vocab::bpe::{Encoder, Merge, Node};
use capful_core::vocab::pieces::Cut;
use capful_core::vocab::{BOS, EOS, SPECIALS, index_len};
use serde::{Deserialize, Serialize, Serializer};

use super::build::Documents;
use super::error::Refusal;
use super::load::FIRST_VERSION;
use super::own_file::{self, write_bytes};
use super::sample::{SAMPLE_BYTES, Sample};
use super::search::{Scratch, Search};
use super::train::{LONGEST_TOKEN, train};
use super::{EncodeError, Tables, Tokenizer, TokenizerError, byte};

/// The largest cap.
pub const MOST_TOKENS: u32 = 1 << 20;

/// Byte-level BPE on pieces of text. Decoding restores any text; no text is unknown.
#[derive(Debug, Clone)]
pub struct BpeTokenizer {
    cut: Cut,
    bytes: [u32; 256],
    merges: Vec<Merge>,
    index: Vec<u32>,
    /// A faster encoder, where the order of the merges permits it.
    search: Option<Search>,
    /// The bytes of every token from id 4 on, back to back.
    text: Vec<u8>,
    /// The end of each of these tokens in `text`. `[vocab_size - 4]`
    ends: Vec<u32>,
}

#[derive(Serialize)]
struct Identity<'a> {
    r#type: &'static str,
    version: u32,
    /// The name of [`Cut::Gpt2`].
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<&'static str>,
    #[serde(serialize_with = "pairs")]
    merges: &'a [Merge],
}

fn pairs<S: Serializer>(merges: &&[Merge], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(merges.iter().map(|merge| [merge.left, merge.right]))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Loaded {
    #[serde(rename = "type")]
    _type: String,
    #[serde(rename = "version")]
    _version: u32,
    merges: Vec<[u32; 2]>,
}

impl BpeTokenizer {
    /// Trains on the first [`SAMPLE_BYTES`] of `documents`, for a vocabulary of at most `cap` ids.
    ///
    /// # Errors
    /// [`TokenizerError::CapTooSmall`], [`TokenizerError::CapTooLarge`], [`TokenizerError::NoWords`],
    /// [`TokenizerError::Document`].
    pub fn build(cap: u32, documents: &mut Documents<'_>) -> Result<Self, TokenizerError> {
        if cap < BYTE_IDS {
            return Err(TokenizerError::CapTooSmall { kind: "bpe".to_owned(), asked: cap, least: BYTE_IDS });
        }
        if cap > MOST_TOKENS {
            return Err(TokenizerError::CapTooLarge { kind: "bpe", asked: cap, most: MOST_TOKENS });
        }
        let sample = Sample::read(documents, SAMPLE_BYTES)?;
        if sample.is_empty() {
            return Err(TokenizerError::NoWords("bpe"));
        }
        let merges = train(&sample, cap);
        drop(sample);
        Ok(Self::new(Cut::Gpt2, &merges).expect("training gives merges of known ids, each once"))
    }

    /// The tokenizer with the merges `pairs`, in the order of their ranks, on pieces of text from `cut`.
    fn new(cut: Cut, pairs: &[[u32; 2]]) -> Result<Self, String> {
        if pairs.len() > MOST_TOKENS as usize {
            return Err(format!("it has {} merges, at most {MOST_TOKENS} are allowed", pairs.len()));
        }
        let bytes = std::array::from_fn(|b| byte::FIRST_BYTE + b as u32);
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|b| vec![b]).collect();
        let mut ids: HashMap<Vec<u8>, u32> = HashMap::new();
        let mut merges = Vec::with_capacity(pairs.len());
        for (rank, &[left, right]) in pairs.iter().enumerate() {
            let part = |id: u32| {
                let token = id.checked_sub(byte::FIRST_BYTE).and_then(|i| tokens.get(i as usize));
                token.ok_or_else(|| format!("merge {rank} joins id {id}, which no earlier merge made"))
            };
            let joined = [part(left)?.as_slice(), part(right)?].concat();
            if joined.len() > LONGEST_TOKEN {
                return Err(format!("merge {rank} makes a token of over {LONGEST_TOKEN} bytes"));
            }
            let next = byte::FIRST_BYTE + tokens.len() as u32;
            let id = *ids.entry(joined.clone()).or_insert(next);
            if id == next {
                tokens.push(joined);
            }
            merges.push(Merge { left, right, id });
        }
        let mut index = vec![0; index_len(merges.len())];
        Encoder::new(&bytes, &merges, &mut index).map_err(|error| error.to_string())?;
        let ends = tokens.iter().scan(0, |end, token| {
            *end += token.len() as u32;
            Some(*end)
        });
        let search = Search::new(&bytes, &merges);
        Ok(Self { cut, bytes, merges, index, search, ends: ends.collect(), text: tokens.concat() })
    }

    /// The tokenizer of a file that this program wrote, for text divided by `cut`.
    pub(super) fn parse(content: &str, cut: Cut) -> Result<Self, Refusal> {
        let (tokens, merges) = own_file::read(content)?;
        let tokenizer = Self::new(cut, &merges).map_err(Refusal::Damaged)?;
        own_file::check_names(&tokens, &|id| tokenizer.bytes(id))?;
        Ok(tokenizer)
    }

    /// The tokenizer of a file of the first version.
    pub(super) fn parse_first(content: &str) -> Result<Self, Refusal> {
        let loaded: Loaded = serde_json::from_str(content).map_err(Refusal::damaged)?;
        Self::new(Cut::Runs, &loaded.merges).map_err(Refusal::Damaged)
    }

    /// The encoder, for other formats.
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder::from_parts(&self.bytes, &self.merges, &self.index).expect("new() filled the index")
    }

    /// The merges in the order of their ranks, for other formats.
    pub fn merges(&self) -> &[Merge] {
        &self.merges
    }

    /// The bytes of a token; `None` for special ids and ids outside the vocabulary.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        let i = id.checked_sub(byte::FIRST_BYTE)? as usize;
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        Some(&self.text[start..end])
    }
}

impl Tokenizer for BpeTokenizer {
    fn vocab_size(&self) -> u32 {
        byte::FIRST_BYTE + self.ends.len() as u32
    }

    fn bos(&self) -> Option<u32> {
        Some(BOS)
    }

    fn eos(&self) -> Option<u32> {
        Some(EOS)
    }

    fn restores_bytes(&self) -> bool {
        true
    }

    fn tables(&self) -> Option<Tables<'_>> {
        let Self { cut, merges, index, ends, text, .. } = self;
        Some(Tables::Pieces { cut: *cut, merges, index, ends, text })
    }

    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        if let Some(search) = &self.search {
            let mut scratch = Scratch::default();
            self.cut.pieces(text).for_each(|piece| search.encode(piece.as_bytes(), &mut scratch, ids));
            return Ok(());
        }
        let encoder = self.encoder();
        let mut scratch = Vec::new();
        for piece in self.cut.pieces(text) {
            if scratch.len() < piece.len() {
                scratch.resize(piece.len(), Node::EMPTY);
            }
            ids.extend(encoder.encode(piece.as_bytes(), &mut scratch).expect("a node a byte"));
        }
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().filter_map(|&id| self.bytes(id)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn token(&self, id: u32) -> Option<String> {
        if let Some(special) = SPECIALS.get(id as usize) {
            return Some((*special).to_owned());
        }
        let bytes = self.bytes(id)?;
        Some(std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned))
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        write_bytes(out, "bpe", self.cut, &self.merges, &|id| self.bytes(id))
    }

    fn write_identity(&self, out: &mut dyn Write) -> io::Result<()> {
        let cut = (self.cut == Cut::Gpt2).then_some("gpt2");
        let identity = Identity { r#type: "bpe", version: FIRST_VERSION, cut, merges: &self.merges };
        Ok(serde_json::to_writer(out, &identity)?)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;
    use std::sync::LazyLock;

    use capful_core::random::{Random, stream};
    use proptest::prelude::*;
    use tokenizers::models::bpe::{BPE, BpeTrainer};
    use tokenizers::{Model, Trainer};

    use super::*;

    /// Words of a few syllables, mixed with capitals, numbers and signs; early syllables are more frequent.
    pub fn text(words: u64) -> String {
        let random = Random::new(5, stream("words"));
        let syllables = ["ka", "to", "ri", "ne", "su", "mi", "lo", "bé", "shu", "x", "grad", "ion"];
        let mut text = String::new();
        for i in 0..words {
            let n = 1 + random.below(8 * i, 4);
            for s in 0..n {
                let u = random.uniform(8 * i + 1 + s);
                text.push_str(syllables[(u * u * syllables.len() as f64) as usize]);
            }
            text.push_str([" ", " ", " ", ", ", ".\n", " 17 ", " T"][random.below(8 * i + 7, 7) as usize]);
        }
        text
    }

    pub static TRAINED: LazyLock<BpeTokenizer> = LazyLock::new(|| build(&[&text(4000)], 700));

    /// The same merges in a tokenizer of earlier versions.
    pub static RUNS: LazyLock<BpeTokenizer> = LazyLock::new(|| {
        let merges: Vec<_> = TRAINED.merges().iter().map(|merge| [merge.left, merge.right]).collect();
        BpeTokenizer::new(Cut::Runs, &merges).unwrap()
    });

    pub fn build(texts: &[&str], cap: u32) -> BpeTokenizer {
        BpeTokenizer::build(cap, &mut texts.iter().map(|text| Ok((*text).to_owned()))).unwrap()
    }

    pub fn encode(tokenizer: &dyn Tokenizer, text: &str) -> Vec<u32> {
        let mut ids = vec![];
        tokenizer.encode(text, &mut ids).unwrap();
        ids
    }

    /// Bytes as characters, for a library with a model of characters.
    fn as_characters(bytes: &[u8]) -> String {
        bytes.iter().map(|&b| char::from_u32(0x100 + u32::from(b)).unwrap()).collect()
    }

    fn as_bytes(characters: &str) -> Vec<u8> {
        characters.chars().map(|c| (c as u32 - 0x100) as u8).collect()
    }

    fn library_model(tokenizer: &BpeTokenizer) -> BPE {
        let name = |id: u32| as_characters(tokenizer.bytes(id).unwrap());
        let vocabulary: HashMap<String, u32> = (4..tokenizer.vocab_size()).map(|id| (name(id), id)).collect();
        let merges: Vec<_> = tokenizer.merges().iter().map(|merge| [name(merge.left), name(merge.right)]).collect();
        let file = serde_json::json!({"type": "BPE", "vocab": vocabulary, "merges": merges});
        serde_json::from_str(&file.to_string()).unwrap()
    }

    #[test]
    fn training_gives_the_library_s_merges() {
        let ours = &*TRAINED;
        // The library's order is undefined when two merges make the same token; this text has no such merges.
        let ids: HashSet<u32> = ours.merges().iter().map(|merge| merge.id).collect();
        assert_eq!((ids.len(), ours.merges().len()), (440, 440));

        let mut trainer = BpeTrainer::builder()
            .show_progress(false)
            .min_frequency(2)
            .vocab_size(700 - 4)
            .initial_alphabet((0x100..0x200).filter_map(char::from_u32).collect())
            .build();
        let text = text(4000);
        trainer
            .feed([text.as_str()].into_iter(), |text| {
                Ok(Cut::Gpt2.pieces(text).map(|p| as_characters(p.as_bytes())).collect())
            })
            .unwrap();
        let mut model = BPE::default();
        trainer.train(&mut model).unwrap();
        // The library shows its merges only in its serialised form.
        let merges = serde_json::to_value(&model).unwrap()["merges"].clone();
        let merges: Vec<[String; 2]> = serde_json::from_value(merges).unwrap();
        let ours: Vec<[&[u8]; 2]> =
            ours.merges().iter().map(|m| [m.left, m.right].map(|id| ours.bytes(id).unwrap())).collect();
        assert_eq!(ours, merges.iter().map(|pair| pair.each_ref().map(|part| as_bytes(part))).collect::<Vec<_>>());
    }

    #[test]
    fn the_order_of_documents_and_the_run_change_nothing() {
        let (a, b) = (text(300), "Ein anderer Text, 2024.\n".repeat(3));
        let first = build(&[&a, &b], 400);
        assert_eq!(first.merges(), build(&[&a, &b], 400).merges());
        assert_eq!(first.merges(), build(&[&b, &a], 400).merges());
        assert_eq!(first.fingerprint(), build(&[&b, &a], 400).fingerprint());
        assert_ne!(first.fingerprint(), build(&[&a], 400).fingerprint());
    }

    #[test]
    fn ids_are_specials_then_bytes_then_merges() {
        let tokenizer = build(&["the the the"], 263);
        let shown: Vec<String> =
            [1, 4, 4 + b'a' as u32, 259, 260, 261, 262].into_iter().map(|id| tokenizer.token(id).unwrap()).collect();
        // " t", "he" and "th" occur 2, 3, 3 times: by count, then by the first letter's id.
        assert_eq!(shown, ["<unk>", "\0", "a", "\\xff", "he", "the", " the"]);
        assert_eq!((tokenizer.vocab_size(), tokenizer.token(263)), (263, None));
    }

    #[test]
    fn a_cap_below_the_bytes_is_refused() {
        let error = BpeTokenizer::build(259, &mut [Ok("a".to_owned())].into_iter()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a vocabulary of 259 is too small for the tokenizer `bpe`: it needs at least 260"
        );
        let error = BpeTokenizer::build(1 << 21, &mut [Ok("a".to_owned())].into_iter()).unwrap_err();
        assert!(error.to_string().contains("at most 1048576"));
        let error = BpeTokenizer::build(300, &mut [].into_iter()).unwrap_err();
        assert!(matches!(error, TokenizerError::NoWords("bpe")));
    }

    #[test]
    fn merges_that_cannot_be_are_refused() {
        for (merges, expected) in [
            (vec![[4, 260]], "merge 0 joins id 260, which no earlier merge made"),
            (vec![[2, 4]], "merge 0 joins id 2, which no earlier merge made"),
            (vec![[4, 5], [4, 5]], "merge 1 joins the same pair as an earlier one"),
            (
                (0..9).map(|k| [if k == 0 { 4 } else { 259 + k }; 2]).collect(),
                "merge 8 makes a token of over 256 bytes",
            ),
        ] {
            assert_eq!(BpeTokenizer::new(Cut::Gpt2, &merges).unwrap_err(), expected);
        }
    }

    #[test]
    fn two_ways_to_one_token_share_its_id() {
        let [a, b, c] = [b'a', b'b', b'c'].map(|byte| 4 + u32::from(byte));
        let tokenizer = BpeTokenizer::new(Cut::Gpt2, &[[a, b], [260, c], [b, c], [a, 262]]).unwrap();
        assert_eq!(tokenizer.merges().iter().map(|m| m.id).collect::<Vec<_>>(), [260, 261, 262, 261]);
        assert_eq!(tokenizer.vocab_size(), 263);
        assert_eq!(tokenizer.decode(&encode(&tokenizer, "abc bca")), "abc bca");
    }

    proptest! {
        #[test]
        fn encoding_gives_the_library_s_ids(start in 0usize..3000, len in 0usize..40, noise in "\\PC{0,12}") {
            static MODEL: LazyLock<BPE> = LazyLock::new(|| library_model(&TRAINED));
            let text: String = text(500).chars().skip(start).take(len).collect::<String>() + &noise;
            let mut expected = vec![];
            for piece in Cut::Gpt2.pieces(&text) {
                expected.extend(MODEL.tokenize(&as_characters(piece.as_bytes())).unwrap().iter().map(|token| token.id));
            }
            prop_assert_eq!(encode(&*TRAINED, &text), expected);
        }

        #[test]
        fn any_text_comes_back(text in "([a-z ]{0,9}|\\PC|[\n\t\0])*") {
            let mut ids = vec![BOS];
            TRAINED.encode(&text, &mut ids).unwrap();
            ids.push(EOS);
            prop_assert_eq!(TRAINED.decode(&ids), text);
        }

        #[test]
        fn any_ids_decode(ids in prop::collection::vec(0u32..800, 0..40)) {
            TRAINED.decode(&ids);
        }
    }
}
