//! AdamW with a factored second moment: first the sums of bands of rows, then the update piece by piece.

use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::{AdamWFactored, AdamWFactors};
use capful_core::train::{Results, Settings};
use capful_core::views;

use super::moved::move_views;
use crate::pool::Pool;
use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// The most bands, and the fewest rows of a band. They determine the order of summation, independent of the number of
/// threads.
const BANDS: usize = 64;
const ROWS: usize = 16;
/// Columns of a task that adds the sums of the bands.
const COLUMNS: usize = 256;

/// Rows of a band, for a matrix of `rows` rows.
fn band(rows: usize) -> usize {
    rows.div_ceil(BANDS).max(ROWS)
}

impl OnCpu for AdamWFactored {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        let [rows, columns] = self.shape.map(|side| side as usize);
        bytes(rows.div_ceil(band(rows)) * columns)
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let moved = self.moved;
        if moved.remainder.is_some() {
            // No precision of this device has master weights.
            return self.reference(&mut arena);
        }
        views!(arena;
            mut weight = Some(moved.weight),
            gradient = Some(moved.gradient),
            mut first = Some(self.first),
            mut none = None,
            mut sides = Some(self.sides),
            settings = Some(moved.settings),
            results = Some(moved.results),
            mut scratch = Some(cpu.scratch),
        );
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = self.factors(settings, results) else { return Ok(()) };
        let ([height, width], gradient) = (self.shape.map(|side| side as usize), gradient.f32()?);
        let (rows, columns) = sides.f32_mut()?.split_at_mut(height);
        let columns = &mut columns[..width];
        move_sides(&mut cpu.pool, (&self, &factors), gradient, [rows, columns], scratch.f32_mut()?);
        let (rows, columns, inverse) = (&*rows, &*columns, self.inverse(simd::sum(rows)));
        let states = [&mut first, &mut none];
        move_views(&mut cpu.pool, &mut weight, gradient, states, |begin, weight, gradient, [first, _]| {
            let end = (begin + weight.len()).min(height * width);
            let mut at = begin;
            while at < end {
                // Up to the end of the row.
                let (row, column) = (at / width, at % width);
                let count = (width - column).min(end - at);
                let own = at - begin..at - begin + count;
                let (weight, first, gradient) = (&mut weight[own.clone()], &mut first[own.clone()], &gradient[own]);
                let (columns, side) = (&columns[column..column + count], rows[row] * inverse);
                vectorise!({
                    for i in 0..count {
                        // The steps of `AdamWFactored::element`, with a square root that becomes a vector instruction.
                        let m = self.beta1 * first[i] + (1.0 - self.beta1) * (gradient[i] * factors.gradient);
                        let root = (side * columns[i]).sqrt() * factors.root;
                        weight[i] = weight[i] * factors.keep - factors.step * m / (root + self.eps);
                        first[i] = m;
                    }
                },);
                at += count;
            }
        })
    }
}

/// Updates the moments of rows and of columns to this step; `sums` is scratch for the column sums of every band.
fn move_sides(
    pool: &mut Pool,
    (op, factors): (&AdamWFactored, &AdamWFactors),
    gradient: &[f32],
    [rows, columns]: [&mut [f32]; 2],
    sums: &mut [f32],
) {
    let ([height, width], band) = (op.shape, band(rows.len()));
    let (count, columns_of) = (rows.len().div_ceil(band), columns.len());
    let sums = &mut sums[..count * columns_of];
    pool.bands([(&mut *sums, columns_of), (rows, band)], |_, number, [sums, rows]| {
        let gradient = gradient[number * band * columns_of..].chunks_exact(columns_of);
        sums.fill(0.0);
        vectorise!(for (r, g) in rows.iter_mut().zip(gradient) {
            *r = op.side(factors, *r, simd::dot(g, g), width);
            sums.iter_mut().zip(g).for_each(|(sum, g)| *sum += g * g);
        });
    });
    let sums = &*sums;
    pool.chunks(columns, COLUMNS, |_, chunk, columns| {
        for (j, c) in (chunk * COLUMNS..).zip(columns) {
            let sum = sums[j..].iter().step_by(columns_of).sum();
            *c = op.side(factors, *c, sum, height);
        }
    });
}
