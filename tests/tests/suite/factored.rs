//! Steps of AdamW with a factored second moment compared with f64.

use std::collections::BTreeMap;

use capful_core::model::Recompute;
use capful_core::optimizer::{AdamWFactored, Group, Recipe, Rule};
use capful_tests::model::{Model, assert_moved, devices, optimizer, tokens};
use capful_tests::oracle::Batch;
use capful_tests::oracle::ops::{AdamW, adamw};
use capful_tests::oracle::tensor::{Tensors, norm, zeros_like};
use capful_tests::oracle::transformer::{Config, loss_and_gradients, mixtures};

const LENGTH: usize = 12;
const STEPS: i32 = 3;
const LR: f64 = 1e-3;
const DECAY: f64 = 0.1;

/// The matrix that contains a tensor of the files: queries, keys and values are one matrix, and so are gate and up.
fn matrix(name: &str) -> String {
    let parts = [
        ["q_proj", "k_proj", "v_proj"],
        ["attention.query.", "attention.key.", "attention.value."],
        ["gate_proj", "up_proj", "up_proj"],
        ["mlp.gate.", "mlp.dense_h_to_4h.", "mlp.dense_h_to_4h."],
    ];
    parts.iter().fold(name.to_owned(), |name, [first, others @ ..]| {
        others.iter().fold(name, |name, other| name.replace(other, first))
    })
}

/// The state of a matrix: of its rows, tensor by tensor, and of its columns, as means of squares.
#[derive(Default)]
struct Sides {
    rows: BTreeMap<String, Vec<f64>>,
    columns: Vec<f64>,
}

/// Updates the means of all matrices with the gradients of a step.
fn move_sides(kept: &mut BTreeMap<String, Sides>, gradients: &Tensors, clip: f64) {
    let mut sums: BTreeMap<String, (usize, Vec<f64>)> = BTreeMap::new();
    for (name, g) in gradients.iter().filter(|(_, g)| g.is_matrix()) {
        let columns = g.shape[1];
        let sides = kept.entry(matrix(name)).or_default();
        let rows = sides.rows.entry(name.clone()).or_insert_with(|| vec![0.0; g.shape[0]]);
        let (count, sums) = sums.entry(matrix(name)).or_insert_with(|| (0, vec![0.0; columns]));
        *count += g.shape[0];
        for (r, g) in rows.iter_mut().zip(g.data.chunks_exact(columns)) {
            let squares = g.iter().map(|g| (g * clip).powi(2));
            *r = 0.95 * *r + 0.05 * squares.clone().sum::<f64>() / columns as f64;
            sums.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
        }
    }
    for (name, (rows, sums)) in sums {
        let columns = &mut kept.get_mut(&name).unwrap().columns;
        columns.resize(sums.len(), 0.0);
        columns.iter_mut().zip(sums).for_each(|(c, sum)| *c = 0.95 * *c + 0.05 * sum / rows as f64);
    }
}

/// The weights after some steps on one batch, and the state of the matrices.
fn expected(config: &Config, weights: &Tensors, batch: Batch<'_>) -> (Tensors, BTreeMap<String, Sides>) {
    let (mut weights, [mut first, mut second]) = (weights.clone(), [zeros_like(weights), zeros_like(weights)]);
    let mut kept = BTreeMap::new();
    for step in 1..=STEPS {
        let (_, gradients) = loss_and_gradients(config, &weights, batch);
        let clip = (1.0 / (norm(&gradients) + 1e-6)).min(1.0);
        move_sides(&mut kept, &gradients, clip);
        for (name, w) in &mut weights {
            let gradient: Vec<f64> = gradients[name].data.iter().map(|g| g * clip).collect();
            let (first, second) = (&mut first.get_mut(name).unwrap().data, &mut second.get_mut(name).unwrap().data);
            if !w.is_matrix() {
                let with = AdamW { lr: LR, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 };
                (w.data, *first, *second) = adamw(&w.data, &gradient, first, second, step as u32, with);
                continue;
            }
            let (sides, columns) = (&kept[&matrix(name)], w.shape[1]);
            let all = || sides.rows.values().flatten();
            let mean = all().sum::<f64>() / all().count() as f64;
            let [of_first, of_second] = [0.9f64, 0.95].map(|beta| 1.0 - beta.powi(step));
            for (i, (w, g)) in w.data.iter_mut().zip(gradient).enumerate() {
                first[i] = 0.9 * first[i] + 0.1 * g;
                let v = sides.rows[name][i / columns] * sides.columns[i % columns] / mean;
                *w -= LR * DECAY * *w + LR * first[i] / of_first / ((v / of_second).sqrt() + 1e-8);
            }
        }
    }
    (weights, kept)
}

#[test]
fn three_steps_are_the_oracles() {
    let rule = Rule::AdamWFactored(AdamWFactored { beta1: 0.9, beta2: 0.95, eps: 1e-8 });
    let recipe = Recipe { rule, rate: 1.0, decay: DECAY as f32 };
    let optimizer = [Group::Matrix, Group::Embedding, Group::Head]
        .into_iter()
        .fold(optimizer(), |all, group| all.with(group, recipe));
    for config in mixtures() {
        let (inputs, targets) = tokens(2 * LENGTH, config.vocab as u32);
        let batch = Batch { inputs: &inputs, targets: &targets, length: LENGTH };
        let weights = config.formula_weights(0.4);
        let (expected, kept) = expected(&config, &weights, batch);
        for (device, profile) in devices() {
            let mut model = Model::moved_by(optimizer, &profile, &config, &weights, [2, LENGTH], Recompute::NONE);
            for step in 1..=STEPS {
                model.step(step, LR, batch);
            }
            assert_moved(device, &weights, &model.tensors(""), &expected, 1e-3);
            assert!(model.tensors("second_moment.").keys().all(|name| !weights[name].is_matrix()));
            for (name, found) in model.tensors("row_column_square.") {
                let Sides { rows, columns } = &kept[&matrix(&name)];
                let own: Vec<f64> = rows.values().flatten().copied().collect();
                // Some rows only pad a table, and the state of columns is a mean over all rows.
                let height = found.data.len() - columns.len();
                let of_columns = columns.iter().map(|c| c * own.len() as f64 / height as f64);
                assert!(height >= own.len(), "{name}");
                let columns_found = &found.data[height..];
                for (found, expected) in columns_found.iter().zip(of_columns) {
                    assert!((found - expected).abs() <= 1e-3 * expected, "{device}, {name}: {found} and {expected}");
                }
                let sum = |x: &[f64]| x.iter().sum::<f64>();
                let (found, expected) = (sum(&found.data[..height]), sum(&own));
                assert!((found - expected).abs() <= 1e-3 * expected, "{device}, {name}: {found} and {expected}");
            }
        }
    }
}
