//! Converts text to token ids and back.
//!
//! - [`word`]: the capped vocabulary, split at white space
//! - [`byte`]: the 256 bytes
//! - [`bpe`]: byte-level BPE trained under a cap ([`train`]) on a [`sample`] of the documents, in pieces of text
//!   ([`capful_core::vocab::pieces`], cut as GPT-2 does)
//! - [`hugging_face`]: any `tokenizer.json` of the `tokenizers` library
//! - `byte_level`: such files whose byte-level BPE this program encodes itself, with text cut by known patterns
//!   (`splits`, on the `classes` of characters)
//! - `own_file`: the file format of the first three
//! - `expansion`: a bound on the text that such a file may make of one byte
//! - `patterns`: which patterns of such a file mean the same here as in Python
//! - `lossless`: which of these tokenizers restore every byte
//! - `marks`: the tokens that begin and end a document in such a file
//! - `kept`: a tokenizer together with the files next to it
//! - [`streamed`]: the text of ids that arrive one by one
//! - [`template`]: the templates that write conversations as text, for other programs
//! - `search`: the encoder of pieces for `bpe` and `byte_level`, on a trie of tokens (`prefixes`)
//!
//! [`build()`] builds a tokenizer from documents, [`load()`] reads one that was saved with a checkpoint.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use capful_core::vocab::{FINGERPRINT, fingerprint};

use capful_base::disk;

pub mod bpe;
pub mod build;
pub mod byte;
mod byte_level;
mod classes;
pub mod error;
mod expansion;
pub mod hugging_face;
mod kept;
pub mod load;
mod lossless;
mod marks;
mod own_file;
mod patterns;
mod prefixes;
pub mod sample;
mod search;
pub mod splits;
pub mod streamed;
mod tables;
pub mod template;
pub mod train;
pub mod word;

pub use build::{Built, DocumentError, build, training_bytes};
pub use capful_core::vocab::BYTE_IDS as BYTES;
pub use error::{EncodeError, TokenizerError};
pub use load::{FILE_NAME, load, load_file};
pub use marks::{MAP_FILE_NAME, TEMPLATE_FILE_NAME};
pub use tables::Tables;

/// The file next to [`FILE_NAME`] that names the tokenizer's class and marks.
pub const CLASS_FILE_NAME: &str = "tokenizer_config.json";

/// Every file in which a tokenizer may be saved.
pub const FILES: [&str; 4] = [FILE_NAME, CLASS_FILE_NAME, MAP_FILE_NAME, TEMPLATE_FILE_NAME];

/// Text to token ids and back. Shared by the reader thread and the commands.
pub trait Tokenizer: Send + Sync {
    /// Number of ids, special ones included; every id is below it.
    fn vocab_size(&self) -> u32;

    /// The id that begins a document, where the tokenizer has one.
    fn bos(&self) -> Option<u32>;

    /// The id that ends a document, where the tokenizer has one.
    fn eos(&self) -> Option<u32>;

    /// The id for words outside the vocabulary, where the tokenizer has one.
    fn unk(&self) -> Option<u32> {
        None
    }

    /// Whether the ids determine every byte of their text, so that a loss per token can be converted to a loss per
    /// byte. `false` where that is uncertain.
    fn restores_bytes(&self) -> bool {
        false
    }

    /// The tables of this program's own tokenizers, for a chip.
    fn tables(&self) -> Option<Tables<'_>> {
        None
    }

    /// Appends the ids of `text` to `ids`, without adding document marks.
    ///
    /// # Errors
    /// [`EncodeError`], for tokenizers of other programs.
    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError>;

    /// Encodes as [`Tokenizer::encode`] the rest of a document that was cut before a space: a prefix of whole documents
    /// is not added to the rest.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    fn encode_rest(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        self.encode(text, ids)
    }

    /// The text of `ids`; special ids give no text, invalid UTF-8 is replaced. (`<unk>` of a word tokenizer gives its
    /// own name: it replaces a word.)
    fn decode(&self, ids: &[u32]) -> String;

    /// Whether `id` gives no text and does not affect the text of other ids.
    fn silent(&self, id: u32) -> bool {
        self.decode(&[id]).is_empty()
    }

    /// How many of the last ids have a text that the next ids may change. The bytes of an incomplete character do not
    /// count.
    fn unsettled(&self, ids: &[u32]) -> usize {
        let _ = ids;
        0
    }

    /// The name of one id for people, special ids included; `None` for ids outside the vocabulary.
    fn token(&self, id: u32) -> Option<String> {
        (id < self.vocab_size()).then(|| self.decode(&[id]))
    }

    /// Writes everything that [`load()`] needs to make the same tokenizer again, as a file that the `tokenizers`
    /// library can load. Its allocations do not grow with the vocabulary.
    ///
    /// # Errors
    /// Errors of `out`; [`io::ErrorKind::Unsupported`] for a tokenizer that is never saved.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let _ = out;
        Err(io::Error::new(io::ErrorKind::Unsupported, "this tokenizer cannot be saved"))
    }

    /// The content of [`CLASS_FILE_NAME`]. Without that file, `transformers` uses the class and the marks that are
    /// usual in a model's family.
    fn config(&self) -> Cow<'_, str> {
        let name = |id: Option<u32>| id.and_then(|id| self.token(id));
        let config = serde_json::json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": name(self.bos()),
            "eos_token": name(self.eos()),
            "clean_up_tokenization_spaces": false,
        });
        Cow::Owned(format!("{config:#}\n"))
    }

    /// Other files that other programs store next to it, with their text.
    fn beside(&self) -> Vec<(&'static str, Cow<'_, str>)> {
        Vec::new()
    }

    /// Saves the tokenizer in the existing directory `dir`, as [`FILE_NAME`], [`CLASS_FILE_NAME`] for `transformers`,
    /// and the files of [`Tokenizer::beside`], and syncs all files.
    ///
    /// # Errors
    /// [`TokenizerError::Write`].
    fn save(&self, dir: &Path) -> Result<(), TokenizerError> {
        let config = self.config();
        write_file(dir.join(FILE_NAME), &mut |file| {
            let mut out = BufWriter::new(file);
            self.write(&mut out)?;
            out.flush()
        })?;
        for (name, text) in [(CLASS_FILE_NAME, config)].into_iter().chain(self.beside()) {
            write_file(dir.join(name), &mut |file| file.write_all(text.as_bytes()))?;
        }
        Ok(())
    }

    /// Writes the data that identifies the tokenizer. Runs and caches store its hash: it never changes, whatever the
    /// files look like.
    ///
    /// # Errors
    /// As [`Tokenizer::write`].
    fn write_identity(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out)
    }

    /// 64 bits of the identity: different for another vocabulary, equal for the same one loaded again.
    fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint(FINGERPRINT);
        // Hashing cannot fail, and a tokenizer that is never saved is never compared.
        let _ = self.write_identity(&mut hash);
        hash.0
    }
}

/// `tokenizer` with this template for conversations, which is saved next to it.
pub fn with_template(tokenizer: Arc<dyn Tokenizer>, template: &str) -> Arc<dyn Tokenizer> {
    kept::Kept::with_template(tokenizer, template)
}

/// Writes a file that receives its final name when it is complete.
fn write_file(path: PathBuf, write: &mut dyn FnMut(&mut File) -> io::Result<()>) -> Result<(), TokenizerError> {
    let temporary = disk::temporary(&path);
    let written = File::create(&temporary).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    });
    written.inspect_err(|_| drop(fs::remove_file(&temporary))).map_err(|source| TokenizerError::Write { path, source })
}

struct Fingerprint(u64);

impl Write for Fingerprint {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = fingerprint(self.0, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
