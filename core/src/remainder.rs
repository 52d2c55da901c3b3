//! The part of an f32 that the bf16 nearest to it lacks: 16 bits, which restore the f32 when joined with that bf16.
//!
//! Taken as bits, an f32 minus its bf16 rounding (as the upper half) is an integer from −2¹⁵ to 2¹⁵, and 2¹⁵ does not
//! fit in 16 signed bits. That value occurs halfway between two bf16 numbers whose lower one is even. Such an f32 is
//! restored one unit in its last place nearer to zero, which has the same rounding.
//!
//! The upper 8 of these 16 bits suffice for training (FlashOptim, arXiv 2602.23349): 16 bits of significand instead of
//! 24. They range from −127 to 127, so that the joined f32 always rounds to the same bf16: near halfway it may be off
//! by a whole unit of the 8 bits, elsewhere by half a unit.

/// The nearest bf16 (to even when halfway) and the remainder that it lacks of `x`. NaN stays NaN.
pub const fn split(x: f32) -> (u16, i16) {
    let bits = x.to_bits();
    if x.is_nan() {
        return ((bits >> 16) as u16 | 0x40, 0);
    }
    // Adds half a unit of the upper half, less one where the upper half is even.
    let weight = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    let lacks = bits.wrapping_sub((weight as u32) << 16) as i32;
    (weight, if lacks > i16::MAX as i32 { i16::MAX } else { lacks as i16 })
}

/// The f32 that [`split`] separates into `weight` and `remainder`.
pub const fn join(weight: u16, remainder: i16) -> f32 {
    f32::from_bits(((weight as u32) << 16).wrapping_add_signed(remainder as i32))
}

/// As [`split`], with only the upper 8 bits of the remainder, rounded to the nearest.
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

/// One of the two bf16 next to x: the larger in magnitude with a probability of the lower 16 bits of x over 2¹⁶, by
/// `random`. An x that is a bf16 stays the same.
pub const fn dithered(x: f32, random: u16) -> u16 {
    if x.is_nan() {
        return split(x).0;
    }
    (x.to_bits().saturating_add(random as u32) >> 16) as u16
}

/// The f32 that rounds to `weight` and has `upper` as the upper 8 bits of its remainder.
pub const fn join8(weight: u16, upper: i8) -> f32 {
    join(weight, (upper as i16) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether x is halfway between two bf16 whose lower one is even, so that its restored f32 is one unit smaller.
    const fn falls(x: f32) -> bool {
        x.to_bits() & 0x1_ffff == 0x8000
    }

    /// Compares the rounding of `x` with another implementation's, and checks that `x` is restored.
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
        // Every lower half for some upper halves, then many of all: zeros, the smallest numbers, the largest, infinity.
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
            // A unit of the 8 bits is 256 units in the last place of an f32.
            assert!(off <= 256, "{x} is {joined}");
            (halves, most) = (halves + u32::from(off > 128), most.max(off));
        }
        // More than half a unit only near halfway: two cases of 256.
        assert!((1_000..5_000).contains(&halves) && most > 128, "{halves} {most}");
        assert!(join8(split8(f32::NAN).0, split8(f32::NAN).1).is_nan());
    }

    #[test]
    fn halfway_an_odd_one_rises_an_even_one_falls_and_is_moved_by_one_unit() {
        // Between 1 and the next bf16, and between that and its successor; the same below zero.
        let halfway = [0x3f80_8000, 0x3f81_8000, 0xbf80_8000, 0xbf81_8000].map(f32::from_bits);
        let halves = [(0x3f80, i16::MAX), (0x3f82, i16::MIN), (0xbf80, i16::MAX), (0xbf82, i16::MIN)];
        assert_eq!(halfway.map(split), halves);
        let joined = halves.map(|(weight, remainder)| join(weight, remainder).to_bits());
        assert_eq!(joined, [0x3f80_7fff, 0x3f81_8000, 0xbf80_7fff, 0xbf81_8000]);
        // Numbers that round to infinity are restored, and so is infinity.
        assert_eq!([f32::MAX, f32::MIN].map(split), [(0x7f80, -1), (0xff80, -1)]);
        assert_eq!([join(0x7f80, -1), join(0xff80, -1)], [f32::MAX, f32::MIN]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(split), [(0x7f80, 0), (0xff80, 0)]);
        for bits in [0x7f80_0001, 0x7fc0_0000, 0xffff_ffff] {
            let (weight, remainder) = split(f32::from_bits(bits));
            assert!(half::bf16::from_bits(weight).is_nan() && join(weight, remainder).is_nan());
        }
    }
}
