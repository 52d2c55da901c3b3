//! Steps of Muon compared with f64: matrices by the names and rows in files, whatever their layout in memory.

use capful_core::model::Recompute;
use capful_core::optimizer::{Group, Muon, Recipe, Rule};
use capful_tests::model::{Model, assert_moved, devices, optimizer, tokens};
use capful_tests::oracle::Batch;
use capful_tests::oracle::ops::{AdamW, adamw};
use capful_tests::oracle::tensor::{Tensor, Tensors, norm, zeros_like};
use capful_tests::oracle::transformer::{Config, loss_and_gradients, mixtures};

const LENGTH: usize = 12;
const STEPS: i32 = 3;
const LR: f64 = 1e-3;
const RATE: f64 = 20.0;
const DECAY: f64 = 0.1;
const MOMENTUM: f64 = 0.95;

/// Five Newton–Schulz iterations of a matrix with `rows` rows, by the definition; transposed if it has more rows than
/// columns.
fn orthogonal(x: &[f64], rows: usize) -> Vec<f64> {
    let columns = x.len() / rows;
    let transposed = |x: &[f64], rows: usize| -> Vec<f64> {
        let columns = x.len() / rows;
        (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect()
    };
    if rows > columns {
        return transposed(&orthogonal(&transposed(x, rows), columns), columns);
    }
    let product = |a: &[f64], b: &[f64], inner: usize| -> Vec<f64> {
        let (m, n) = (a.len() / inner, b.len() / inner);
        (0..m * n).map(|i| (0..inner).map(|k| a[i / n * inner + k] * b[k * n + i % n]).sum()).collect()
    };
    let size = x.iter().map(|x| x * x).sum::<f64>().sqrt() + 1e-7;
    let mut x: Vec<f64> = x.iter().map(|x| x / size).collect();
    for _ in 0..5 {
        let s = product(&x, &transposed(&x, rows), columns);
        let square = product(&s, &s, rows);
        let p: Vec<f64> = s.iter().zip(&square).map(|(s, square)| -4.7750 * s + 2.0315 * square).collect();
        let through = product(&p, &x, rows);
        x = x.iter().zip(&through).map(|(x, t)| 3.4445 * x + t).collect();
    }
    x
}

/// The rows of each matrix of a tensor: GPT-NeoX's fused one has three matrices with alternating heads.
fn matrices(config: &Config, name: &str, rows: usize) -> Vec<Vec<usize>> {
    match name.contains("query_key_value") {
        false => vec![(0..rows).collect()],
        true => (0..3).map(|part| (0..rows).filter(|r| r / config.head_size % 3 == part).collect()).collect(),
    }
}

/// Normalises the rows of a matrix by the `v` of each, which is updated first, and preserves the norm of the whole.
fn normalise(x: &mut [f64], v: &mut [f64]) {
    let columns = x.len() / v.len();
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let before = norm(x);
    for (x, v) in x.chunks_exact_mut(columns).zip(v) {
        *v = 0.95 * *v + 0.05 * norm(x).powi(2) / columns as f64;
        x.iter_mut().for_each(|x| *x /= v.max(1e-10).sqrt());
    }
    let after = norm(x);
    x.iter_mut().for_each(|x| *x *= before / after);
}

/// `w` after an update with the blend `u`; with `v` of its rows where they are normalised.
fn moved(config: &Config, name: &str, w: &Tensor, u: &[f64], mut v: Option<&mut [f64]>) -> Tensor {
    let (rows, columns) = (w.shape[0], w.shape[1]);
    let mut data: Vec<f64> = w.data.iter().map(|w| w * (1.0 - RATE * LR * DECAY)).collect();
    for of in matrices(config, name, rows) {
        let gathered: Vec<f64> = of.iter().flat_map(|r| u[r * columns..(r + 1) * columns].to_vec()).collect();
        let mut x = orthogonal(&gathered, of.len());
        if let Some(v) = &mut v {
            let mut own: Vec<f64> = of.iter().map(|r| v[*r]).collect();
            normalise(&mut x, &mut own);
            of.iter().zip(own).for_each(|(r, own)| v[*r] = own);
        }
        let scale = RATE * LR * (of.len() as f64 / columns as f64).max(1.0).sqrt();
        for (i, r) in of.iter().enumerate() {
            (0..columns).for_each(|c| data[r * columns + c] -= scale * x[i * columns + c]);
        }
    }
    Tensor::new(&w.shape, data)
}

/// The weights after some steps on one batch, with rows normalised or not, and the second state tables, of which
/// matrices use one number for each row.
fn expected(config: &Config, weights: &Tensors, batch: Batch<'_>, row_norm: bool) -> [Tensors; 2] {
    let (mut weights, mut first) = (weights.clone(), zeros_like(weights));
    let mut second = zeros_like(&weights);
    for step in 1..=STEPS {
        let (_, gradients) = loss_and_gradients(config, &weights, batch);
        let clip = (1.0 / (norm(&gradients) + 1e-6)).min(1.0);
        let mu = MOMENTUM - 0.1 * (1.0 - f64::from(step - 1) / 300.0);
        for (name, w) in &mut weights {
            let gradient: Vec<f64> = gradients[name].data.iter().map(|g| g * clip).collect();
            let (first, second) = (&mut first.get_mut(name).unwrap().data, &mut second.get_mut(name).unwrap().data);
            let table = ["embed", "lm_head", "value_tables"].iter().any(|of| name.contains(of));
            if w.is_matrix() && !table {
                let blend = |m: &[f64]| m.iter().zip(&gradient).map(|(m, g)| mu * m + (1.0 - mu) * g).collect();
                *first = blend(first);
                let u: Vec<f64> = blend(first);
                *w = moved(config, name, w, &u, row_norm.then_some(second));
            } else {
                let weight_decay = if w.is_matrix() { DECAY } else { 0.0 };
                let with = AdamW { lr: LR, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay };
                (w.data, *first, *second) = adamw(&w.data, &gradient, first, second, step as u32, with);
            }
        }
    }
    [weights, second]
}

#[test]
fn three_steps_are_the_oracles_wherever_rows_lie() {
    agree(false);
}

#[test]
fn three_steps_with_rows_normalised_are_the_oracles() {
    agree(true);
}

fn agree(row_norm: bool) {
    let rule = Rule::Muon(Muon { momentum: MOMENTUM as f32, cautious: false, row_norm });
    let optimizer = optimizer().with(Group::Matrix, Recipe { rule, rate: RATE as f32, decay: DECAY as f32 });
    let whole = |config: &Config| config.rank.is_none();
    for config in mixtures().into_iter().filter(whole).take(7) {
        let (inputs, targets) = tokens(2 * LENGTH, config.vocab as u32);
        let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
        let weights = config.formula_weights(0.4);
        let [expected, rows] = expected(&config, &weights, batch, row_norm);
        for (device, profile) in devices() {
            let mut model = Model::moved_by(optimizer, &profile, &config, &weights, [2, LENGTH], Recompute::NONE);
            for step in 1..=STEPS {
                model.step(step, LR, batch);
            }
            assert_moved(device, &weights, &model.tensors(""), &expected, 2e-3);
            let kept = model.tensors("row_square.");
            assert_eq!(!kept.is_empty(), row_norm);
            for (name, found) in kept {
                assert_eq!(found.data.len(), weights[&name].shape[0], "{name}");
                for (found, expected) in found.data.iter().zip(&rows[&name].data) {
                    assert!((found - expected).abs() <= 1e-2 * expected, "{device}, {name}: {found} and {expected}");
                }
            }
        }
    }
}
