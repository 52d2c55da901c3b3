//! Returns the documents of a set of shards one by one, as they came from the source.

use std::sync::Arc;

use super::super::error::SourceError;
use super::super::source::{Document, Documents, SourcePosition, TokenKind};
use super::Shards;

/// Returns a set's documents as ids, with the known properties of their text.
pub struct ShardDocuments {
    shards: Arc<Shards>,
    shard: usize,
    document: u64,
    /// Offset of the next document in its shard.
    at: u64,
    bytes: Vec<u8>,
}

impl ShardDocuments {
    /// The documents from the beginning.
    pub fn new(shards: Arc<Shards>) -> Self {
        Self { shards, shard: 0, document: 0, at: 0, bytes: Vec::new() }
    }
}

impl Documents for ShardDocuments {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        document.clear();
        loop {
            let Some(shard) = self.shards.shards.get(self.shard) else { return Ok(false) };
            if self.document == shard.contents().documents {
                (self.shard, self.document, self.at) = (self.shard + 1, 0, 0);
                continue;
            }
            let TokenKind { vocab, bos, eos, .. } = self.shards.manifest.kind();
            let mut end = [0];
            shard.ends(self.document, &mut end)?;
            document.ids.resize((end[0].saturating_sub(self.at)) as usize, 0);
            shard.ids(self.at, &mut document.ids, &mut self.bytes, vocab)?;
            document.content = Some(shard.content(self.document)?);
            if document.is_conversation() {
                // The ids of a conversation include its marks.
                (self.document, self.at) = (self.document + 1, end[0]);
                return Ok(true);
            }
            // The encoder adds the marks again.
            if eos.is_some() && document.ids.last().copied() == eos {
                document.ids.pop();
            }
            if bos.is_some() && document.ids.first().copied() == bos {
                document.ids.remove(0);
            }
            (self.document, self.at) = (self.document + 1, end[0]);
            if !document.ids.is_empty() {
                return Ok(true);
            }
        }
    }

    fn place(&self) -> SourcePosition {
        SourcePosition { file: self.shard as u32, offset: self.at, document: self.document, given: 0 }
    }

    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError> {
        (self.shard, self.at, self.document) = (place.file as usize, place.offset, place.document);
        Ok(())
    }

    fn name(&self) -> &str {
        &self.shards.name
    }

    fn fingerprint(&self) -> u64 {
        self.shards.manifest.origin.key()
    }

    fn tokens(&self) -> Option<TokenKind> {
        Some(self.shards.manifest.kind())
    }

    fn has_text(&self) -> bool {
        false
    }

    fn template(&self) -> Option<u64> {
        self.shards.manifest.template()
    }
}
