//! Rotary position embedding (Su et al. 2021), half-split pairs (j, j + dims / 2), on the first dims of each head.

use crate::memory::Region;
use crate::ops::Heads;

/// How rotary wavelengths are stretched for sequences longer than those of the model's original training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RotaryScaling {
    /// Not stretched.
    None,
    /// All wavelengths by one factor: positions are divided by the factor (Chen et al. 2023).
    Linear {
        /// The factor.
        factor: f32,
    },
    /// Wavelengths with many rotations within the original context stay, those with few are stretched by the factor,
    /// and those in between by a part of it (Grattafiori et al. 2024, Llama 3.1).
    Llama3 {
        /// The factor.
        factor: f32,
        /// Rotations in the original context up to which the whole factor applies.
        low: f32,
        /// Rotations from which on no factor applies.
        high: f32,
        /// Positions of the original context.
        original: u32,
    },
}

impl RotaryScaling {
    /// The stretched `frequency`, in radians for each position.
    pub fn scaled(self, frequency: f64) -> f64 {
        match self {
            RotaryScaling::None => frequency,
            RotaryScaling::Linear { factor } => frequency / f64::from(factor),
            RotaryScaling::Llama3 { factor, low, high, original } => {
                let [factor, low, high] = [factor, low, high].map(f64::from);
                let turns = f64::from(original) * frequency / core::f64::consts::TAU;
                // 0 where the whole factor applies, 1 where none does.
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
        }
    }
}

/// A rotation of queries and keys, fused with the operation that writes or reads their rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// [positions, dims / 2, 2]: cosine and sine, f32.
    pub table: Region,
    /// The heads of a row.
    pub heads: Heads,
    /// Row r is at position r mod `positions`.
    pub positions: u32,
}

impl Rotary {
    /// Rotated dims of a head.
    pub const fn dims(&self) -> u32 {
        self.table.shape[2] * 2
    }

    /// Whether the table has every position and the heads are wide enough.
    pub const fn fits(&self) -> bool {
        self.table.shape[3] == 2
            && self.positions > 0
            && self.positions <= self.table.shape[1]
            && self.dims() <= self.heads.size
    }

    /// Rotates the queries and keys of `row` by `table`'s angles at `position`; backwards if `inverse`. `None` where
    /// the table lacks the position or the row lacks a head.
    #[must_use = "a row that is too short is not rotated"]
    pub fn rotate(
        heads: &Heads,
        table: &[f32],
        dims: usize,
        position: usize,
        row: &mut [f32],
        inverse: bool,
    ) -> Option<()> {
        let (angles, _) = table.get(position * dims..(position + 1) * dims)?.as_chunks::<2>();
        let mut turn = |at: usize| {
            let (low, high) = row.get_mut(at..at + dims)?.split_at_mut_checked(dims / 2)?;
            for ((a, b), &[cos, sin]) in low.iter_mut().zip(high).zip(angles) {
                let sin = if inverse { -sin } else { sin };
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
            Some(())
        };
        (0..heads.queries).try_for_each(|h| turn(heads.query(h)))?;
        (0..heads.keys).try_for_each(|h| turn(heads.key(h)))
    }

    /// Cosine and sine of pair `pair` of `dims / 2` at `position`, computed in f64 and rounded once.
    pub fn angle(base: f32, scaling: RotaryScaling, dims: u32, position: u32, pair: u32) -> [f32; 2] {
        let exponent = -2.0 * f64::from(pair) / f64::from(dims);
        let angle = f64::from(position) * scaling.scaled(libm::pow(f64::from(base), exponent));
        [libm::cos(angle) as f32, libm::sin(angle) as f32]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Radians for each position of pair `pair` of `dims / 2`.
    fn frequency(scaling: RotaryScaling, base: f64, dims: u32, pair: usize) -> f64 {
        scaling.scaled(libm::pow(base, -2.0 * pair as f64 / f64::from(dims)))
    }

    #[test]
    fn stretched_frequencies_are_those_of_transformers() {
        // `inv_freq` of transformers 5's LlamaRotaryEmbedding, in f32: heads of 16, base 10,000.
        let linear =
            [0.25, 0.079_056_944, 0.025, 0.007_905_694_7, 0.002_5, 0.000_790_569_46, 0.000_250_000_01, 7.905_694_7e-5];
        // For 64 original positions: the first stays, two are in between, the others are stretched by 8.
        let llama3 =
            [1.0, 0.244_384_59, 0.013_042_256, 0.003_952_847_3, 0.001_25, 0.000_395_284_73, 0.000_125, 3.952_847_3e-5];
        let stretch = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64 };
        for (scaling, expected) in [(RotaryScaling::Linear { factor: 4.0 }, linear), (stretch, llama3)] {
            for (pair, expected) in expected.into_iter().enumerate() {
                approx::assert_relative_eq!(frequency(scaling, 1e4, 16, pair), expected, max_relative = 1e-6);
            }
        }
        // Llama 3.2: heads of 64, base 500,000. Pairs 14 to 18: the last unchanged one, those in between, a stretched
        // one.
        let published = [0.003_211_446_1, 0.001_290_548, 0.000_429_556_71, 9.708_286_2e-5, 1.946_163_9e-5];
        let stretch = RotaryScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192 };
        for (pair, expected) in (14..).zip(published) {
            approx::assert_relative_eq!(frequency(stretch, 5e5, 64, pair), expected, max_relative = 2e-6);
        }
    }

    #[test]
    fn the_table_is_of_the_stretched_frequencies_rounded_once() {
        let scaling = RotaryScaling::Linear { factor: 4.0 };
        // Pair 3 of 4 rotates by 0.001 / 4 for each position.
        let angle = 1000.0 * (libm::pow(1e4, -0.75) / 4.0);
        let expected = [libm::cos(angle) as f32, libm::sin(angle) as f32];
        assert_eq!(Rotary::angle(1e4, scaling, 8, 1000, 3), expected);
        assert_ne!(Rotary::angle(1e4, RotaryScaling::None, 8, 1000, 3), expected);
    }
}
