//! The choice of the source that each sequence of a run comes from.
//!
//! Sequences are allotted to the sources one after the other: of `n` sequences the first source gets the integer
//! nearest to its share of them, the second the nearest to its share of the rest, and so on. So counts never decrease
//! with `n`, they add up to `n`, and each source has its share of any `n` to within about a sequence. Within [`BLOCK`]
//! sequences the positions are permuted. Everything is computed from `n`, and nothing is stored.

use crate::permutation::Permutation;
use crate::random::{Random, stream};

/// The number of sequences that are permuted together: at the end of each block every source has its share.
const BLOCK: u64 = 64;

/// The number 1 in units of 2⁻³².
const ONE: u64 = 1 << 32;

/// The order in which a run draws from its sources.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    random: Random,
    parts: &'a [u64],
}

/// The integer nearest to `part` of `sequences`.
fn part_of(sequences: u64, part: u64) -> u64 {
    ((u128::from(sequences) * u128::from(part) + u128::from(ONE / 2)) >> 32) as u64
}

impl<'a> Draw<'a> {
    /// For each source, its share of what the sources before it leave, in units of 2⁻³²; `weights` are at least 0 and
    /// finite, and not all 0.
    pub fn parts(weights: &[f64], parts: &mut [u64]) {
        let mut left = 0.0;
        for (weight, part) in weights.iter().zip(parts.iter_mut()).rev() {
            left += weight;
            // The last source with a weight gets all that is left: a number divided by itself is 1.
            *part = if *weight > 0.0 { (weight / left * ONE as f64 + 0.5) as u64 } else { 0 };
        }
    }

    /// The order under `seed` for sources with these [`Draw::parts`], at least one.
    pub fn new(seed: u64, parts: &'a [u64]) -> Self {
        Self { random: Random::new(seed, stream("sources")), parts }
    }

    /// The source of sequence `number` of the run.
    pub fn at(&self, number: u64) -> usize {
        let (block, place) = (number / BLOCK, number % BLOCK);
        let order = Permutation::new(Random::new(self.random.bits(block), stream("places")), BLOCK);
        let place = order.at(place);
        let (mut begin, mut end, mut before) = (block * BLOCK, (block + 1) * BLOCK, 0);
        for (source, part) in self.parts.iter().enumerate() {
            let [first, last] = [part_of(begin, *part), part_of(end, *part)];
            before += last - first;
            if place < before {
                return source;
            }
            (begin, end) = (begin - first, end - last);
        }
        // The last source with a weight gets all that is left.
        self.parts.len().saturating_sub(1)
    }

    /// The number of the run's first `sequences` sequences that come from each source.
    pub fn counts(&self, sequences: u64, counts: &mut [u64]) {
        let whole = sequences - sequences % BLOCK;
        let mut left = whole;
        for (count, part) in counts.iter_mut().zip(self.parts) {
            *count = part_of(left, *part);
            left -= *count;
        }
        for number in whole..sequences {
            counts[self.at(number)] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn parts_of(weights: &[f64]) -> Vec<u64> {
        let mut found = vec![0; weights.len()];
        Draw::parts(weights, &mut found);
        found
    }

    /// Weights, some of which are 0 and some tiny, but not all 0.
    fn weights() -> impl Strategy<Value = Vec<f64>> {
        let weight = prop_oneof![Just(0.0), 0.0001f64..0.01, 0.1f64..9.0];
        proptest::collection::vec(weight, 1..7).prop_filter("all 0", |all| all.iter().sum::<f64>() > 0.0)
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_sources_drawn_and_the_shares_of_them(
            seed in any::<u64>(), weights in weights(), from in 0u64..1 << 40, steps in 1u64..400,
        ) {
            let parts = parts_of(&weights);
            let draw = Draw::new(seed, &parts);
            let mut counts = [vec![0; parts.len()], vec![0; parts.len()]];
            draw.counts(from, &mut counts[0]);
            draw.counts(from + steps, &mut counts[1]);
            let mut drawn = counts[0].clone();
            (from..from + steps).for_each(|number| drawn[draw.at(number)] += 1);
            prop_assert_eq!(&drawn, &counts[1]);
            prop_assert_eq!(drawn.iter().sum::<u64>(), from + steps);
            let (sum, blocks) = (weights.iter().sum::<f64>(), from - from % BLOCK);
            draw.counts(blocks, &mut drawn);
            for (count, weight) in drawn.iter().zip(&weights) {
                let share = weight / sum * blocks as f64;
                // To within a sequence or two, and 2⁻³² of all sequences.
                prop_assert!((*count as f64 - share).abs() < 3.0 + blocks as f64 * 2e-9, "{} {}", count, share);
                prop_assert!(*weight > 0.0 || *count == 0);
            }
        }
    }

    #[test]
    fn a_batch_has_of_every_source_and_blocks_differ() {
        let parts = parts_of(&[0.5, 0.3, 0.2]);
        let draw = Draw::new(7, &parts);
        let block = |number: u64| (0..BLOCK).map(|i| draw.at(number * BLOCK + i)).collect::<Vec<_>>();
        assert_ne!(block(0), block(1));
        for batch in block(3).chunks(32) {
            assert!((0..3).all(|source| batch.contains(&source)), "{batch:?}");
        }
        let other = Draw::new(8, &parts);
        assert_ne!(block(0), (0..BLOCK).map(|i| other.at(i)).collect::<Vec<_>>());
    }
}
