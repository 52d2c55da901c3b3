//! Every gradient of `ops` compared with central differences, and the forward passes with numbers computed by hand.

use super::super::differences::{assert_close, gradient, waves};
use super::*;

const H: f64 = 1e-3;
const TOLERANCE: f64 = 1e-9;

fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn linear_by_hand_and_by_differences() {
    let y = linear(&[1.0, 2.0, 3.0], &[1.0, 0.0, -1.0, 2.0, 2.0, 2.0], Some(&[10.0, 20.0]), 1, 3, 2);
    assert_eq!(y, [8.0, 32.0]);

    // More than one group of rows, more than one group of lanes, both with a remainder.
    let (rows, inputs, outputs) = (18, 11, 3);
    let (x, w, b) = (waves(1, rows * inputs), waves(2, outputs * inputs), waves(3, outputs));
    let dy = waves(4, rows * outputs);
    let (dx, dw, db) = linear_gradient(&x, &w, &dy, rows, inputs, outputs);
    let f = |x: &[f64], w: &[f64], b: &[f64]| inner(&linear(x, w, Some(b), rows, inputs, outputs), &dy);
    assert_close("dx", &dx, &gradient(|x| f(x, &w, &b), &x, H), TOLERANCE);
    assert_close("dw", &dw, &gradient(|w| f(&x, w, &b), &w, H), TOLERANCE);
    assert_close("db", &db, &gradient(|b| f(&x, &w, b), &b, H), TOLERANCE);
}

#[test]
fn layer_norm_by_hand_and_by_differences() {
    // Mean 2, variance 1 of (1, 3); eps 3 makes the divisor 2.
    assert_eq!(layer_norm(&[1.0, 3.0], &[2.0, 4.0], &[0.5, 0.5], 2, 3.0), [-0.5, 2.5]);

    let (x, gain, bias, dy) = (waves(1, 15), waves(2, 5), waves(3, 5), waves(4, 15));
    let (dx, dgain, dbias) = layer_norm_gradient(&x, &gain, &dy, 5, 1e-5);
    let f = |x: &[f64], gain: &[f64], bias: &[f64]| inner(&layer_norm(x, gain, bias, 5, 1e-5), &dy);
    assert_close("dx", &dx, &gradient(|x| f(x, &gain, &bias), &x, H), TOLERANCE);
    assert_close("dgain", &dgain, &gradient(|g| f(&x, g, &bias), &gain, H), TOLERANCE);
    assert_close("dbias", &dbias, &gradient(|b| f(&x, &gain, b), &bias, H), TOLERANCE);
}

#[test]
fn rms_norm_by_hand_and_by_differences() {
    // Mean square 25 of (1, 7); eps 11 makes the divisor 6.
    assert_close("rms", &rms_norm(&[1.0, 7.0], &[2.0, 6.0], 2, 11.0), &[1.0 / 3.0, 7.0], 1e-15);

    let (x, gain, dy) = (waves(1, 15), waves(2, 5), waves(4, 15));
    let (dx, dgain) = rms_norm_gradient(&x, &gain, &dy, 5, 1e-5);
    let f = |x: &[f64], gain: &[f64]| inner(&rms_norm(x, gain, 5, 1e-5), &dy);
    assert_close("dx", &dx, &gradient(|x| f(x, &gain), &x, H), TOLERANCE);
    assert_close("dgain", &dgain, &gradient(|g| f(&x, g), &gain, H), TOLERANCE);
}

#[test]
fn swiglu_by_hand_and_by_differences() {
    // σ(ln 3) = 3/4.
    let ln3 = libm::log(3.0);
    assert_close("swiglu", &swiglu(&[ln3, 0.0], &[2.0, 5.0]), &[1.5 * ln3, 0.0], 1e-15);

    let gate: Vec<f64> = waves(1, 30).iter().map(|x| 4.0 * x).collect();
    let (up, dy) = (waves(2, 30), waves(3, 30));
    let (dgate, dup) = swiglu_gradient(&gate, &up, &dy);
    let f = |gate: &[f64], up: &[f64]| inner(&swiglu(gate, up), &dy);
    assert_close("dgate", &dgate, &gradient(|g| f(g, &up), &gate, H), TOLERANCE);
    assert_close("dup", &dup, &gradient(|u| f(&gate, u), &up, H), TOLERANCE);
}

#[test]
fn a_matrix_is_turned_over() {
    assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn gelu_by_table_and_by_differences() {
    // Φ(1) and Φ(2) from tables of the normal distribution.
    let expected = [0.0, 0.841_344_746_068_542_9, 2.0 * 0.977_249_868_051_820_8, -0.158_655_253_931_457_1];
    assert_close("gelu", &gelu(&[0.0, 1.0, 2.0, -1.0]), &expected, 1e-15);

    let x: Vec<f64> = waves(1, 30).iter().map(|x| 4.0 * x).collect();
    let dy = waves(2, 30);
    assert_close("dx", &gelu_gradient(&x, &dy), &gradient(|x| inner(&gelu(x), &dy), &x, H), TOLERANCE);
}

#[test]
fn rotary_turns_halves_of_the_first_dimensions_and_leaves_the_rest() {
    // Position 2, two pairs of six dimensions: (0, 2) rotates by 2, (1, 3) by 2 · 100^(−1/2) = 0.2.
    let y = rotary(&[1.0, 0.0, 0.0, 1.0, 7.0, 8.0], &[2], 1, 6, &frequencies(4, 100.0));
    let expected = [libm::cos(2.0), -libm::sin(0.2), libm::sin(2.0), libm::cos(0.2), 7.0, 8.0];
    assert_close("rotary", &y, &expected, 1e-15);

    let (x, dy) = (waves(1, 3 * 2 * 6), waves(2, 3 * 2 * 6));
    let dx = rotary_gradient(&dy, &[0, 1, 9], 2, 6, &frequencies(4, 10_000.0));
    let f = |x: &[f64]| inner(&rotary(x, &[0, 1, 9], 2, 6, &frequencies(4, 10_000.0)), &dy);
    assert_close("dx", &dx, &gradient(f, &x, H), TOLERANCE);
}

#[test]
fn embedding_looks_up_and_gathers_repeated_ids() {
    let table = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0];
    assert_eq!(embedding(&table, &[2, 0, 2], 2), [20.0, 21.0, 0.0, 1.0, 20.0, 21.0]);
    let dy = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_eq!(embedding_gradient(&[2, 0, 2], &dy, 3, 2), [3.0, 4.0, 0.0, 0.0, 6.0, 8.0]);
}

#[test]
fn cross_entropy_by_hand_and_by_differences_with_ignored_targets() {
    // Odds 1 : 3 with the likelier one as target: ln(4/3). The other row does not count.
    let loss = cross_entropy(&[0.0, libm::log(3.0), 5.0, 6.0], &[1, IGNORE], 2);
    assert_close("loss", &[loss], &[libm::log(4.0 / 3.0)], 1e-15);
    assert_eq!(cross_entropy(&[1.0, 2.0], &[IGNORE], 2), 0.0);
    assert_eq!(cross_entropy_gradient(&[1.0, 2.0], &[IGNORE], 2), [0.0, 0.0]);
    // Large logits neither overflow nor underflow.
    assert_eq!(cross_entropy(&[1e4, 0.0], &[1], 2), 1e4);

    let (logits, targets) = (waves(1, 4 * 5), [3, IGNORE, 0, 3]);
    let got = cross_entropy_gradient(&logits, &targets, 5);
    assert_close("dlogits", &got, &gradient(|x| cross_entropy(x, &targets, 5), &logits, H), TOLERANCE);
}

#[test]
fn adamw_takes_two_steps_as_worked_out_by_hand() {
    let with = AdamW { lr: 0.1, beta1: 0.5, beta2: 0.75, eps: 1.0, weight_decay: 0.2 };
    // Bias correction gives the first step m = g = 3, √v = 3: 3 / (3 + 1); the decay takes 2 % of 10.
    let (w, m, v) = adamw(&[10.0], &[3.0], &[0.0], &[0.0], 1, with);
    assert_close("weight", &w, &[10.0 - 0.2 - 0.1 * 0.75], 1e-15);
    assert_eq!((m[0], v[0]), (1.5, 2.25));
    // m = (0.75 − 0.5) / 0.75 = 1/3; v = (0.75 · 2.25 + 0.25) / (1 − 0.5625) = 1.9375 / 0.4375 = 31/7.
    let (w2, m, v) = adamw(&w, &[-1.0], &m, &v, 2, with);
    assert_eq!((m[0], v[0]), (0.25, 1.9375));
    let update = (1.0 / 3.0) / (libm::sqrt(31.0 / 7.0) + 1.0);
    assert_close("weight", &w2, &[w[0] * 0.98 - 0.1 * update], 1e-15);
}
