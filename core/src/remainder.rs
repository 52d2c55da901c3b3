//! What a bf16 lacks of the f32 that it is the rounding of: 16 bits, with which the f32 is whole again.
//!
//! As bits, an f32 less the upper half that is its rounding is a number from −2¹⁵ to 2¹⁵, of which 2¹⁵ has no place in 16
//! bits: halfway between two bf16 the lower of which is even. Such an f32 comes back one unit of its last place nearer to
//! zero, which has the same rounding.
//!
//! Of those 16 bits the upper 8 are enough to learn by (FlashOptim, arXiv 2602.23349): 16 bits of significand instead of 24. They go from
//! −127 to 127, so that what is joined always has the bf16 as its rounding: near halfway it may be off by a whole unit of the
//! 8 bits, elsewhere by half of one.

/// The rounding to the nearest bf16, of two the even one, and what it lacks. NaN stays NaN.
pub const fn split(x: f32) -> (u16, i16) {
    let bits = x.to_bits();
    if x.is_nan() {
        return ((bits >> 16) as u16 | 0x40, 0);
    }
    // Half a unit of the upper half, less one where that is even.
    let weight = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    let lacks = bits.wrapping_sub((weight as u32) << 16) as i32;
    (weight, if lacks > i16::MAX as i32 { i16::MAX } else { lacks as i16 })
}

/// The f32 whose rounding is `weight`, and that has `remainder` besides.
pub const fn join(weight: u16, remainder: i16) -> f32 {
    f32::from_bits(((weight as u32) << 16).wrapping_add_signed(remainder as i32))
}

/// As [`split`], with the upper 8 bits of what the bf16 lacks, to the nearest.
pub const fn split8(x: f32) -> (u16, i8) {
    let (weight, lacks) = split(x);
    let upper = (lacks as i32 + 128) >> 8;
    (
        weight,
        if upper > i8::MAX as i32 {
            i8::MAX
        } else if upper < -(i8::MAX as i32) {
            -i8::MAX
        } else {
            upper as i8
        },
    )
}

/// A bf16 beside x, the one above in size with the probability of how near it is: the lower 16 bits of x of 2¹⁶. `random` decides.
/// What is a bf16 stays.
pub const fn dithered(x: f32, random: u16) -> u16 {
    if x.is_nan() {
        return split(x).0;
    }
    (x.to_bits().saturating_add(random as u32) >> 16) as u16
}

/// The f32 whose rounding is `weight`, and that has `upper` besides.
pub const fn join8(weight: u16, upper: i8) -> f32 {
    join(weight, (upper as i16) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Halfway between two bf16, the lower of which is even.
    const fn falls(x: f32) -> bool {
        x.to_bits() & 0x1_ffff == 0x8000
    }

    /// Holds `x` against the rounding of another implementation, and against itself.
    fn check(x: f32) {
        let (weight, remainder) = split(x);
        assert_eq!(weight, half::bf16::from_f32(x).to_bits(), "{x}");
        let kept = if falls(x) { x.to_bits() - 1 } else { x.to_bits() };
        assert_eq!(join(weight, remainder).to_bits(), kept, "{x}");
        assert_eq!(split(f32::from_bits(kept)), (weight, remainder), "{x}");
        assert!((remainder < 0) == (half::bf16::from_bits(weight).to_f32().abs() > x.abs()), "{x}");
    }

    #[test]
    fn a_number_is_its_rounding_and_what_that_lacks() {
        // Every lower half of some upper halves, then many of all: zeros, the smallest numbers, the largest, infinity.
        for upper in [0, 1, 0x007f, 0x3f80, 0x3f81, 0x7f7f, 0x8000, 0x807f, 0xbfff, 0xff7f] {
            (0..=0xffff).for_each(|lower| check(f32::from_bits(upper << 16 | lower)));
        }
        (0..=u32::MAX).step_by(9_973).map(f32::from_bits).filter(|x| !x.is_nan()).for_each(check);
    }

    #[test]
    fn what_is_dithered_is_right_on_average_and_a_neighbour() {
        for x in [1.0f32, 1.003, -0.127, 3e-20, f32::MAX, f32::INFINITY, 0.0].map(f32::to_bits).map(f32::from_bits) {
            let mut above = 0u32;
            for random in 0..=u16::MAX {
                let found = u32::from(dithered(x, random));
                let lower = x.to_bits() >> 16;
                assert!(found == lower || found == lower + 1, "{x}");
                above += found - lower;
            }
            assert_eq!(above, x.to_bits() & 0xffff, "{x}");
        }
        assert!(half::bf16::from_bits(dithered(f32::NAN, 7)).is_nan());
    }

    #[test]
    fn eight_bits_of_what_a_bf16_lacks_are_off_by_half_a_unit_of_them_and_split_alike_again() {
        let (mut halves, mut most) = (0u32, 0);
        for x in (0..=u32::MAX).step_by(9_973).map(f32::from_bits).filter(|x| x.is_finite() && x.abs() < 3.3e38) {
            let (weight, upper) = split8(x);
            assert_eq!(weight, split(x).0, "{x}");
            let joined = join8(weight, upper);
            assert_eq!(split8(joined), (weight, upper), "{x}");
            let off = x.to_bits().abs_diff(joined.to_bits());
            // A unit is 256 of the last place of an f32.
            assert!(off <= 256, "{x} is {joined}");
            (halves, most) = (halves + u32::from(off > 128), most.max(off));
        }
        // Beyond half of a unit only what lies near halfway: two of 256.
        assert!((1_000..5_000).contains(&halves) && most > 128, "{halves} {most}");
        assert!(join8(split8(f32::NAN).0, split8(f32::NAN).1).is_nan());
    }

    #[test]
    fn halfway_an_odd_one_rises_an_even_one_falls_and_is_moved_by_one_unit() {
        // Between 1 and the next bf16, and between that and its next; the same below zero.
        let halfway = [0x3f80_8000, 0x3f81_8000, 0xbf80_8000, 0xbf81_8000].map(f32::from_bits);
        let halves = [(0x3f80, i16::MAX), (0x3f82, i16::MIN), (0xbf80, i16::MAX), (0xbf82, i16::MIN)];
        assert_eq!(halfway.map(split), halves);
        let joined = halves.map(|(weight, remainder)| join(weight, remainder).to_bits());
        assert_eq!(joined, [0x3f80_7fff, 0x3f81_8000, 0xbf80_7fff, 0xbf81_8000]);
        // What rounds to infinity comes back, and so does infinity.
        assert_eq!([f32::MAX, f32::MIN].map(split), [(0x7f80, -1), (0xff80, -1)]);
        assert_eq!([join(0x7f80, -1), join(0xff80, -1)], [f32::MAX, f32::MIN]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(split), [(0x7f80, 0), (0xff80, 0)]);
        for bits in [0x7f80_0001, 0x7fc0_0000, 0xffff_ffff] {
            let (weight, remainder) = split(f32::from_bits(bits));
            assert!(half::bf16::from_bits(weight).is_nan() && join(weight, remainder).is_nan());
        }
    }
}
