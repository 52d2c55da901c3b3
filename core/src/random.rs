//! Counter-based random numbers: a number depends only on (seed, stream, index).
//!
//! There is no state, so any draw can be repeated or skipped, in any order, by any thread, on any machine.
//! The function is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).

/// A source of independent numbers, named by a seed and a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    seed: u64,
    stream: u64,
}

impl Random {
    /// The numbers of `stream` under `seed`. Different streams are independent.
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self { seed, stream }
    }

    /// Seed and stream, the lower halves first: the words that a device needs to draw the same numbers.
    pub const fn words(&self) -> [u32; 4] {
        [self.seed as u32, (self.seed >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32]
    }

    /// The source that [`Random::words`] describes.
    pub const fn of_words([seed, seed_high, stream, stream_high]: [u32; 4]) -> Self {
        Self { seed: seed as u64 | (seed_high as u64) << 32, stream: stream as u64 | (stream_high as u64) << 32 }
    }

    /// Four independent 32-bit words: block `index` of this stream.
    pub fn block(&self, index: u64) -> [u32; 4] {
        philox(
            [index as u32, (index >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32],
            [self.seed as u32, (self.seed >> 32) as u32],
        )
    }

    /// Number `index` as 64 random bits.
    pub fn bits(&self, index: u64) -> u64 {
        let b = self.block(index);
        u64::from(b[0]) | u64::from(b[1]) << 32
    }

    /// Number `index`, uniform in [0, 1), with 53 random bits.
    pub fn uniform(&self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Number `index`, uniform in `0..n`. The bias is below n / 2^64. `n` of 0 gives 0.
    pub fn below(&self, index: u64, n: u64) -> u64 {
        ((u128::from(self.bits(index)) * u128::from(n)) >> 64) as u64
    }

    /// Number `index` of a standard normal distribution (Box-Muller, both halves of a block used).
    pub fn normal(&self, index: u64) -> f32 {
        let b = self.block(index / 2);
        // (0, 1]: the logarithm stays finite.
        let u = (f64::from(b[0]) + 1.0) * (1.0 / 4_294_967_296.0);
        let v = f64::from(b[1]) * (1.0 / 4_294_967_296.0);
        let radius = libm::sqrt(-2.0 * libm::log(u));
        let angle = core::f64::consts::TAU * v;
        (radius * if index.is_multiple_of(2) { libm::cos(angle) } else { libm::sin(angle) }) as f32
    }
}

/// The number of a stream from its name (FNV-1a, 64 bits), so that streams can be named after their purpose.
pub const fn stream(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_vectors() {
        // Known-answer vectors of the Random123 distribution.
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_variance_one() {
        let random = Random::new(7, stream("test"));
        let n = 200_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..n {
            let x = f64::from(random.normal(i));
            sum += x;
            squares += x * x;
        }
        // Four standard errors.
        assert!((sum / n as f64).abs() < 4.0 / libm::sqrt(n as f64));
        assert!((squares / n as f64 - 1.0).abs() < 4.0 * libm::sqrt(2.0 / n as f64));
    }

    #[test]
    fn numbers_below_a_bound_stay_below_it_and_reach_every_value() {
        let random = Random::new(1, 2);
        let mut seen = [0u32; 7];
        for i in 0..7000 {
            seen[random.below(i, 7) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 800), "{seen:?}");
    }
}
