//! Updates in place with a factored second moment: a matrix multiplication gives a tile of the gradient, whose rows are
//! divided among threads.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{EmbedUpdate, FactoredUpdate};
use capful_core::train::{Results, Settings};
use capful_core::views;

use crate::gemm::{self, Matrix, MatrixMut, Update};
use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// Rows of the table in one update task: one cache line of the logits' gradient.
const ROWS: usize = 16;
/// Columns of the gradient in one summation task.
const COLUMNS: usize = 64;
/// Avoids a division by zero, as in core.
const EPS: f32 = 1e-12;
/// No row has this id yet.
const NONE: u32 = u32::MAX;

impl OnCpu for FactoredUpdate {
    fn scratch(&self, profile: &CpuProfile) -> u64 {
        let [tile, d, rows] = [self.tile.rows(), self.x.columns(), self.x.rows()].map(|n| n as usize);
        bytes(gemm::scratch_len(tile.min(self.weight.rows() as usize), d, rows, profile.workers()))
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([x, out_grad, settings, results], [weight, bias, row_moment, column_moment, tile, scratch]) = arena.f32s(
            [self.x, self.out_grad, self.settings, self.results].map(Some),
            [self.weight, self.bias, self.row_moment, self.column_moment, self.tile, cpu.scratch].map(Some),
        )?;
        if !Results::from_slice(results)?.loss.is_finite() {
            return Ok(());
        }
        let [rows, d, vocabulary] = [self.x.rows(), self.x.columns(), self.weight.rows()].map(|n| n as usize);
        let Settings { learning_rate: lr, factored: correction, .. } = *Settings::from_slice(settings)?;
        let x = Matrix::new(x, rows, d);
        let (row_moment, bias_moment) = row_moment.split_at_mut(vocabulary);
        let (columns, sums) = column_moment.split_at_mut(d);
        let mean = simd::sum(columns) / d as f32;
        let relative = if mean > 0.0 { 1.0 / mean } else { 0.0 };
        sums.fill(0.0);
        let rule = RowUpdate { beta2: self.beta2, lr, correction, rate: self.rate, relative, columns };
        for first in (0..vocabulary).step_by(self.tile.rows() as usize) {
            let own = first..vocabulary.min(first + self.tile.rows() as usize);
            let g = &mut tile[..own.len() * d];
            let a = Matrix::with_strides(&out_grad[first..], own.len(), rows, 1, vocabulary);
            let to = MatrixMut::new(g, own.len(), d);
            gemm::product(&mut cpu.pool, a, x, to, Update::Overwrite, scratch, |_, _| {});
            let g = &*g;
            cpu.pool.chunks(sums, COLUMNS, |_, chunk, sums| {
                vectorise!(for row in g.chunks_exact(d) {
                    for (s, &g) in sums.iter_mut().zip(&row[chunk * COLUMNS..]) {
                        *s = g.mul_add(g, *s);
                    }
                });
            });
            let bands = [
                (&mut weight[first * d..][..g.len()], ROWS * d),
                (&mut row_moment[own.clone()], ROWS),
                (&mut bias[own.clone()], ROWS),
                (&mut bias_moment[own], ROWS),
            ];
            cpu.pool.bands(bands, |_, band, [weight, row_moment, bias, bias_moment]| {
                rule.update_biases(first + band * ROWS, out_grad, vocabulary, bias, bias_moment);
                rule.update_rows(&g[band * ROWS * d..], weight, row_moment);
            });
        }
        for (c, s) in columns.iter_mut().zip(sums).filter(|(_, s)| s.is_finite()) {
            *c = self.beta2 * *c + (1.0 - self.beta2) * (*s / vocabulary as f32);
        }
        Ok(())
    }
}

/// The rule that updates a row and its bias.
#[derive(Clone, Copy)]
struct RowUpdate<'a> {
    beta2: f32,
    lr: f32,
    correction: f32,
    rate: f32,
    /// 1 / mean of the columns' moments; 0 while they are 0.
    relative: f32,
    columns: &'a [f32],
}

impl RowUpdate<'_> {
    /// Updates biases from number `first` on.
    fn update_biases(&self, first: usize, out_grad: &[f32], vocabulary: usize, bias: &mut [f32], moment: &mut [f32]) {
        let mut grad = [0.0f32; ROWS];
        let len = bias.len();
        vectorise!(for out_grad in out_grad.chunks_exact(vocabulary) {
            for (sum, g) in grad.iter_mut().zip(&out_grad[first..][..len]) {
                *sum += g;
            }
        });
        for ((b, m), g) in bias.iter_mut().zip(moment).zip(grad).filter(|(_, g)| (g * g).is_finite()) {
            *m = self.beta2 * *m + (1.0 - self.beta2) * (g * g);
            *b -= self.lr * g / ((*m / self.correction).sqrt() + EPS);
        }
    }

    /// Updates the rows of gradient `g`.
    fn update_rows(&self, g: &[f32], weight: &mut [f32], moment: &mut [f32]) {
        let (RowUpdate { beta2, lr, correction, rate, relative, columns }, d) = (*self, self.columns.len());
        let rows = weight.chunks_exact_mut(d).zip(moment).zip(g.chunks_exact(d));
        vectorise!(for ((weight, m), g) in rows {
            let squares = simd::dot(g, g);
            if !squares.is_finite() {
                continue;
            }
            *m = beta2 * *m + (1.0 - beta2) * (squares / d as f32);
            let corrected = *m / correction;
            let update = |g: f32, c: f32| {
                let column = if relative > 0.0 { c * relative } else { 1.0 };
                g / ((corrected * column).sqrt() + EPS)
            };
            let squares = simd::fold_pairs(g, columns, |sum, g, c| {
                let u = update(g, c);
                u.mul_add(u, sum)
            });
            let step = lr * rate * held(squares, d);
            for ((w, &g), &c) in weight.iter_mut().zip(g).zip(columns) {
                *w -= step * update(g, c);
            }
        });
    }
}

/// The factor that limits the root mean square of a row's update to 1.
#[inline(always)]
fn held(squares: f32, columns: usize) -> f32 {
    let rms = (squares / columns as f32).sqrt();
    if rms > 1.0 { 1.0 / rms } else { 1.0 }
}

impl OnCpu for EmbedUpdate {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        bytes(self.table.rows() as usize)
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        views!(arena;
            ids = Some(self.ids),
            mut x_grad = Some(self.x_grad),
            mut table = Some(self.table),
            mut moment = Some(self.moment),
            settings = Some(self.settings),
            results = Some(self.results),
            mut scratch = Some(cpu.scratch),
        );
        if !Results::from_slice(results.f32()?)?.loss.is_finite() {
            return Ok(());
        }
        let lr = Settings::from_slice(settings.f32()?)?.learning_rate;
        let (d, ids) = (self.table.columns() as usize, ids.u32()?);
        let x_grad = x_grad.f32_mut()?;
        // The first row of each id, stored as the bits of an f32.
        let first = &mut scratch.f32_mut()?[..self.table.rows() as usize];
        first.fill(f32::from_bits(NONE));
        for (r, &id) in ids.iter().enumerate() {
            let first = &mut first[id as usize];
            if first.to_bits() == NONE {
                *first = f32::from_bits(r as u32);
            } else {
                let (to, from) = x_grad.split_at_mut(r * d);
                simd::add(&from[..d], &mut to[first.to_bits() as usize * d..][..d]);
            }
        }
        let (x_grad, first) = (&*x_grad, &*first);
        cpu.pool.bands([(table.f32_mut()?, ROWS * d), (moment.f32_mut()?, ROWS * 2)], |_, band, [table, moment]| {
            let rows = table.chunks_exact_mut(d).zip(moment.as_chunks_mut::<2>().0).zip(&first[band * ROWS..]);
            for ((row, [m, n]), first) in rows.filter(|(_, first)| first.to_bits() != NONE) {
                let g = &x_grad[first.to_bits() as usize * d..][..d];
                let mut squares = 0.0;
                vectorise!({
                    squares = simd::dot(g, g);
                });
                if !squares.is_finite() {
                    continue;
                }
                *n += 1.0;
                let correction = 1.0 - libm::powf(self.beta2, *n);
                vectorise!({
                    *m = self.beta2 * *m + (1.0 - self.beta2) * (squares / d as f32);
                    let root = 1.0 / ((*m / correction).sqrt() + EPS);
                    simd::axpy(-lr * root * held(squares * root * root, d), g, row);
                });
            }
        });
        Ok(())
    }
}
