//! The operations one by one, forward and backward, a few lines each. Attention has a file of its own.
//!
//! `rows` counts tokens (batch × length). A gradient function takes the forward's inputs and the gradient of its output.

use super::IGNORE;
use rayon::prelude::*;
use std::f64::consts::{PI, SQRT_2};

/// a·b in eight partial sums, which the compiler keeps in vector registers.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in a8.iter().zip(b8) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

/// y += a x.
fn add_scaled(y: &mut [f64], a: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

/// y = x wᵀ + b: x `[rows, inputs]`, w `[outputs, inputs]`, b `[outputs]` → y `[rows, outputs]`.
pub fn linear(x: &[f64], w: &[f64], b: Option<&[f64]>, rows: usize, inputs: usize, outputs: usize) -> Vec<f64> {
    assert_eq!((x.len(), w.len()), (rows * inputs, outputs * inputs));
    let mut y = vec![0.0; rows * outputs];
    // A few rows at a time: each row of w is read once for all of them.
    y.par_chunks_mut(16 * outputs).zip(x.par_chunks(16 * inputs)).for_each(|(y, x)| {
        for (o, w) in w.chunks(inputs).enumerate() {
            let bias = b.map_or(0.0, |b| b[o]);
            for (y, x) in y.chunks_mut(outputs).zip(x.chunks(inputs)) {
                y[o] = bias + dot(x, w);
            }
        }
    });
    y
}

/// The gradients (dx, dw, db) of [`linear`]: dx = dy w, dw = dyᵀ x, db = Σ dy over rows.
pub fn linear_gradient(
    x: &[f64],
    w: &[f64],
    dy: &[f64],
    rows: usize,
    inputs: usize,
    outputs: usize,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    assert_eq!((x.len(), w.len(), dy.len()), (rows * inputs, outputs * inputs, rows * outputs));
    let mut dx = vec![0.0; rows * inputs];
    dx.par_chunks_mut(16 * inputs).zip(dy.par_chunks(16 * outputs)).for_each(|(dx, dy)| {
        for (o, w) in w.chunks(inputs).enumerate() {
            for (dx, dy) in dx.chunks_mut(inputs).zip(dy.chunks(outputs)) {
                add_scaled(dx, dy[o], w);
            }
        }
    });
    let mut dw = vec![0.0; outputs * inputs];
    dw.par_chunks_mut(inputs).enumerate().for_each(|(o, dw)| {
        for (x, dy) in x.chunks(inputs).zip(dy.chunks(outputs)) {
            add_scaled(dw, dy[o], x);
        }
    });
    let mut db = vec![0.0; outputs];
    dy.chunks(outputs).for_each(|dy| add_scaled(&mut db, 1.0, dy));
    (dx, dw, db)
}

/// The mean and 1 / √(variance + eps) of a row, the variance over all of its entries.
fn moments(x: &[f64], eps: f64) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
    (mean, 1.0 / libm::sqrt(variance + eps))
}

/// Layer normalisation of rows of `d`: gain · (x − mean) / √(variance + eps) + bias.
pub fn layer_norm(x: &[f64], gain: &[f64], bias: &[f64], d: usize, eps: f64) -> Vec<f64> {
    let mut y = Vec::with_capacity(x.len());
    for row in x.chunks(d) {
        let (mean, scale) = moments(row, eps);
        y.extend((0..d).map(|i| gain[i] * (row[i] - mean) * scale + bias[i]));
    }
    y
}

/// The gradients (dx, dgain, dbias) of [`layer_norm`]. With x̂ the normalised row and g = gain · dy:
/// dx = (g − mean(g) − x̂ mean(g x̂)) / √(variance + eps).
pub fn layer_norm_gradient(x: &[f64], gain: &[f64], dy: &[f64], d: usize, eps: f64) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    assert_eq!(x.len(), dy.len());
    let (mut dx, mut dgain, mut dbias) = (Vec::with_capacity(x.len()), vec![0.0; d], vec![0.0; d]);
    for (row, dy) in x.chunks(d).zip(dy.chunks(d)) {
        let (mean, scale) = moments(row, eps);
        let hat: Vec<f64> = row.iter().map(|x| (x - mean) * scale).collect();
        let g: Vec<f64> = (0..d).map(|i| gain[i] * dy[i]).collect();
        let g_mean = g.iter().sum::<f64>() / d as f64;
        let g_hat_mean = g.iter().zip(&hat).map(|(g, h)| g * h).sum::<f64>() / d as f64;
        for i in 0..d {
            dx.push(scale * (g[i] - g_mean - hat[i] * g_hat_mean));
            dgain[i] += dy[i] * hat[i];
            dbias[i] += dy[i];
        }
    }
    (dx, dgain, dbias)
}

/// 1 / √(mean of x² + eps).
fn root_scale(x: &[f64], eps: f64) -> f64 {
    1.0 / libm::sqrt(x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + eps)
}

/// RMS normalisation of rows of `d` (Zhang and Sennrich 2019): gain · x / √(mean of x² + eps).
pub fn rms_norm(x: &[f64], gain: &[f64], d: usize, eps: f64) -> Vec<f64> {
    x.chunks(d).flat_map(|row| (0..d).map(|i| gain[i] * row[i] * root_scale(row, eps)).collect::<Vec<_>>()).collect()
}

/// The gradients (dx, dgain) of [`rms_norm`]: with s the scale and g = gain · dy, dx = s g − s³ x mean(g x).
pub fn rms_norm_gradient(x: &[f64], gain: &[f64], dy: &[f64], d: usize, eps: f64) -> (Vec<f64>, Vec<f64>) {
    assert_eq!(x.len(), dy.len());
    let (mut dx, mut dgain) = (Vec::with_capacity(x.len()), vec![0.0; d]);
    for (row, dy) in x.chunks(d).zip(dy.chunks(d)) {
        let s = root_scale(row, eps);
        let mean = (0..d).map(|i| gain[i] * dy[i] * row[i]).sum::<f64>() / d as f64;
        for i in 0..d {
            dx.push(s * gain[i] * dy[i] - s * s * s * row[i] * mean);
            dgain[i] += dy[i] * row[i] * s;
        }
    }
    (dx, dgain)
}

/// SwiGLU (Shazeer 2020): gate / (1 + e^−gate) · up.
pub fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(g, u)| g / (1.0 + libm::exp(-g)) * u).collect()
}

/// The gradients (dgate, dup) of [`swiglu`]; silu' = σ (1 + x (1 − σ)).
pub fn swiglu_gradient(gate: &[f64], up: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
    assert_eq!((gate.len(), up.len()), (dy.len(), dy.len()));
    let sigma = |g: f64| 1.0 / (1.0 + libm::exp(-g));
    let slope = |g: f64| sigma(g) * (1.0 + g * (1.0 - sigma(g)));
    let dgate = (0..dy.len()).map(|i| dy[i] * up[i] * slope(gate[i])).collect();
    (dgate, gate.iter().zip(dy).map(|(&g, dy)| dy * g * sigma(g)).collect())
}

/// wᵀ of w [rows, columns].
pub fn transposed(w: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    assert_eq!(w.len(), rows * columns);
    (0..w.len()).map(|i| w[i % rows * columns + i / rows]).collect()
}

/// GELU in its exact form x Φ(x), Φ(x) = (1 + erf(x / √2)) / 2.
pub fn gelu(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| 0.5 * x * (1.0 + libm::erf(x / SQRT_2))).collect()
}

/// The gradient of [`gelu`]: dy (Φ(x) + x φ(x)), φ the normal density.
pub fn gelu_gradient(x: &[f64], dy: &[f64]) -> Vec<f64> {
    assert_eq!(x.len(), dy.len());
    let slope = |x: f64| 0.5 * (1.0 + libm::erf(x / SQRT_2)) + x * libm::exp(-0.5 * x * x) / libm::sqrt(2.0 * PI);
    x.iter().zip(dy).map(|(&x, dy)| dy * slope(x)).collect()
}

/// Rotary position embedding of x [rows, heads, head_dim], row r at `positions[r]`: in each head the pairs (j, j + n),
/// where n is the number of `frequencies`, rotate by position · frequency j; elements after 2 n stay unchanged.
pub fn rotary(x: &[f64], positions: &[usize], heads: usize, head_dim: usize, frequencies: &[f64]) -> Vec<f64> {
    turn(x, positions, heads, head_dim, frequencies, 1.0)
}

/// The frequencies of `dims` dimensions: base^(−2j/dims).
pub fn frequencies(dims: usize, base: f64) -> Vec<f64> {
    assert!(dims.is_multiple_of(2));
    (0..dims / 2).map(|j| libm::pow(base, -2.0 * j as f64 / dims as f64)).collect()
}

/// The gradient of [`rotary`]: the inverse rotation.
pub fn rotary_gradient(
    dy: &[f64],
    positions: &[usize],
    heads: usize,
    head_dim: usize,
    frequencies: &[f64],
) -> Vec<f64> {
    turn(dy, positions, heads, head_dim, frequencies, -1.0)
}

fn turn(
    x: &[f64],
    positions: &[usize],
    heads: usize,
    head_dim: usize,
    frequencies: &[f64],
    direction: f64,
) -> Vec<f64> {
    assert_eq!(x.len(), positions.len() * heads * head_dim);
    let half = frequencies.len();
    assert!(2 * half <= head_dim);
    let mut y = x.to_vec();
    for (row, &position) in y.chunks_mut(heads * head_dim).zip(positions) {
        for head in row.chunks_mut(head_dim) {
            for (j, frequency) in frequencies.iter().enumerate() {
                let angle = position as f64 * frequency;
                let (cos, sin) = (libm::cos(angle), direction * libm::sin(angle));
                let (a, b) = (head[j], head[j + half]);
                head[j] = a * cos - b * sin;
                head[j + half] = b * cos + a * sin;
            }
        }
    }
    y
}

/// Row `ids[r]` of `table` [vocabulary, d], for every r.
pub fn embedding(table: &[f64], ids: &[u32], d: usize) -> Vec<f64> {
    ids.iter().flat_map(|&id| table[id as usize * d..][..d].iter().copied()).collect()
}

/// The gradient of [`embedding`]'s table: row v is the sum of dy at every position of id v.
pub fn embedding_gradient(ids: &[u32], dy: &[f64], vocab: usize, d: usize) -> Vec<f64> {
    assert_eq!(dy.len(), ids.len() * d);
    let mut table = vec![0.0; vocab * d];
    for (&id, dy) in ids.iter().zip(dy.chunks(d)) {
        add_scaled(&mut table[id as usize * d..][..d], 1.0, dy);
    }
    table
}

/// Mean over the targets that are not [`IGNORE`] of −ln of their softmax probability, in nats; 0 where all are ignored.
/// logits [rows, vocab].
pub fn cross_entropy(logits: &[f64], targets: &[u32], vocab: usize) -> f64 {
    assert_eq!(logits.len(), targets.len() * vocab);
    let counted = targets.iter().filter(|&&t| t != IGNORE).count().max(1) as f64;
    let rows = logits.chunks(vocab).zip(targets).filter(|(_, t)| **t != IGNORE);
    rows.map(|(row, &t)| log_sum_exp(row) - row[t as usize]).sum::<f64>() / counted
}

/// The gradient of [`cross_entropy`] by the logits: (softmax − one-hot) / counted targets; 0 in ignored rows.
pub fn cross_entropy_gradient(logits: &[f64], targets: &[u32], vocab: usize) -> Vec<f64> {
    assert_eq!(logits.len(), targets.len() * vocab);
    let counted = targets.iter().filter(|&&t| t != IGNORE).count().max(1) as f64;
    let mut gradient = vec![0.0; logits.len()];
    for ((row, &target), out) in logits.chunks(vocab).zip(targets).zip(gradient.chunks_mut(vocab)) {
        if target != IGNORE {
            let log_sum = log_sum_exp(row);
            out.iter_mut().zip(row).for_each(|(o, x)| *o = libm::exp(x - log_sum) / counted);
            out[target as usize] -= 1.0 / counted;
        }
    }
    gradient
}

/// ln Σ exp(x), computed relative to the largest entry.
pub fn log_sum_exp(x: &[f64]) -> f64 {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + libm::log(x.iter().map(|x| libm::exp(x - largest)).sum())
}

/// The constants of AdamW, and the learning rate of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, times the learning rate.
    pub weight_decay: f64,
}

/// One update, number `step` counted from 1 (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019):
/// returns the new (weight, first moment, second moment). The decay applies to the weight before the update.
pub fn adamw(
    weight: &[f64],
    gradient: &[f64],
    first: &[f64],
    second: &[f64],
    step: u32,
    with: AdamW,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let blend = |beta: f64, old: &[f64], new: &dyn Fn(f64) -> f64| -> Vec<f64> {
        old.iter().zip(gradient).map(|(m, &g)| beta * m + (1.0 - beta) * new(g)).collect()
    };
    let first = blend(with.beta1, first, &|g| g);
    let second = blend(with.beta2, second, &|g| g * g);
    let correct1 = 1.0 - libm::pow(with.beta1, f64::from(step));
    let correct2 = 1.0 - libm::pow(with.beta2, f64::from(step));
    let weight = weight
        .iter()
        .zip(first.iter().zip(&second))
        .map(|(w, (m, v))| {
            let update = (m / correct1) / (libm::sqrt(v / correct2) + with.eps);
            w - with.lr * with.weight_decay * w - with.lr * update
        })
        .collect();
    (weight, first, second)
}

#[cfg(test)]
#[path = "ops_tests.rs"]
mod tests;
