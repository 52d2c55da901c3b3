//! A row of a weight in integers: its dot product with activations, and its dequantised numbers.

use super::Integer;
use super::pair::Side;
use crate::float16;

/// A row of a weight in integers.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The type of the codes.
    pub integer: Integer,
    /// The codes, as bytes; of two rows if the row is in a pair.
    pub codes: &'a [u8],
    /// Its position in the pair, if it is in one.
    pub side: Option<Side>,
    /// The scale of each group, as bits of half precision.
    pub scales: &'a [u16],
    /// The number of inputs that share a scale.
    pub group: usize,
}

impl Row<'_> {
    /// Code `i`; 0 after the last one.
    // Small on a chip: frequent accesses use other functions.
    #[inline(never)]
    pub fn code(&self, i: usize) -> i8 {
        match (self.integer, self.side) {
            (Integer::Int4, _) => nibble(self.codes, i) as i8,
            (Integer::Int8, None) => self.codes.get(i).map_or(0, |code| *code as i8),
            (Integer::Int8, Some(side)) => self.codes.as_chunks().0.get(i).map_or(0, |pair| side.code(*pair)),
        }
    }

    /// `Σ over the groups g, in their order, of (Σ codes · x) · (scale_g · x_scale)`: the sum within a group is an i32 and
    /// exact, everything else f32.
    // On a chip, the fallback only.
    #[inline(never)]
    pub fn dot(&self, x: &[i8], x_scale: f32) -> f32 {
        let group = self.group.max(2);
        let mut y = 0.0;
        for ((g, x), scale) in x.chunks(group).enumerate().zip(self.scales) {
            let sum = (g * group..).zip(x).fold(0, |sum, (i, x)| sum + i32::from(*x) * i32::from(self.code(i)));
            y += sum as f32 * (float16::decode(*scale) * x_scale);
        }
        y
    }

    /// Calls `visit` with each dequantised number and its column: `code · scale`, which is exact in f32.
    pub fn decoded(&self, columns: usize, mut visit: impl FnMut(usize, f32)) {
        let group = self.group.max(2);
        for (g, scale) in self.scales.iter().enumerate() {
            let scale = float16::decode(*scale);
            for i in g * group..((g + 1) * group).min(columns) {
                visit(i, f32::from(self.code(i)) * scale);
            }
        }
    }
}

/// Code `i` of a row with two codes in a byte, the even one in the lower half; 0 after the last one.
fn nibble(codes: &[u8], i: usize) -> i32 {
    let Some(&byte) = codes.get(i / 2) else { return 0 };
    // The arithmetic shift extends the sign.
    (if i.is_multiple_of(2) { (byte << 4) as i8 >> 4 } else { byte as i8 >> 4 }) as i32
}

/// `Σ x · code` for two codes in each byte.
pub fn dot4(x: &[i8], codes: &[u8]) -> i32 {
    let (pairs, rest) = x.as_chunks::<2>();
    let mut sum = 0;
    for (x, byte) in pairs.iter().zip(codes) {
        sum += i32::from(x[0]) * i32::from((byte << 4) as i8 >> 4) + i32::from(x[1]) * i32::from(*byte as i8 >> 4);
    }
    match rest {
        [x] => sum + i32::from(*x) * nibble(codes, 2 * pairs.len()),
        _ => sum,
    }
}
