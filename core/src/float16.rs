//! Numbers of IEEE 754 half precision, the scales of weights in integers. Integer arithmetic converts them, so that a
//! machine without half-precision instructions computes the same bits.

/// The largest finite number.
pub const MAX: f32 = 65_504.0;

/// The number that these bits stand for, exactly.
pub const fn decode(bits: u16) -> f32 {
    let (sign, magnitude) = ((bits as u32 & 0x8000) << 16, (bits as u32 & 0x7fff) << 13);
    if magnitude >= 31 << 23 {
        return f32::from_bits(sign | 0x7f80_0000 | magnitude);
    }
    // The exponent is 112 too small, also for subnormal numbers; the multiplication is exact.
    f32::from_bits(sign | magnitude) * f32::from_bits((127 + 112) << 23)
}

/// As [`decode`], for two numbers at once: faster where both are positive and finite, as most scales are.
pub const fn decode_two(bits: [u16; 2]) -> [f32; 2] {
    let both = bits[0] as u32 | (bits[1] as u32) << 16;
    // Infinities and NaN would carry into the sign.
    if both.wrapping_add(0x0400_0400) & 0x8000_8000 != 0 || both & 0x8000_8000 != 0 {
        return [decode(bits[0]), decode(bits[1])];
    }
    const UP: f32 = f32::from_bits((127 + 112) << 23);
    [f32::from_bits((both & 0xffff) << 13) * UP, f32::from_bits((both >> 16) << 13) * UP]
}

/// The nearest number, ties to even; [`MAX`] with the sign of x where |x| is larger. NaN stays NaN.
pub const fn encode(x: f32) -> u16 {
    let (sign, magnitude) = ((x.to_bits() >> 16) as u16 & 0x8000, x.to_bits() & 0x7fff_ffff);
    if magnitude > 0x7f80_0000 {
        return 0x7e00;
    }
    let bits = if magnitude > MAX.to_bits() { MAX.to_bits() } else { magnitude };
    let code = if bits >= 113 << 23 {
        // Adds half a unit of the last remaining bit, less one where that bit is even; a carry goes to the exponent.
        ((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10)
    } else {
        // In units of 2⁻²⁴; adding 2²³ rounds to whole units.
        (f32::from_bits(bits) * 16_777_216.0 + 8_388_608.0).to_bits() & 0x7ff
    };
    sign | code as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_number_that_another_implementation_says() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (decode(bits), half::f16::from_bits(bits).to_f32());
            assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{bits:04x}");
            if expected.is_finite() {
                assert_eq!(encode(expected), bits, "{expected}");
            }
            for other in [0, 0x3c00, 0x7bff, 0x7c00, 0x8000, 0xffff] {
                let two = [decode_two([bits, other]), decode_two([other, bits])].map(|two| two.map(f32::to_bits));
                let [this, that] = [decode(bits), decode(other)].map(f32::to_bits);
                assert_eq!(two, [[this, that], [that, this]], "{bits:04x} {other:04x}");
            }
        }
    }

    #[test]
    fn numbers_become_the_nearest_code_as_another_implementation_says_and_the_largest_beyond_it() {
        for x in (0..=u32::MAX).step_by(9_973).map(f32::from_bits) {
            let expected = half::f16::from_f32(x);
            match () {
                () if x.is_nan() => assert!(decode(encode(x)).is_nan()),
                () if expected.is_infinite() => assert_eq!(decode(encode(x)), MAX.copysign(x)),
                () => assert_eq!(encode(x), expected.to_bits(), "{x}"),
            }
        }
        // Ties: between 1 and the next number, and between that and its next.
        assert_eq!([1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0].map(encode), [0x3c00, 0x3c02]);
        // Between the smallest number and 0, and a little above.
        assert_eq!([1.0 / 33_554_432.0, 1.01 / 33_554_432.0].map(encode), [0, 1]);
    }
}
