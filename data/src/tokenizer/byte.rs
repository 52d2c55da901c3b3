//! The byte tokenizer: 4 special ids, then byte b as id 4 + b.

use std::io::{self, Write};

use capful_core::vocab::pieces::Cut;
use capful_core::vocab::{BOS, BYTE_IDS, BYTES, EOS, SPECIALS};
use serde::Serialize;

use super::error::Refusal;
use super::load::FIRST_VERSION;
use super::own_file::{self, write_bytes};
use super::{EncodeError, Tables, Tokenizer};

/// The id of byte 0.
pub(super) const FIRST_BYTE: u32 = SPECIALS.len() as u32;

/// Every byte of UTF-8 is a token. 260 ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteTokenizer;

#[derive(Serialize)]
struct Identity {
    r#type: &'static str,
    version: u32,
}

impl ByteTokenizer {
    /// The tokenizer of a file that this program wrote; its tokens are checked and dropped.
    pub(super) fn parse(content: &str) -> Result<Self, Refusal> {
        let (tokens, _) = own_file::read(content)?;
        own_file::check_names(&tokens, &Self::bytes)?;
        Ok(Self)
    }

    /// The byte of an id; `None` for special ids and ids outside the vocabulary.
    fn bytes(id: u32) -> Option<&'static [u8]> {
        let byte = id.checked_sub(FIRST_BYTE)? as usize;
        BYTES.get(byte..=byte)
    }
}

impl Tokenizer for ByteTokenizer {
    fn vocab_size(&self) -> u32 {
        BYTE_IDS
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
        Some(Tables::Bytes)
    }

    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        ids.extend(text.bytes().map(|byte| FIRST_BYTE + u32::from(byte)));
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> String {
        let byte = |id: u32| id.checked_sub(FIRST_BYTE).and_then(|byte| u8::try_from(byte).ok());
        let bytes: Vec<u8> = ids.iter().filter_map(|&id| byte(id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn token(&self, id: u32) -> Option<String> {
        if let Some(special) = SPECIALS.get(id as usize) {
            return Some((*special).to_owned());
        }
        u8::try_from(id - FIRST_BYTE).ok().map(|byte| byte.escape_ascii().to_string())
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        write_bytes(out, "byte", Cut::Runs, &[], &Self::bytes)
    }

    fn write_identity(&self, out: &mut dyn Write) -> io::Result<()> {
        Ok(serde_json::to_writer(out, &Identity { r#type: "byte", version: FIRST_VERSION })?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_comes_back(text in "\\PC{0,40}[\\n\\t\0 ]{0,3}\\PC{0,5}") {
            let mut ids = vec![BOS];
            ByteTokenizer.encode(&text, &mut ids).unwrap();
            prop_assert_eq!(ids.len(), text.len() + 1);
            ids.push(EOS);
            prop_assert_eq!(ByteTokenizer.decode(&ids), text);
        }

        #[test]
        fn any_ids_decode(ids in prop::collection::vec(0u32..600, 0..40)) {
            ByteTokenizer.decode(&ids);
        }
    }

    #[test]
    fn bytes_stand_after_the_specials() {
        let mut ids = vec![];
        ByteTokenizer.encode("Aé\0", &mut ids).unwrap();
        assert_eq!(ids, [4 + 0x41, 4 + 0xc3, 4 + 0xa9, 4]);
        // Half a letter is replaced; an id outside and a special id give no text.
        assert_eq!(ByteTokenizer.decode(&[4 + 0xc3, 260, 2, 4 + 0x41]), "\u{fffd}A");
        let shown: Vec<_> = [0, 3, 4 + 10, 259, 260].iter().map(|&id| ByteTokenizer.token(id)).collect();
        assert_eq!(
            shown,
            ["<pad>", "<eos>", "\\n", "\\xff"]
                .map(|s| Some(s.to_owned()))
                .into_iter()
                .chain([None])
                .collect::<Vec<_>>()
        );
    }
}
