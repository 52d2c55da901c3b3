//! Sparse wiring: which sources each neuron reads. A row depends only on (seed, stream, row).

use crate::random::Random;

/// A range of consecutive sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// The first source.
    pub first: u32,
    /// The number of sources.
    pub count: u32,
}

/// The largest number of ranges in one draw.
pub const POOLS: usize = 6;

/// One module's synapses: each row draws `reserved` sources from `front` and the others from the union of `pools`,
/// without repetition; source `own + row` is the row itself and is not drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wiring {
    /// The seed of the draws, together with `stream`.
    pub seed: u64,
    /// One stream for each module.
    pub stream: u64,
    /// The sources from which the first `reserved` of a row are drawn.
    pub front: Pool,
    /// The number of a row's sources drawn from `front`.
    pub reserved: u32,
    /// All other sources, as ascending, disjoint ranges after `front`; unused ranges have a count of 0.
    pub pools: [Pool; POOLS],
    /// The source that stands for row 0 itself; it lies in one of the pools, or in none (`u32::MAX`).
    pub own: u32,
}

impl Wiring {
    /// The number of sources that a row can draw from `pools`, without itself.
    pub fn others(&self) -> u64 {
        let all: u64 = self.pools.iter().map(|p| u64::from(p.count)).sum();
        all - u64::from(self.own != u32::MAX)
    }

    /// Draws `row`: its sources in ascending order. `sources` is as long as the fan-in, which must not exceed the
    /// number of sources that can be drawn.
    pub fn draw(&self, row: u32, sources: &mut [u32]) {
        let random = Random::new(self.seed, self.stream);
        let fan_in = sources.len() as u64;
        let counter = u64::from(row) * fan_in;
        let (front, rest) = sources.split_at_mut((self.reserved as usize).min(sources.len()));
        distinct(front, u64::from(self.front.count), |i, n| random.below(counter + i, n));
        front.iter_mut().for_each(|s| *s += self.front.first);
        let behind = front.len() as u64;
        distinct(rest, self.others(), |i, n| random.below(counter + behind + i, n));
        rest.iter_mut().for_each(|s| *s = self.source(*s, row));
    }

    /// The `n`-th source of the pools, skipping `row` itself.
    fn source(&self, n: u32, row: u32) -> u32 {
        let find = |mut n: u32| {
            for pool in &self.pools {
                if n < pool.count {
                    return pool.first + n;
                }
                n -= pool.count;
            }
            u32::MAX
        };
        let itself = self.own.wrapping_add(row);
        let found = find(n);
        if self.own != u32::MAX && found >= itself { find(n + 1) } else { found }
    }
}

/// Fills `chosen` with distinct numbers below `n`, in ascending order: Floyd's algorithm (Bentley and Floyd 1987).
fn distinct(chosen: &mut [u32], n: u64, below: impl Fn(u64, u64) -> u64) {
    let k = chosen.len();
    for i in 0..k {
        let top = n - (k - i) as u64;
        let drawn = below(i as u64, top + 1) as u32;
        let there = &chosen[..i];
        let (at, value) = match there.binary_search(&drawn) {
            // All numbers chosen before are below `top`.
            Ok(_) => (i, top as u32),
            Err(at) => (at, drawn),
        };
        chosen.copy_within(at..i, at + 1);
        chosen[at] = value;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn a_row_has_its_fan_in_sorted_without_repetition_and_without_itself(
            seed in any::<u64>(), front in 1u32..20, gap in 0u32..5, near in 0u32..20, own in 2u32..40,
            reserved in 0u32..20, share in 0.0f64..=1.0,
        ) {
            let reserved = reserved.min(front);
            let mut pools = [Pool { first: 0, count: 0 }; POOLS];
            pools[0] = Pool { first: front + gap, count: near };
            pools[1] = Pool { first: front + gap + near, count: own };
            let first_own = front + gap + near;
            let wiring =
                Wiring { seed, stream: 3, front: Pool { first: 0, count: front }, reserved, pools, own: first_own };
            let most = wiring.others() as u32;
            let fan_in = reserved + 1 + ((most - 1) as f64 * share) as u32;
            for row in 0..own {
                let mut sources = vec![u32::MAX; fan_in as usize];
                wiring.draw(row, &mut sources);
                prop_assert!(sources.windows(2).all(|w| w[0] < w[1]), "{sources:?}");
                prop_assert!(!sources.contains(&(first_own + row)));
                let of_front = sources.iter().filter(|s| **s < front).count();
                prop_assert_eq!(of_front, reserved as usize);
                prop_assert!(sources.iter().all(|s| *s < front || (front + gap..first_own + own).contains(s)));
                let again: Vec<u32> = { let mut s = vec![0; fan_in as usize]; wiring.draw(row, &mut s); s };
                prop_assert_eq!(&again, &sources);
            }
        }
    }

    #[test]
    fn every_source_is_drawn_about_equally_often() {
        let mut pools = [Pool { first: 0, count: 0 }; POOLS];
        pools[0] = Pool { first: 10, count: 40 };
        let wiring =
            Wiring { seed: 5, stream: 1, front: Pool { first: 0, count: 10 }, reserved: 5, pools, own: u32::MAX };
        let mut seen = [0u32; 50];
        for row in 0..4000 {
            let mut sources = [0; 15];
            wiring.draw(row, &mut sources);
            sources.iter().for_each(|s| seen[*s as usize] += 1);
        }
        // The expected counts are 2,000 and 1,000; within five standard deviations.
        assert!(seen[..10].iter().all(|n| n.abs_diff(2000) < 160), "{seen:?}");
        assert!(seen[10..].iter().all(|n| n.abs_diff(1000) < 140), "{seen:?}");
    }
}
