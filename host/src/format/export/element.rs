//! Element types of exported tensors.

use half::{bf16, f16};

/// A number format of tensors, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Element {
    /// IEEE 754 single precision.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE 754 half precision.
    F16,
}

impl Element {
    /// Bytes of a number.
    pub const fn size(self) -> u64 {
        match self {
            Element::F32 => 4,
            Element::Bf16 | Element::F16 => 2,
        }
    }

    /// Its name in safetensors.
    pub const fn safetensors(self) -> &'static str {
        match self {
            Element::F32 => "F32",
            Element::Bf16 => "BF16",
            Element::F16 => "F16",
        }
    }

    /// Its name in PyTorch.
    pub const fn torch(self) -> &'static str {
        match self {
            Element::F32 => "float32",
            Element::Bf16 => "bfloat16",
            Element::F16 => "float16",
        }
    }

    /// Replaces `out` by the encoded `numbers`, each rounded to nearest, ties to even; numbers beyond the exponent's
    /// range become infinite. Returns the first such number.
    pub fn encode(self, numbers: &[f32], out: &mut Vec<u8>) -> Option<f32> {
        out.clear();
        out.resize(numbers.len() * self.size() as usize, 0);
        let mut most = 0.0f32;
        match self {
            Element::F32 => {
                for (x, y) in numbers.iter().zip(out.as_chunks_mut().0) {
                    *y = x.to_le_bytes();
                }
                return None;
            }
            Element::Bf16 => {
                for (x, y) in numbers.iter().zip(out.as_chunks_mut().0) {
                    most = most.max(x.abs());
                    *y = bf16::from_f32(*x).to_le_bytes();
                }
                most = if bf16::from_f32(most).is_finite() { return None } else { most };
            }
            Element::F16 => {
                for (x, y) in numbers.iter().zip(out.as_chunks_mut().0) {
                    most = most.max(x.abs());
                    *y = f16::from_f32(*x).to_le_bytes();
                }
                most = if f16::from_f32(most).is_finite() { return None } else { most };
            }
        }
        Some(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 16-bit number nearest to `x`, found by a search over all of them, ties to the even one.
    fn nearest(x: f32, value: impl Fn(u16) -> f64) -> u16 {
        let finite = (0..=u16::MAX).filter(|&bits| value(bits).is_finite());
        let distance = |bits: u16| (value(bits) - f64::from(x)).abs();
        let sign = |bits: u16| (bits >> 15 != 0) == x.is_sign_negative();
        finite
            .filter(|&b| sign(b))
            .min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))))
            .unwrap()
    }

    #[test]
    fn numbers_go_to_the_nearest_and_ties_to_even() {
        let numbers = [
            0.0,
            -0.0,
            1.0,
            1.5,
            0.1,
            -0.1,
            3.2718,
            1.0 + 1.0 / 2048.0,
            1.0 + 3.0 / 2048.0,
            1.0 + 1.0 / 256.0,
            1e-7,
            3e-8,
            65504.0,
            -65519.0,
            1e-4,
            257.0,
        ];
        let mut bytes = vec![];
        assert_eq!(Element::F16.encode(&numbers, &mut bytes), None);
        for (x, y) in numbers.iter().zip(bytes.as_chunks::<2>().0) {
            assert_eq!(u16::from_le_bytes(*y), nearest(*x, |b| f16::from_bits(b).to_f64()), "{x}");
        }
        assert_eq!(Element::Bf16.encode(&numbers, &mut bytes), None);
        for (x, y) in numbers.iter().zip(bytes.as_chunks::<2>().0) {
            assert_eq!(u16::from_le_bytes(*y), nearest(*x, |b| bf16::from_bits(b).to_f64()), "{x}");
        }
        assert_eq!(Element::F32.encode(&numbers, &mut bytes), None);
        assert!(numbers.iter().zip(bytes.as_chunks::<4>().0).all(|(x, y)| x.to_le_bytes() == *y));
    }

    #[test]
    fn what_becomes_infinite_is_said() {
        let mut bytes = vec![];
        assert_eq!(Element::F16.encode(&[1.0, -65520.0, 2.0], &mut bytes), Some(65520.0));
        assert_eq!(Element::Bf16.encode(&[1.0, 65520.0], &mut bytes), None);
        assert_eq!(Element::Bf16.encode(&[f32::MAX], &mut bytes), Some(f32::MAX));
    }
}
