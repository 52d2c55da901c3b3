//! Vector mathematics in f32: exponential, error function, GELU, and the sums and maxima of rows.
//!
//! The scalar functions are free of branches and calls, so a loop over a slice becomes vector code when it runs inside
//! `arch().dispatch(|| …)`. Every element goes through the same operations at any index in its slice, and each
//! multiplication that feeds an addition is fused explicitly, so the bits are the same for every instruction set.
//!
//! The polynomials are minimax fits made for this file (Lawson's iteration, coefficients rounded one by one from the
//! lowest); the errors stated are those of the tests below, against f64.

use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

use pulp::Arch;

/// The best instruction set of this machine. It is detected once; later calls cost a few loads.
#[inline]
pub fn arch() -> Arch {
    Arch::new()
}

/// Not `Copy`: a closure that captures it by value can be called only once. See [`vectorise`].
pub(super) struct Once;

/// Compiles a body for the detected instruction set and runs it: loops in the body become vector code.
///
/// A closure that could be called several times reaches the dispatcher through a compiler-made shim, which may not be
/// inlined; then the body is compiled without the vector instructions, and a fused multiply-add becomes a call. A
/// closure that moves [`Once`] out has no shim.
macro_rules! vectorise {
    ($body:expr $(,)?) => {{
        let once = $crate::simd::Once;
        $crate::simd::arch().dispatch(
            #[inline(always)]
            || {
                let _given = once;
                $body
            },
        )
    }};
}
pub(super) use vectorise;

/// Horner's rule with fused steps; coefficients from the highest power down.
#[inline(always)]
fn horner<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    for &c in &coefficients[1..] {
        sum = sum.mul_add(x, c);
    }
    sum
}

/// tanh x, with an absolute error of at most 1.8e-7. Near 0 that is a large relative error, but little for a logit
/// among others.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (1.0 + exp(2.0 * x))
}

/// e^x, with an error of at most 1 unit in the last place where the result is a normal number.
///
/// −∞ and values under −104 give 0, values over 88.73 give ∞, NaN stays NaN; results under 2^−126 are subnormal, with
/// an error of at most one of their units in the last place.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // ln 2 in two parts, the first with trailing zeros so that n * LN2_HIGH is exact.
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Comparisons written so that NaN is preserved.
    let x = if x < -104.5 { -104.5 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let p = horner(r, [1.382_074e-3, 8.368_677e-3, 4.166_826_6e-2, 1.666_652_1e-1, 0.499_999_94]);
    let p = p.mul_add(r * r, r) + 1.0;
    // 2^n as two factors, since n ranges from −151 to 128.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// 2^n for −126 ≤ n ≤ 127; any bits for others.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// The error function for |t| < 1: odd polynomial in t.
#[inline(always)]
fn erf_inner(t: f32) -> f32 {
    let p =
        horner(t * t, [-5.631_939e-4, 4.917_651e-3, -2.671_135_2e-2, 1.128_017_8e-1, -3.761_232_5e-1, 1.283_791_2e-1]);
    p.mul_add(t, t)
}

/// 1 − erf(t) for t ≥ 1, as the exponential of a polynomial.
#[inline(always)]
fn erfc_outer(t: f32) -> f32 {
    // Above 10.3 the result is 0 in f32, and the polynomial is invalid.
    let t = if t > 10.3 { 10.3 } else { t };
    let p = horner(
        t,
        [
            2.016_105_7e-9,
            -1.262_013_1e-7,
            3.510_502_4e-6,
            -5.746_947e-5,
            6.194_998e-4,
            -4.677_707_3e-3,
            2.583_485_5e-2,
            -1.086_120_2e-1,
            -6.337_063e-1,
            -1.290_097_5e-1,
        ],
    );
    exp(p.mul_add(t, -t))
}

/// The error function, with an error of at most 2 units in the last place.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let t = x.abs();
    let outer = (1.0 - erfc_outer(t)).copysign(x);
    if t < 1.0 { erf_inner(x) } else { outer }
}

/// The normal distribution function Φ(x) = (1 + erf(x / √2)) / 2; its relative error is at most 1e-4 even in the far
/// left tail, where 1 + erf would cancel.
#[inline(always)]
pub fn normal_cdf(x: f32) -> f32 {
    let t = x * FRAC_1_SQRT_2;
    let inner = erf_inner(t).mul_add(0.5, 0.5);
    let tail = 0.5 * erfc_outer(t.abs());
    let outer = if x > 0.0 { 1.0 - tail } else { tail };
    if t.abs() < 1.0 { inner } else { outer }
}

/// GELU in its exact form, x Φ(x) (Hendrycks and Gimpel 2016).
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    x * normal_cdf(x)
}

/// The derivative of [`gelu`]: Φ(x) + x φ(x), φ the normal density.
#[inline(always)]
pub fn gelu_derivative(x: f32) -> f32 {
    const DENSITY_0: f32 = 0.398_942_3; // 1 / √(2π)
    // The cap prevents 0 · ∞; e^(−x²/2) is 0 long before 20.
    let capped = if x.abs() > 20.0 { x.signum() * 20.0 } else { x };
    (capped * DENSITY_0).mul_add(exp(-0.5 * capped * capped), normal_cdf(x))
}

/// `y[i] = gelu(x[i])`.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_forward(x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len());
    vectorise!(for (y, &x) in y.iter_mut().zip(x) {
        *y = gelu(x);
    });
}

/// `dx[i] = dy[i] · gelu′(x[i])`, written over `dy`.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_backward(x: &[f32], dy_to_dx: &mut [f32]) {
    assert_eq!(x.len(), dy_to_dx.len());
    vectorise!(for (d, &x) in dy_to_dx.iter_mut().zip(x) {
        *d *= gelu_derivative(x);
    });
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `out[i] = silu(gate[i]) · up[i]`, with silu(x) = x / (1 + e⁻ˣ).
///
/// # Panics
/// If the lengths differ.
pub fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!((gate.len(), up.len()), (out.len(), out.len()));
    vectorise!(for ((out, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        *out = g * sigmoid(g) * u;
    });
}

/// Replaces gate and up by their gradients, `dy · up · silu′(gate)` and `dy · silu(gate)`.
///
/// # Panics
/// If the lengths differ.
pub fn swiglu_backward(gate: &mut [f32], up: &mut [f32], dy: &[f32]) {
    assert_eq!((gate.len(), up.len()), (dy.len(), dy.len()));
    vectorise!(for ((g, u), &dy) in gate.iter_mut().zip(up).zip(dy) {
        let s = sigmoid(*g);
        let value = *g * s;
        (*g, *u) = (dy * *u * value.mul_add(1.0 - s, s), dy * value);
    });
}

/// Partial results a row is folded into: element i goes to lane i mod 32, then the lanes are folded pairwise. The order
/// is part of the result's definition, the same for every vector width.
const LANES: usize = 32;

#[inline(always)]
fn fold(row: &[f32], start: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    fold_of(row, start, |x| x, combine)
}

/// [`fold`] over the values `of(element)`.
#[inline(always)]
fn fold_of(row: &[f32], start: f32, of: impl Fn(f32) -> f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (body, tail) = row.as_chunks::<LANES>();
    for chunk in body {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = combine(*lane, of(x));
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(tail) {
        *lane = combine(*lane, of(x));
    }
    fold_lanes(lanes, combine)
}

#[inline(always)]
fn fold_lanes(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = combine(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Folds pairs of elements by `step(sum so far, a, b)` in the order of [`sum`]; the lanes are added at the end. Vector
/// code only inside `arch().dispatch(|| …)`. If one slice is longer, its excess elements are ignored.
#[inline(always)]
pub fn fold_pairs(a: &[f32], b: &[f32], step: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let n = a.len().min(b.len());
    let mut lanes = [0.0; LANES];
    let ((a, a_tail), (b, b_tail)) = (a[..n].as_chunks::<LANES>(), b[..n].as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane = step(*lane, a, b);
        }
    }
    // Opaque, so that the loop is compiled by itself: optimised together with the code after it, its sums would be
    // scalars in memory.
    let mut lanes = std::hint::black_box(lanes);
    for (lane, (&a, &b)) in lanes.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *lane = step(*lane, a, b);
    }
    // Opaque once more, since the tail writes single lanes.
    fold_lanes(std::hint::black_box(lanes), |a, b| a + b)
}

/// `Σ a[i] · b[i]`, as [`fold_pairs`].
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    fold_pairs(a, b, |sum, a, b| a.mul_add(b, sum))
}

/// `y[i] += a · x[i]`. Vector code only inside `arch().dispatch(|| …)`.
#[inline(always)]
pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = a.mul_add(x, *y);
    }
}

/// `y[i] += x[i]`.
pub fn add(x: &[f32], y: &mut [f32]) {
    vectorise!(for (y, &x) in y.iter_mut().zip(x) {
        *y += x;
    });
}

/// The sum of a row, in a fixed order (32 interleaved partial sums, then pairwise). 0 for an empty row.
pub fn sum(row: &[f32]) -> f32 {
    vectorise!(fold(row, 0.0, |a, b| a + b),)
}

/// The largest element of a row; NaN elements are ignored. −∞ for an empty row.
pub fn max(row: &[f32]) -> f32 {
    vectorise!(fold(row, f32::NEG_INFINITY, |a, b| if b > a { b } else { a }),)
}

/// `row[i] = e^(row[i] − shift)`; returns the sum of the new row, in the order of [`sum`]. The body of a softmax.
pub fn exp_and_sum(row: &mut [f32], shift: f32) -> f32 {
    vectorise!({
        let mut lanes = [0.0; LANES];
        let (body, tail) = row.as_chunks_mut::<LANES>();
        for chunk in body {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *x = exp(*x - shift);
                *lane += *x;
            }
        }
        for (lane, x) in lanes.iter_mut().zip(tail) {
            *x = exp(*x - shift);
            *lane += *x;
        }
        fold_lanes(lanes, |a, b| a + b)
    },)
}

/// `row[i] = cap tanh(row[i] / cap)`.
pub fn softcap(row: &mut [f32], cap: f32) {
    vectorise!(for z in row {
        *z = cap * tanh(*z / cap);
    });
}

/// The gradient of a softmax with respect to capped logits: `row[i] = factor e^(row[i] − shift) (1 − (row[i] / cap)²)`.
pub fn exp_and_softcap_gradient(row: &mut [f32], shift: f32, factor: f32, cap: f32) {
    vectorise!(for z in row {
        let t = *z / cap;
        *z = factor * exp(*z - shift) * t.mul_add(-t, 1.0);
    });
}

/// `Σ_i e^(row[i] − shift)`, in the order of [`sum`].
pub fn sum_of_exp(row: &[f32], shift: f32) -> f32 {
    vectorise!(fold_of(row, 0.0, |x| exp(x - shift), |a, b| a + b),)
}

/// `row[i] *= factor`.
pub fn scale(row: &mut [f32], factor: f32) {
    vectorise!(for x in row {
        *x *= factor;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance to the exact value in units of the last place of its f32 neighbourhood.
    fn ulps(got: f32, exact: f64) -> f64 {
        if f64::from(got) == exact || (got.is_infinite() && exact > f64::from(f32::MAX)) {
            return 0.0;
        }
        let exponent = exact.abs().log2().floor().max(-126.0);
        (f64::from(got) - exact).abs() / 2f64.powf(exponent - 23.0)
    }

    /// The largest error over `n` points from `low` to `high`, computed in slices of odd lengths.
    fn worst(name: &str, low: f64, high: f64, ours: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
        const N: usize = 1_000_003;
        let x: Vec<f32> = (0..N).map(|i| (low + (high - low) * i as f64 / (N - 1) as f64) as f32).collect();
        let mut y = vec![f32::NAN; N];
        vectorise!(y.iter_mut().zip(&x).for_each(|(y, &x)| *y = ours(x)),);
        let (mut max, mut at) = (0.0, 0.0);
        for (&x, &y) in x.iter().zip(&y) {
            let error = ulps(y, exact(f64::from(x)));
            assert!(!error.is_nan(), "{name}({x}) = {y}");
            if error > max {
                (max, at) = (error, x);
            }
        }
        println!("{name} on [{low}, {high}]: {max:.3} ulp at {at}");
        max
    }

    #[test]
    fn exp_is_within_one_ulp() {
        assert!(worst("exp", -87.3, 88.72, exp, libm::exp) <= 1.0);
        assert!(worst("exp", -1.0, 1.0, exp, libm::exp) <= 1.0);
        assert!(worst("exp, subnormal", -104.0, -87.3, exp, libm::exp) <= 1.0);
        for x in [f32::NEG_INFINITY, f32::MIN, -1e10, -200.0, -104.1] {
            assert_eq!(exp(x), 0.0, "{x}");
        }
        for x in [88.73, 89.1, 1e30, f32::INFINITY] {
            assert_eq!(exp(x), f32::INFINITY, "{x}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
    }

    #[test]
    fn erf_is_within_two_ulps() {
        assert!(worst("erf", -6.0, 6.0, erf, libm::erf) <= 2.0);
        assert!(worst("erf", 0.9, 1.1, erf, libm::erf) <= 2.0);
        assert!(worst("erf", -1e-20, 1e-20, erf, libm::erf) <= 2.0);
        assert_eq!((erf(f32::INFINITY), erf(f32::NEG_INFINITY)), (1.0, -1.0));
        assert_eq!((erf(f32::MAX), erf(0.0)), (1.0, 0.0));
        assert!(erf(f32::NAN).is_nan());
    }

    fn exact_cdf(x: f64) -> f64 {
        0.5 * libm::erfc(-x / 2f64.sqrt())
    }

    #[test]
    fn gelu_and_its_derivative() {
        let exact = |x: f64| x * exact_cdf(x);
        let slope = |x: f64| exact_cdf(x) + x * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        assert!(worst("gelu", -1.0, 12.0, gelu, exact) <= 4.0);
        // 256 units are at most 3.1e-5 of the value, 800 at most 1e-4.
        assert!(worst("gelu", -5.0, -1.0, gelu, exact) <= 256.0);
        assert!(worst("gelu", -12.0, -5.0, gelu, exact) <= 800.0);
        // Relative to 1, since the derivative crosses 0.
        let absolute = |low, high| {
            worst("gelu' + 2", low, high, |x| 2.0 + gelu_derivative(x), |x| 2.0 + slope(x)).max(worst(
                "gelu'",
                low.max(0.0),
                high,
                gelu_derivative,
                slope,
            ))
        };
        assert!(absolute(-12.0, 12.0) <= 3.0);
        for x in [f32::MAX, 1e20, 30.0] {
            assert_eq!((gelu(x), gelu(-x), gelu_derivative(x), gelu_derivative(-x)), (x, 0.0, 1.0, 0.0), "{x}");
        }
        assert!(gelu(f32::NAN).is_nan() && gelu_derivative(f32::NAN).is_nan());
    }

    #[test]
    fn the_same_bits_at_every_position_and_on_every_instruction_set() {
        let x: Vec<f32> = (0..333).map(|i| (i as f32 * 0.7).sin() * 9.0).collect();
        let mut whole = vec![0.0; x.len()];
        gelu_forward(&x, &mut whole);
        let mut slope = vec![1.0; x.len()];
        gelu_backward(&x, &mut slope);
        let mut exps = x.clone();
        exp_and_sum(&mut exps, 9.0);
        for i in 0..x.len() {
            let mut one = [0.0];
            gelu_forward(&x[i..=i], &mut one);
            assert_eq!(one[0].to_bits(), whole[i].to_bits());
            one = [1.0];
            gelu_backward(&x[i..=i], &mut one);
            assert_eq!(one[0].to_bits(), slope[i].to_bits());
            one = [x[i]];
            assert_eq!(exp_and_sum(&mut one, 9.0), one[0]);
            assert_eq!(one[0].to_bits(), exps[i].to_bits());
            // Without any vector instructions.
            assert_eq!((gelu(x[i]), exp(x[i] - 9.0)), (whole[i], exps[i]));
        }
    }

    #[test]
    fn tanh_is_within_its_bound() {
        let mut largest = 0.0f64;
        for i in -400_000..=400_000 {
            let x = i as f32 * 5e-5;
            largest = largest.max((f64::from(tanh(x)) - f64::from(x).tanh()).abs());
        }
        assert!(largest <= 1.8e-7);
        for x in [100.0, 1e30, f32::INFINITY] {
            assert_eq!([tanh(x), tanh(-x)], [1.0, -1.0], "{x}");
        }
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn rows() {
        for len in [0, 1, 31, 32, 33, 100, 1000] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) / 8.0).collect();
            let exact: f64 = row.iter().map(|&x| f64::from(x)).sum();
            assert!((f64::from(sum(&row)) - exact).abs() <= 1e-6 * exact.abs(), "{len}");
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(&row), largest);
            let mut e = row.clone();
            let total = exp_and_sum(&mut e, largest);
            let exact: f64 = row.iter().map(|&x| (f64::from(x) - f64::from(largest)).exp()).sum();
            assert!((f64::from(total) - exact).abs() <= 3e-7 * exact);
            assert_eq!(total, sum(&e));
            assert_eq!(total, sum_of_exp(&row, largest));
            let mut capped = row.clone();
            softcap(&mut capped, 3.0);
            let mut gradient = capped.clone();
            exp_and_softcap_gradient(&mut gradient, 3.0, 0.5, 3.0);
            for ((&z, &c), &g) in row.iter().zip(&capped).zip(&gradient) {
                let t = (f64::from(z) / 3.0).tanh();
                assert!((f64::from(c) - 3.0 * t).abs() < 1e-6, "{z}: {c}");
                assert!((f64::from(g) - 0.5 * (3.0 * t - 3.0).exp() * (1.0 - t * t)).abs() < 1e-6, "{z}: {g}");
            }
            let exact: f64 = row.iter().zip(&e).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            let found = arch().dispatch(|| dot(&row, &e));
            assert!((f64::from(found) - exact).abs() <= 1e-5 * f64::from(total));
            let mut y = e.clone();
            axpy(2.0, &row, &mut y);
            add(&row, &mut y);
            assert!(y.iter().zip(e.iter().zip(&row)).all(|(y, (e, x))| (y - (e + 3.0 * x)).abs() < 1e-5));
            scale(&mut e, 0.5);
            assert_eq!(sum(&e), total * 0.5);
        }
    }
}
