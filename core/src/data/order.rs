//! The order in which a run reads its tokens: sequence after sequence, each from another part of the source.
//!
//! The source is an infinite line of tokens (a finite source begins again at its end). Each position is read once. Two
//! steps determine the order; both are computed, and neither is stored:
//!
//! 1. The line is split into *grains*, as long as the longest sequence of the run. The grains of a [`Window`] (an
//!    epoch, or the content of a pool) are permuted.
//! 2. From the permuted line, a [`Stretch`] of the run takes its tokens in sequences of its own length. Where sequences
//!    are shorter than a grain, adjacent ones would come from one grain, so the sequences of a stretch within a window
//!    are permuted once more.
//!
//! Both steps are one-to-one, so no token is left out and none is read twice, whatever the lengths. A sequence may
//! cross a border of grains where lengths do not divide each other: it is then two runs of tokens.

use crate::permutation::Permutation;
use crate::random::{Random, stream};

/// A part of a run with sequences of one length. It ends where the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// The number of tokens that the run has read when the stretch begins.
    pub from: u64,
    /// Tokens of a sequence, at least 1.
    pub length: u64,
}

/// Tokens that are permuted together: `begin..end` of the line, whole grains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The first token.
    pub begin: u64,
    /// The token after the last one.
    pub end: u64,
}

/// Consecutive tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The position of the first token in the line.
    pub at: u64,
    /// The number of tokens, at least 1.
    pub tokens: u64,
}

/// The order of a run.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    random: Random,
    grain: u64,
    stretches: &'a [Stretch],
}

impl<'a> Order<'a> {
    /// The order under `seed` of a run of these stretches. The first begins at 0, and each later one after the one
    /// before it. Without stretches, or with a length of 0, the order is that of the line.
    pub fn new(seed: u64, stretches: &'a [Stretch]) -> Self {
        let grain = stretches.iter().map(|s| s.length).max().unwrap_or(1).max(1);
        Self { random: Random::new(seed, stream("order")), grain, stretches }
    }

    /// Tokens of a grain: the longest sequence.
    pub const fn grain(&self) -> u64 {
        self.grain
    }

    /// The epoch of the run after `read` tokens, for a source of `tokens` tokens, at least 1.
    ///
    /// An epoch consists of the grains that begin in it. Its last grain may end in the next epoch, so the rest of one
    /// pass over the source joins the next pass. An epoch shorter than a grain may have no grains.
    pub fn epoch(&self, tokens: u64, read: u64) -> Window {
        let grain = read / self.grain;
        let first = |epoch: u64| epoch.saturating_mul(tokens).div_ceil(self.grain).saturating_mul(self.grain);
        let epoch = (grain * self.grain) / tokens;
        Window { begin: first(epoch), end: first(epoch + 1) }
    }

    /// The tokens that the run reads after `read` tokens, which lie in `window`: their position and number.
    pub fn at(&self, window: Window, read: u64) -> Run {
        let read = self.within_stretch(window, read);
        let (grain, inside) = ((read.at - window.begin) / self.grain, (read.at - window.begin) % self.grain);
        let grains = (window.end - window.begin) / self.grain;
        let grain = Permutation::new(self.of(window, "grain"), grains).at(grain);
        let tokens = read.tokens.min(self.grain - inside);
        Run { at: window.begin + grain * self.grain + inside, tokens }
    }

    /// The same in the line whose grains are already permuted.
    fn within_stretch(&self, window: Window, read: u64) -> Run {
        let on = Run { at: read, tokens: window.end - read };
        let Some(number) = self.stretches.partition_point(|s| s.from <= read).checked_sub(1) else { return on };
        let Stretch { from, length } = self.stretches[number];
        let until = self.stretches.get(number + 1).map_or(window.end, |next| next.from.min(window.end));
        let on = Run { tokens: until - read, ..on };
        if length == 0 || length == self.grain {
            return on;
        }
        // The whole sequences of the stretch in the window; the remaining tokens at its ends keep their positions.
        let begin = from.max(window.begin);
        let (first, last) = ((begin - from).div_ceil(length), (until - from) / length);
        let (sequence, inside) = ((read - from) / length, (read - from) % length);
        if sequence >= last {
            return on;
        }
        if sequence < first {
            return Run { tokens: length - inside, ..on };
        }
        let random = self.of(Window { begin, end: window.begin }, "sequence");
        let sequence = first + Permutation::new(random, last - first).at(sequence - first);
        Run { at: from + sequence * length + inside, tokens: length - inside }
    }

    /// A random source of the window's own for the purpose `what`.
    fn of(&self, window: Window, what: &str) -> Random {
        let key = Random::new(self.random.bits(window.begin), window.end).bits(stream(what));
        Random::new(key, stream(what))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// The positions in the line, in order, of the tokens `read` of a run, for a source of `tokens` tokens.
    fn places(order: &Order<'_>, tokens: u64, read: core::ops::Range<u64>) -> Vec<u64> {
        let mut places = Vec::new();
        let mut at = read.start;
        while at < read.end {
            let run = order.at(order.epoch(tokens, at), at);
            let count = run.tokens.min(read.end - at);
            assert!(count > 0);
            places.extend(run.at..run.at + count);
            at += count;
        }
        places
    }

    fn stretches(parts: &[(u64, u64)]) -> Vec<Stretch> {
        let mut from = 0;
        let stretch = |&(length, count): &(u64, u64)| {
            let stretch = Stretch { from, length };
            from += length * count;
            stretch
        };
        parts.iter().map(stretch).collect()
    }

    proptest! {
        #[test]
        fn every_place_is_read_once_an_epoch_whatever_the_lengths(
            seed in any::<u64>(),
            tokens in 1u64..700,
            parts in proptest::collection::vec((1u64..40, 1u64..30), 1..5),
        ) {
            let stretches = stretches(&parts);
            let order = Order::new(seed, &stretches);
            // The grains of four epochs and no more.
            let end = order.grain() * (4 * tokens).div_ceil(order.grain());
            let mut seen = vec![0; end as usize];
            for place in places(&order, tokens, 0..end) {
                seen[place as usize] += 1;
            }
            prop_assert!(seen.iter().all(|&n| n == 1), "{seen:?}");
        }

        #[test]
        fn where_reading_goes_on_is_a_function_of_how_much_was_read(
            seed in any::<u64>(), tokens in 1u64..300, stop in 0u64..900,
            parts in proptest::collection::vec((1u64..20, 1u64..20), 1..4),
        ) {
            let stretches = stretches(&parts);
            let order = Order::new(seed, &stretches);
            let whole = places(&order, tokens, 0..900);
            prop_assert_eq!(&whole[stop as usize..], places(&order, tokens, stop..900));
        }
    }

    #[test]
    fn sequences_of_one_length_are_runs_of_the_source() {
        let stretches = [Stretch { from: 0, length: 16 }];
        let order = Order::new(3, &stretches);
        for first in (0..1600).step_by(16) {
            let run = order.at(order.epoch(800, first), first);
            assert_eq!((run.at % 16, run.tokens), (0, 16));
        }
    }

    #[test]
    fn sequences_of_a_batch_come_from_everywhere_short_ones_too() {
        // Sequences of 8 tokens, from a source of 64 grains of 512: adjacent sequences of the batch are apart in the
        // source.
        let stretches = [Stretch { from: 0, length: 8 }, Stretch { from: 1 << 14, length: 512 }];
        let order = Order::new(9, &stretches);
        let batch: Vec<u64> = (0..64).map(|row| order.at(order.epoch(1 << 15, 8 * row), 8 * row).at).collect();
        let mut grains: Vec<u64> = batch.iter().map(|at| at / 512).collect();
        grains.sort_unstable();
        grains.dedup();
        // Of the 32 grains that the first stretch uses, 64 draws miss 32 · e^(−2) on average.
        assert!((22..=32).contains(&grains.len()), "{grains:?}");
        let neighbours = batch.windows(2).filter(|pair| pair[1] == pair[0] + 8).count();
        assert!(neighbours <= 3, "{batch:?}");
    }

    #[test]
    fn every_epoch_has_an_order_of_its_own_and_joins_the_next() {
        let stretches = [Stretch { from: 0, length: 4 }];
        let order = Order::new(1, &stretches);
        assert_eq!(order.epoch(10, 0), Window { begin: 0, end: 12 });
        assert_eq!(order.epoch(10, 12), Window { begin: 12, end: 20 });
        assert_eq!(order.epoch(10, 20), Window { begin: 20, end: 32 });
        let (one, two) = (places(&order, 400, 0..400), places(&order, 400, 400..800));
        assert_ne!(one, two.iter().map(|p| p - 400).collect::<Vec<_>>());
        let other = Order::new(2, &stretches);
        assert_ne!(one, places(&other, 400, 0..400));
    }

    #[test]
    fn without_stretches_it_is_the_order_of_the_line() {
        let order = Order::new(1, &[]);
        let window = Window { begin: 0, end: 1 };
        assert_eq!(order.at(window, 0), Run { at: 0, tokens: 1 });
    }
}
