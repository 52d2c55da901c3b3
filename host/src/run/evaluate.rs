//! Computes the loss on whole validation documents.

use std::sync::atomic::{AtomicBool, Ordering};

use capful_core::data::{BatchMut, IGNORE, ShapeError};

use super::Session;
use super::session::Rows;
use crate::config::MOST_SOURCES;
use crate::data::sequences::mixture::BySource;
use crate::data::tokenizer::Tokenizer;
use crate::data::validation::{Group, ValidationSet};
use crate::device::DeviceError;
use crate::ranks::{SharedPeers, peers};

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Score {
    /// Σ −ln p of all targets: nats.
    pub nats: f64,
    /// Number of scored targets.
    pub tokens: u64,
    /// Bytes of their text; 0 where unknown.
    pub bytes: u64,
    /// Number of scored documents.
    pub documents: u64,
    /// Σ x², Σ x n and Σ n² over the documents, where a document has x nats and n targets.
    squares: [f64; 3],
    /// The loss on each source of a mixture, in nats a token; empty for a single source.
    pub by_source: BySource,
}

impl Score {
    /// The score of a mixture in which each source has a share and a score: its loss is the mean of the sources' losses
    /// weighted by their shares, like the training loss, whatever the number of each source's tokens. Its bits a byte
    /// are those of such a mixture too. The standard error is that of a stratified sample, √Σ share² · error² (Cochran,
    /// Sampling Techniques, 5.3).
    fn of_mixture(each: impl Iterator<Item = (f64, Score)> + Clone) -> Score {
        let sum = |f: &dyn Fn((f64, Score)) -> f64| each.clone().map(f).sum::<f64>();
        let (tokens, documents) = each.clone().fold((0, 0), |(t, d), (_, one)| (t + one.tokens, d + one.documents));
        // A source without a share is scored but does not count in the mixture.
        let of = |share: f64, value: f64| if share > 0.0 { share * value } else { 0.0 };
        let loss = sum(&|(share, one)| of(share, one.loss()));
        let known = each.clone().all(|(share, one)| share == 0.0 || one.bytes > 0);
        let bytes = sum(&|(share, one)| of(share, one.bytes as f64 / one.tokens as f64));
        let errors = sum(&|(share, one)| of(share, one.standard_error().unwrap_or(f64::NAN)).powi(2));
        let all = tokens as f64;
        // The sum of squares that results in this error.
        let factor = documents.max(2) as f64 / (documents.max(2) - 1) as f64;
        let squares = [errors * all * all / factor, 0.0, 0.0];
        let bytes = if known { (all * bytes).round() as u64 } else { 0 };
        let by_source = BySource::of(each.map(|(_, one)| one.loss()));
        Score { nats: all * loss, tokens, bytes, documents, squares, by_source }
    }

    /// Nats a token.
    pub fn loss(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// The standard error of [`Score::loss`], nats a token, over the choice of the documents: that of a ratio of two
    /// sums over a random sample, √(k / (k − 1) · Σ (x − loss · n)²) / Σ n for k documents (Cochran, Sampling
    /// Techniques, 6.3). `None` for a single document.
    pub fn standard_error(&self) -> Option<f64> {
        let (documents, loss) = (self.documents as f64, self.loss());
        let [xx, xn, nn] = self.squares;
        let residual = xx - 2.0 * loss * xn + loss * loss * nn;
        let residual = if residual < 0.0 { 0.0 } else { residual };
        (self.documents > 1 && !residual.is_nan())
            .then(|| (documents / (documents - 1.0) * residual).sqrt() / self.tokens as f64)
    }

    /// The loss and, where known, its standard error, for people.
    pub fn shown(&self) -> String {
        let error = self.standard_error().map(|error| format!(" ± {error:.4}"));
        format!("{:.4}{}", self.loss(), error.unwrap_or_default())
    }

    /// Bits a byte of text, where the text is known and `tokenizer` restores it: with a tokenizer that changes or
    /// merges words, a model predicts less than the whole text, and the number would not be comparable.
    pub fn bits_per_byte(&self, tokenizer: &dyn Tokenizer) -> Option<f64> {
        self.bits_a_byte(tokenizer.restores_bytes())
    }

    /// Bits a byte of text, for a tokenizer that `restores` bytes or not.
    pub fn bits_a_byte(&self, restores: bool) -> Option<f64> {
        let known = self.bytes > 0 && restores;
        known.then(|| self.nats / std::f64::consts::LN_2 / self.bytes as f64)
    }

    /// The sum of both scores, of different documents.
    pub fn and(self, other: Score) -> Score {
        let squares = std::array::from_fn(|i| self.squares[i] + other.squares[i]);
        Score {
            nats: self.nats + other.nats,
            tokens: self.tokens + other.tokens,
            bytes: self.bytes + other.bytes,
            documents: self.documents + other.documents,
            squares,
            by_source: BySource::default(),
        }
    }

    /// Adds a document with these nats and targets.
    fn add(&mut self, (nats, targets): (f64, usize)) {
        if targets == 0 {
            return;
        }
        let n = targets as f64;
        self.nats += nats;
        self.tokens += targets as u64;
        self.documents += 1;
        self.squares = [self.squares[0] + nats * nats, self.squares[1] + nats * n, self.squares[2] + n * n];
    }
}

/// Adds the documents of a set, separately for each source of a mixture.
struct Tally<'a> {
    groups: &'a [Group],
    each: [Score; MOST_SOURCES],
    /// The source of the current document, and the number of documents begun.
    group: usize,
    begun: usize,
}

impl<'a> Tally<'a> {
    fn of(set: &'a ValidationSet) -> Self {
        let mut each = [Score::default(); MOST_SOURCES];
        each[0].bytes = set.bytes();
        set.groups().iter().zip(&mut each).for_each(|(group, score)| score.bytes = group.bytes);
        Self { groups: set.groups(), each, group: 0, begun: 0 }
    }

    /// Begins another document, or ends the last one: adds the previous document, if there is one.
    fn add(&mut self, document: (f64, usize)) {
        let number = self.begun.saturating_sub(1);
        while self.groups.get(self.group).is_some_and(|group| number >= group.end) && self.group + 1 < self.groups.len()
        {
            self.group += 1;
        }
        self.each[self.group].add(document);
        self.begun += 1;
    }

    fn score(self) -> Score {
        match self.groups {
            [] => self.each[0],
            groups => Score::of_mixture(groups.iter().map(|group| group.share).zip(self.each)),
        }
    }
}

/// Scores validation sets, with storage allocated beforehand. Several ranks take batches in turn and exchange the
/// losses, which are added in the order of the documents: the number of ranks does not change the sum.
pub struct Evaluator {
    rows: usize,
    length: usize,
    /// The tokens of a batch for each rank.
    tokens: Vec<u32>,
    targets: Vec<u32>,
    offsets: Vec<u32>,
    losses: Vec<f32>,
    peers: Option<SharedPeers>,
}

impl Evaluator {
    /// An evaluator for batches of `rows` · `length`.
    pub fn new(rows: u32, length: u32) -> Evaluator {
        Evaluator::of_ranks(rows, length, None)
    }

    /// An evaluator shared with the ranks of `peers`.
    pub fn of_ranks(rows: u32, length: u32, peers: Option<SharedPeers>) -> Evaluator {
        let (rows, length) = (rows as usize, length as usize);
        let ranks = peers.as_ref().map_or(1, |peers| peers.borrow().count() as usize);
        let zeros = || vec![0; ranks * rows * length];
        let losses = vec![0.0; ranks * rows * length];
        Evaluator { rows, length, tokens: zeros(), targets: zeros(), offsets: zeros(), losses, peers }
    }

    /// Scores every document of `set`; returns `None` if `stop` is raised. Several ranks score the whole set, even if
    /// one of them sees a signal. Allocates nothing.
    ///
    /// # Errors
    /// A lost device.
    pub fn score(
        &mut self,
        session: &mut Session,
        set: &ValidationSet,
        stop: &AtomicBool,
    ) -> Result<Option<Score>, DeviceError> {
        let alone = self.peers.is_none();
        self.score_until(session, set, &mut |_| {}, &|| alone && stop.load(Ordering::Relaxed))
    }

    /// Scores every document of `set`; `visit` receives the nats and targets of each.
    ///
    /// # Errors
    /// A lost device.
    pub fn score_each(
        &mut self,
        session: &mut Session,
        set: &ValidationSet,
        visit: &mut dyn FnMut((f64, usize)),
    ) -> Result<Score, DeviceError> {
        Ok(self.score_until(session, set, visit, &|| false)?.unwrap_or_default())
    }

    fn score_until(
        &mut self,
        session: &mut Session,
        set: &ValidationSet,
        visit: &mut dyn FnMut((f64, usize)),
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Score>, DeviceError> {
        let mut tally = Tally::of(set);
        let (mut documents, mut document) = (set.rows(), (0.0, 0));
        let shape = |e: ShapeError| DeviceError::Failed(e.to_string());
        let Evaluator { rows: count, length, tokens, targets, offsets, losses, peers } = self;
        let (length, size) = (*length, *count * *length);
        let (rank, ranks) = peers.as_ref().map_or((0, 1), |peers| {
            let peers = peers.borrow();
            (peers.rank() as usize, peers.count() as usize)
        });
        loop {
            if stopped() {
                return Ok(None);
            }
            let mut filled = 0;
            while filled < ranks {
                let here = filled * size..(filled + 1) * size;
                let (tokens, targets) = (&mut tokens[here.clone()], &mut targets[here.clone()]);
                let mut batch = BatchMut::new(*count, length, tokens, targets, &mut offsets[here]).map_err(shape)?;
                if documents.fill(&mut batch).is_none() {
                    break;
                }
                filled += 1;
            }
            if rank < filled {
                let own = rank * size..(rank + 1) * size;
                session.evaluate(Rows {
                    ids: &tokens[own.clone()],
                    targets: &targets[own.clone()],
                    offsets: &offsets[own.clone()],
                })?;
                session.losses(&mut losses[own])?;
            }
            if let Some(peers) = peers {
                let of = |rank: u32| 4 * size * filled.min(rank as usize)..4 * size * filled.min(rank as usize + 1);
                peers::all_gather(&mut *peers.borrow_mut(), bytemuck::cast_slice_mut(losses), of)
                    .map_err(|e| DeviceError::Failed(e.to_string()))?;
            }
            let end = filled * size;
            let rows = losses[..end].chunks_exact(length).zip(targets[..end].chunks_exact(length));
            for ((losses, targets), offsets) in rows.zip(offsets[..end].chunks_exact(length)) {
                // A document begins at offset 0; a row without a target is padding.
                if offsets.first() == Some(&0) {
                    visit(document);
                    tally.add(std::mem::take(&mut document));
                }
                document.0 += losses.iter().map(|&x| f64::from(x)).sum::<f64>();
                document.1 += targets.iter().filter(|&&target| target != IGNORE).count();
            }
            if filled < ranks {
                visit(document);
                tally.add(document);
                return Ok(Some(tally.score()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_is_scored_by_its_shares_and_each_source_by_itself() {
        let of = |documents: &[(f64, usize)], bytes| {
            let mut score = Score { bytes, ..Score::default() };
            documents.iter().for_each(|document| score.add(*document));
            score
        };
        let (a, b) = (of(&[(2.0, 1), (6.0, 2)], 9), of(&[(10.0, 10), (14.0, 10), (12.0, 5)], 50));
        let both = Score::of_mixture([(0.75, a), (0.25, b)].into_iter());
        let near = |x: f64, y: f64| assert!((x - y).abs() < 1e-12, "{x} {y}");
        near(both.loss(), 0.75 * 8.0 / 3.0 + 0.25 * 36.0 / 25.0);
        assert_eq!(*both.by_source, [a.loss(), b.loss()]);
        let [ea, eb] = [a, b].map(|one| one.standard_error().unwrap());
        near(both.standard_error().unwrap(), ((0.75 * ea).powi(2) + (0.25 * eb).powi(2)).sqrt());
        assert_eq!((both.tokens, both.documents), (28, 5));
        // 3 and 2 bytes for each token.
        assert_eq!(both.bytes, (28.0f64 * (0.75 * 3.0 + 0.25 * 2.0)).round() as u64);
        assert_eq!(Score::of_mixture([(1.0, a), (0.0, Score { bytes: 0, ..b })].into_iter()).bytes, 84);
        assert_eq!(Score::of_mixture([(0.5, of(&[(1.0, 2)], 3)), (0.5, b)].into_iter()).standard_error(), None);
    }

    #[test]
    fn the_standard_error_is_that_of_a_ratio_and_shrinks_with_the_documents() {
        // By hand: loss = 9 / 5; residuals 2 − 1.8, 7 − 3 · 1.8 − …: (2, 1), (1, 2), (6, 2).
        let mut score = Score::default();
        for document in [(2.0, 1), (1.0, 2), (0.0, 0), (6.0, 2)] {
            score.add(document);
        }
        assert_eq!((score.loss(), score.tokens, score.documents), (1.8, 5, 3));
        let mut parts = [Score::default(); 2];
        parts[0].add((2.0, 1));
        parts[1].add((1.0, 2));
        parts[1].add((6.0, 2));
        assert_eq!(parts[0].and(parts[1]), score);
        let residuals = [2.0 - 1.8, 1.0 - 3.6, 6.0 - 3.6f64];
        let expected = (1.5 * residuals.iter().map(|r| r * r).sum::<f64>()).sqrt() / 5.0;
        assert!((score.standard_error().unwrap() - expected).abs() < 1e-12);

        let mut one = Score::default();
        one.add((3.0, 2));
        assert_eq!(one.standard_error(), None);
    }

    /// Draws documents of random length and loss many times: the spread of the losses must match the standard error.
    #[test]
    fn the_standard_error_is_the_spread_over_samples() {
        let random = capful_core::random::Random::new(5, 0);
        let draw = |sample: u64| {
            let mut score = Score::default();
            for i in 0..60 {
                let at = sample * 1000 + i * 2;
                let n = 1 + random.below(at, 40) as usize;
                let rate = 2.0 + f64::from(random.below(at + 1, 1000) as u32) / 500.0;
                score.add((rate * n as f64, n));
            }
            score
        };
        let scores: Vec<Score> = (0..400).map(draw).collect();
        let mean = scores.iter().map(Score::loss).sum::<f64>() / 400.0;
        let spread = (scores.iter().map(|s| (s.loss() - mean).powi(2)).sum::<f64>() / 399.0).sqrt();
        let said = scores.iter().map(|s| s.standard_error().unwrap()).sum::<f64>() / 400.0;
        // The spread of 400 samples itself has an error of 1 / √800 = 3.5 %.
        assert!((said / spread - 1.0).abs() < 0.12, "{said} {spread}");
    }
}
