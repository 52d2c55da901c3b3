//! Describes a text by its first megabytes: the lengths of its documents, its characters, how much it repeats itself.

use std::collections::HashSet;

use super::dedup::{RUN, each_run};
use super::error::SourceError;
use super::source::{Document, Documents};

/// Bytes that are examined.
pub const LOOKED_AT: u64 = 8 << 20;

/// Statistics of a text.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Portrait {
    /// Documents that were examined.
    pub documents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their characters: Latin letters without accents, other letters, digits, white space, all others.
    pub characters: [u64; 5],
    /// Runs of eight words, and how many of them repeat an earlier run.
    pub runs: u64,
    /// See [`Portrait::runs`].
    pub repeated: u64,
}

impl Portrait {
    /// The statistics of the first [`LOOKED_AT`] bytes of `documents`.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub fn of(documents: &mut dyn Documents) -> Result<Portrait, SourceError> {
        let (mut portrait, mut document) = (Portrait::default(), Document::default());
        let mut seen = HashSet::new();
        while portrait.bytes < LOOKED_AT && documents.next(&mut document)? {
            portrait.documents += 1;
            portrait.bytes += document.text.len() as u64;
            document.text.chars().for_each(|c| portrait.characters[class(c)] += 1);
            each_run(&document.text, |run| {
                portrait.runs += 1;
                portrait.repeated += u64::from(!seen.insert(run));
            });
        }
        Ok(portrait)
    }

    /// The statistics in a line for people.
    pub fn line(&self) -> String {
        let all = self.characters.iter().sum::<u64>().max(1);
        let percent = |part: u64, of: u64| format!("{:.0} %", 100.0 * part as f64 / of.max(1) as f64);
        let [latin, letters, digits, white, others] = self.characters.map(|count| percent(count, all));
        format!(
            "documents of {} bytes in the mean; characters: {latin} a to z, {letters} other letters, {digits} digits, {white} \
             white space, {others} others; {} of its runs of {RUN} words stand in it before",
            self.bytes / self.documents.max(1),
            percent(self.repeated, self.runs)
        )
    }
}

/// The class of a character, an index into [`Portrait::characters`].
fn class(c: char) -> usize {
    match c {
        'a'..='z' | 'A'..='Z' => 0,
        c if c.is_alphabetic() => 1,
        c if c.is_numeric() => 2,
        c if c.is_whitespace() => 3,
        _ => 4,
    }
}
