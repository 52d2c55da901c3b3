//! Exact sums of products of codes, and their scales: the parts of a product of integers for which a chip may have
//! instructions of its own. Sums are exact in any order, and the scales' steps are given, so that whoever makes them, the
//! product has the same bits.

use super::{dot4, dot8};
use crate::float16;

/// Makes the sums.
pub trait Sums {
    /// `sums[r] = Σ x · row r`, of rows as long as `x`: at most [`super::Integer::LONGEST`] codes. Row r begins at byte
    /// `r · stride` of `rows`, all of which are there.
    fn bytes(x: &[i8], rows: &[u8], stride: usize, sums: &mut [i32]);

    /// The same of rows of two codes a byte.
    fn nibbles(x: &[i8], rows: &[u8], stride: usize, sums: &mut [i32]);

    /// `products[r] += sums[r] · (scale r · x_scale)`, each rounded by itself. Scale r is `scales[r · stride]`, as bits of half
    /// precision; all are there.
    fn weigh(sums: &[i32], scales: &[u16], stride: usize, x_scale: f32, products: &mut [f32]) {
        for ((y, sum), scale) in products.iter_mut().zip(sums).zip(scales.iter().step_by(stride)) {
            *y += *sum as f32 * (float16::decode(*scale) * x_scale);
        }
    }
}

/// In plain code, which every machine has.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

impl Sums for Portable {
    fn bytes(x: &[i8], rows: &[u8], stride: usize, sums: &mut [i32]) {
        let (pairs, last) = sums.as_chunks_mut::<2>();
        let mut rows = rows;
        for pair in pairs {
            *pair = two_of_bytes(x, bytemuck::cast_slice(rows), bytemuck::cast_slice(&rows[stride..]));
            rows = rows.get(2 * stride..).unwrap_or_default();
        }
        for sum in last {
            *sum = dot8(x, bytemuck::cast_slice(rows));
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

// Two rows at a time have a small core's registers to themselves, if nothing else is inlined beside them.

#[inline(never)]
fn two_of_bytes(x: &[i8], a: &[i8], b: &[i8]) -> [i32; 2] {
    let (a, b) = (&a[..x.len()], &b[..x.len()]);
    let ((x, x_rest), (a, a_rest), (b, b_rest)) = (x.as_chunks::<8>(), a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0; 2];
    let mut add = |x: i8, a: i8, b: i8| {
        sums[0] += i32::from(x) * i32::from(a);
        sums[1] += i32::from(x) * i32::from(b);
    };
    for ((x, a), b) in x.iter().zip(a).zip(b) {
        for i in 0..8 {
            add(x[i], a[i], b[i]);
        }
    }
    for ((x, a), b) in x_rest.iter().zip(a_rest).zip(b_rest) {
        add(*x, *a, *b);
    }
    sums
}

#[inline(never)]
fn two_of_nibbles(x: &[i8], a: &[u8], b: &[u8]) -> [i32; 2] {
    let (x, x_rest) = x.as_chunks::<8>();
    let ((a, a_rest), (b, b_rest)) = (a.split_at(4 * x.len()), b.split_at(4 * x.len()));
    let ((a, _), (b, _)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut sums = [0; 2];
    let mut add = |x: [i8; 2], bytes: [u8; 2]| {
        for (sum, byte) in sums.iter_mut().zip(bytes) {
            // The arithmetic shifts bring the signs down.
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
    use super::*;
    use crate::random::Random;

    #[test]
    fn many_rows_at_once_have_the_sums_of_each() {
        let random = Random::new(3, 1);
        let all: [u8; 1024] = core::array::from_fn(|i| random.bits(i as u64) as u8);
        let codes: &[i8] = bytemuck::cast_slice(&all);
        for length in 0..70 {
            let x = &codes[..length];
            for (count, bytes) in [(5, length), (4, length.div_ceil(2))] {
                // The last row is all that is there of the rest.
                let rows = &all[100..100 * count + bytes];
                let row = |r: usize| &rows[100 * r..][..bytes];
                let (mut found, mut expected) = ([0; 5], [0; 5]);
                if bytes == length {
                    Portable::bytes(x, rows, 100, &mut found[..count]);
                    (0..count).for_each(|r| expected[r] = dot8(x, bytemuck::cast_slice(row(r))));
                    assert_eq!(found, expected, "{length}");
                }
                if bytes == length.div_ceil(2) {
                    Portable::nibbles(x, rows, 100, &mut found[..count]);
                    (0..count).for_each(|r| expected[r] = dot4(x, row(r)));
                    assert_eq!(found, expected, "{length}");
                }
            }
        }
    }
}
