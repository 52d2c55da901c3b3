//! Scalar functions and sums that the reference loops share. The order of summation is fixed, and every machine uses
//! libm.

/// Sum of products in eight lanes and a fixed tree: vectorises, and gives the same bits everywhere.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (x, y) in a8.iter().zip(b8) {
        for i in 0..8 {
            lanes[i] += x[i] * y[i];
        }
    }
    for (i, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[i] += x * y;
    }
    tree(lanes)
}

/// The same bits as [`dot`], for vectors so short that the call and its loops would take most of the time.
#[inline(always)]
pub(super) fn short_dot(a: &[f32], b: &[f32]) -> f32 {
    match (<&[f32; 8]>::try_from(a), <&[f32; 8]>::try_from(b)) {
        (Ok(a), Ok(b)) => {
            let mut lanes = [0.0; 8];
            for i in 0..8 {
                lanes[i] += a[i] * b[i];
            }
            tree(lanes)
        }
        _ => dot(a, b),
    }
}

/// [`dot`] of `a` with each of two other vectors, reading `a` once: the same bits.
// Inlined: a call would take as long as eight columns of two short rows.
#[inline(always)]
pub fn dots(a: &[f32], [b, c]: [&[f32]; 2]) -> [f32; 2] {
    let mut lanes = [[0.0f32; 8]; 2];
    let (a8, a_rest) = a.as_chunks::<8>();
    let ((b8, b_rest), (c8, c_rest)) = (b.as_chunks::<8>(), c.as_chunks::<8>());
    for ((x, y), z) in a8.iter().zip(b8).zip(c8) {
        for i in 0..8 {
            lanes[0][i] += x[i] * y[i];
            lanes[1][i] += x[i] * z[i];
        }
    }
    for (i, ((x, y), z)) in a_rest.iter().zip(b_rest).zip(c_rest).enumerate() {
        lanes[0][i] += x * y;
        lanes[1][i] += x * z;
    }
    lanes.map(tree)
}

/// Sum in eight lanes and a fixed tree.
pub fn sum(a: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    let (a8, rest) = a.as_chunks::<8>();
    for x in a8 {
        for i in 0..8 {
            lanes[i] += x[i];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x;
    }
    tree(lanes)
}

/// The sum of eight lanes.
pub(super) fn tree(l: [f32; 8]) -> f32 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

/// `y += a x`.
pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// The largest element; −∞ for none. Comparisons only, so ±0 and NaN behave alike on every machine.
pub fn max(a: &[f32]) -> f32 {
    let mut largest = f32::NEG_INFINITY;
    for &x in a {
        if x > largest {
            largest = x;
        }
    }
    largest
}

/// x Φ(x), the exact GELU (Hendrycks and Gimpel 2016), with the error function.
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * core::f32::consts::FRAC_1_SQRT_2))
}

/// Φ(x) + x φ(x), the derivative of [`gelu`].
pub fn gelu_derivative(x: f32) -> f32 {
    const INV_SQRT_TAU: f32 = 0.398_942_3;
    0.5 * (1.0 + libm::erff(x * core::f32::consts::FRAC_1_SQRT_2)) + x * INV_SQRT_TAU * libm::expf(-0.5 * x * x)
}

/// x σ(x) and its derivative σ + x σ (1 − σ), with σ = 1 / (1 + e⁻ˣ).
pub fn silu(x: f32) -> [f32; 2] {
    let sigmoid = 1.0 / (1.0 + libm::expf(-x));
    [x * sigmoid, sigmoid + x * sigmoid * (1.0 - sigmoid)]
}

/// `cap · tanh(z / cap)`.
pub fn softcap(z: f32, cap: f32) -> f32 {
    cap * libm::tanhf(z / cap)
}

/// `1 − tanh²(z / cap)`, the derivative of [`softcap`].
pub fn softcap_derivative(z: f32, cap: f32) -> f32 {
    let t = libm::tanhf(z / cap);
    1.0 - t * t
}

/// 2 σ(x), which opens a gate: 1 at x = 0.
pub fn gate(x: f32) -> f32 {
    2.0 / (1.0 + libm::expf(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sums_at_once_are_two_sums() {
        let wave = |k: u32| core::array::from_fn::<f32, 29, _>(|i| libm::sinf((k + 1) as f32 * i as f32) - 0.3);
        let (a, b, c) = (wave(0), wave(1), wave(2));
        for n in 0..29 {
            let expected = [dot(&a[..n], &b[..n]), dot(&a[..n], &c[..n])];
            assert_eq!(dots(&a[..n], [&b[..n], &c[..n]]).map(f32::to_bits), expected.map(f32::to_bits), "{n}");
        }
    }
}
