//! The tales as a source of documents: endless, with free access to any tale.

use super::Tales;
use crate::error::SourceError;
use crate::source::{Document, Documents, SourcePosition};

/// The tales of one stream, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct TaleDocuments {
    tales: Tales,
    seed: u64,
    next: u64,
}

impl TaleDocuments {
    /// The tales to train on.
    pub const fn training(seed: u64) -> Self {
        Self { tales: Tales::training(seed), seed, next: 0 }
    }

    /// The tales to validate on.
    pub const fn validation(seed: u64) -> Self {
        Self { tales: Tales::validation(seed), seed, next: 0 }
    }
}

impl Documents for TaleDocuments {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        document.clear();
        document.log_probability = Some(self.tales.tale(self.next, &mut document.text));
        self.next += 1;
        Ok(true)
    }

    fn place(&self) -> SourcePosition {
        SourcePosition { offset: self.next, document: self.next, ..SourcePosition::default() }
    }

    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError> {
        self.next = place.offset;
        Ok(())
    }

    fn name(&self) -> &str {
        "tales"
    }

    fn fingerprint(&self) -> u64 {
        self.seed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_leads_back_to_its_tale() {
        let mut source = TaleDocuments::training(3);
        let mut document = Document::default();
        for _ in 0..5 {
            source.next(&mut document).unwrap();
        }
        let place = source.place();
        source.next(&mut document).unwrap();
        let mut again = TaleDocuments::training(3);
        again.seek(place).unwrap();
        let mut other = Document::default();
        again.next(&mut other).unwrap();
        assert_eq!((document.text, document.log_probability), (other.text, other.log_probability));
    }
}
