//! Floats of 8 bits (Micikevicius et al. 2022, "FP8 formats for deep learning"), converted as NVIDIA's GPUs do it
//! with saturation: to the nearest, ties to even, and never past the largest number.

use crate::memory::Dtype;

/// How the 8 bits are divided after the sign. A code is sign · 2^(e − bias) · 1.m, or sign · 2^(1 − bias) · 0.m where
/// the exponent bits e are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// 4 exponent bits (bias 7) and 3 of mantissa; up to 448, no infinities, 0x7f and 0xff are NaN. For values.
    E4m3,
    /// 5 exponent bits (bias 15) and 2 of mantissa; up to 57,344, infinity and NaN as in IEEE 754. For gradients.
    E5m2,
}

/// The code of NaN.
const NAN: u8 = 0x7f;

impl Format {
    /// The format of a region of this type.
    pub const fn of(dtype: Dtype) -> Option<Format> {
        match dtype {
            Dtype::E4m3 => Some(Format::E4m3),
            Dtype::E5m2 => Some(Format::E5m2),
            _ => None,
        }
    }

    /// The largest number.
    pub const fn max(self) -> f32 {
        match self {
            Format::E4m3 => 448.0,
            Format::E5m2 => 57_344.0,
        }
    }

    /// Mantissa bits and bias.
    const fn layout(self) -> (u32, u32) {
        match self {
            Format::E4m3 => (3, 7),
            Format::E5m2 => (2, 15),
        }
    }

    /// The code nearest to `x`, ties to even; the largest number with the sign of `x` where |x| is larger or infinite.
    /// NaN stays NaN.
    pub fn encode(self, x: f32) -> u8 {
        let (mantissa, bias) = self.layout();
        let sign = (x.to_bits() >> 24) as u8 & 0x80;
        let magnitude = f32::from_bits(x.to_bits() & 0x7fff_ffff);
        if x.is_nan() {
            return NAN;
        }
        let bits = if magnitude > self.max() { self.max().to_bits() } else { magnitude.to_bits() };
        let cut = 23 - mantissa;
        let code = if bits >= (128 - bias) << 23 {
            // Adds half a unit of the last remaining bit, less one where that bit is even; a carry goes to the
            // exponent.
            let rounded = bits + (1 << (cut - 1)) - 1 + (bits >> cut & 1);
            (rounded >> cut) - ((127 - bias) << mantissa)
        } else {
            // In units of the smallest number; adding 2²³ rounds to whole units.
            let units = f32::from_bits(bits) * power_of_two(bias + mantissa - 1);
            (units + 8_388_608.0).to_bits() & 0xff
        };
        sign | code as u8
    }

    /// The number that a code stands for.
    pub fn decode(self, code: u8) -> f32 {
        let (mantissa, bias) = self.layout();
        let (exponent, fraction) = (u32::from(code & 0x7f) >> mantissa, u32::from(code) & ((1 << mantissa) - 1));
        let magnitude = match self {
            Format::E4m3 if code & 0x7f == NAN => f32::NAN,
            Format::E5m2 if exponent == 31 && fraction > 0 => f32::NAN,
            Format::E5m2 if exponent == 31 => f32::INFINITY,
            _ if exponent == 0 => fraction as f32 / power_of_two(bias + mantissa - 1),
            _ => f32::from_bits((exponent + 127 - bias) << 23 | fraction << (23 - mantissa)),
        };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The largest power of two by which `amax` can be multiplied within the range of the format; 1 for an `amax` of 0.
    /// A power of two changes no digit of a value. Exponents are limited to ±62, so that the product of two inverses is
    /// finite.
    pub fn scale(self, amax: f32) -> f32 {
        if amax == 0.0 {
            return 1.0;
        }
        let exponent = ((self.max() / amax).to_bits() >> 23).clamp(127 - 62, 127 + 62);
        f32::from_bits(exponent << 23)
    }
}

/// 2ⁿ, n ≤ 127.
const fn power_of_two(n: u32) -> f32 {
    f32::from_bits((127 + n) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const FORMATS: [Format; 2] = [Format::E4m3, Format::E5m2];

    /// sign · 2^e · m by the definition, in f64.
    fn oracle(format: Format, code: u8) -> f64 {
        let (bits, bias) = if format == Format::E4m3 { (3, 7) } else { (2, 15) };
        let sign = if code >= 128 { -1.0 } else { 1.0 };
        let (e, m) = (i32::from(code % 128) >> bits, f64::from(i32::from(code) % (1 << bits)) / f64::from(1 << bits));
        let last = (1 << (7 - bits)) - 1;
        if format == Format::E4m3 && code % 128 == 127 || format == Format::E5m2 && e == last && m > 0.0 {
            return f64::NAN;
        }
        if format == Format::E5m2 && e == last {
            return sign * f64::INFINITY;
        }
        if e == 0 {
            sign * libm::exp2(f64::from(1 - bias)) * m
        } else {
            sign * libm::exp2(f64::from(e - bias)) * (1.0 + m)
        }
    }

    /// The codes of finite numbers that are not negative, in ascending order.
    fn finite(format: Format) -> impl Iterator<Item = u8> {
        (0..128u8).filter(move |c| oracle(format, *c).is_finite())
    }

    #[test]
    fn every_code_is_the_number_of_its_definition_and_comes_back() {
        for format in FORMATS {
            for code in 0..=255u8 {
                let (found, expected) = (format.decode(code), oracle(format, code));
                if expected.is_nan() {
                    assert!(found.is_nan() && format.encode(found) == 0x7f, "{format:?} {code:#x}");
                    continue;
                }
                assert_eq!(f64::from(found), expected, "{format:?} {code:#x}");
                assert_eq!(found.is_sign_negative(), code >= 128);
                let saturated = if expected.is_infinite() { code - 1 } else { code };
                assert_eq!(format.encode(found), saturated, "{format:?} {code:#x}");
            }
            assert_eq!(finite(format).map(|c| format.decode(c)).fold(0.0, f32::max), format.max());
        }
        assert_eq!((Format::E4m3.decode(0x7e), Format::E4m3.decode(1)), (448.0, 1.0 / 512.0));
        assert_eq!((Format::E5m2.decode(0x7b), Format::E5m2.decode(1)), (57_344.0, 1.0 / 65_536.0));
    }

    #[test]
    fn numbers_between_go_to_the_nearest_and_midpoints_to_the_even_code() {
        for format in FORMATS {
            for (low, high) in finite(format).zip(finite(format).skip(1)) {
                let middle = ((oracle(format, low) + oracle(format, high)) / 2.0) as f32;
                let even = if low % 2 == 0 { low } else { high };
                let (below, above) = (f32::from_bits(middle.to_bits() - 1), f32::from_bits(middle.to_bits() + 1));
                for (x, code) in [(below, low), (middle, even), (above, high)] {
                    assert_eq!(format.encode(x), code, "{format:?} {x:e}");
                    assert_eq!(format.encode(-x), code | 0x80, "{format:?} -{x:e}");
                }
            }
        }
    }

    #[test]
    fn any_number_has_the_nearest_code() {
        let random = Random::new(4, 8);
        for format in FORMATS {
            for i in 0..20_000 {
                // All exponents that matter, and some beyond them.
                let x = random.normal(2 * i) * libm::exp2f(random.below(2 * i + 1, 40) as f32 - 24.0);
                let off = |c: u8| (oracle(format, c) - f64::from(x)).abs();
                let all = finite(format).flat_map(|c| [c, c | 0x80]);
                let least = all.map(off).fold(f64::INFINITY, f64::min);
                assert_eq!(off(format.encode(x)), least, "{format:?} {x:e}");
            }
        }
    }

    #[test]
    fn what_is_too_large_saturates_and_nan_stays() {
        for format in FORMATS {
            let top = format.encode(format.max());
            for x in [format.max() * 1.01, format.max() * 2.0, f32::MAX, f32::INFINITY] {
                assert_eq!((format.encode(x), format.encode(-x)), (top, top | 0x80), "{x}");
            }
            assert_eq!([f32::NAN, -f32::NAN].map(|x| format.encode(x)), [0x7f; 2]);
            assert_eq!([0.0f32, -0.0, 1e-45, -1e-45].map(|x| format.encode(x)), [0, 0x80, 0, 0x80]);
        }
    }

    #[test]
    fn a_larger_number_never_has_a_smaller_code() {
        for format in FORMATS {
            let mut last = 0;
            for bits in (0..0x7f80_0000u32).step_by(0xfff1) {
                let code = format.encode(f32::from_bits(bits));
                assert!(code >= last, "{format:?} {bits:#x}");
                last = code;
            }
            assert_eq!(format.decode(last), format.max());
        }
    }

    #[test]
    fn a_scale_is_the_largest_power_of_two_that_fits() {
        for format in FORMATS {
            let random = Random::new(5, 9);
            for i in 0..2000 {
                let amax = libm::fabsf(random.normal(2 * i)) * libm::exp2f(random.below(2 * i + 1, 70) as f32 - 40.0);
                let scale = format.scale(amax);
                let fits = f64::from(amax) * f64::from(scale) / f64::from(format.max());
                assert!(fits <= 1.0 && fits > 0.5, "{format:?} {amax:e}: {scale:e}");
                assert_eq!(scale.to_bits() << 9, 0, "a power of two");
            }
            assert_eq!(format.scale(0.0), 1.0);
            // The scale is finite, and so is its inverse.
            assert_eq!(format.scale(1e-45), libm::exp2f(62.0));
            assert_eq!(format.scale(f32::MAX).to_bits() << 9, 0);
            assert!(format.scale(f32::MAX) >= libm::exp2f(-62.0));
        }
    }
}
