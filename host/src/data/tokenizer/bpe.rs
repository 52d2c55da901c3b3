//! Byte-level BPE, trained under a cap: 4 special ids, the 256 bytes, then what was merged.

use std::collections::HashMap;
use std::io::{self, Write};

use capful_core::vocab::bpe::{Encoder, Merge, Node};
use capful_core::vocab::{BOS, EOS, SPECIALS, index_len};
use serde::{Deserialize, Serialize, Serializer};

use super::build::Documents;
use super::error::Refusal;
use super::load::VERSION;
use super::pieces::pieces;
use super::train::{LONGEST_TOKEN, SAMPLE_BYTES, count_pieces, train};
use super::{Tokenizer, TokenizerError, byte};

/// The largest cap.
pub const MOST_TOKENS: u32 = 1 << 20;

/// Byte-level BPE on pieces of text. Any text comes back as it was; nothing is unknown.
#[derive(Debug, Clone)]
pub struct BpeTokenizer {
    bytes: [u32; 256],
    merges: Vec<Merge>,
    index: Vec<u32>,
    /// The bytes of every token from id 4 on, back to back.
    text: Vec<u8>,
    /// Where each of them ends. `[vocab_size - 4]`
    ends: Vec<u32>,
}

#[derive(Serialize)]
struct Saved<'a> {
    r#type: &'static str,
    version: u32,
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
        if cap < byte::SIZE {
            return Err(TokenizerError::CapTooSmall { kind: "bpe".to_owned(), asked: cap, least: byte::SIZE });
        }
        if cap > MOST_TOKENS {
            return Err(TokenizerError::CapTooLarge { kind: "bpe", asked: cap, most: MOST_TOKENS });
        }
        let pieces = count_pieces(documents, SAMPLE_BYTES)?;
        if pieces.is_empty() {
            return Err(TokenizerError::NoWords("bpe"));
        }
        Ok(Self::new(&train(&pieces, cap)).expect("training gives merges of known ids, each once"))
    }

    /// The tokenizer of the merges `pairs`, in the order of their ranks.
    fn new(pairs: &[[u32; 2]]) -> Result<Self, String> {
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
        Ok(Self { bytes, merges, index, ends: ends.collect(), text: tokens.concat() })
    }

    pub(super) fn parse(content: &str) -> Result<Self, Refusal> {
        let loaded: Loaded = serde_json::from_str(content).map_err(Refusal::damaged)?;
        Self::new(&loaded.merges).map_err(Refusal::Damaged)
    }

    /// The encoder, for other formats.
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder::from_parts(&self.bytes, &self.merges, &self.index).expect("new() filled the index")
    }

    /// The merges in the order of their ranks, for other formats.
    pub fn merges(&self) -> &[Merge] {
        &self.merges
    }

    /// The bytes of a token; nothing for special ids and ids outside.
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

    fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let encoder = self.encoder();
        let mut scratch = Vec::new();
        for piece in pieces(text) {
            if scratch.len() < piece.len() {
                scratch.resize(piece.len(), Node::EMPTY);
            }
            ids.extend(encoder.encode(piece.as_bytes(), &mut scratch).expect("a node a byte"));
        }
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
        Ok(serde_json::to_writer(out, &Saved { r#type: "bpe", version: VERSION, merges: &self.merges })?)
    }
}
