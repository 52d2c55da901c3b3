//! Chunks of T + 1 tokens out of a stream.
//!
//! A batch of B rows consists of B·T inputs and the B·T tokens that follow them. The last target of a batch is the
//! first input of the next one, so every token of the stream except the first is a target exactly once, whatever the
//! shapes of the batches.

use core::fmt;

/// The target of a position that is not scored.
pub const IGNORE: u32 = u32::MAX;

/// The bit of a stored id that marks a token as context only, such as the question before an answer: it is an input,
/// but not a target. Vocabularies have fewer ids.
pub const CONTEXT: u32 = 1 << 31;

/// The id without [`CONTEXT`], as the model reads it.
pub const fn as_input(id: u32) -> u32 {
    id & !CONTEXT
}

/// The id as the target of the token before it; [`IGNORE`] where it is context only.
pub const fn as_target(id: u32) -> u32 {
    if id & CONTEXT == 0 { id } else { IGNORE }
}

/// One token of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// The token's id, below the size of the vocabulary.
    pub id: u32,
    /// The number of tokens of its document before it: 0 at a document's start.
    pub offset: u32,
}

/// Storage for one batch of B rows of T positions, row after row.
#[derive(Debug)]
pub struct BatchMut<'a> {
    length: usize,
    tokens: &'a mut [u32],
    targets: &'a mut [u32],
    offsets: &'a mut [u32],
}

/// The slices do not have the batch's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShapeError {
    /// No rows, or rows of no length.
    Empty,
    /// A slice does not have exactly rows · length values.
    Size,
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "a batch needs at least one row of at least one token",
            Self::Size => "a batch's slices must each hold rows times length values",
        })
    }
}

impl core::error::Error for ShapeError {}

impl<'a> BatchMut<'a> {
    /// Storage for `rows` rows of `length` positions: three slices of exactly rows · length values.
    ///
    /// `tokens` takes the inputs, `targets` the token after each input, and `offsets` each input's [`Token::offset`]:
    /// 0 marks a document's start, and a position can see back to `offset` positions before it without leaving its
    /// document.
    pub fn new(
        rows: usize,
        length: usize,
        tokens: &'a mut [u32],
        targets: &'a mut [u32],
        offsets: &'a mut [u32],
    ) -> Result<Self, ShapeError> {
        let size = rows.checked_mul(length).ok_or(ShapeError::Size)?;
        if size == 0 {
            return Err(ShapeError::Empty);
        }
        if [tokens.len(), targets.len(), offsets.len()] != [size; 3] {
            return Err(ShapeError::Size);
        }
        Ok(Self { length, tokens, targets, offsets })
    }

    /// Positions in the batch: rows · length.
    #[allow(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The rows, as (tokens, targets, offsets) of one length.
    pub fn rows(&mut self) -> impl Iterator<Item = (&mut [u32], &mut [u32], &mut [u32])> {
        let Self { length, tokens, targets, offsets } = self;
        tokens
            .chunks_exact_mut(*length)
            .zip(targets.chunks_exact_mut(*length))
            .zip(offsets.chunks_exact_mut(*length))
            .map(|((x, y), o)| (x, y, o))
    }
}

/// Splits a stream into batches. Stores the one token that two consecutive batches share.
#[derive(Debug, Clone, Default)]
pub struct Batcher {
    carry: Option<Token>,
}

impl Batcher {
    /// A batcher at the start of a stream, or at a token where reading resumes.
    pub const fn new() -> Self {
        Self { carry: None }
    }

    /// Fills `batch` with the next tokens of the stream that `next` reads.
    ///
    /// Reads one token more than the batch has positions, and stores it as the first input of the next batch. To resume
    /// from here later, read again from that token with a new `Batcher`.
    ///
    /// Returns `false`, leaving the batch without meaningful content, when the stream ended before the batch was full.
    /// Errors are those of `next`; after an error or `false`, the batcher starts anew.
    pub fn fill<E>(
        &mut self,
        batch: &mut BatchMut<'_>,
        mut next: impl FnMut() -> Result<Option<Token>, E>,
    ) -> Result<bool, E> {
        let mut token = match self.carry.take() {
            Some(token) => token,
            None => match next()? {
                Some(token) => token,
                None => return Ok(false),
            },
        };
        let inputs = batch.tokens.iter_mut().zip(batch.offsets.iter_mut());
        for ((x, offset), y) in inputs.zip(batch.targets.iter_mut()) {
            let Some(following) = next()? else { return Ok(false) };
            (*x, *offset, *y) = (token.id, token.offset, following.id);
            token = following;
        }
        self.carry = Some(token);
        Ok(true)
    }

    /// Reads the tokens that [`Batcher::fill`] would read for `positions` positions, and stores only the shared token.
    ///
    /// # Errors
    /// The errors of `next`.
    pub fn skip<E>(&mut self, positions: usize, mut next: impl FnMut() -> Result<Option<Token>, E>) -> Result<bool, E> {
        let carried = usize::from(self.carry.is_some());
        for _ in carried..=positions {
            match next() {
                Ok(Some(token)) => self.carry = Some(token),
                ended => {
                    self.carry = None;
                    return ended.map(|_| false);
                }
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use core::convert::Infallible;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// A stream of `n` tokens whose ids are their positions in it, in documents of `document` tokens.
    fn stream(n: u32, document: u32) -> impl FnMut() -> Result<Option<Token>, Infallible> {
        let mut at = 0;
        move || {
            let token = (at < n).then(|| Token { id: at, offset: at % document });
            at += 1;
            Ok(token)
        }
    }

    proptest! {
        #[test]
        fn every_token_is_a_target_once_and_follows_its_input(
            shapes in proptest::collection::vec((1usize..5, 1usize..9), 1..12),
            document in 1u32..20,
        ) {
            let total: usize = shapes.iter().map(|(b, t)| b * t).sum();
            let mut next = stream(total as u32 + 1, document);
            let mut batcher = Batcher::new();
            let (mut seen_inputs, mut seen_targets) = (Vec::new(), Vec::new());
            for &(rows, length) in &shapes {
                let mut storage = [vec![77; rows * length], vec![77; rows * length], vec![77; rows * length]];
                let [x, y, o] = &mut storage;
                let mut batch = BatchMut::new(rows, length, x, y, o).unwrap();
                prop_assert!(batcher.fill(&mut batch, &mut next).unwrap());
                for row in 0..rows {
                    let chunk = row * length..(row + 1) * length;
                    for ((&x, &y), &o) in x[chunk.clone()].iter().zip(&y[chunk.clone()]).zip(&o[chunk]) {
                        prop_assert_eq!(y, x + 1);
                        prop_assert_eq!(o, x % document);
                    }
                }
                seen_inputs.extend_from_slice(x);
                seen_targets.extend_from_slice(y);
            }
            prop_assert_eq!(seen_inputs, (0..total as u32).collect::<Vec<_>>());
            prop_assert_eq!(seen_targets, (1..=total as u32).collect::<Vec<_>>());
            // No token is left for one more position.
            let (mut x, mut y, mut o) = ([0], [0], [0]);
            let mut batch = BatchMut::new(1, 1, &mut x, &mut y, &mut o).unwrap();
            prop_assert!(!batcher.fill(&mut batch, &mut next).unwrap());
        }

        #[test]
        fn a_new_batcher_at_the_shared_token_goes_on_the_same(first in 1usize..40, second in 1usize..40) {
            let total = (first + second) as u32 + 1;
            let fill = |batcher: &mut Batcher, size: usize, next: &mut dyn FnMut() -> Result<Option<Token>, Infallible>| {
                let mut storage = [vec![0; size], vec![0; size], vec![0; size]];
                let [x, y, o] = &mut storage;
                assert!(batcher.fill(&mut BatchMut::new(1, size, x, y, o).unwrap(), next).unwrap());
                storage
            };
            let mut next = stream(total, 7);
            let mut batcher = Batcher::new();
            fill(&mut batcher, first, &mut next);
            let expected = fill(&mut batcher, second, &mut next);

            let mut resumed = stream(total, 7);
            for _ in 0..first {
                resumed().unwrap();
            }
            prop_assert_eq!(fill(&mut Batcher::new(), second, &mut resumed), expected);
        }
    }

    #[test]
    fn what_is_skipped_is_what_would_have_been_filled() {
        for (before, skipped) in [(0, 1), (5, 7), (3, 0)] {
            let follow = |skips: bool| {
                let (mut batcher, mut next) = (Batcher::new(), stream(before + skipped + 5, 4));
                let mut fill = |batcher: &mut Batcher, size: u32| {
                    let mut storage = [(); 3].map(|()| vec![0; size as usize]);
                    let [x, y, o] = &mut storage;
                    let mut batch = BatchMut::new(1, size as usize, x, y, o).unwrap();
                    assert!(batcher.fill(&mut batch, &mut next).unwrap());
                    storage
                };
                if before > 0 {
                    fill(&mut batcher, before);
                }
                match (skipped, skips) {
                    (0, false) => {}
                    (_, false) => drop(fill(&mut batcher, skipped)),
                    (_, true) => assert!(batcher.skip(skipped as usize, &mut next).unwrap()),
                }
                let mut storage = [(); 3].map(|()| [0; 4]);
                let [x, y, o] = &mut storage;
                assert!(batcher.fill(&mut BatchMut::new(1, 4, x, y, o).unwrap(), &mut next).unwrap());
                // The stream has ended.
                assert_eq!(batcher.skip(1, &mut next), Ok(false));
                storage
            };
            assert_eq!(follow(true), follow(false), "{skipped} after {before}");
        }
    }

    #[test]
    fn storage_of_another_shape_is_refused() {
        let (mut x, mut y, mut o) = ([0; 6], [0; 6], [0; 5]);
        assert_eq!(BatchMut::new(2, 3, &mut x, &mut y, &mut o).unwrap_err(), ShapeError::Size);
        assert_eq!(BatchMut::new(0, 3, &mut x, &mut y, &mut o).unwrap_err(), ShapeError::Empty);
        assert_eq!(BatchMut::new(usize::MAX, 3, &mut x, &mut y, &mut o).unwrap_err(), ShapeError::Size);
    }

    #[test]
    fn an_error_of_the_stream_reaches_the_caller() {
        let mut left = 3;
        let mut next = || {
            left -= 1;
            if left < 0 { Err("lost") } else { Ok(Some(Token { id: 5, offset: 0 })) }
        };
        let (mut x, mut y, mut o) = ([0; 4], [0; 4], [0; 4]);
        let mut batch = BatchMut::new(2, 2, &mut x, &mut y, &mut o).unwrap();
        assert_eq!(Batcher::new().fill(&mut batch, &mut next), Err("lost"));
    }
}
