//! Dot products of rows of codes: the parts of an integer matrix multiplication for which a chip may have instructions
//! of its own. Sums of codes are exact in any order, and the steps with scales are prescribed, so every implementation
//! computes the same bits.

use core::sync::atomic::{Ordering, compiler_fence};

use heapless::Vec;

use super::pair;
use super::row::dot4;
use crate::float16;

/// Computes dot products.
pub trait Sums {
    /// `products[r] = 0 + (Σ x · row r) · (scale r · x_scale)`, with each step rounded by itself, for rows as long as
    /// `x` that are in pairs (see [`super::pair`]), with one scale each: at most [`super::Integer::LONGEST`] codes. The
    /// number of products is even, and `pairs` and `scales` are long enough for them.
    fn pairs(x: &[i8], x_scale: f32, pairs: &[u8], scales: &[u16], products: &mut [f32]);

    /// `sums[r] = Σ x · row r`, for rows as long as `x` with two codes in each byte. Row r begins at byte `r · stride`
    /// of `rows`, which is long enough.
    fn nibbles(x: &[i8], rows: &[u8], stride: usize, sums: &mut [i32]);

    /// `products[r] += sums[r] · (scale r · x_scale)`, each step rounded by itself. Scale r is `scales[r · stride]`, as
    /// bits of half precision; `scales` is long enough.
    fn weigh(sums: &[i32], scales: &[u16], stride: usize, x_scale: f32, products: &mut [f32]) {
        for ((y, sum), scale) in products.iter_mut().zip(sums).zip(scales.iter().step_by(stride.max(1))) {
            *y += *sum as f32 * (float16::decode(*scale) * x_scale);
        }
    }
}

/// Plain code, for every machine.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

impl Sums for Portable {
    fn pairs(x: &[i8], x_scale: f32, pairs: &[u8], scales: &[u16], products: &mut [f32]) {
        let (products, _) = products.as_chunks_mut::<2>();
        let rows = products.iter_mut().zip(scales.as_chunks::<2>().0);
        let put = |(y, scales): (&mut [f32; 2], &[u16; 2]), [low, high]: [i32; 2]| {
            let [first, second] = float16::decode_two(*scales);
            *y = [0.0 + low as f32 * (first * x_scale), 0.0 + high as f32 * (second * x_scale)];
        };
        let mut words = Vec::new();
        if let (Some(offset), Ok(halves)) = (widen(x, &mut words), bytemuck::try_cast_slice::<u8, u32>(pairs)) {
            let mask = core::hint::black_box(0x00ff_00ff);
            for (row, halves) in rows.zip(halves.chunks_exact(words.len().max(1))) {
                let both = of_pair(mask, &words, halves);
                put(row, [both as i32 - offset, (both >> 32) as i32]);
            }
        } else {
            for (row, pair) in rows.zip(pairs.chunks_exact((2 * x.len()).max(1))) {
                put(row, pair::sums(x, pair));
            }
        }
    }

    fn nibbles(x: &[i8], rows: &[u8], stride: usize, sums: &mut [i32]) {
        let (pairs, last) = sums.as_chunks_mut::<2>();
        let mut rows = rows;
        for pair in pairs {
            *pair = two_of_nibbles(x, rows, &rows[stride..]);
            rows = rows.get(2 * stride..).unwrap_or_default();
        }
        for sum in last {
            *sum = dot4(x, rows);
        }
    }
}

/// The number of codes of x that are widened to halves of words at once: limited by the range of C and U, and by a
/// small stack.
const WIDE: usize = 256;

/// Writes the codes of `x` as halves to `words` and returns 128 · their sum; `None` for an odd number of them, or for
/// more than [`WIDE`].
fn widen(x: &[i8], words: &mut Vec<u32, { WIDE / 2 }>) -> Option<i32> {
    let (pairs, []) = x.as_chunks::<2>() else { return None };
    let mut sum = 0;
    for x in pairs {
        let [low, high] = x.map(i32::from);
        words.push(u32::from(low as u16) | (high as u32) << 16).ok()?;
        sum += low + high;
    }
    Some(128 * sum)
}

// A separate function, so that a small core's registers are all free for it.

/// U of a pair in the lower half and (C − U) / 256 in the upper, which are two registers: see [`super::pair`]. The
/// `mask` of U's halves must be unknown to the compiler, which would otherwise split the words into bytes.
#[inline(never)]
fn of_pair(mask: u32, x: &[u32], halves: &[u32]) -> u64 {
    let [mut c, mut u] = [0i32; 2];
    let product = |x: u32, half: u32| i32::from(x as i16) * i32::from(half as i16);
    for (x, halves) in x.iter().zip(halves) {
        let halves = u32::from_le(*halves);
        c = c.wrapping_add(product(*x, halves));
        c = c.wrapping_add(product(x >> 16, halves >> 16));
        let low = halves & mask;
        u = u.wrapping_add(product(*x, low));
        u = u.wrapping_add(product(x >> 16, low >> 16));
        // One word after the other: there are too few registers to read more words in advance.
        compiler_fence(Ordering::SeqCst);
    }
    u64::from(u as u32) | u64::from((c.wrapping_sub(u) >> 8) as u32) << 32
}

#[inline(never)]
fn two_of_nibbles(x: &[i8], a: &[u8], b: &[u8]) -> [i32; 2] {
    let (x, x_rest) = x.as_chunks::<8>();
    let ((a, a_rest), (b, b_rest)) = (a.split_at(4 * x.len()), b.split_at(4 * x.len()));
    let ((a, _), (b, _)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut sums = [0; 2];
    let mut add = |x: [i8; 2], bytes: [u8; 2]| {
        for (sum, byte) in sums.iter_mut().zip(bytes) {
            // The arithmetic shifts extend the signs.
            *sum += i32::from(x[0]) * i32::from((byte << 4) as i8 >> 4) + i32::from(x[1]) * i32::from(byte as i8 >> 4);
        }
    };
    for ((x, a), b) in x.iter().zip(a).zip(b) {
        for i in 0..4 {
            add([x[2 * i], x[2 * i + 1]], [a[i], b[i]]);
        }
    }
    for ((x, a), b) in x_rest.chunks(2).zip(a_rest).zip(b_rest) {
        add([x[0], x.get(1).copied().unwrap_or(0)], [*a, *b]);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::pair::Side;
    use super::super::{Integer, Row};
    use super::*;
    use crate::random::Random;

    #[test]
    fn many_rows_of_nibbles_at_once_have_the_sums_of_each() {
        let random = Random::new(3, 1);
        let all: [u8; 1024] = core::array::from_fn(|i| random.bits(i as u64) as u8);
        for length in 0..70 {
            let (x, bytes) = (bytemuck::cast_slice(&all[..length]), length.div_ceil(2));
            // The slice ends with the last row.
            let rows = &all[100..400 + bytes];
            let (mut found, mut expected) = ([0; 4], [0; 4]);
            Portable::nibbles(x, rows, 100, &mut found);
            (0..4).for_each(|r| expected[r] = dot4(x, &rows[100 * r..][..bytes]));
            assert_eq!(found, expected, "{length}");
        }
    }

    #[test]
    fn products_of_pairs_are_those_of_each_row() {
        let random = Random::new(4, 1);
        let all: [u8; 8192] = core::array::from_fn(|i| random.bits(i as u64) as u8);
        let scales: [u16; 6] = core::array::from_fn(|i| float16::encode(0.01 + 0.02 * i as f32));
        for length in [1, 2, 3, 64, 65, 511, 513] {
            let (x, pairs) = (bytemuck::cast_slice(&all[..length]), &all[1024..][..6 * length]);
            for count in [2, 4, 6] {
                let mut found = [f32::NAN; 6];
                Portable::pairs(x, 0.37, &pairs[..count * length], &scales[..count], &mut found[..count]);
                for (r, found) in found[..count].iter().enumerate() {
                    let codes = &pairs[r / 2 * 2 * length..][..2 * length];
                    let (side, scales) = (Some(Side::of(r)), &scales[r..=r]);
                    let row = Row { integer: Integer::Int8, codes, side, scales, group: 1024 };
                    assert_eq!(found.to_bits(), row.dot(x, 0.37).to_bits(), "{length}");
                }
            }
        }
    }
}
