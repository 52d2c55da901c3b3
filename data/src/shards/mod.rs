//! Text that is encoded once: a directory of token shards, which are read at any place.
//!
//! [`mod@file`] is one shard; [`build`] makes a set from a source; [`documents`] gives a set's documents again, one by one;
//! [`training`] is the line of tokens that a run trains on. A set is complete when its `shards.json` is there.

pub mod build;
pub mod documents;
pub mod file;
pub mod training;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::SourceError;
use super::source::{Place, TokenKind};
use capful_base::{digest, disk};
use file::{Shard, VERSION};

/// The file that says what a set is. It is written last.
pub const MANIFEST: &str = "shards.json";
/// Sets of at most so many bytes are compared with their digests before they are used.
const VERIFIED: u64 = 4 << 30;
/// Documents whose entries in the tables are read together.
const TOGETHER: usize = 1024;

/// What a set was made from: another source or tokenizer makes another set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The source's identity; see [`super::files::Files::identity`].
    pub source: u64,
    /// The tokenizer's fingerprint.
    pub tokenizer: u64,
}

impl Origin {
    /// One number for both.
    pub fn key(self) -> u64 {
        capful_core::random::Random::new(self.source, self.tokenizer).bits(u64::from(VERSION))
    }
}

/// What a set is, as its file says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    /// The source's name, for people.
    pub source: String,
    /// What it was made from.
    pub origin: Origin,
    /// Number of ids of the vocabulary.
    pub vocab: u32,
    /// The id that begins a document.
    pub bos: Option<u32>,
    /// The id that ends one.
    pub eos: Option<u32>,
    /// Shards.
    pub shards: u32,
    /// Documents, those that are held out too.
    pub documents: u64,
    /// Their ids, marks included.
    pub tokens: u64,
    /// Bytes of their text; 0 where it is not known.
    pub bytes: u64,
    /// The key of the chat template that wrote its conversations, in hexadecimal digits; nothing where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    /// XXH3-64 of everything else, where the version that wrote it knew of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
}

impl Manifest {
    /// Reads that of `dir`; nothing where there is none.
    ///
    /// # Errors
    /// One that cannot be read, does not parse or is of another version.
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

    /// The digest of everything else.
    fn digest(&self) -> serde_json::Result<String> {
        digest::of_json(&Self { digest: None, ..self.clone() })
    }

    /// The key of the chat template that wrote its conversations; nothing where it has none.
    pub fn template(&self) -> Option<u64> {
        self.template.as_deref().and_then(|key| u64::from_str_radix(key, 16).ok())
    }

    /// What its ids mean.
    pub fn kind(&self) -> TokenKind {
        let Self { vocab, bos, eos, origin: Origin { tokenizer: fingerprint, .. }, .. } = *self;
        TokenKind { vocab, bos, eos, fingerprint }
    }
}

/// Where shard `number` of a set lies.
fn shard_path(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("{number:05}.shard"))
}

/// Whether `dir` holds a set that is not complete.
pub fn begun(dir: &Path) -> bool {
    let first = shard_path(dir, 0);
    first.exists() || first.with_extension("partial").exists()
}

/// A complete set, open.
#[derive(Debug)]
pub struct Shards {
    name: String,
    manifest: Manifest,
    shards: Vec<Shard>,
}

impl Shards {
    /// Opens the set in `dir`; nothing where there is none, or one that is not complete. What `wanted` names must be what
    /// it was made from.
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

    /// What it is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Checks that its conversations, where it has some, are written by the template of this key.
    ///
    /// # Errors
    /// They are not.
    pub fn written_by(self, template: u64) -> Result<Self, SourceError> {
        if self.manifest.template().is_some_and(|key| key != template) {
            let path = self.name.clone().into();
            return Err(SourceError::ShardsOther { path, what: "chat template", from: self.manifest.source });
        }
        Ok(self)
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its shards, in order.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Goes through the tables of all documents: where each begins, its tokens, marks included, and the hash of its
    /// content.
    ///
    /// # Errors
    /// A shard that cannot be read, or whose tables are damaged.
    pub fn each_document(&self, mut visit: impl FnMut(Place, u64, u64)) -> Result<(), SourceError> {
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
                    visit(Place { file, offset, document, given: 0 }, end - offset, hash);
                    offset = end;
                }
            }
        }
        Ok(())
    }

    /// How many documents are exact copies of an earlier one, and their tokens. Takes 16 bytes a document.
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

    /// Compares every shard with its digest, where the set is so small that it takes no time.
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
