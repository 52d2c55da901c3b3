//! The text that a run is scored on, and the n-gram losses that its score is compared with.

use std::collections::BTreeSet;

use super::super::choice::{self, Validation};
use super::super::error::SourceError;
use super::super::ngram::Baselines;
use super::super::overlap::{self, Overlap};
use super::super::shards::training::TrainingTokens;
use super::super::split::Part;
use super::super::validation::ValidationSet;
use super::super::whole::Whole;
use super::Corpus;
use capful_config::Source;

/// A document counts as clean if at most this fraction of it occurs in the training side.
const CLEAN: f64 = 0.1;
/// Most times that documents are chosen again in place of documents that are not clean.
const MOST_LOOKS: u32 = 24;

impl Corpus {
    /// The training side of each source of the run, where the tokens of all sources are encoded.
    fn trained(&self) -> Result<Option<Vec<TrainingTokens>>, SourceError> {
        let of = |part: &Corpus| part.shards.as_ref().map(|shards| part.tokens(shards)).transpose();
        Ok(self.parts().map(of).collect::<Result<Vec<_>, _>>()?.into_iter().collect())
    }

    /// At most `max_tokens` tokens of documents to score from this source, one of the sources of `run`.
    pub(super) fn own_validation(&self, max_tokens: u64, run: &Corpus) -> Result<Validation, SourceError> {
        if !self.clean_validation || matches!(self.validation.as_ref().unwrap_or(&self.source), Source::Tales) {
            return self.validation_without(max_tokens, &BTreeSet::new());
        }
        let Some(mut trained) = run.trained()? else { return Err(SourceError::Streamed { name: self.name() }) };
        let mut dirty = BTreeSet::new();
        for _ in 0..MOST_LOOKS {
            let mut chosen = match self.validation_without(max_tokens, &dirty) {
                // No document is left.
                Err(SourceError::EmptyPart { .. } | SourceError::NoDocuments { .. }) if !dirty.is_empty() => break,
                chosen => chosen?,
            };
            let before = dirty.len();
            let shares = chosen.numbers.iter().zip(overlap::of_each(&chosen.set, &mut trained)?);
            dirty.extend(shares.filter(|(_, share)| *share > CLEAN).map(|(number, _)| *number));
            if dirty.len() == before {
                chosen.passed_over = before;
                return Ok(chosen);
            }
        }
        Err(SourceError::NotClean { name: self.name(), dirty: dirty.len() })
    }

    /// Documents to score, without the documents numbered in `without`.
    fn validation_without(&self, max_tokens: u64, without: &BTreeSet<u64>) -> Result<Validation, SourceError> {
        let (feed, max_tokens) = (self.feed(Part::Validation)?, max_tokens as usize);
        match (self.validation.as_ref().unwrap_or(&self.source), &self.shards) {
            (Source::Tales, _) => {
                // The documents of the built-in corpus are drawn independently: the first ones are as good as any.
                let set = ValidationSet::first(feed, max_tokens)?;
                let numbers = (0..set.documents() as u64).collect();
                Ok(Validation { set, numbers, among: None, whole: true, passed_over: 0 })
            }
            (source, Some(shards)) if *source == self.source => choice::of_shards(shards, feed, max_tokens, without),
            _ => choice::of_source(feed, max_tokens, without),
        }
    }

    /// Every document of the separate validation source; `None` if there is none, or if it is endless.
    ///
    /// # Errors
    /// A source that cannot be read, or holds no document.
    pub fn whole_validation(&self) -> Result<Option<Whole>, SourceError> {
        match &self.validation {
            None | Some(Source::Tales) => Ok(None),
            Some(_) => Whole::new(self.feed(Part::Validation)?).map(Some),
        }
    }

    /// The part of `set` that also occurs in the training side; `None` if the training tokens are not encoded, or
    /// the set's documents are too short to decide.
    ///
    /// # Errors
    /// Training tokens that cannot be read.
    pub fn overlap(&self, set: &ValidationSet) -> Result<Option<Overlap>, SourceError> {
        self.trained()?.map_or(Ok(None), |mut trained| overlap::look_for(set, &mut trained))
    }

    /// Kneser-Ney n-gram losses on `validation`, counted on at most `most` training tokens and in at most `bytes` of
    /// memory: the documents come from all over the source where its tokens are encoded, else from its beginning.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub fn baselines(&self, validation: &ValidationSet, most: u32, bytes: u64) -> Result<Baselines, SourceError> {
        let feed = self.feed(Part::Training)?;
        let tokens = baseline_tokens(most, bytes);
        let training = match &self.shards {
            Some(shards) => choice::of_shards(shards, feed, tokens, &BTreeSet::new())?.set,
            None => ValidationSet::first(feed, tokens)?,
        };
        let counts = bytes.saturating_sub(ValidationSet::storage(tokens));
        // The first token of a document has no predecessor and is never a target; where that token is no mark of the
        // tokenizer, the n-gram's own mark replaces it.
        fn targets(set: &ValidationSet) -> impl Iterator<Item = &[u32]> {
            set.iter().map(|document| &document[1..])
        }
        let vocabulary = self.tokenizer.vocab_size();
        Baselines::measure(vocabulary, targets(&training), counts, targets(validation))
            .map_err(|e| SourceError::Ngram { reason: e.to_string() })
    }

    /// The exact loss of the source itself on `validation`, in nats a token, where it is known and no word was
    /// merged into `<unk>`.
    pub fn floor(&self, validation: &ValidationSet) -> Option<f64> {
        let unknown = self.tokenizer.unk();
        let merged = unknown.is_some_and(|unk| validation.iter().any(|document| document.contains(&unk)));
        let total = validation.log_probability().filter(|_| !merged)?;
        Some(-total / validation.targets() as f64)
    }
}

/// Number of training tokens to count n-grams on, at most `most`: their counts must fit in two thirds of `bytes`, and
/// choosing the tokens must fit in `bytes`.
fn baseline_tokens(most: u32, bytes: u64) -> usize {
    let fit = |tokens: usize| {
        let set = ValidationSet::storage(tokens);
        set <= bytes / 3 && set + choice::storage(tokens) <= bytes
    };
    let mut tokens = most as usize;
    while tokens > 2 && !fit(tokens) {
        tokens /= 2;
    }
    tokens
}
