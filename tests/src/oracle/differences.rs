//! Derivatives by central differences, and the error measure for comparing two arrays.

/// The gradient of `f` at `x`, entry by entry: the fourth-order central difference of step `h`,
/// (8 (f(x+h) − f(x−h)) − (f(x+2h) − f(x−2h))) / 12h, whose own error is of order h⁴. In f64 a step of 1e-3 suits
/// functions whose values and inputs are near 1.
pub fn gradient(mut f: impl FnMut(&[f64]) -> f64, x: &[f64], h: f64) -> Vec<f64> {
    let mut moved = x.to_vec();
    (0..x.len())
        .map(|i| {
            let mut at = |offset: f64| {
                moved[i] = x[i] + offset;
                f(&moved)
            };
            let near = at(h) - at(-h);
            let far = at(2.0 * h) - at(-2.0 * h);
            moved[i] = x[i];
            (8.0 * near - far) / (12.0 * h)
        })
        .collect()
}

/// The largest difference between two arrays over the largest magnitude in `expected`; infinite for a NaN or where
/// the lengths differ. Where `expected` is all zero, the largest magnitude in `got`.
pub fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    if got.len() != expected.len() {
        return f64::INFINITY;
    }
    let (mut difference, mut size) = (0.0f64, 0.0f64);
    for (a, b) in got.iter().zip(expected) {
        if !(a - b).is_finite() {
            return f64::INFINITY;
        }
        difference = difference.max((a - b).abs());
        size = size.max(b.abs());
    }
    if size == 0.0 { difference } else { difference / size }
}

/// Panics unless [`relative_error`] is at most `tolerance`.
#[track_caller]
pub fn assert_close(name: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    let error = relative_error(got, expected);
    assert!(error <= tolerance, "{name}: relative error {error:e} above {tolerance:e}");
}

/// Entry `i` of array number `n`: sin(0.37 i² + n), between −1 and 1. A formula rather than a generator, so that any
/// language computes the same bits; the square gives matrices full rank, which sin(0.37 i) would not.
pub fn wave(n: usize, i: usize) -> f64 {
    let i = i as f64;
    libm::sin(0.37 * (i * i) + n as f64)
}

/// The first `len` entries of [`wave`] `n`.
pub fn waves(n: usize, len: usize) -> Vec<f64> {
    (0..len).map(|i| wave(n, i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_of_a_known_function_is_found() {
        let x = [0.3, -1.2, 0.9];
        let got = gradient(|x| x[0] * x[0] * x[1] + libm::exp(x[2]), &x, 1e-3);
        assert_close("gradient", &got, &[2.0 * 0.3 * -1.2, 0.09, libm::exp(0.9)], 1e-11);
    }

    #[test]
    fn a_difference_a_nan_and_a_wrong_length_are_seen() {
        assert_eq!(relative_error(&[1.0, 2.0], &[1.0, 4.0]), 0.5);
        assert_eq!(relative_error(&[0.1], &[0.0]), 0.1);
        assert_eq!(relative_error(&[f64::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(relative_error(&[1.0], &[1.0, 1.0]), f64::INFINITY);
    }
}
