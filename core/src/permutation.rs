//! A permutation of 0..n that is computed instead of stored: a function of (seed, stream, n).
//!
//! A Feistel network permutes the numbers of a given number of bits; a result that is not below n is permuted again
//! until it is (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The round function is
//! the counter-based generator, so the order is the same on every machine, and any element can be computed by itself.

use crate::random::Random;

/// Rounds of the network. Four make a permutation that looks random from outside (Luby and Rackoff); more cost little.
const ROUNDS: u64 = 8;
/// A network of fewer bits could reach only a few of the permutations of n numbers.
const LEAST_BITS: u32 = 6;

/// A permutation of 0..n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    random: Random,
    n: u64,
    bits: u32,
}

impl Permutation {
    /// The permutation of 0..n that `random` determines. Different streams give independent permutations.
    pub const fn new(random: Random, n: u64) -> Self {
        let needed = u64::BITS - n.saturating_sub(1).leading_zeros();
        let bits = if needed < LEAST_BITS { LEAST_BITS } else { needed };
        Self { random, n, bits }
    }

    /// The position of `i`, which is below n. From n = 32 on, this runs fewer than two networks on average.
    pub fn at(&self, i: u64) -> u64 {
        debug_assert!(i < self.n);
        let mut x = self.network(i);
        // The numbers from n on lie on cycles that return below n: the walk ends, since it began below n.
        while x >= self.n {
            x = self.network(x);
        }
        x
    }

    fn network(&self, x: u64) -> u64 {
        // With an odd number of bits the halves differ by one bit, and they swap in each round.
        let (mut wide, mut narrow) = (self.bits - self.bits / 2, self.bits / 2);
        let (mut left, mut right) = (x >> wide, x & mask(wide));
        for round in 0..ROUNDS {
            // `right` has at most 32 bits, so every round draws its own numbers.
            let word = self.random.bits(round << 32 | right);
            (left, right) = (right, left ^ word & mask(narrow));
            (wide, narrow) = (narrow, wide);
        }
        left << wide | right
    }
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::random::stream;
    use std::vec;
    use std::vec::Vec;

    fn permutation(seed: u64, n: u64) -> Permutation {
        Permutation::new(Random::new(seed, stream("test")), n)
    }

    #[test]
    fn every_number_comes_once() {
        for n in (1..300).chain([1 << 12, (1 << 12) + 1, 98_765]) {
            let permutation = permutation(n, n);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let at = permutation.at(i) as usize;
                assert!(!seen[at], "{n}: {at} twice");
                seen[at] = true;
            }
        }
    }

    #[test]
    fn the_largest_numbers_have_one() {
        for n in [u64::MAX >> 1, (1 << 40) + 1, 1 << 33] {
            let permutation = permutation(5, n);
            let mut seen: Vec<u64> = (0..1000).map(|i| permutation.at(n - 1 - i)).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 1000);
            assert!(seen.iter().all(|&x| x < n));
            // Spread over the whole range: the median of a thousand is within five deviations of the middle.
            assert!((seen[500] as f64 / n as f64 - 0.5).abs() < 5.0 * 0.5 / 1000f64.sqrt());
        }
    }

    /// Σ (seen − expected)² / expected.
    fn chi_square(counts: &[u32], expected: f64) -> f64 {
        counts.iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum()
    }

    #[test]
    fn every_place_and_every_pair_of_neighbours_is_as_likely() {
        for n in [3, 17, 64, 100] {
            let (draws, n_) = (400 * n, n as usize);
            let mut places = vec![0u32; n_ * n_];
            let mut steps = vec![0u32; n_];
            for seed in 0..draws {
                let permutation = permutation(seed, n);
                for i in 0..n {
                    places[n_ * i as usize + permutation.at(i) as usize] += 1;
                }
                // The distance from the first element's position to its neighbour's, wrapping at the end.
                steps[((permutation.at(1) + n - permutation.at(0)) % n) as usize] += 1;
            }
            // A χ² of k degrees of freedom has mean k and deviation √(2k); within five deviations.
            let freedom = ((n - 1) * (n - 1)) as f64;
            let found = chi_square(&places, 400.0);
            assert!((found - freedom).abs() < 5.0 * (2.0 * freedom).sqrt() + 1.0, "{n}: {found} for {freedom}");
            let (freedom, expected) = ((n - 2) as f64, draws as f64 / (n - 1) as f64);
            assert_eq!(steps[0], 0);
            let found = chi_square(&steps[1..], expected);
            assert!((found - freedom).abs() < 5.0 * (2.0 * freedom).sqrt() + 1.0, "{n}: {found} for {freedom}");
        }
    }

    #[test]
    fn other_seeds_and_streams_give_other_orders() {
        let order = |random| (0..50).map(|i| Permutation::new(random, 50).at(i)).collect::<Vec<_>>();
        let one = order(Random::new(1, 2));
        assert_eq!(one, order(Random::new(1, 2)));
        assert_ne!(one, order(Random::new(2, 2)));
        assert_ne!(one, order(Random::new(1, 3)));
    }
}
