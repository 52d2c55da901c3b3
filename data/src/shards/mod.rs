//! Text that is encoded once: a directory of token shards, which can be read at any offset.
//!
//! [`mod@file`] is one shard; [`build`] makes a set from a source; [`documents`] reads a set's documents one by one;
//! [`training`] is the sequence of tokens that a run trains on. A set is complete when its `shards.json` exists.

pub mod build;
pub mod documents;
pub mod file;
pub mod training;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::SourceError;
use super::source::{SourcePosition, TokenKind};
use capful_base::{digest, disk};
use file::{Shard, VERSION};

/// The file that describes a set. It is written last.
pub const MANIFEST: &str = "shards.json";
/// Sets of at most this many bytes are compared with their digests before use.
const VERIFIED: u64 = 4 << 30;
/// Documents whose table entries are read together.
const TOGETHER: usize = 1024;

/// What a set was made from: a different source or tokenizer makes a different set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The source's identity; see [`super::files::Files::identity`].
    pub source: u64,
    /// The tokenizer's fingerprint.
    pub tokenizer: u64,
}

impl Origin {
    /// One key for both.
    pub fn key(self) -> u64 {
        capful_core::random::Random::new(self.source, self.tokenizer).bits(u64::from(VERSION))
    }
}

/// The description of a set, as stored in its manifest file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    /// The source's name, for people.
    pub source: String,
    /// The source and the tokenizer that the set was made from.
    pub origin: Origin,
    /// Number of ids of the vocabulary.
    pub vocab: u32,
    /// The id that begins a document.
    pub bos: Option<u32>,
    /// The id that ends a document.
    pub eos: Option<u32>,
    /// Number of shards.
    pub shards: u32,
    /// Number of documents, including those held out for validation.
    pub documents: u64,
    /// Their ids, marks included.
    pub tokens: u64,
    /// Bytes of their text; 0 where unknown.
    pub bytes: u64,
    /// The key of the chat template that wrote its conversations, in hexadecimal digits; `None` if it has no
    /// conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    /// XXH3-64 of all other fields; `None` in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
}

impl Manifest {
    /// Reads the manifest in `dir`; `None` if there is none.
    ///
    /// # Errors
    /// A manifest that cannot be read, does not parse or is of another version.
    pub fn read(dir: &Path) -> Result<Option<Self>, SourceError> {
        let path = dir.join(MANIFEST);
        let text = match capful_base::regular::read_at_most(&path, capful_base::regular::STATE) {
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            read => read.map_err(|e| SourceError::io(&path, e))?,
        };
        let damaged = |e: serde_json::Error| SourceError::Shard { path: path.clone(), reason: e.to_string() };
        let manifest: Self = serde_json::from_slice(&text).map_err(damaged)?;
        if manifest.version != VERSION {
            return Err(SourceError::ShardVersion { path, version: manifest.version, known: VERSION });
        }
        if manifest.digest.is_some() && manifest.digest != Some(manifest.digest().map_err(damaged)?) {
            let reason = "its content is not what was written".to_owned();
            return Err(SourceError::Shard { path, reason });
        }
        Ok(Some(manifest))
    }

    fn write(mut self, dir: &Path) -> std::io::Result<()> {
        self.digest = Some(self.digest()?);
        disk::replace(&dir.join(MANIFEST), &serde_json::to_vec_pretty(&self)?)?;
        disk::sync_dir(dir)
    }

    /// The digest of all other fields.
    fn digest(&self) -> serde_json::Result<String> {
        digest::of_json(&Self { digest: None, ..self.clone() })
    }

    /// The key of the chat template that wrote its conversations; `None` if it has no conversations.
    pub fn template(&self) -> Option<u64> {
        self.template.as_deref().and_then(|key| u64::from_str_radix(key, 16).ok())
    }

    /// The meaning of its ids.
    pub fn kind(&self) -> TokenKind {
        let Self { vocab, bos, eos, origin: Origin { tokenizer: fingerprint, .. }, .. } = *self;
        TokenKind { vocab, bos, eos, fingerprint }
    }
}

/// The path of shard `number` of a set.
fn shard_path(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("{number:05}.shard"))
}

/// Whether `dir` holds an incomplete set.
pub fn begun(dir: &Path) -> bool {
    let first = shard_path(dir, 0);
    first.exists() || first.with_extension("partial").exists()
}

/// A complete set, opened.
#[derive(Debug)]
pub struct Shards {
    name: String,
    manifest: Manifest,
    shards: Vec<Shard>,
}

impl Shards {
    /// Opens the set in `dir`; `None` if there is no complete set. The set must have been made from `wanted`, where
    /// that is given.
    ///
    /// # Errors
    /// A set of another source, tokenizer or version; a shard that is missing, cut short or of another set.
    pub fn open(dir: &Path, wanted: Option<Origin>) -> Result<Option<Self>, SourceError> {
        let Some(manifest) = Manifest::read(dir)? else { return Ok(None) };
        if let Some(wanted) = wanted.filter(|wanted| *wanted != manifest.origin) {
            let what = if wanted.source == manifest.origin.source { "tokenizer" } else { "source" };
            return Err(SourceError::ShardsOther { path: dir.to_owned(), what, from: manifest.source });
        }
        let shards = (0..manifest.shards as usize).map(|number| Shard::open(&shard_path(dir, number)));
        let shards = shards.collect::<Result<Vec<_>, _>>()?;
        let total = |of: fn(&file::Contents) -> u64| shards.iter().map(|s| of(s.contents())).sum::<u64>();
        let strangers = shards.iter().any(|s| s.contents().key != manifest.origin.key());
        if strangers || (total(|c| c.tokens), total(|c| c.documents)) != (manifest.tokens, manifest.documents) {
            let reason = "its shards are not those that it was written with".to_owned();
            return Err(SourceError::Shard { path: dir.join(MANIFEST), reason });
        }
        Ok(Some(Self { name: dir.display().to_string(), manifest, shards }))
    }

    /// The set's description.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Checks that the set's conversations, where it has some, were written by the template of this key.
    ///
    /// # Errors
    /// Conversations that another template wrote.
    pub fn written_by(self, template: u64) -> Result<Self, SourceError> {
        if self.manifest.template().is_some_and(|key| key != template) {
            let path = self.name.clone().into();
            return Err(SourceError::ShardsOther { path, what: "chat template", from: self.manifest.source });
        }
        Ok(self)
    }

    /// The set's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The set's shards, in order.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Reads the tables of all documents and calls `visit` with each document's place, its number of tokens (marks
    /// included) and the hash of its content.
    ///
    /// # Errors
    /// A shard that cannot be read, or whose tables are damaged.
    pub fn each_document(&self, mut visit: impl FnMut(SourcePosition, u64, u64)) -> Result<(), SourceError> {
        let (mut ends, mut hashes) = (vec![0; TOGETHER], vec![0; TOGETHER]);
        for (file, shard) in (0..).zip(&self.shards) {
            let (documents, mut offset) = (shard.contents().documents, 0);
            for first in (0..documents).step_by(TOGETHER) {
                let count = (documents - first).min(TOGETHER as u64) as usize;
                shard.ends(first, &mut ends[..count])?;
                shard.hashes(first, &mut hashes[..count])?;
                for (document, (&end, &hash)) in (first..documents).zip(ends.iter().zip(&hashes)).take(count) {
                    if end < offset || end > shard.contents().tokens {
                        let reason = "its documents' ends are out of order".to_owned();
                        return Err(SourceError::Shard { path: self.name.clone().into(), reason });
                    }
                    visit(SourcePosition { file, offset, document, given: 0 }, end - offset, hash);
                    offset = end;
                }
            }
        }
        Ok(())
    }

    /// How many documents are exact copies of an earlier one, and the number of their tokens. Takes 16 bytes a
    /// document.
    ///
    /// # Errors
    /// As [`Shards::each_document`].
    pub fn copies(&self) -> Result<(u64, u64), SourceError> {
        let mut all = Vec::with_capacity(self.manifest.documents as usize);
        self.each_document(|_, tokens, hash| all.push((hash, tokens)))?;
        all.sort_unstable();
        let copied = all.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        Ok(copied.fold((0, 0), |(count, tokens), pair| (count + 1, tokens + pair[1].1)))
    }

    /// Compares every shard with its digest, where the set is small enough that this takes little time.
    ///
    /// # Errors
    /// A shard that is damaged.
    pub fn verified(self) -> Result<Self, SourceError> {
        let bytes: u64 = self.shards.iter().map(|s| s.contents().tokens * s.contents().width).sum();
        if bytes <= VERIFIED {
            self.verify()?;
        }
        Ok(self)
    }

    /// Compares every shard with its digest.
    ///
    /// # Errors
    /// A shard that is damaged.
    pub fn verify(&self) -> Result<(), SourceError> {
        self.shards.iter().try_for_each(Shard::verify)
    }
}

#[cfg(test)]
mod tests;
