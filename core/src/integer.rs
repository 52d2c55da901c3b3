//! Numbers as integers with scales: weights of 8 or 4 bits, activations of 8. `x ≈ code · scale`.
//!
//! Codes of 4 bits are stored two in a byte, row after row. In 8 bits, two rows are interleaved as a [`pair`], which a
//! chip multiplies with fewer instructions. A weight's scales are in half precision: one for each row in 8 bits, one
//! for each group of inputs in 4 bits. An activation's scale is an f32, one for each row, computed while the model
//! runs. Codes are rounded to the nearest, ties to even. Nothing here needs more than f32 additions, multiplications
//! and divisions, each rounded by itself, so every machine computes the same bits.

pub mod pair;
mod row;
mod sums;

pub use row::{Row, dot4};
pub use sums::{Portable, Sums};

use self::pair::Side;
use crate::float16;
use crate::memory::Dtype;

/// The integer types of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Integer {
    /// −127 … 127, a byte each: symmetric around 0.
    Int8,
    /// −8 … 7, two in a byte: all sixteen codes are used. The largest number of a group mostly gets the code −8, since
    /// its scale may be negative, so the grid is finer by an eighth than that of −7 … 7.
    Int4,
}

/// A parameter's part in matrix multiplications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// A matrix of a linear layer.
    Matrix,
    /// The rows of a vocabulary: looked up, or multiplied by the head.
    Table,
    /// A bias or a gain, which is not multiplied as a matrix: never in integers.
    Vector,
}

impl Integer {
    /// The largest number of inputs that share a scale: the sum of as many products of two 8-bit codes fits in an i32.
    pub const LONGEST: u32 = 1 << 17;

    /// The element type of the codes.
    pub const fn dtype(self) -> Dtype {
        match self {
            Integer::Int8 => Dtype::I8,
            Integer::Int4 => Dtype::I4,
        }
    }

    /// The integer type of a region of codes.
    pub const fn of(dtype: Dtype) -> Option<Integer> {
        match dtype {
            Dtype::I8 => Some(Integer::Int8),
            Dtype::I4 => Some(Integer::Int4),
            _ => None,
        }
    }

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Integer::Int8 => "int8",
            Integer::Int4 => "int4",
        }
    }

    /// The number of inputs in a row of `columns` that share a scale: in 8 bits the whole row, in 4 bits 32 in a matrix
    /// and 128 in a table, whose rows are many and short.
    pub const fn group(self, kind: ParameterKind, columns: u32) -> u32 {
        let group = match (self, kind) {
            (Integer::Int8, _) => Self::LONGEST,
            (Integer::Int4, ParameterKind::Table) => 128,
            (Integer::Int4, _) => 32,
        };
        // Even, so that a group begins at a byte.
        if columns < group { columns.next_multiple_of(2) } else { group }
    }
}

impl Integer {
    /// The number of rows that are in pairs, from the first on: in 8 bits all rows, except the last of an odd number.
    pub const fn paired(self, rows: u32) -> u32 {
        match self {
            Integer::Int8 => rows & !1,
            Integer::Int4 => 0,
        }
    }

    /// Writes the codes of row `r` into those of a matrix of `rows` rows.
    ///
    /// # Panics
    /// If the matrix has no such row.
    pub fn put_row(self, [rows, r]: [u32; 2], codes: &[u8], matrix: &mut [u8]) {
        let (bytes, r) = (codes.len(), r as usize);
        match r < self.paired(rows) as usize {
            true => Side::of(r).put(codes, &mut matrix[(r & !1) * bytes..][..2 * bytes]),
            false => matrix[r * bytes..][..bytes].copy_from_slice(codes),
        }
    }

    /// The group size with which a row of `columns` has `groups` groups, whatever its kind; `None` where no kind fits.
    pub fn group_of(self, columns: u32, groups: u32) -> Option<u32> {
        let fits = |group: &u32| columns.div_ceil(*group) == groups;
        [ParameterKind::Matrix, ParameterKind::Table].map(|kind| self.group(kind, columns)).into_iter().find(fits)
    }
}

/// 1.5 · 2²³: adding it rounds a number below 2²² to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;

/// The integer nearest to x, |x| < 2²², ties to even.
const fn nearest(x: f32) -> i32 {
    (x + ROUND).to_bits() as i32 - ROUND.to_bits() as i32
}

/// The bits of the largest |x|: as bits, infinity is above all numbers and NaN above infinity.
fn largest(x: &[f32]) -> u32 {
    x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff))
}

/// Quantises a row of activations to codes of −127 … 127 and returns their scale, the largest |x| divided by 127.
///
/// A row whose largest |x| is too small for 127 / |x| to be finite gets codes of 0 and a scale of 0. A row with an
/// infinity or NaN gets codes of 0 and a scale of NaN, which makes everything computed from it NaN.
pub fn quantise_activations(x: &[f32], codes: &mut [i8]) -> f32 {
    let largest = f32::from_bits(largest(x));
    let inverse = 127.0 / largest;
    if !largest.is_finite() || !inverse.is_finite() {
        codes.fill(0);
        return if largest.is_finite() { 0.0 } else { f32::NAN };
    }
    for (code, x) in codes.iter_mut().zip(x) {
        // |x · inverse| exceeds 127 by two roundings at most.
        *code = nearest(x * inverse) as i8;
    }
    largest / 127.0
}

/// The bound to which |x| / |scale| is clamped before it is rounded: beyond every code.
const BEYOND: f32 = 1024.0;

/// The code of `x` between `low` and `high`; 0 for a scale of 0.
fn code(x: f32, scale: f32, [low, high]: [i32; 2]) -> i32 {
    let x = x / scale;
    // These comparisons are false for NaN, the value of 0 / 0.
    let x = if x > -BEYOND { x } else { -BEYOND };
    let x = if x < BEYOND { x } else { BEYOND };
    if scale == 0.0 { 0 } else { nearest(x).clamp(low, high) }
}

/// The codes that the largest number of a group may get in 4 bits, each of which gives a scale to try. Codes below −8
/// clip that number for a finer grid; with positive ones the other sign has one more code.
const TRIED: [f32; 12] = [-8.0, -7.5, -7.0, -8.5, -9.0, -9.5, -10.0, 7.0, 7.5, 8.0, 8.5, 6.5];

/// A scale for a group in up to 4 bits: of the scales for [`TRIED`] the first one with the smallest sum of squared
/// errors; then, where that is better, the scale that fits the resulting codes best (least squares).
fn scale_of_4_bits(x: &[f32]) -> u16 {
    let extreme = x.iter().fold(0.0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
    let error = |bits: u16| {
        let scale = float16::decode(bits);
        let off = |x: &f32| x - code(*x, scale, [-8, 7]) as f32 * scale;
        x.iter().fold(0.0f32, |sum, x| sum + off(x) * off(x))
    };
    let better = |best: (u16, f32), bits| {
        let error = error(bits);
        if error < best.1 { (bits, error) } else { best }
    };
    let best = TRIED.iter().fold((0, f32::INFINITY), |best, tried| better(best, float16::encode(extreme / tried)));
    let scale = float16::decode(best.0);
    let [xq, qq] = x.iter().fold([0.0f32; 2], |[xq, qq], x| {
        let q = code(*x, scale, [-8, 7]) as f32;
        [xq + x * q, qq + q * q]
    });
    if qq > 0.0 { better(best, float16::encode(xq / qq)).0 } else { best.0 }
}

/// Quantises a row of a weight, with a scale for each `group` of inputs. Values that are not finite give meaningless
/// codes.
///
/// In 8 bits the scale is the group's largest |x| divided by 127, rounded to half precision before it is used; in 4
/// bits it is the result of a search.
pub fn quantise_row(integer: Integer, x: &[f32], group: u32, codes: &mut [u8], scales: &mut [u16]) {
    for (g, (x, to)) in x.chunks(group.max(2) as usize).zip(scales).enumerate() {
        let first = g * group as usize;
        match integer {
            Integer::Int8 => {
                *to = float16::encode(f32::from_bits(largest(x)) / 127.0);
                let scale = float16::decode(*to);
                for (to, x) in codes[first..].iter_mut().zip(x) {
                    *to = code(*x, scale, [-127, 127]) as i8 as u8;
                }
            }
            Integer::Int4 => {
                *to = scale_of_4_bits(x);
                let scale = float16::decode(*to);
                for (to, pair) in codes[first / 2..].iter_mut().zip(x.chunks(2)) {
                    let code = |x: Option<&f32>| x.map_or(0, |x| code(*x, scale, [-8, 7])) as u8 & 0xf;
                    *to = code(pair.first()) | code(pair.get(1)) << 4;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Normal numbers, every ninth of which is six times as large.
    fn normal<const N: usize>(stream: u64) -> [f32; N] {
        let random = Random::new(7, stream);
        core::array::from_fn(|i| random.normal(i as u64) * if i % 9 == 0 { 6.0 } else { 1.0 })
    }

    fn decoded<const N: usize>(row: &Row<'_>) -> [f32; N] {
        let mut all = [f32::NAN; N];
        row.decoded(N, |i, x| all[i] = x);
        all
    }

    #[test]
    fn activations_are_the_nearest_codes_and_of_two_the_even_one() {
        let mut codes = [99; 7];
        assert_eq!(quantise_activations(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5], &mut codes), 1.0);
        assert_eq!(codes, [127, 0, 2, 2, 0, -2, -126]);
        let x = normal::<1000>(1);
        let mut codes = [99; 1000];
        let scale = f64::from(quantise_activations(&x, &mut codes));
        let largest = x.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
        assert!((scale * 127.0 / largest - 1.0).abs() < 1e-7);
        for (x, code) in x.iter().zip(codes) {
            assert!((f64::from(*x) - f64::from(code) * scale).abs() <= 0.500_01 * scale, "{x} {code}");
        }
        assert_eq!(codes.iter().map(|code| code.unsigned_abs()).max(), Some(127));
    }

    #[test]
    fn activations_that_are_all_tiny_or_not_finite_have_codes_of_0() {
        let mut codes = [99; 3];
        for tiny in [[0.0; 3], [1e-38, -1e-40, 0.0]] {
            assert_eq!((quantise_activations(&tiny, &mut codes), codes), (0.0, [0; 3]));
        }
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(quantise_activations(&[1.0, x, 2.0], &mut codes).is_nan());
            assert_eq!(codes, [0; 3]);
        }
        // Results computed from such codes are not finite either.
        let row = Row { side: None, integer: Integer::Int8, codes: &[1, 2, 3], scales: &[0x3c00], group: 4 };
        assert!(row.dot(&codes, f32::NAN).is_nan());
    }

    #[test]
    fn weights_of_8_bits_are_the_nearest_codes_of_a_scale_of_half_precision() {
        let x = normal::<101>(2);
        let (mut codes, mut scales) = ([0; 101], [0; 1]);
        quantise_row(Integer::Int8, &x, Integer::Int8.group(ParameterKind::Matrix, 101), &mut codes, &mut scales);
        let row = Row { side: None, integer: Integer::Int8, codes: &codes, scales: &scales, group: 102 };
        let scale = float16::decode(scales[0]);
        for (x, y) in x.iter().zip(decoded::<101>(&row)) {
            // Where the scale was rounded down, the largest numbers are clipped by up to 127 times half its last bit.
            assert!((x - y).abs() <= scale * (0.5 + 127.0 / 4096.0), "{x} {y}");
        }
        let off: f64 = x.iter().zip(decoded::<101>(&row)).map(|(x, y)| f64::from(x - y).powi(2)).sum();
        // Errors that are uniform over a step have a deviation of 1 / √12 steps; three deviations of the root mean
        // square of 101 errors are 14 % of it.
        assert!((off / 101.0).sqrt() < 1.14 * 0.2887 * f64::from(scale));
    }

    #[test]
    fn weights_of_4_bits_are_better_than_with_the_plain_scale_and_groups_are_apart() {
        let x = normal::<75>(3);
        let group = Integer::Int4.group(ParameterKind::Matrix, 75);
        let (mut codes, mut scales) = ([0; 38], [0; 3]);
        quantise_row(Integer::Int4, &x, group, &mut codes, &mut scales);
        let row = Row { side: None, integer: Integer::Int4, codes: &codes, scales: &scales, group: group as usize };
        let found = decoded::<75>(&row);
        let (mut better, mut all) = (0.0, 0.0);
        for (x, found) in x.chunks(32).zip(found.chunks(32)) {
            let off: f64 = x.iter().zip(found).map(|(x, y)| f64::from(x - y).powi(2)).sum();
            let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let plain = |x: f32| (f64::from(x) / f64::from(largest) * 7.0).round() * f64::from(largest) / 7.0;
            let plain: f64 = x.iter().map(|x| (f64::from(*x) - plain(*x)).powi(2)).sum();
            assert!(off <= 1.02 * plain, "{off} {plain}");
            (better, all) = (better + off, all + plain);
        }
        assert!(better < 0.85 * all, "{better} {all}");
        // A group depends only on its numbers; the last group has 11, so its last byte has an unused code of 0.
        let (mut part, mut scale) = ([0; 6], [0; 1]);
        quantise_row(Integer::Int4, &x[64..], 32, &mut part, &mut scale);
        assert_eq!((part, scale[0]), (codes[32..].try_into().unwrap(), scales[2]));
        assert_eq!(part[5] >> 4, 0);
    }

    #[test]
    fn every_code_of_4_bits_is_its_number_and_what_lies_on_the_grid_stays() {
        let bytes: [u8; 8] = core::array::from_fn(|i| (2 * i) as u8 | ((2 * i + 1) as u8) << 4);
        let row = Row { side: None, integer: Integer::Int4, codes: &bytes, scales: &[0x3800], group: 16 };
        let numbers = decoded::<16>(&row);
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1].map(|x: i8| f32::from(x) * 0.5));
        let (mut codes, mut scales) = ([0; 8], [0; 1]);
        quantise_row(Integer::Int4, &numbers, 16, &mut codes, &mut scales);
        assert_eq!((codes, scales), (bytes, [0x3800]));
        // With the opposite signs the scale is negative.
        quantise_row(Integer::Int4, &numbers.map(|x| -x), 16, &mut codes, &mut scales);
        assert_eq!((codes, scales), (bytes, [0xb800]));
    }

    #[test]
    fn zeros_stay_zeros_and_the_largest_numbers_stay_finite() {
        for integer in [Integer::Int8, Integer::Int4] {
            let (mut codes, mut scales) = ([0xff; 8], [0xffff; 1]);
            quantise_row(integer, &[0.0; 8], 8, &mut codes, &mut scales);
            let of = |codes: &[u8; 8], scales: &[u16; 1]| {
                decoded::<8>(&Row { side: None, integer, codes, scales, group: 8 })
            };
            assert_eq!(of(&codes, &scales), [0.0; 8]);
            quantise_row(integer, &[f32::MAX, -f32::MAX, 1.0, 0.0, 1e30, 5.0, 6.0, 7.0], 8, &mut codes, &mut scales);
            assert!(of(&codes, &scales).iter().all(|x| x.is_finite()));
        }
    }

    /// Sums in i64, with codes and scales decoded separately.
    #[test]
    fn a_product_is_exact_within_a_group_and_adds_groups_in_their_order() {
        for (integer, columns, group) in
            [(Integer::Int8, 75, 76), (Integer::Int8, 75, 32), (Integer::Int4, 75, 32), (Integer::Int4, 64, 64)]
        {
            let weight = normal::<75>(4);
            let (mut codes, mut scales, mut x) = ([0; 75], [0; 3], [0; 75]);
            quantise_row(integer, &weight[..columns], group, &mut codes, &mut scales);
            let x_scale = quantise_activations(&normal::<75>(5), &mut x);
            let code = |i: usize| match integer {
                Integer::Int8 => i64::from(codes[i].cast_signed()),
                Integer::Int4 => {
                    let nibble = i64::from(codes[i / 2] >> (4 * (i % 2)) & 15);
                    if nibble > 7 { nibble - 16 } else { nibble }
                }
            };
            let (mut expected, mut exact) = (0.0f32, 0.0f64);
            for (g, scale) in scales.iter().enumerate() {
                let scale = half::f16::from_bits(*scale).to_f32();
                let own = g * group as usize..((g + 1) * group as usize).min(columns);
                let sum: i64 = own.clone().map(|i| code(i) * i64::from(x[i])).sum();
                let factor = scale * x_scale;
                let term = sum as f32 * factor;
                expected += term;
                for i in own {
                    exact += code(i) as f64 * f64::from(scale) * f64::from(x[i]) * f64::from(x_scale);
                }
            }
            let row = Row { side: None, integer, codes: &codes, scales: &scales, group: group as usize };
            let found = row.dot(&x[..columns], x_scale);
            assert_eq!(found.to_bits(), expected.to_bits(), "{integer:?} {columns} {group}");
            assert!((f64::from(found) - exact).abs() < 1e-5 * exact.abs().max(1.0), "{found} {exact}");
        }
    }

    #[test]
    fn the_longest_group_of_the_largest_codes_fits() {
        const LONGEST: usize = Integer::LONGEST as usize;
        static CODES: [i8; LONGEST] = [-128; LONGEST];
        static X: [i8; LONGEST] = [-127; LONGEST];
        let codes = bytemuck::cast_slice(&CODES);
        let row = Row { integer: Integer::Int8, codes, side: None, scales: &[0x3c00], group: LONGEST };
        // 127 · 2²⁴, which is exact in f32.
        assert_eq!(row.dot(&X, 1.0), (127 * 128 * LONGEST as i64) as f32);
        // The same holds for pairs, whatever the sign of the first row's codes.
        static PAIRS: [[u8; 2 * LONGEST]; 2] = {
            let mut pairs = [[(-127i8) as u8; 2 * LONGEST]; 2];
            let mut i = 0;
            while i < LONGEST {
                (pairs[0][2 * i], pairs[1][2 * i]) = ((-127i8) as u8 ^ 0x80, 127 ^ 0x80);
                i += 1;
            }
            pairs
        };
        let most = 127 * 127 * LONGEST as i32;
        assert_eq!([0, 1].map(|p| pair::sums(&X, &PAIRS[p])), [[most, most], [-most, most]]);
        assert_eq!(Integer::Int8.group(ParameterKind::Matrix, u32::MAX), Integer::LONGEST);
        assert_eq!([31, 32, 500].map(|columns| Integer::Int4.group(ParameterKind::Matrix, columns)), [32, 32, 32]);
        // The number of groups determines their size.
        for (integer, columns) in [Integer::Int8, Integer::Int4].into_iter().flat_map(|i| (1..700).map(move |c| (i, c)))
        {
            for kind in [ParameterKind::Matrix, ParameterKind::Table] {
                let group = integer.group(kind, columns);
                assert_eq!(integer.group_of(columns, columns.div_ceil(group)), Some(group));
            }
        }
        assert_eq!(Integer::Int4.group_of(500, 5), None);
        assert_eq!([9, 64, 500].map(|columns| Integer::Int4.group(ParameterKind::Table, columns)), [10, 64, 128]);
    }
}
