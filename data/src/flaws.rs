//! Counts what in a source was not text, or was repaired; each finding is reported once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::SourceError;

/// Counts of one reading of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flaws {
    /// Lines, rows and elements whose text is null.
    pub nulls: u64,
    /// Halves of a pair of surrogates that became U+FFFD.
    pub surrogates: u64,
    /// Sequences of bytes that are not UTF-8 and became U+FFFD.
    pub invalid: u64,
    /// Answers of conversations that the chat template writes differently once later messages follow.
    pub rewritten: u64,
    /// Lines, records and elements that were skipped because they could not be read.
    pub bad: u64,
    /// Why the first of the skipped ones could not be read.
    pub first: Option<String>,
}

impl Flaws {
    /// Counts a document that could not be read as skipped, if `error` concerns a single document; otherwise returns
    /// the error.
    pub(super) fn skip(&mut self, error: SourceError) -> Result<(), SourceError> {
        if !error.is_of_one_document() {
            return Err(error);
        }
        self.bad += 1;
        self.first.get_or_insert_with(|| error.to_string());
        Ok(())
    }

    /// `bytes` as text, with U+FFFD in place of bytes that are not UTF-8.
    pub(super) fn replaced(&mut self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len() + bytes.len() / 8);
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                self.invalid += 1;
            }
        }
        text
    }

    /// The counts as a sentence, for people; `None` if all are 0.
    fn describe(&self) -> Option<String> {
        let some = |count: u64, one: &str, many: &str| {
            (count > 0).then(|| format!("{count} {}", if count == 1 { one } else { many }))
        };
        let first = self.first.as_deref().unwrap_or_default();
        let parts = [
            some(self.nulls, "text is null and was passed over", "texts are null and were passed over"),
            some(self.surrogates, "lone surrogate became U+FFFD", "lone surrogates became U+FFFD"),
            some(self.invalid, "invalid UTF-8 sequence became U+FFFD", "invalid UTF-8 sequences became U+FFFD"),
            some(
                self.rewritten,
                "answer is context alone, since the chat template writes it otherwise later",
                "answers are context alone, since the chat template writes them otherwise later",
            ),
            some(self.bad, "document cannot be read and was skipped", "documents cannot be read and were skipped")
                .map(|bad| format!("{bad}, the first: {first}")),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// How far a source was read from its beginning, and what was found up to there.
#[derive(Debug, Clone, Default)]
struct Seen {
    complete: bool,
    documents: u64,
    flaws: Flaws,
    /// The counts that were already reported.
    told: Flaws,
}

impl Seen {
    /// The line about the source `name`; `None` if nothing was found.
    fn line(&self, name: &str) -> Option<String> {
        let part = if self.complete { String::new() } else { format!(", first {} documents", self.documents) };
        Some(format!("{name}{part}: {}", self.flaws.describe()?))
    }
}

/// The findings of all readings of sources, shared by all readers.
#[derive(Debug, Clone, Default)]
pub struct Noticed(Arc<Mutex<BTreeMap<String, Seen>>>);

impl Noticed {
    /// Records that a reading of the source `name` returned `documents` from its beginning and found `flaws`. Only the
    /// record of the reading that went farthest is stored.
    pub(super) fn record(&self, name: &str, complete: bool, documents: u64, flaws: &Flaws) {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let farthest = sources.get(name).map(|seen| (seen.complete, seen.documents));
        if farthest.is_none_or(|farthest| farthest < (complete, documents)) {
            let told = sources.remove(name).map(|seen| seen.told).unwrap_or_default();
            sources.insert(name.to_owned(), Seen { complete, documents, flaws: flaws.clone(), told });
        }
    }

    /// A line for each source with findings.
    pub fn all(&self) -> Vec<String> {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().filter_map(|(name, seen)| seen.line(name)).collect()
    }

    /// A line for each source with findings that were not reported yet.
    pub fn news(&self) -> Vec<String> {
        let mut sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = sources.iter_mut().filter(|(_, seen)| seen.flaws != seen.told).filter_map(|(name, seen)| {
            seen.told = seen.flaws.clone();
            seen.line(name)
        });
        lines.collect()
    }
}
