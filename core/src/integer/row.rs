//! A row of a weight in integers: its product with activations, and its numbers.

use super::Integer;
use super::pair::Side;
use crate::float16;

/// A row of a weight in integers.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// What the codes are.
    pub integer: Integer,
    /// The codes, as bytes; those of two rows where it is one of a pair.
    pub codes: &'a [u8],
    /// Which of a pair it is.
    pub side: Option<Side>,
    /// A scale a group, as bits of half precision.
    pub scales: &'a [u16],
    /// Inputs of a scale.
    pub group: usize,
}

impl Row<'_> {
    /// Code `i`; 0 behind the last one.
    // Small on a chip: what is read often is read otherwise.
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
    // A chip's last resort.
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

    /// The numbers that the codes stand for, each shown with its column: `code · scale`, which f32 holds exactly.
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

/// Code `i` of a row of two a byte, the even one in the lower half; 0 behind the last one.
fn nibble(codes: &[u8], i: usize) -> i32 {
    let Some(&byte) = codes.get(i / 2) else { return 0 };
    // The arithmetic shift brings the sign down.
    (if i.is_multiple_of(2) { (byte << 4) as i8 >> 4 } else { byte as i8 >> 4 }) as i32
}

/// `Σ x · code` of codes of two a byte.
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
