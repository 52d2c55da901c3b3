//! AdamW (Loshchilov and Hutter 2019) of a matrix with a factored second moment, one factor for the row and one for the
//! column (Adafactor, Shazeer and Stern 2018).

use super::adamw::AdamWFactors;
use super::masters::{Dither, Masters};
use super::moved::{Moved, each_element};
use crate::compressed::BLOCK;
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Dtype, Region};
use crate::ops::math::dot;
use crate::train::{Results, Settings};
use crate::views;

/// The number of columns that [`Operation::reference`] sums at a time.
const AT_ONCE: usize = 16;

/// With g the clipped gradient: `m = β₁ m + (1 − β₁) g`, `r = β₂ r + (1 − β₂) mean g²` for each row, `c` likewise for
/// each column, `v = r c / mean r`, `w = w (1 − lr · decay) − lr · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + eps)`. Where the
/// matrix of g² has rank 1, v is AdamW's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWFactored {
    /// The matrix, row by row, followed by padding, which stays unchanged; its corrections are 1 − β₁ᵗ and 1 − β₂ᵗ.
    pub moved: Moved,
    /// The same number of elements: m.
    pub first: Region,
    /// `[rows + columns]` of f32, with padding: r, then c.
    pub sides: Region,
    /// Rows and columns. Blocks of 8-bit states must not span rows: a block has few steps for numbers much smaller than
    /// its largest, and a row's numbers may be far smaller than those of the next row.
    pub shape: [u32; 2],
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// Added to the denominator.
    pub eps: f32,
}

impl AdamWFactored {
    /// Elements of the matrix.
    pub const fn elements(&self) -> u64 {
        self.shape[0] as u64 * self.shape[1] as u64
    }

    /// The factors of this update, or `None` where the norm or the loss is not finite and the update is skipped.
    pub fn factors(&self, settings: &Settings, results: &Results) -> Option<AdamWFactors> {
        Some(AdamWFactors::of(&self.moved.factors(settings, results)?, self.moved.decay))
    }

    /// The new r of a row, or c of a column, from its old value `before` and the sum of its `count` squared unclipped
    /// gradients.
    #[inline(always)]
    pub fn side(&self, f: &AdamWFactors, before: f32, sum: f32, count: u32) -> f32 {
        self.beta2 * before + (1.0 - self.beta2) * (sum * (f.gradient * f.gradient) / count as f32)
    }

    /// The factor 1 / mean r, from the sum of all r; 0 where that is 0.
    #[inline(always)]
    pub fn inverse(&self, sum: f32) -> f32 {
        if sum > 0.0 { self.shape[0] as f32 / sum } else { 0.0 }
    }

    /// The new parameter and the new m of one element, given its v.
    #[inline(always)]
    pub fn element(&self, f: &AdamWFactors, weight: f32, gradient: f32, first: f32, second: f32) -> (f32, f32) {
        let m = self.beta1 * first + (1.0 - self.beta1) * (gradient * f.gradient);
        (weight * f.keep - f.step * m / (libm::sqrtf(second) * f.root + self.eps), m)
    }

    /// Updates r and c for this step.
    fn move_sides(&self, f: &AdamWFactors, gradient: &[f32], rows: &mut [f32], columns: &mut [f32]) {
        let [height, width] = self.shape;
        let each = || gradient.chunks_exact(columns_of(self));
        rows.iter_mut().zip(each()).for_each(|(r, g)| *r = self.side(f, *r, dot(g, g), width));
        for (number, columns) in columns.chunks_mut(AT_ONCE).enumerate() {
            let mut sums = [0.0; AT_ONCE];
            for g in each() {
                let g = g.iter().skip(number * AT_ONCE);
                sums.iter_mut().zip(g).for_each(|(sum, g)| *sum += g * g);
            }
            columns.iter_mut().zip(sums).for_each(|(c, sum)| *c = self.side(f, *c, sum, height));
        }
    }
}

/// The number of columns, at least 1.
const fn columns_of(op: &AdamWFactored) -> usize {
    if op.shape[1] == 0 { 1 } else { op.shape[1] as usize }
}

impl Operation for AdamWFactored {
    const NAME: &'static str = "adamw_factored";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        if !cfg!(feature = "compressed") {
            return;
        }
        let moved = &self.moved;
        visit(Operand::update("weight", moved.weight));
        moved.remainder.into_iter().for_each(|r| visit(Operand::update("remainder", r).remainders()));
        visit(Operand::read("gradient", moved.gradient));
        visit(Operand::update("first", self.first).state());
        visit(Operand::update("sides", self.sides).exact());
        visit(Operand::read("settings", moved.settings).exact());
        visit(Operand::read("results", moved.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        if !cfg!(feature = "compressed") {
            return Err(self.misfit("first"));
        }
        let (moved, n, [rows, columns]) = (&self.moved, self.moved.weight.elements(), self.shape);
        self.expect(n >= self.elements() && rows > 0 && columns > 0, "weight")?;
        let bf16 = moved.weight.dtype == Dtype::Bf16;
        self.expect(moved.remainder.is_none_or(|r| r.elements() == n && bf16), "remainder")?;
        self.expect(moved.gradient.elements() == n, "gradient")?;
        let blocks = [n, columns.into()].iter().all(|count| count.is_multiple_of(BLOCK as u64));
        self.expect(self.first.elements() == n && (blocks || !self.first.dtype.is_coded()), "first")?;
        let sides = u64::from(rows) + u64::from(columns);
        self.expect(self.sides.dtype == Dtype::F32 && self.sides.elements() >= sides, "sides")?;
        self.expect(moved.settings.elements() == Settings::LEN, "settings")?;
        self.expect(moved.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        // A build without the feature has no code for the following.
        if !cfg!(feature = "compressed") {
            return Err(self.misfit("first"));
        }
        let moved = &self.moved;
        views!(arena;
            mut weight = Some(moved.weight),
            mut remainder = moved.remainder,
            gradient = Some(moved.gradient),
            mut first = Some(self.first),
            mut none = None,
            mut sides = Some(self.sides),
            settings = Some(moved.settings),
            results = Some(moved.results),
        );
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = self.factors(settings, results) else { return Ok(()) };
        let ([height, width], gradient) = (self.shape.map(|side| side as usize), gradient.f32()?);
        let matrix = gradient.get(..height * width).ok_or(self.misfit("gradient"))?;
        let (rows, columns) = sides.f32_mut()?.split_at_mut_checked(height).ok_or(self.misfit("sides"))?;
        let columns = columns.get_mut(..width).ok_or(self.misfit("sides"))?;
        self.move_sides(&factors, matrix, rows, columns);
        let inverse = self.inverse(rows.iter().sum());
        let masters = Masters::of(&mut weight, &mut remainder, Dither::of(results, moved.group))?;
        let (rows, columns) = (&*rows, &*columns);
        each_element(masters, gradient, [&mut first, &mut none], self.misfit("weight"), |i, w, g, [m, v]| {
            // The elements after the matrix are padding.
            let side = rows.get(i / columns_of(self)).zip(columns.get(i % columns_of(self)));
            side.map_or((w, [m, v]), |(r, c)| {
                let (w, m) = self.element(&factors, w, g, m, r * inverse * c);
                (w, [m, v])
            })
        })
    }
}

#[cfg(all(test, feature = "compressed"))]
mod tests {
    use super::*;
    use crate::compressed::{BYTES, Code};
    use crate::device::check;
    use crate::model::testing::Half;
    use crate::ops::AdamW;
    use crate::ops::testing::Bench;
    use crate::optimizer::Group;
    use crate::remainder;

    type B = Bench<8192>;

    const SETTINGS: Settings = Settings {
        learning_rate: 0.01,
        clip: 2.0,
        loss_scale: 1.0,
        factored: f32::NAN,
        corrections: [[f32::NAN; 2]; 5],
        decay: 0.5,
        average: f32::NAN,
    };

    /// The settings of the step after `step` others.
    fn at(step: i32) -> [f32; 16] {
        let mut settings = SETTINGS;
        settings.corrections[Group::Head.index()] = [0.9f32, 0.95].map(|beta| 1.0 - beta.powi(step + 1));
        settings.into()
    }

    /// A matrix followed by `padding`; a norm of 4 with a clip of 2.
    fn case(b: &mut B, [rows, columns]: [u32; 2], padding: u32, loss: f32) -> AdamWFactored {
        let (shape, sides) = ([1, 1, 1, rows * columns + padding], [1, 1, 1, rows + columns + 3]);
        let moved = Moved {
            weight: b.normal(shape, 1, 1.0),
            remainder: None,
            gradient: b.normal(shape, 2, 1.0),
            settings: b.values([1, 1, 1, 16], &at(0)),
            results: b.results(Results { loss, squared_norm: 16.0 }),
            group: Group::Head,
            rate: 2.0,
            decay: 0.1,
        };
        let [first, sides] = [shape, sides].map(|shape| {
            let region = b.poison(shape);
            b.set_bytes(region, 0, &[0; 4096][..region.bytes() as usize]);
            region
        });
        AdamWFactored { moved, first, sides, shape: [rows, columns], beta1: 0.9, beta2: 0.95, eps: 1e-8 }
    }

    fn all<const N: usize>(b: &mut B, region: Region) -> [f64; N] {
        core::array::from_fn(|i| f64::from(b.get(region)[i]))
    }

    /// The gradient of a step: 0 in some rows, and in one column in one step; otherwise of very different sizes.
    fn gradient(step: usize, i: usize, j: usize) -> f32 {
        let none = (i + step).is_multiple_of(3) || (j, step) == (4, 1);
        if none { 0.0 } else { ((i * 31 + j * j + 7 * step) as f32 * 0.3).sin() / (1 + 3 * i + j) as f32 }
    }

    #[test]
    fn four_updates_agree_with_f64() {
        const M: usize = 5;
        const N: usize = 19;
        const ALL: usize = M * N + 7;
        let mut b = B::new();
        let op = case(&mut b, [M as u32, N as u32], 7, 1.0);
        let (mut w, mut m) = (all::<ALL>(&mut b, op.moved.weight), [0.0; ALL]);
        let (padding, mut r, mut c) = (w, [0.0; M], [0.0; N]);
        for step in 0..4 {
            let g: [f32; ALL] =
                core::array::from_fn(|i| if i < M * N { gradient(step, i / N, i % N) } else { f32::NAN });
            b.set(op.moved.gradient, &g);
            b.set(op.moved.settings, &at(step as i32));
            b.run(op);
            let g = g.map(|g| f64::from(g) * 2.0 / (4.0 + 1e-6));
            for (i, r) in r.iter_mut().enumerate() {
                *r = 0.95 * *r + 0.05 * (0..N).map(|j| g[i * N + j].powi(2)).sum::<f64>() / N as f64;
            }
            for (j, c) in c.iter_mut().enumerate() {
                *c = 0.95 * *c + 0.05 * (0..M).map(|i| g[i * N + j].powi(2)).sum::<f64>() / M as f64;
            }
            let mean = r.iter().sum::<f64>() / M as f64;
            let [first, second] = [0.9f64, 0.95].map(|beta| 1.0 - beta.powi(step as i32 + 1));
            for at in 0..M * N {
                m[at] = 0.9 * m[at] + 0.1 * g[at];
                let v = r[at / N] * c[at % N] / mean / second;
                w[at] -= 0.02 * 0.1 * 0.5 * w[at] + 0.02 * (m[at] / first) / (v.sqrt() + 1e-8);
                let [weight, moment] = [op.moved.weight, op.first].map(|region| f64::from(b.get(region)[at]));
                approx::assert_relative_eq!(weight, w[at], max_relative = 3e-6, epsilon = 1e-6);
                approx::assert_relative_eq!(moment, m[at], max_relative = 3e-6, epsilon = 1e-8);
            }
            let sides = all::<{ M + N + 3 }>(&mut b, op.sides);
            for (found, expected) in sides.iter().zip(r.iter().chain(&c).chain(&[0.0; 3])) {
                approx::assert_relative_eq!(*found, *expected, max_relative = 2e-6);
            }
            assert_eq!(all::<ALL>(&mut b, op.moved.weight)[M * N..], padding[M * N..]);
            assert_eq!(all::<ALL>(&mut b, op.first)[M * N..], [0.0; 7]);
        }
    }

    /// Where the squared gradients have rank 1 at every step, the factored moment equals AdamW's.
    #[test]
    fn gradients_of_rank_1_move_as_by_adamw() {
        const M: usize = 6;
        const N: usize = 23;
        const ALL: usize = M * N;
        let mut b = B::new();
        let op = case(&mut b, [M as u32, N as u32], 0, 1.0);
        let moved = Moved { weight: b.normal(op.moved.weight.shape, 1, 1.0), ..op.moved };
        let [first, second] = [(); 2].map(|()| b.values(op.first.shape, &[0.0; ALL]));
        let adamw = AdamW { moved, first, second, beta1: op.beta1, beta2: op.beta2, eps: op.eps };
        for step in 0..5 {
            let [a, o] = [|i: usize| 0.1 + i as f32, |j: usize| 2.0 - 0.07 * j as f32];
            let sign = |at: usize| if (at * at + step).is_multiple_of(3) { -1.0 } else { 1.0 };
            let size = (step as f32 * 1.7).sin();
            let g: [f32; ALL] = core::array::from_fn(|at| sign(at) * a(at / N) * o(at % N) * size);
            b.set(moved.gradient, &g);
            b.set(moved.settings, &at(step as i32));
            b.run(op);
            b.run(adamw);
            let [found, expected] = [op.moved.weight, moved.weight].map(|region| all::<ALL>(&mut b, region));
            for (found, expected) in found.into_iter().zip(expected) {
                approx::assert_relative_eq!(found, expected, max_relative = 1e-6, epsilon = 3e-7);
            }
            assert_eq!(b.bytes(op.first), b.bytes(first));
        }
    }

    #[test]
    fn moments_in_8_bits_and_every_master_move_as_the_f32_that_they_are() {
        const M: usize = 3;
        const N: usize = BLOCK;
        const ALL: usize = M * N;
        let mut b = B::new();
        let op = case(&mut b, [M as u32, N as u32], 0, 1.0);
        let shape = op.moved.weight.shape;
        let values: [f32; ALL] = b.get(op.moved.weight).try_into().unwrap();
        let rounded = values.map(|x| {
            let (w, lack) = remainder::split8(x);
            remainder::join8(w, lack)
        });
        b.set(op.moved.weight, &rounded);
        let halves = rounded.map(remainder::split8);
        let [weight, lacks, first] =
            [Dtype::Bf16, Dtype::Remainder8, Dtype::Moment8].map(|dtype| b.codes(dtype, shape));
        b.set_bytes(weight, 0, bytemuck::cast_slice(&halves.map(|(w, _)| w)));
        b.set_bytes(lacks, 0, bytemuck::cast_slice(&halves.map(|(_, lack)| lack)));
        b.set_bytes(first, 0, &[0; M * BYTES]);
        let sides = b.values(op.sides.shape, &[0.0; M + N + 3]);
        let coded = AdamWFactored { moved: Moved { weight, remainder: Some(lacks), ..op.moved }, first, sides, ..op };
        for step in 0..4 {
            let g: [f32; ALL] = core::array::from_fn(|at| gradient(step, at / N, at % N));
            b.set(op.moved.gradient, &g);
            b.set(op.moved.settings, &at(step as i32));
            b.run(op);
            b.run_in(coded, &Half);
            let moved: [f32; ALL] = b.get(op.moved.weight).try_into().unwrap();
            let halves = moved.map(remainder::split8);
            assert_eq!(b.bytes(weight), bytemuck::cast_slice::<u16, u8>(&halves.map(|(w, _)| w)), "step {step}");
            assert_eq!(b.bytes(lacks), bytemuck::cast_slice::<i8, u8>(&halves.map(|(_, lack)| lack)));
            assert_eq!(b.bytes(sides), b.bytes(op.sides));
            let mut numbers: [f32; ALL] = b.get(op.first).try_into().unwrap();
            for (i, numbers) in numbers.as_chunks_mut().0.iter_mut().enumerate() {
                let mut block = [0; BYTES];
                Code::Moment.pack(numbers, &mut block);
                assert_eq!(b.bytes(first)[i * BYTES..][..BYTES], block, "step {step}");
                Code::Moment.unpack(&block, numbers);
            }
            // The next step continues from the stored numbers.
            b.set(op.first, &numbers);
            b.set(op.moved.weight, &halves.map(|(w, lack)| remainder::join8(w, lack)));
        }
    }

    #[test]
    fn a_step_that_is_skipped_changes_nothing_and_without_gradients_weights_decay() {
        let mut b = B::new();
        let op = case(&mut b, [3, 4], 0, f32::NAN);
        let before = all::<12>(&mut b, op.moved.weight);
        b.run(op);
        assert_eq!(all::<12>(&mut b, op.moved.weight), before);
        assert_eq!(all::<7>(&mut b, op.sides), [0.0; 7]);
        let op = case(&mut b, [3, 4], 0, 1.0);
        b.set(op.moved.gradient, &[0.0; 12]);
        b.run(op);
        for (found, before) in all::<12>(&mut b, op.moved.weight).into_iter().zip(before) {
            approx::assert_relative_eq!(found, before * 0.999, max_relative = 1e-6);
        }
    }

    #[test]
    fn shapes_that_do_not_belong_together_are_refused() {
        let mut b = B::new();
        let op = case(&mut b, [3, 4], 1, 1.0);
        let checked = |op: AdamWFactored| check(&op.into(), &Half);
        let refused = |op: AdamWFactored, operand| {
            let error = OperationError::Shape { operation: "adamw_factored", operand };
            assert_eq!(checked(op), Err(error));
        };
        assert_eq!(checked(op), Ok(()));
        refused(AdamWFactored { shape: [3, 5], ..op }, "weight");
        refused(AdamWFactored { shape: [0, 4], ..op }, "weight");
        refused(AdamWFactored { sides: op.sides.slice_columns(0, 6), ..op }, "sides");
        refused(AdamWFactored { first: op.first.slice_columns(0, 12), ..op }, "first");
        // A block of 8 bits would span rows.
        let large = case(&mut b, [4, 96], 0, 1.0);
        refused(AdamWFactored { first: b.codes(Dtype::Moment8, large.first.shape), ..large }, "first");
    }
}
