//! The number formats of tensors. q8_0 and q4_0 are blocks of 32 numbers with a common scale, as llama.cpp defines
//! them.

use half::f16;

use crate::format::export::Element;

/// A number format of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Weights {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Blocks of 32 numbers in 8 bits: d = max |x| / 127 in f16, then x / d to the nearest. 8.5 bits a number.
    #[value(name = "q8_0")]
    Q8_0,
    /// Blocks of 32 numbers in 4 bits: d = m / −8 in f16, where m is the number of the largest |x|, then x / d + 8 to
    /// the nearest, at most 15. 4.5 bits a number.
    #[value(name = "q4_0")]
    Q4_0,
}

/// Numbers of a block.
const BLOCK: usize = 32;

impl From<Element> for Weights {
    fn from(element: Element) -> Weights {
        match element {
            Element::F32 => Weights::F32,
            Element::F16 => Weights::F16,
            Element::Bf16 => Weights::Bf16,
        }
    }
}

impl Weights {
    /// Whether several numbers share a scale.
    pub const fn quantised(self) -> bool {
        matches!(self, Weights::Q8_0 | Weights::Q4_0)
    }

    /// Whether rows of this many numbers can be written.
    pub const fn takes(self, columns: u64) -> bool {
        !self.quantised() || columns.is_multiple_of(BLOCK as u64)
    }

    /// Its number in files.
    pub(super) const fn number(self) -> u32 {
        match self {
            Weights::F32 => 0,
            Weights::F16 => 1,
            Weights::Q4_0 => 2,
            Weights::Q8_0 => 8,
            Weights::Bf16 => 30,
        }
    }

    /// The file type of a file whose matrices mostly have this format: `general.file_type`.
    pub(super) const fn file_type(self) -> u32 {
        match self {
            Weights::F32 => 0,
            Weights::F16 => 1,
            Weights::Q4_0 => 2,
            Weights::Q8_0 => 7,
            Weights::Bf16 => 32,
        }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Weights::F32 => "f32",
            Weights::F16 => "f16",
            Weights::Bf16 => "bf16",
            Weights::Q8_0 => "q8_0",
            Weights::Q4_0 => "q4_0",
        }
    }

    /// Bytes of this many numbers: whole blocks if numbers share a scale.
    pub(super) const fn bytes(self, elements: u64) -> u64 {
        match self {
            Weights::F32 => 4 * elements,
            Weights::F16 | Weights::Bf16 => 2 * elements,
            Weights::Q8_0 => elements / BLOCK as u64 * 34,
            Weights::Q4_0 => elements / BLOCK as u64 * 18,
        }
    }

    /// Replaces `out` by the encoded `numbers`. Returns a number that is too large for the format, if there is one.
    pub(super) fn encode(self, numbers: &[f32], out: &mut Vec<u8>) -> Option<f32> {
        match self {
            Weights::F32 => Element::F32.encode(numbers, out),
            Weights::F16 => Element::F16.encode(numbers, out),
            Weights::Bf16 => Element::Bf16.encode(numbers, out),
            Weights::Q8_0 => blocks(numbers, out, q8_0),
            Weights::Q4_0 => blocks(numbers, out, q4_0),
        }
    }
}

/// Encodes block by block; returns a number from a block with a scale that is too large for f16.
fn blocks<const BYTES: usize>(
    numbers: &[f32],
    out: &mut Vec<u8>,
    encode: impl Fn(&[f32; BLOCK]) -> (f32, [u8; BYTES]),
) -> Option<f32> {
    out.clear();
    out.reserve(numbers.len() / BLOCK * (2 + BYTES));
    for block in numbers.as_chunks().0 {
        let (scale, digits) = encode(block);
        let half = f16::from_f32(scale);
        if !half.is_finite() {
            return block.iter().copied().map(f32::abs).max_by(f32::total_cmp);
        }
        out.extend(half.to_le_bytes());
        out.extend(digits);
    }
    None
}

/// 1 / d, or 0 if the numbers are so small that all of them become 0.
fn reciprocal(d: f32) -> f32 {
    let reciprocal = d.recip();
    if reciprocal.is_finite() { reciprocal } else { 0.0 }
}

fn q8_0(block: &[f32; BLOCK]) -> (f32, [u8; BLOCK]) {
    let d = block.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
    let factor = reciprocal(d);
    // Halves are rounded away from zero.
    (d, block.map(|x| ((x * factor).round() as i8).cast_unsigned()))
}

fn q4_0(block: &[f32; BLOCK]) -> (f32, [u8; BLOCK / 2]) {
    // The first of several equal ones.
    let most = block.iter().fold(0.0f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    let d = most / -8.0;
    let factor = reciprocal(d);
    let digit = |x: f32| ((x * factor + 8.5) as u8).min(15);
    // The first half of the block is in the low digits, the second half in the high digits.
    (d, std::array::from_fn(|i| digit(block[i]) | digit(block[i + BLOCK / 2]) << 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decoded numbers of a block: x = d · digit.
    fn decoded(weights: Weights, bytes: &[u8]) -> Vec<f32> {
        let d = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        match weights {
            Weights::Q8_0 => bytes[2..34].iter().map(|b| d * f32::from(b.cast_signed())).collect(),
            _ => {
                let digits = &bytes[2..18];
                let low = digits.iter().map(|b| b & 15);
                low.chain(digits.iter().map(|b| b >> 4)).map(|b| d * (f32::from(b) - 8.0)).collect()
            }
        }
    }

    #[test]
    fn what_is_read_is_within_half_a_digit() {
        let random = capful_core::random::Random::new(3, 0);
        let numbers: Vec<f32> = (0..640).map(|i| (random.below(i, 2001) as f32 - 1000.0) / 300.0).collect();
        let mut out = vec![];
        for (weights, bytes, digits) in [(Weights::Q8_0, 34, 127.0), (Weights::Q4_0, 18, 8.0)] {
            assert_eq!(weights.encode(&numbers, &mut out), None);
            assert_eq!(out.len() as u64, weights.bytes(640));
            for (block, coded) in numbers.as_chunks::<32>().0.iter().zip(out.chunks(bytes)) {
                let most = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                for (x, y) in block.iter().zip(decoded(weights, coded)) {
                    // Rounding the scale to f16 adds 2⁻¹¹; 4 bits have no +8, so the other end is cut by one digit.
                    let worst = most / digits * if weights == Weights::Q4_0 { 1.0 } else { 0.5 } + most / 1024.0;
                    assert!((x - y).abs() <= worst, "{weights:?} {x} {y} of {most}");
                }
            }
        }
    }

    #[test]
    fn blocks_by_hand() {
        let mut block = [0.0; 32];
        (block[0], block[1], block[16], block[31]) = (-127.0, 0.5, 63.5, 2.49);
        let mut out = vec![];
        Weights::Q8_0.encode(&block, &mut out);
        // d = 1: −127, 1 (a half is rounded away from zero), 64, 2.
        assert_eq!(out[..2], f16::from_f32(1.0).to_le_bytes());
        assert_eq!([out[2], out[3], out[18], out[33]].map(u8::cast_signed), [-127, 1, 64, 2]);
        Weights::Q4_0.encode(&block, &mut out);
        // d = 127 / 8: −127 is digit 0; 63.5 / d = 4, digit 12; the others 8.
        assert_eq!(out[..2], f16::from_f32(127.0 / 8.0).to_le_bytes());
        assert_eq!((out[2], out[3], out[17]), (12 << 4, 8 | 8 << 4, 8 | 8 << 4));
        Weights::Q4_0.encode(&[0.0; 32], &mut out);
        // 0 / −8 is −0, as in llama.cpp.
        assert_eq!(out, [[0, 0x80].as_slice(), &[0x88; 16]].concat());
    }

    #[test]
    fn a_scale_that_has_no_room_is_said() {
        let mut block = [1.0; 32];
        block[7] = -1e9;
        for weights in [Weights::Q8_0, Weights::Q4_0, Weights::F16] {
            assert_eq!(weights.encode(&block, &mut vec![]), Some(1e9), "{weights:?}");
        }
        // So small that the scale has no reciprocal.
        assert_eq!(Weights::Q8_0.encode(&[1e-40; 32], &mut vec![]), None);
    }
}
