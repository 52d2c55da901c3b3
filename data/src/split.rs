//! Divides documents into training and validation.
//!
//! A document's side is a function of the seed and of its content: a document that occurs twice is on the same side
//! both times, and files may be renamed, joined or extended without any document changing sides.

use capful_core::random::{Random, stream};
use serde::{Deserialize, Serialize};

use super::error::SourceError;
use super::source::{Document, Documents};

/// The share of documents held out for validation by default.
pub const DEFAULT_FRACTION: f64 = 0.05;

/// How many documents at the beginning of a source are checked so that neither side is empty.
const LOOKED_AT: usize = 64;

/// One side of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Every document: no split.
    All,
    /// The documents to train on.
    Training,
    /// The documents to score.
    Validation,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::All => "this run",
            Self::Training => "training",
            Self::Validation => "validation",
        }
    }
}

/// A division of documents in two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    seed: u64,
    /// Documents whose hash is below this are for validation.
    threshold: u64,
}

impl Split {
    /// Holds out about `fraction` of the documents, at least 0 and below 1, for validation.
    pub fn new(seed: u64, fraction: f64) -> Result<Self, SourceError> {
        if !(0.0..1.0).contains(&fraction) {
            return Err(SourceError::Fraction { fraction });
        }
        Ok(Self { seed, threshold: (fraction * 2f64.powi(64)) as u64 })
    }

    /// A split for the documents of `source`; the source's position does not change.
    ///
    /// With a fraction above 0 neither side of a small source is empty: the document with the smallest hash among the
    /// first 64 is always for validation, and if the source has no more documents, the one with the largest hash is for
    /// training. A source that repeats a single document has no training side.
    pub fn over(source: &mut dyn Documents, seed: u64, fraction: f64) -> Result<Self, SourceError> {
        let mut split = Self::new(seed, fraction)?;
        if split.threshold == 0 {
            return Ok(split);
        }
        let place = source.place();
        source.seek(Default::default())?;
        let mut document = Document::default();
        let (mut least, mut most, mut ended) = (u64::MAX, 0, false);
        for _ in 0..LOOKED_AT {
            if !source.next(&mut document)? {
                ended = true;
                break;
            }
            let hash = split.rank(document.known().hash);
            (least, most) = (least.min(hash), most.max(hash));
        }
        source.seek(place)?;
        if ended && least < most {
            split.threshold = split.threshold.min(most);
        }
        if least <= most {
            split.threshold = split.threshold.max(least.saturating_add(1));
        }
        Ok(split)
    }

    /// Whether `document` belongs to `part`.
    pub fn holds(&self, part: Part, document: &Document) -> bool {
        part == Part::All || self.has(part, document.known().hash)
    }

    /// Whether a document with this content hash belongs to `part`.
    pub fn has(&self, part: Part, content: u64) -> bool {
        match part {
            Part::All => true,
            Part::Training => self.rank(content) >= self.threshold,
            Part::Validation => self.rank(content) < self.threshold,
        }
    }

    /// A hash of the seed and of a document's content hash: it puts all documents in a random order in which the
    /// validation documents come first.
    pub fn rank(&self, content: u64) -> u64 {
        Random::new(self.seed, content).bits(stream("split"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Numbered, text_document};
    use super::*;

    #[test]
    fn the_sides_are_disjoint_and_cover_and_have_the_asked_size() {
        let split = Split::new(3, 0.05).unwrap();
        let n = 20_000;
        let mut held = 0;
        for i in 0..n {
            let document = text_document(&format!("document {i}"));
            let sides = [Part::Training, Part::Validation].map(|part| split.holds(part, &document));
            assert!(sides[0] != sides[1]);
            assert!(split.holds(Part::All, &document));
            held += u32::from(sides[1]);
        }
        // Four standard deviations of a binomial count.
        let (mean, deviation) = (f64::from(n) * 0.05, (f64::from(n) * 0.05 * 0.95).sqrt());
        assert!((f64::from(held) - mean).abs() < 4.0 * deviation, "{held}");
    }

    #[test]
    fn another_seed_divides_otherwise() {
        let sides = |seed| {
            let split = Split::new(seed, 0.5).unwrap();
            (0..64).map(|i| split.holds(Part::Training, &text_document(&i.to_string()))).collect::<Vec<_>>()
        };
        assert_ne!(sides(1), sides(2));
        assert_eq!(sides(1), sides(1));
    }

    #[test]
    fn a_small_source_has_both_sides_whatever_the_seed() {
        for seed in 0..200 {
            for n in [2, 3, 10, 64, 65] {
                let mut source = Numbered::finite(n);
                let split = Split::over(&mut source, seed, 0.05).unwrap();
                assert_eq!(source.place(), Default::default());
                let mut document = Document::default();
                let mut sides = [0; 2];
                while source.next(&mut document).unwrap() {
                    sides[usize::from(split.holds(Part::Validation, &document))] += 1;
                }
                assert!(sides[0] > 0 && sides[1] > 0, "seed {seed}, {n} documents: {sides:?}");
            }
        }
    }

    #[test]
    fn a_fraction_of_nothing_keeps_nothing_and_an_impossible_one_is_refused() {
        let split = Split::over(&mut Numbered::finite(5), 0, 0.0).unwrap();
        assert!((0..1000).all(|i| split.holds(Part::Training, &text_document(&i.to_string()))));
        for fraction in [1.0, -0.1, f64::NAN] {
            let message = Split::new(0, fraction).unwrap_err().to_string();
            assert!(message.contains("must be at least 0 and below 1"), "{message}");
        }
    }
}
