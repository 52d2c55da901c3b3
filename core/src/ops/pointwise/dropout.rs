//! Dropout (Srivastava et al. 2014): a training step leaves out random elements. A mask is not stored: it is a function
//! of key, tensor, row and column, and the backward pass draws it again.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::random::{Random, stream};

/// The probability that a number is dropped, in steps of 2⁻¹⁶; below 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chance(u16);

impl Chance {
    /// Nothing is dropped.
    pub const NONE: Chance = Chance(0);

    /// The chance nearest to `p`; `None` where `p` is not in [0, 1).
    pub fn nearest(p: f32) -> Option<Chance> {
        let steps = libm::roundf(p * 65_536.0).min(65_535.0);
        (0.0..1.0).contains(&p).then_some(Chance(steps as u16))
    }

    /// Whether anything is dropped.
    pub const fn any(self) -> bool {
        self.0 > 0
    }

    /// The first of the 2¹⁶ random numbers for which an element stays.
    pub const fn first_kept(self) -> u16 {
        self.0
    }

    /// The factor of the elements that stay: 1 / (1 − p).
    pub fn factor(self) -> f32 {
        65_536.0 / (65_536.0 - f32::from(self.0))
    }
}

/// `x ← x ∘ mask / (1 − p)`, in place, with 0 for dropped elements. Applied to a gradient, this is its own gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// [rows, d].
    pub x: Region,
    /// `[2]` u32: the micro-batch's key from [`Dropout::key`].
    pub key: Region,
    /// The number of the mask within a step: each tensor has its own.
    pub place: u32,
    /// The probability that a number is dropped.
    pub chance: Chance,
}

impl Dropout {
    /// The number of columns whose random numbers are drawn together: one block of Philox, 16 bits each, lower halves
    /// first.
    pub const TOGETHER: usize = 8;

    /// The key of the masks of micro-batch `number` of a run with this seed.
    pub fn key(seed: u64, number: u64) -> [u32; 2] {
        let [low, high, ..] = Random::new(seed, stream("dropout")).block(number);
        [low, high]
    }

    /// Applies dropout to `x`, row `row` of the micro-batch.
    pub fn row(&self, key: [u32; 2], row: u32, x: &mut [f32]) {
        let (random, factor) = (Random::of_words([key[0], key[1], self.place, 0]), self.chance.factor());
        for (group, x) in x.chunks_mut(Self::TOGETHER).enumerate() {
            let words = random.block(u64::from(row) << 32 | group as u64);
            for (i, x) in x.iter_mut().enumerate() {
                let drawn = (words[i / 2] >> (16 * (i % 2))) as u16;
                *x = if drawn < self.chance.first_kept() { 0.0 } else { *x * factor };
            }
        }
    }
}

impl Operation for Dropout {
    const NAME: &'static str = "dropout";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("x", self.x));
        visit(Operand::read("key", self.key).ids());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.key.elements() == 2, "key")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [mut x, key] = arena.views([Some(self.x), Some(self.key)])?;
        let &[low, high] = key.u32()? else { return Err(self.misfit("key")) };
        let d = self.x.columns().max(1) as usize;
        let rows = x.f32_mut()?.chunks_exact_mut(d);
        (0..).zip(rows).for_each(|(row, x)| self.row([low, high], row, x));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    const TENTH: f32 = 0.1;

    /// Which of a tensor of ones stay, for `[rows, d]` of at most 4096 elements.
    fn kept(key: [u32; 2], place: u32, p: f32, [rows, d]: [u32; 2]) -> heapless::Vec<bool, 4096> {
        let mut b = Bench::<2100>::new();
        let (x, key) = (b.poison([1, 1, rows, d]), b.ids(&key));
        let ones = [1.0; 4096];
        b.set(x, &ones[..x.elements() as usize]);
        let chance = Chance::nearest(p).unwrap();
        b.run(Dropout { x, key, place, chance });
        let factor = 1.0 / (1.0 - f64::from(p));
        b.get(x)
            .iter()
            .map(|x| {
                assert!(*x == 0.0 || (f64::from(*x) / factor - 1.0).abs() < 1e-4, "{x}");
                *x > 0.0
            })
            .collect()
    }

    fn differ<T: PartialEq>(a: &[T], b: &[T]) -> usize {
        a.iter().zip(b).filter(|(a, b)| a != b).count()
    }

    #[test]
    fn so_many_are_dropped_and_the_mean_stays() {
        for p in [0.0, 0.01, TENTH, 0.5, 0.9] {
            let n = 4096.0f64;
            let count = kept([1, 2], 3, p, [64, 64]).iter().filter(|kept| !**kept).count() as f64;
            let p = f64::from(p);
            // Five standard deviations of a binomial distribution.
            assert!((count - n * p).abs() <= 5.0 * libm::sqrt(n * p * (1.0 - p)), "{p}: {count}");
        }
    }

    #[test]
    fn masks_of_other_keys_places_rows_and_columns_are_others_and_the_same_ones_are_the_same() {
        let half = |key, place| kept(key, place, 0.5, [16, 256]);
        let mask = half([1, 2], 3);
        assert_eq!(mask, half([1, 2], 3));
        // 4096 fair coins: 2048 ± 32, and within six deviations.
        let other = |n: usize| assert!((1856..=2240).contains(&n), "{n}");
        for (key, place) in [([1, 3], 3), ([2, 2], 3), ([2, 1], 3), ([1, 2], 4), ([1, 2], 1 << 31)] {
            other(differ(&mask, &half(key, place)));
        }
        other(differ(&mask[256..], &mask[..4096 - 256]) * 16 / 15);
        for shift in [1, 2, 4, 8, 16, 64] {
            other(differ(&mask[shift..], &mask) * 4096 / (4096 - shift));
        }
        // Keys of neighbouring micro-batches are unrelated.
        let next = Dropout::key(5, 1);
        assert!(Dropout::key(5, 0) != next && Dropout::key(6, 1) != next && Dropout::key(5, 1) == next);
    }

    #[test]
    fn a_row_has_the_same_mask_whatever_rows_there_are_and_odd_widths_end_within_a_group() {
        let (few, many) = (kept([7, 8], 1, 0.5, [3, 13]), kept([7, 8], 1, 0.5, [9, 13]));
        assert_eq!(few[..], many[..39]);
        let wide = kept([7, 8], 1, 0.5, [3, 16]);
        for row in 0..3 {
            assert_eq!(few[13 * row..13 * row + 13], wide[16 * row..16 * row + 13]);
        }
    }

    /// Words 6627e8d5 e169c58d bc57ac4c 9b00dbd8, the published vector of zeros.
    #[test]
    fn numbers_are_the_halves_of_words_the_lower_first() {
        let mut b = Bench::<64>::new();
        let (x, key) = (b.values([1, 1, 1, 8], &[1.0; 8]), b.ids(&[0, 0]));
        b.run(Dropout { x, key, place: 0, chance: Chance(0xc58e) });
        let kept = [0xe8d5, 0x6627, 0xc58d, 0xe169, 0xac4c, 0xbc57, 0xdbd8, 0x9b00].map(|drawn| drawn >= 0xc58e);
        assert!(b.get(x).iter().map(|x| *x > 0.0).eq(kept));
    }

    #[test]
    fn what_is_dropped_is_zero_whatever_it_was_and_none_leaves_all_alone() {
        let mut b = Bench::<64>::new();
        let values = [f32::NAN, f32::INFINITY, -3.0, 1e38, 5.0, -0.0, 7.0, 8.0];
        let (x, key) = (b.values([1, 1, 1, 8], &values), b.ids(&[0, 0]));
        b.run(Dropout { x, key, place: 0, chance: Chance::NONE });
        assert!(b.get(x).iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits()));
        b.run(Dropout { x, key, place: 0, chance: Chance(u16::MAX) });
        assert_eq!(b.get(x), [0.0; 8]);
    }

    #[test]
    fn a_probability_is_at_least_0_and_below_1() {
        for p in [-0.1, 1.0, 1.5, f32::NAN, f32::INFINITY] {
            assert_eq!(Chance::nearest(p), None, "{p}");
        }
        let [none, half, most] = [0.0, 0.5, 1.0 - f32::EPSILON / 2.0].map(|p| Chance::nearest(p).unwrap());
        assert_eq!((none, half, most), (Chance::NONE, Chance(1 << 15), Chance(u16::MAX)));
        assert!(!none.any() && half.any() && none.factor() == 1.0 && half.factor() == 2.0);
        let mut b = Bench::<64>::new();
        let (x, key) = (b.values([1, 1, 1, 1], &[1.0]), b.ids(&[0, 0, 0]));
        let wrong = Dropout { x, key, place: 0, chance: half };
        assert_eq!(wrong.validate(), Err(wrong.misfit("key")));
        assert_eq!(b.fails(wrong), Some(wrong.misfit("key")));
    }
}
