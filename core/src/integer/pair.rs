//! Two rows of 8-bit codes interleaved as one row of 16-bit halves: byte 2i is code i of the first row plus 128, byte
//! 2i + 1 code i of the second row.
//!
//! Half i is then `256 · b + u`, with b from the second row and u = a + 128 from the first, so that with C = Σ x ·
//! half, U = Σ x · u and X = Σ x
//!
//! ```text
//! Σ x · b = (C − U) / 256        Σ x · a = U − 128 · X
//! ```
//!
//! Both factors of C are halves of words as they are read, and those of U need one mask. With separate rows, each byte
//! would have to be widened. Modulo 2³² the first equation holds as long as |Σ x · b| < 2²³, so for 520 codes; longer
//! rows are summed in pieces.

/// The number of codes of a row whose dot product with 8-bit codes stays below 2²³.
pub const PIECE: usize = 512;

/// The position of a row in a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first row.
    Low,
    /// The second row.
    High,
}

impl Side {
    /// The position of row `r` of a matrix.
    pub const fn of(r: usize) -> Side {
        if r.is_multiple_of(2) { Side::Low } else { Side::High }
    }

    /// This row's code in these two bytes.
    pub const fn code(self, [low, high]: [u8; 2]) -> i8 {
        match self {
            Side::Low => (low ^ 0x80) as i8,
            Side::High => high as i8,
        }
    }

    /// Writes a row of codes, as bytes, into a pair of rows of that length; the other row stays unchanged.
    pub fn put(self, codes: &[u8], pair: &mut [u8]) {
        for ([low, high], code) in pair.as_chunks_mut().0.iter_mut().zip(codes) {
            match self {
                Side::Low => *low = code ^ 0x80,
                Side::High => *high = *code,
            }
        }
    }
}

/// `[Σ x · a, Σ x · b]` for the rows a and b of a pair.
pub fn sums(x: &[i8], pair: &[u8]) -> [i32; 2] {
    let mut sums = [0; 2];
    for (x, pair) in x.chunks(PIECE).zip(pair.chunks(2 * PIECE)) {
        let (mut c, mut u, mut all) = (0i32, 0, 0);
        for (x, half) in x.iter().zip(pair.as_chunks().0) {
            let x = i32::from(*x);
            c = c.wrapping_add(x * i32::from(i16::from_le_bytes(*half)));
            u += x * i32::from(half[0]);
            all += x;
        }
        sums = [sums[0] + u - 128 * all, sums[1] + (c.wrapping_sub(u) >> 8)];
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn rows_of_a_pair_are_what_was_put_and_their_sums_are_those_of_each() {
        let random = Random::new(5, 1);
        for length in [0, 1, 2, 7, 511, 512, 513, 1030] {
            let codes = |row: u64| {
                let code = move |i: usize| match length {
                    // The largest codes of either sign only: pieces have the largest length that is valid.
                    511.. if row < 2 => [-127, 127][row as usize],
                    _ => random.bits(2048 * row + i as u64) as i8,
                };
                core::array::from_fn::<i8, 1030, _>(code)
            };
            let (x, a, b) = (codes(0), codes(1), codes(2));
            let mut pair = [0; 2060];
            Side::Low.put(bytemuck::cast_slice(&a[..length]), &mut pair[..2 * length]);
            Side::High.put(bytemuck::cast_slice(&b[..length]), &mut pair[..2 * length]);
            for (i, bytes) in pair.as_chunks().0[..length].iter().enumerate() {
                assert_eq!([Side::Low, Side::High].map(|side| side.code(*bytes)), [a[i], b[i]]);
            }
            let exact =
                |row: &[i8]| x[..length].iter().zip(row).map(|(x, y)| i64::from(*x) * i64::from(*y)).sum::<i64>();
            assert_eq!(sums(&x[..length], &pair[..2 * length]).map(i64::from), [exact(&a), exact(&b)], "{length}");
        }
    }
}
