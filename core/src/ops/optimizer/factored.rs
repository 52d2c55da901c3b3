//! In-place updates with a factored second moment, for tables whose gradient and moments would not fit in memory: the
//! decoder and the embedding of a spiking model (after Adafactor, Shazeer and Stern 2018, without its first moment).
//!
//! Neither is part of the global clip: instead, the root mean square of a row's update is at most the learning rate. A
//! step whose loss is not finite changes nothing, and a row, a bias or a column whose own squares are not finite stays
//! unchanged.

use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::ops::math::{axpy, dot, sum};
use crate::train::{Results, Settings};
use crate::views;

/// The least value of a denominator.
const EPS: f32 = 1e-12;

/// The factor of a row's update that limits its root mean square to 1.
fn held(squares: f32, columns: usize) -> f32 {
    let rms = libm::sqrtf(squares / columns as f32);
    if rms > 1.0 { 1.0 / rms } else { 1.0 }
}

/// With `G = out_gradᵀ x` and its column sums g: `row_v ← β₂ row_v + (1 − β₂) mean_d G²`, `u = G / √(row / (1 − β₂ᵗ) ·
/// column_d / mean of column)`, limited to a root mean square of 1 in each row, `weight −= rate lr u`; `bias −= lr g /
/// √(bias moment / (1 − β₂ᵗ))`; then `column_d ← β₂ column_d + (1 − β₂) mean_v G²`, last, so that no row waits for the
/// rows after it. While all column moments are 0 they count as equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactoredUpdate {
    /// [rows, D].
    pub x: Region,
    /// [rows, V]: the gradient of the logits.
    pub out_grad: Region,
    /// [V, D].
    pub weight: Region,
    /// `[V]`.
    pub bias: Region,
    /// [2, V]: the moments of the rows, and those of the biases.
    pub row_moment: Region,
    /// [2, D]: the moments of the columns, and their partial sums.
    pub column_moment: Region,
    /// [tile, D]: the rows of G that exist at once.
    pub tile: Region,
    /// The settings: learning rate, its correction.
    pub settings: Region,
    /// The results; reads the loss.
    pub results: Region,
    /// β₂.
    pub beta2: f32,
    /// The share of the learning rate that applies to the weight. Where D inputs all change a logit in the same
    /// direction, each weight must change less the larger D is (Yang et al. 2021).
    pub rate: f32,
}

impl Operation for FactoredUpdate {
    const NAME: &'static str = "factored_update";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("x", self.x).exact());
        visit(Operand::read("out_grad", self.out_grad).exact());
        visit(Operand::update("weight", self.weight).exact());
        visit(Operand::update("bias", self.bias).exact());
        visit(Operand::update("row_moment", self.row_moment).exact());
        visit(Operand::update("column_moment", self.column_moment).exact());
        visit(Operand::write("tile", self.tile).exact());
        visit(Operand::read("settings", self.settings).exact());
        visit(Operand::read("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, d, v) = (self.x.rows(), self.x.columns(), self.weight.rows());
        self.expect(self.out_grad.rows() == rows && self.out_grad.columns() == v, "out_grad")?;
        self.expect(self.weight.columns() == d, "weight")?;
        self.expect(self.bias.elements() == u64::from(v), "bias")?;
        self.expect(self.row_moment.rows() == 2 && self.row_moment.columns() == v, "row_moment")?;
        self.expect(self.column_moment.rows() == 2 && self.column_moment.columns() == d, "column_moment")?;
        self.expect(self.tile.rows() > 0 && self.tile.columns() == d, "tile")?;
        self.expect(self.settings.elements() == Settings::LEN, "settings")?;
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        count(&[2, self.x.rows().into(), self.weight.elements()])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([x, out_grad, settings, results], [weight, bias, row_moment, column_moment, tile]) = arena.f32s(
            [self.x, self.out_grad, self.settings, self.results].map(Some),
            [self.weight, self.bias, self.row_moment, self.column_moment, self.tile].map(Some),
        )?;
        if !Results::from_slice(results)?.loss.is_finite() {
            return Ok(());
        }
        let (d, vocabulary) = (self.x.columns() as usize, self.weight.rows() as usize);
        let Settings { learning_rate: lr, factored: correction, .. } = *Settings::from_slice(settings)?;
        let (row_moment, bias_moment) = row_moment.split_at_mut(vocabulary);
        let (columns, sums) = column_moment.split_at_mut(d);
        let mean = sum(columns) / d as f32;
        sums.fill(0.0);
        // One row of G at a time; devices compute a tile of rows.
        let g = &mut tile[..d];
        for v in 0..vocabulary {
            g.fill(0.0);
            let mut bias_grad = 0.0;
            for (x, out_grad) in x.chunks_exact(d).zip(out_grad.chunks_exact(vocabulary)) {
                axpy(out_grad[v], x, g);
                bias_grad += out_grad[v];
            }
            sums.iter_mut().zip(&*g).for_each(|(s, g)| *s += g * g);
            let (squares, bias_squared) = (dot(g, g), bias_grad * bias_grad);
            if squares.is_finite() {
                row_moment[v] = self.beta2 * row_moment[v] + (1.0 - self.beta2) * (squares / d as f32);
                for (g, &c) in g.iter_mut().zip(&*columns) {
                    let column = if mean > 0.0 { c / mean } else { 1.0 };
                    *g /= libm::sqrtf(row_moment[v] / correction * column) + EPS;
                }
                axpy(-lr * self.rate * held(dot(g, g), d), g, &mut weight[v * d..][..d]);
            }
            if bias_squared.is_finite() {
                bias_moment[v] = self.beta2 * bias_moment[v] + (1.0 - self.beta2) * bias_squared;
                bias[v] -= lr * bias_grad / (libm::sqrtf(bias_moment[v] / correction) + EPS);
            }
        }
        for (c, s) in columns.iter_mut().zip(sums).filter(|(_, s)| s.is_finite()) {
            *c = self.beta2 * *c + (1.0 - self.beta2) * (*s / vocabulary as f32);
        }
        Ok(())
    }
}

/// The rows of a table that a batch used, updated in place: with g the sum of `x_grad` over a row's tokens and n the
/// number of steps that used it, `m ← β₂ m + (1 − β₂) mean g²`, `u = g / √(m / (1 − β₂ⁿ))`, limited to a root mean
/// square of 1, `table −= lr u`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbedUpdate {
    /// `[rows]` u32.
    pub ids: Region,
    /// [rows, E]; the first row of each id is overwritten with the sum of all rows of that id.
    pub x_grad: Region,
    /// [V, E].
    pub table: Region,
    /// [V, 2]: m and n.
    pub moment: Region,
    /// The settings: learning rate.
    pub settings: Region,
    /// The results; reads the loss.
    pub results: Region,
    /// β₂.
    pub beta2: f32,
}

impl Operation for EmbedUpdate {
    const NAME: &'static str = "embed_update";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("ids", self.ids).ids());
        visit(Operand::update("x_grad", self.x_grad).exact());
        visit(Operand::update("table", self.table).exact());
        visit(Operand::update("moment", self.moment).exact());
        visit(Operand::read("settings", self.settings).exact());
        visit(Operand::read("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.x_grad.rows() == self.ids.columns(), "x_grad")?;
        self.expect(self.x_grad.columns() == self.table.columns(), "table")?;
        self.expect(self.moment.rows() == self.table.rows() && self.moment.columns() == 2, "moment")?;
        self.expect(self.settings.elements() == Settings::LEN, "settings")?;
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        views!(arena;
            ids = Some(self.ids),
            mut x_grad = Some(self.x_grad),
            mut table = Some(self.table),
            mut moment = Some(self.moment),
            settings = Some(self.settings),
            results = Some(self.results),
        );
        if !Results::from_slice(results.f32()?)?.loss.is_finite() {
            return Ok(());
        }
        let lr = Settings::from_slice(settings.f32()?)?.learning_rate;
        let (d, ids) = (self.table.columns() as usize, ids.u32()?);
        for (r, &id) in ids.iter().enumerate() {
            if ids[..r].contains(&id) {
                continue;
            }
            let (g, later) = x_grad.f32_mut()?[r * d..].split_at_mut(d);
            for (row, _) in later.chunks_exact(d).zip(&ids[r + 1..]).filter(|(_, other)| **other == id) {
                axpy(1.0, row, g);
            }
            let squares = dot(g, g);
            if !squares.is_finite() {
                continue;
            }
            let [m, n] = &mut moment.f32_mut()?[2 * id as usize..][..2] else { continue };
            *m = self.beta2 * *m + (1.0 - self.beta2) * (squares / d as f32);
            *n += 1.0;
            let correction = 1.0 - libm::powf(self.beta2, *n);
            let root = 1.0 / (libm::sqrtf(*m / correction) + EPS);
            let factor = root * held(squares * root * root, d);
            axpy(-lr * factor, g, &mut table.f32_mut()?[id as usize * d..][..d]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    type B = Bench<4096>;
    const SETTINGS: Settings = Settings {
        learning_rate: 0.01,
        clip: 1.0,
        loss_scale: 1.0,
        factored: 0.1,
        corrections: [[f32::NAN; 2]; 5],
        decay: f32::NAN,
        average: f32::NAN,
    };

    fn decoder(b: &mut B, loss: f32) -> FactoredUpdate {
        FactoredUpdate {
            x: b.normal([1, 1, 7, 5], 1, 1.0),
            out_grad: b.normal([1, 1, 7, 4], 2, 0.1),
            weight: b.normal([1, 1, 4, 5], 3, 1.0),
            bias: b.normal([1, 1, 1, 4], 4, 1.0),
            row_moment: b.values([1, 1, 2, 4], &[0.0; 8]),
            column_moment: b.values([1, 1, 2, 5], &[0.0; 10]),
            tile: b.poison([1, 1, 2, 5]),
            settings: b.settings(SETTINGS),
            results: b.results(Results { loss, squared_norm: 0.0 }),
            beta2: 0.9,
            rate: 0.5,
        }
    }

    #[test]
    fn two_updates_of_a_decoder_agree_with_f64() {
        let mut b = B::new();
        let op = decoder(&mut b, 1.0);
        let all = |b: &mut B, r: Region| -> heapless::Vec<f64, 64> { b.get(r).iter().map(|x| f64::from(*x)).collect() };
        let (x, dz) = (all(&mut b, op.x), all(&mut b, op.out_grad));
        let (mut w, mut bias) = (all(&mut b, op.weight), all(&mut b, op.bias));
        let (mut rows, mut biases, mut columns) = ([0.0; 4], [0.0; 4], [0.0; 5]);
        let beta2 = f64::from(op.beta2);
        for step in 1..=2 {
            let correction = 1.0 - libm::pow(beta2, f64::from(step));
            b.set(op.settings, &<[f32; 16]>::from(Settings { factored: correction as f32, ..SETTINGS }));
            b.run(op);
            let g = |v: usize, d: usize| (0..7).map(|r| dz[r * 4 + v] * x[r * 5 + d]).sum::<f64>();
            let mean = columns.iter().sum::<f64>() / 5.0;
            for v in 0..4 {
                rows[v] = beta2 * rows[v] + (1.0 - beta2) * (0..5).map(|d| g(v, d) * g(v, d)).sum::<f64>() / 5.0;
                let u = |d: usize| {
                    let column = if mean > 0.0 { columns[d] / mean } else { 1.0 };
                    g(v, d) / libm::sqrt(rows[v] / correction * column)
                };
                let rms = libm::sqrt((0..5).map(|d| u(d) * u(d)).sum::<f64>() / 5.0);
                (0..5).for_each(|d| w[v * 5 + d] -= 0.5 * 0.01 * u(d) / rms.max(1.0));
                let bias_grad: f64 = (0..7).map(|r| dz[r * 4 + v]).sum();
                biases[v] = beta2 * biases[v] + (1.0 - beta2) * bias_grad * bias_grad;
                bias[v] -= 0.01 * bias_grad / libm::sqrt(biases[v] / correction);
            }
            for (d, c) in columns.iter_mut().enumerate() {
                *c = beta2 * *c + (1.0 - beta2) * (0..4).map(|v| g(v, d) * g(v, d)).sum::<f64>() / 4.0;
            }
            for (found, expected) in [(op.weight, &w), (op.bias, &bias)] {
                for (found, expected) in b.get(found).iter().zip(expected) {
                    approx::assert_relative_eq!(f64::from(*found), *expected, max_relative = 1e-5, epsilon = 1e-6);
                }
            }
        }
    }

    #[test]
    fn an_embedding_moves_where_it_was_used_and_agrees_with_f64() {
        let mut b = B::new();
        let ids = [3, 1, 3, 3, 0];
        let op = EmbedUpdate {
            ids: b.ids(&ids),
            x_grad: b.normal([1, 1, 5, 3], 1, 1.0),
            table: b.normal([1, 1, 5, 3], 2, 1.0),
            moment: b.values([1, 1, 5, 2], &[0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.1, 4.0, 0.0, 0.0]),
            settings: b.settings(SETTINGS),
            results: b.results(Results { loss: 1.0, squared_norm: 0.0 }),
            beta2: 0.9,
        };
        let all = |b: &mut B, r: Region| -> [f64; 15] { core::array::from_fn(|i| f64::from(b.get(r)[i])) };
        let (x, mut table) = (all(&mut b, op.x_grad), all(&mut b, op.table));
        let moments = [(0.0, 0), (2.0, 1), (0.0, 0), (f64::from(0.1f32), 4), (0.0, 0)];
        b.run(op);
        for (id, (moment, seen)) in moments.into_iter().enumerate() {
            if !ids.contains(&(id as u32)) {
                continue;
            }
            let g: [f64; 3] =
                core::array::from_fn(|d| (0..5).filter(|r| ids[*r] == id as u32).map(|r| x[r * 3 + d]).sum());
            let square = g.iter().map(|g| g * g).sum::<f64>() / 3.0;
            let beta2 = f64::from(op.beta2);
            let moment = beta2 * moment + (1.0 - beta2) * square;
            let root = libm::sqrt(moment / (1.0 - libm::pow(beta2, f64::from(seen + 1))));
            let rms = libm::sqrt(square) / root;
            (0..3).for_each(|d| table[id * 3 + d] -= f64::from(0.01f32) * g[d] / root / rms.max(1.0));
            approx::assert_relative_eq!(f64::from(b.get(op.moment)[2 * id]), moment, max_relative = 1e-5);
        }
        for (found, expected) in b.get(op.table).iter().zip(table) {
            approx::assert_relative_eq!(f64::from(*found), expected, max_relative = 1e-5, epsilon = 1e-6);
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_changes_nothing() {
        let mut b = B::new();
        let op = decoder(&mut b, f32::NAN);
        let before: [f32; 20] = b.get(op.weight).try_into().unwrap();
        b.run(op);
        assert_eq!(b.get(op.weight), before);
        assert_eq!(b.get(op.row_moment), [0.0; 8]);
    }

    #[test]
    fn what_has_no_finite_gradient_stays_and_the_rest_moves() {
        let mut b = B::new();
        let op = decoder(&mut b, 1.0);
        let before: [f32; 20] = b.get(op.weight).try_into().unwrap();
        let bias: [f32; 4] = b.get(op.bias).try_into().unwrap();
        let mut out_grad: [f32; 28] = b.get(op.out_grad).try_into().unwrap();
        out_grad[2] = f32::NAN;
        b.set(op.out_grad, &out_grad);
        b.run(op);
        let after: [f32; 20] = b.get(op.weight).try_into().unwrap();
        for v in 0..4 {
            assert_eq!(after[5 * v..][..5] == before[5 * v..][..5], v == 2, "row {v}");
            assert_eq!(b.get(op.bias)[v] == bias[v], v == 2, "bias {v}");
        }
        assert_eq!((b.get(op.row_moment)[2], b.get(op.row_moment)[6]), (0.0, 0.0));
        // Every column includes a gradient of the row whose sum is not finite.
        assert_eq!(b.get(op.column_moment)[..5], [0.0; 5]);

        let mut grad = [1.0; 15];
        grad[4] = f32::INFINITY;
        let op = EmbedUpdate {
            ids: b.ids(&[3, 1, 3, 3, 0]),
            x_grad: b.values([1, 1, 5, 3], &grad),
            table: b.normal([1, 1, 5, 3], 2, 1.0),
            moment: b.values([1, 1, 5, 2], &[0.5; 10]),
            settings: b.settings(SETTINGS),
            results: b.results(Results { loss: 1.0, squared_norm: 0.0 }),
            beta2: 0.9,
        };
        let before: [f32; 15] = b.get(op.table).try_into().unwrap();
        b.run(op);
        for id in 0..5 {
            let moves = [0, 3].contains(&id);
            assert_eq!(b.get(op.table)[3 * id..][..3] != before[3 * id..][..3], moves, "row {id}");
            assert_eq!(b.get(op.moment)[2 * id..][..2] != [0.5; 2], moves, "moment of row {id}");
        }
    }
}
