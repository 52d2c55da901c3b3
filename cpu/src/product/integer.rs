//! Integer matrix multiplication with the same bits as the reference loops: integer sums are exact in any order, and
//! all other roundings happen in the order of the reference.

use std::ops::Range;

use capful_core::float16;
use capful_core::integer::{Integer, Row};
use capful_core::ops::IntegerRows;

use crate::pool::{Parts, Pool};
use crate::simd::vectorise;

/// Rows of x that are multiplied by a row of the weight while that row is in registers and cache.
const ROWS: usize = 16;
/// Rows of the weight of a task.
const OUTPUTS: usize = 32;
/// Codes of a row that are unpacked at once. Even.
const PIECE: usize = 128;

/// Rows of x in integers, with their scales.
#[derive(Clone, Copy)]
pub(crate) struct Codes<'a> {
    /// [rows, inputs].
    pub codes: &'a [i8],
    /// `[rows]`.
    pub scales: &'a [f32],
    pub inputs: usize,
}

/// `y = x · weightᵀ`: `store` receives every part of a row of `y` with its row, its first column and the content of
/// `out` there.
pub(crate) fn product(
    pool: &mut Pool,
    x: Codes<'_>,
    weight: &IntegerRows<'_>,
    out: &mut [f32],
    outputs: usize,
    store: impl Fn(usize, usize, &[f32], &mut [f32]) + Sync,
) {
    let (rows, across) = (x.scales.len(), outputs.div_ceil(OUTPUTS));
    let out = Parts::new(out);
    pool.tasks(rows.div_ceil(ROWS) * across, |_, task| {
        let (first_row, first) = (task / across * ROWS, task % across * OUTPUTS);
        let (count, width) = (ROWS.min(rows - first_row), OUTPUTS.min(outputs - first));
        let mut block = [[0.0; OUTPUTS]; ROWS];
        vectorise!(for o in 0..width {
            let column = column(x, first_row, count, weight.row(first + o).expect("the weight has a row an output"));
            for (row, y) in block.iter_mut().zip(column) {
                row[o] = y;
            }
        });
        for (r, y) in (first_row..first_row + count).zip(&block) {
            let at = r * outputs + first;
            // SAFETY: the blocks of tasks are disjoint, and so are the rows of a block.
            store(r, first, &y[..width], unsafe { out.range(at..at + width) });
        }
    });
}

/// [`Row::dot`] of `count` rows of x from `first` on.
#[inline(always)]
fn column(x: Codes<'_>, first: usize, count: usize, row: Row<'_>) -> [f32; ROWS] {
    let mut y = [0.0; ROWS];
    let mut unpacked = [0; PIECE];
    for (g, scale) in row.scales.iter().enumerate() {
        let mut sums = [0i32; ROWS];
        let (begin, end) = (g * row.group, ((g + 1) * row.group).min(x.inputs));
        for from in (begin..end).step_by(PIECE) {
            let to = end.min(from + PIECE);
            let codes = codes(&row, from..to, &mut unpacked);
            for (r, sum) in (first..first + count).zip(&mut sums) {
                *sum += dot(&x.codes[r * x.inputs..][from..to], codes);
            }
        }
        let scale = float16::decode(*scale);
        for ((y, sum), x_scale) in y.iter_mut().zip(sums).zip(&x.scales[first..first + count]) {
            *y += sum as f32 * (scale * x_scale);
        }
    }
    y
}

/// The codes of a few columns of a row, from an even one on.
#[inline(always)]
fn codes<'a>(row: &Row<'a>, columns: Range<usize>, unpacked: &'a mut [i8; PIECE]) -> &'a [i8] {
    let Range { start: from, end: to } = columns;
    match (row.integer, row.side) {
        (Integer::Int8, None) => return bytemuck::cast_slice(&row.codes[from..to]),
        (Integer::Int8, Some(side)) => {
            for (code, bytes) in unpacked.iter_mut().zip(row.codes[2 * from..2 * to].as_chunks().0) {
                *code = side.code(*bytes);
            }
        }
        (Integer::Int4, _) => {
            let bytes = &row.codes[from / 2..to.div_ceil(2)];
            for (codes, byte) in unpacked.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *codes = [(byte << 4) as i8 >> 4, *byte as i8 >> 4];
            }
        }
    }
    &unpacked[..to - from]
}

/// `Σ a · b`.
#[inline(always)]
fn dot(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).fold(0, |sum, (a, b)| sum + i32::from(*a) * i32::from(*b))
}

/// `out (+)= x · weight` of floats [rows, inputs] with the decoded [inputs, outputs] weight, in the order of the
/// inputs; `finish` receives each row of the result with its number.
pub(crate) fn transposed(
    pool: &mut Pool,
    (x, inputs): (&[f32], usize),
    weight: &IntegerRows<'_>,
    (out, outputs): (&mut [f32], usize),
    adds: bool,
    finish: impl Fn(usize, &mut [f32]) + Sync,
) {
    pool.chunks(out, ROWS * outputs, |_, block, out| {
        let x = &x[block * ROWS * inputs..];
        if !adds {
            out.fill(0.0);
        }
        vectorise!(for i in 0..inputs {
            let row = weight.row(i).expect("the weight has a row an input");
            let mut numbers = [0.0; PIECE];
            for from in (0..outputs).step_by(PIECE) {
                let to = outputs.min(from + PIECE);
                decode(row, from, &mut numbers[..to - from]);
                for (x, out) in x.chunks_exact(inputs).zip(out.chunks_exact_mut(outputs)) {
                    for (y, w) in out[from..to].iter_mut().zip(&numbers) {
                        *y += x[i] * w;
                    }
                }
            }
        });
        out.chunks_exact_mut(outputs).enumerate().for_each(|(r, row)| finish(block * ROWS + r, row));
    });
}

/// Decodes the codes of a row to numbers, from column `from` on; `from` is even.
#[inline(always)]
fn decode(row: Row<'_>, from: usize, numbers: &mut [f32]) {
    let mut unpacked = [0; PIECE];
    let to = from + numbers.len();
    let codes = codes(&row, from..to, &mut unpacked);
    let mut column = from;
    while column < to {
        let end = to.min((column / row.group + 1) * row.group);
        let scale = float16::decode(row.scales[column / row.group]);
        for (number, code) in numbers[column - from..end - from].iter_mut().zip(&codes[column - from..]) {
            *number = f32::from(*code) * scale;
        }
        column = end;
    }
}
