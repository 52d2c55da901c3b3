//! Optimizer states, and activations saved for a backward pass, in 8 bits: blocks of 128 numbers, each with a scale in
//! f32 and one code for each number.
//!
//! A code is a number's share of the largest number in its block, spread so that small shares have finer steps
//! (companding, as in FlashOptim, arXiv 2602.23349). Momenta and activations have a sign, `c = 127 · 2 x / (1 + |x|)`.
//! Second moments have none and are stored as their fourth root, `c = 255 · x^(1/4)`, at least 1 where x is not 0: an
//! update divides by their square root, so none may become 0.
//!
//! A decoded block encodes to the same bytes again.

/// Numbers of a block.
pub const BLOCK: usize = 128;
/// Bytes of a block: its scale, then its codes.
pub const BYTES: usize = 4 + BLOCK;
/// A block.
pub type Block = [u8; BYTES];
/// A block whose largest number is smaller than this becomes all zeros: a power of two, whose inverse is a finite f32.
const SMALLEST: f32 = 1.0 / (1u128 << 100) as f32;

/// The meaning of a block's codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Numbers of either sign.
    Moment,
    /// Numbers that are not negative.
    Square,
}

impl Code {
    /// The number that a code stands for in a block of this scale.
    #[inline(always)]
    pub fn decode(self, code: u8, scale: f32) -> f32 {
        match self {
            Code::Moment => {
                let c = f32::from(code as i8);
                c / (254.0 - libm::fabsf(c)) * scale
            }
            Code::Square => {
                let root = f32::from(code) * f32::from(code);
                root * root * (1.0 / (65_025.0 * 65_025.0)) * scale
            }
        }
    }

    /// The code nearest to `x`, in a block whose scale is 1 / `inverse`; `root` is the square root.
    #[inline(always)]
    fn encode(self, x: f32, inverse: f32, root: impl Fn(f32) -> f32) -> u8 {
        // Rounds to an integer, which is then in the low bits.
        const ROUND: f32 = 12_582_912.0;
        let share = x * inverse;
        match self {
            Code::Moment => (254.0 * share / (1.0 + libm::fabsf(share)) + ROUND).to_bits() as u8,
            Code::Square => {
                let code = (255.0 * root(root(share)) + ROUND).to_bits() as u8;
                if share > 0.0 && code == 0 { 1 } else { code }
            }
        }
    }

    /// The numbers of a block.
    #[inline(always)]
    pub fn unpack(self, block: &Block, numbers: &mut [f32; BLOCK]) {
        let (scale, codes) = block.split_at(4);
        let scale = f32::from_le_bytes(scale.try_into().unwrap_or_default());
        numbers.iter_mut().zip(codes).for_each(|(x, code)| *x = self.decode(*code, scale));
    }

    /// Encodes numbers as a block.
    #[inline(always)]
    pub fn pack(self, numbers: &[f32; BLOCK], block: &mut Block) {
        self.pack_by(libm::sqrtf, numbers, block);
    }

    /// As [`Code::pack`], with a square root for which the caller has an instruction.
    #[inline(always)]
    pub fn pack_by(self, root: impl Fn(f32) -> f32, numbers: &[f32; BLOCK], block: &mut Block) {
        let largest = numbers.iter().fold(0.0, |most: f32, x| most.max(libm::fabsf(*x)));
        let (scale, inverse) = if largest < SMALLEST { (0.0, 0.0) } else { (largest, 1.0 / largest) };
        let (head, codes) = block.split_at_mut(4);
        head.copy_from_slice(&scale.to_le_bytes());
        codes.iter_mut().zip(numbers).for_each(|(code, x)| *code = self.encode(*x, inverse, &root));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Numbers of very different sizes.
    fn drawn(stream: u64, code: Code, scale: f32) -> [f32; BLOCK] {
        let random = Random::new(5, stream);
        core::array::from_fn(|i| {
            let x = random.normal(i as u64) * libm::powf(10.0, -4.0 * random.uniform(1_000 + i as u64) as f32) * scale;
            if code == Code::Square { x / scale * x } else { x }
        })
    }

    #[test]
    fn a_number_is_off_by_no_more_than_half_a_step() {
        for (stream, scale) in (0..40).zip([1e-28, 1e-12, 1e-4, 1.0, 1e6].into_iter().cycle()) {
            for code in [Code::Moment, Code::Square] {
                let numbers = drawn(stream, code, scale);
                let (mut block, mut back) = ([0; BYTES], [0.0; BLOCK]);
                code.pack(&numbers, &mut block);
                code.unpack(&block, &mut back);
                let largest = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                for (x, y) in numbers.iter().zip(back) {
                    // In f64: there, the step of the code is the slope of the inverse function.
                    let (share, y) = (f64::from(*x) / f64::from(largest), f64::from(y) / f64::from(largest));
                    let most = match code {
                        Code::Moment => (1.0 + share.abs()).powi(2) / 254.0 / 2.0 * 1.01,
                        Code::Square if *x > 0.0 && share < 1.0 / 255f64.powi(4) => 1.0 / 255f64.powi(4),
                        Code::Square => 4.0 * (share.powf(0.25) + 0.5 / 255.0).powi(3) / 255.0 / 2.0 * 1.01,
                    };
                    assert!(
                        (share - y).abs() <= most + 1e-7,
                        "{code:?}: {share} is {y}, which is off by more than {most}"
                    );
                    assert!(code == Code::Moment || (*x == 0.0) == (y == 0.0), "{x} is {y}");
                }
                // The largest number is exact.
                assert!(back.iter().any(|y| y.abs() == largest), "{code:?}");
            }
        }
    }

    #[test]
    fn every_code_comes_back_and_so_does_every_block() {
        for scale in [SMALLEST, 1.5e-25, 3e-9, 0.7, 1.0, 1e30] {
            for code in [Code::Moment, Code::Square] {
                // −128 is no code.
                let codes = (0..=255u8).filter(|c| code == Code::Square || *c != 0x80);
                let inverse = 1.0 / scale;
                codes.for_each(|c| {
                    assert_eq!(code.encode(code.decode(c, scale), inverse, libm::sqrtf), c, "{code:?} {scale}")
                });
                let numbers = drawn(3, code, scale.min(1e15));
                let (mut first, mut second, mut back) = ([0; BYTES], [0; BYTES], [0.0; BLOCK]);
                code.pack(&numbers, &mut first);
                code.unpack(&first, &mut back);
                code.pack(&back, &mut second);
                assert_eq!(first, second, "{code:?} {scale}");
            }
        }
    }

    #[test]
    fn zeros_and_what_is_nearly_zero_are_zeros() {
        for (x, code) in [(0.0, Code::Moment), (SMALLEST / 2.0, Code::Moment), (1e-40, Code::Square)] {
            let mut block = [1; BYTES];
            code.pack(&[x; BLOCK], &mut block);
            assert_eq!(block, [0; BYTES]);
            let mut back = [1.0; BLOCK];
            code.unpack(&block, &mut back);
            assert_eq!(back, [0.0; BLOCK]);
        }
    }
}
