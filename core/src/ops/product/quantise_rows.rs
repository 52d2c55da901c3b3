//! Activations in integers with a scale for each row, and the operands of their multiplication with weights in
//! integers.

use crate::device::{Operand, Operation, OperationError};
use crate::integer::pair::Side;
use crate::integer::{Integer, Row, Sums, quantise_activations};
use crate::memory::{Arena, ArenaError, Region, View};

/// The scales of a weight in integers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightScales {
    /// [rows, groups] f16.
    pub scales: Region,
    /// The number of columns that share a scale; the last group of a row may have fewer. Even.
    pub group: u32,
    /// The number of rows of the whole weight that are in pairs, from the first on: see [`Integer::paired`].
    pub paired: u32,
}

impl WeightScales {
    /// The scales of `weight`, with `group` columns for each scale.
    pub fn new(weight: &Region, scales: Region, group: u32) -> WeightScales {
        let paired = Integer::of(weight.dtype).map_or(0, |integer| integer.paired(weight.rows()));
        WeightScales { scales, group, paired }
    }

    /// The scales of the weight's first `count` rows.
    pub const fn first_rows(self, count: u32) -> WeightScales {
        WeightScales { scales: self.scales.slice_rows(0, count), ..self }
    }

    /// Whether they match `weight`, and a group's sum fits in an i32.
    pub(crate) fn fits(&self, weight: &Region) -> bool {
        let group = self.group;
        group > 0
            && group.is_multiple_of(2)
            && group <= Integer::LONGEST
            && self.scales.rows() == weight.rows()
            && self.scales.columns() == weight.columns().div_ceil(group)
            // Pairs must be complete.
            && Integer::of(weight.dtype).is_some_and(|i| i.paired(weight.rows()) == self.paired.min(weight.rows()))
    }
}

/// The scales of a multiplication of integers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntegerProduct {
    /// `[rows, 1]` f32: the scales of x, one for each row. Without them x is of floats, and multiplied with the
    /// dequantised weight.
    pub x_scales: Option<Region>,
    /// The weight's scales.
    pub weight: WeightScales,
}

impl IntegerProduct {
    /// Calls `visit` with the operands of a multiplication of `x` and `weight`.
    pub(crate) fn operands(&self, x: Region, weight: Region, visit: &mut dyn FnMut(Operand)) {
        match self.x_scales {
            Some(scales) => {
                visit(Operand::read("x", x).integers());
                visit(Operand::read("x scales", scales).exact());
            }
            None => visit(Operand::read("x", x)),
        }
        visit(Operand::read("weight", weight).integers());
        visit(Operand::read("weight scales", self.weight.scales).half());
    }

    /// Whether they match `x` and `weight`.
    pub(crate) fn fits(&self, x: &Region, weight: &Region) -> bool {
        self.weight.fits(weight) && self.x_scales.is_none_or(|scales| scales.elements() == u64::from(x.rows()))
    }
}

/// A carved weight in integers.
pub struct IntegerRows<'a> {
    integer: Integer,
    codes: &'a [u8],
    scales: &'a [u16],
    group: usize,
    /// The number of rows in pairs.
    paired: usize,
    /// Bytes and scales of each row.
    strides: [usize; 2],
}

impl<'a> IntegerRows<'a> {
    /// From the views of `weight` and its scales.
    ///
    /// # Errors
    /// The error for a view of another type.
    pub fn new(
        weight: Region,
        scales: WeightScales,
        codes: &'a View<'_>,
        halves: &'a View<'_>,
    ) -> Result<Self, ArenaError> {
        let integer = Integer::of(weight.dtype).ok_or(ArenaError::Type { region: weight, wanted: "i8 or i4" })?;
        let strides = [weight.dtype.row_bytes(weight.columns()) as usize, scales.scales.columns() as usize];
        let WeightScales { group, paired, .. } = scales;
        let (group, paired) = (group as usize, paired as usize);
        Ok(IntegerRows { integer, codes: codes.bytes(), scales: halves.f16()?, group, paired, strides })
    }

    /// `out[r] = row r · x`, added to the old value if `adds`: see [`Row::dot`], with sums by `S`. `None` if there are
    /// fewer rows.
    #[must_use]
    pub fn products<S: Sums>(&self, x: &[i8], x_scale: f32, out: &mut [f32], adds: bool) -> Option<()> {
        if !adds {
            return self.part::<S>(0, x, x_scale, out);
        }
        const BLOCK: usize = 32;
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let mut products = [0.0; BLOCK];
            self.part::<S>(BLOCK * block, x, x_scale, products.get_mut(..out.len())?)?;
            out.iter_mut().zip(products).for_each(|(y, product)| *y += product);
        }
        Some(())
    }

    /// The dot products of as many rows as `out` has, from row `first` on, which is even.
    fn part<S: Sums>(&self, first: usize, x: &[i8], x_scale: f32, out: &mut [f32]) -> Option<()> {
        match self.integer {
            Integer::Int8 => self.of_pairs::<S>(first, x, x_scale, out),
            Integer::Int4 => self.of_nibbles::<S>(first, x, x_scale, out),
        }
    }

    /// In pairs where a row has one scale and is in a pair, otherwise row by row.
    fn of_pairs<S: Sums>(&self, first: usize, x: &[i8], x_scale: f32, out: &mut [f32]) -> Option<()> {
        let [bytes, scales] = self.strides;
        let whole = if scales == 1 { self.paired.saturating_sub(first).min(out.len()) & !1 } else { 0 };
        let (pairs, rest) = out.split_at_mut_checked(whole)?;
        if whole > 0 {
            let codes = self.codes.get(first * bytes..).filter(|codes| codes.len() >= whole * bytes)?;
            let halves = self.scales.get(first..).filter(|halves| halves.len() >= whole)?;
            S::pairs(x, x_scale, codes, halves, pairs);
        }
        for (r, y) in (first + whole..).zip(rest) {
            *y = self.row(r)?.dot(x, x_scale);
        }
        Some(())
    }

    fn of_nibbles<S: Sums>(&self, first: usize, x: &[i8], x_scale: f32, out: &mut [f32]) -> Option<()> {
        const BLOCK: usize = 32;
        let [bytes, scales] = self.strides;
        let (mut codes, mut halves) = (self.codes.get(first * bytes..)?, self.scales.get(first * scales..)?);
        if codes.len() < out.len() * bytes || halves.len() < out.len() * scales {
            return None;
        }
        let mut sums = [0; BLOCK];
        for out in out.chunks_mut(BLOCK) {
            let (sums, mut from) = (sums.get_mut(..out.len())?, 0);
            out.fill(0.0);
            for (g, x) in x.chunks(self.group.max(2)).enumerate() {
                S::nibbles(x, codes.get(from..)?, bytes, sums);
                from += self.integer.dtype().row_bytes(x.len() as u32) as usize;
                S::weigh(sums, halves.get(g..).unwrap_or_default(), scales, x_scale, out);
            }
            codes = codes.get(BLOCK * bytes..).unwrap_or_default();
            halves = halves.get(BLOCK * scales..).unwrap_or_default();
        }
        Some(())
    }

    /// Row `i`, if it exists.
    pub fn row(&self, i: usize) -> Option<Row<'a>> {
        let [bytes, scales] = self.strides;
        let side = if i < self.paired { Some(Side::of(i)) } else { None };
        let codes = match side {
            Some(_) => self.codes.get((i & !1).checked_mul(bytes)?..)?.get(..2 * bytes)?,
            None => self.codes.get(i.checked_mul(bytes)?..)?.get(..bytes)?,
        };
        let scales = self.scales.get(i.checked_mul(scales)?..)?.get(..scales)?;
        Some(Row { integer: self.integer, codes, side, scales, group: self.group })
    }
}

/// `codes[r] = x[r] / scales[r]` to the nearest, and `scales[r] = max |x[r]| / 127`: see [`quantise_activations`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantiseRows {
    /// [rows, columns].
    pub x: Region,
    /// [rows, columns] i8.
    pub codes: Region,
    /// [rows, 1] f32.
    pub scales: Region,
}

impl Operation for QuantiseRows {
    const NAME: &'static str = "quantise_rows";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("x", self.x));
        visit(Operand::write("codes", self.codes).integers());
        visit(Operand::write("scales", self.scales).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let like_x = self.codes.rows() == self.x.rows() && self.codes.columns() == self.x.columns();
        self.expect(like_x && Integer::of(self.codes.dtype) == Some(Integer::Int8), "codes")?;
        self.expect(self.scales.elements() == u64::from(self.x.rows()), "scales")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [x, mut codes, mut scales] = arena.views([Some(self.x), Some(self.codes), Some(self.scales)])?;
        let columns = self.x.columns() as usize;
        self.expect(columns > 0, "x")?;
        let rows = x.f32()?.chunks_exact(columns).zip(codes.i8_mut()?.chunks_exact_mut(columns));
        for ((x, codes), scale) in rows.zip(scales.f32_mut()?) {
            *scale = quantise_activations(x, codes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::IGNORE;
    use crate::device::{Element, Profile, Single, check};
    use crate::integer::{ParameterKind, quantise_row};
    use crate::memory::{Dtype, Role};
    use crate::ops::testing::Bench;
    use crate::ops::{Embed, Epilogue, HeadLoss, Linear};
    use crate::train::{Results, Settings};

    type Room = Bench<8192>;
    const MOST: usize = 512;

    /// A weight of normal numbers in integers, its scales and its dequantised numbers.
    fn weight(
        b: &mut Room,
        integer: Integer,
        [rows, columns]: [u32; 2],
        kind: ParameterKind,
    ) -> (Region, WeightScales, [f32; MOST]) {
        let whole = b.normal([1, 1, rows, columns], 2, 0.5);
        let group = integer.group(kind, columns);
        let codes = b.codes(integer.dtype(), whole.shape);
        let scales = b.codes(Dtype::F16, [1, 1, rows, columns.div_ceil(group)]);
        let [bytes, halves] = [&codes, &scales].map(|r| (r.bytes() / u64::from(rows)) as usize);
        let (mut numbers, mut all) = ([0.0; MOST], [0; 1024]);
        for r in 0..rows as usize {
            let (mut to, mut scale) = ([0; 64], [0; 8]);
            let x: heapless::Vec<f32, 64> =
                b.get(whole)[r * columns as usize..][..columns as usize].iter().copied().collect();
            quantise_row(integer, &x, group, &mut to[..bytes], &mut scale[..halves / 2]);
            integer.put_row([rows, r as u32], &to[..bytes], &mut all);
            b.set_bytes(scales, r * halves, bytemuck::cast_slice(&scale[..halves / 2]));
            let row = Row { integer, codes: &to, side: None, scales: &scale[..halves / 2], group: group as usize };
            row.decoded(columns as usize, |i, x| numbers[r * columns as usize + i] = x);
        }
        b.set_bytes(codes, 0, &all[..rows as usize * bytes]);
        (codes, WeightScales::new(&codes, scales, group), numbers)
    }

    /// `x` in integers, its scales and its dequantised numbers.
    fn activations(b: &mut Room, x: Region) -> (Region, Region, [f64; MOST]) {
        let (codes, scales) = (b.codes(Dtype::I8, x.shape), b.poison([1, 1, x.rows(), 1]));
        b.run(QuantiseRows { x, codes, scales });
        let number = |b: &mut Room, i: usize| {
            let scale = b.get(scales)[i / x.columns() as usize];
            f64::from(b.bytes(codes)[i].cast_signed()) * f64::from(scale)
        };
        let mut numbers = [0.0; MOST];
        (0..x.elements() as usize).for_each(|i| numbers[i] = number(b, i));
        (codes, scales, numbers)
    }

    #[test]
    fn a_linear_layer_is_the_product_of_the_numbers_of_its_codes() {
        for (integer, inputs) in [(Integer::Int8, 37), (Integer::Int4, 37), (Integer::Int4, 64)] {
            let mut b = Room::new();
            let x = b.normal([1, 1, 5, inputs], 1, 1.0);
            let (codes, scales, numbers) = weight(&mut b, integer, [7, inputs], ParameterKind::Matrix);
            let (x_codes, x_scales, x_numbers) = activations(&mut b, x);
            let (bias, residual) = (b.normal([1, 1, 1, 7], 3, 1.0), b.normal([1, 1, 5, 7], 4, 1.0));
            let out = b.normal([1, 1, 5, 7], 5, 1.0);
            let integer = Some(IntegerProduct { x_scales: Some(x_scales), weight: scales });
            for epilogue in [Epilogue::Add, Epilogue::Store, Epilogue::Residual(residual)] {
                let before: [f32; 35] = b.get(out).try_into().unwrap();
                b.run(Linear { integer, epilogue, ..Linear::new(x_codes, codes, Some(bias), out) });
                for (i, before) in before.into_iter().enumerate() {
                    let (r, o) = (i / 7, i % 7);
                    let inputs = inputs as usize;
                    let product = (0..inputs).map(|k| x_numbers[r * inputs + k] * f64::from(numbers[o * inputs + k]));
                    let more = match epilogue {
                        Epilogue::Add => before,
                        Epilogue::Residual(_) => b.get(residual)[i],
                        _ => 0.0,
                    };
                    let expected = product.sum::<f64>() + f64::from(b.get(bias)[o]) + f64::from(more);
                    let found = f64::from(b.get(out)[i]);
                    approx::assert_relative_eq!(found, expected, epsilon = 1e-5, max_relative = 1e-5);
                }
            }
        }
    }

    #[test]
    fn rounding_of_activations_stays_within_its_bound() {
        let mut b = Room::new();
        let x = b.normal([1, 1, 5, 37], 1, 1.0);
        let (codes, scales, numbers) = weight(&mut b, Integer::Int4, [7, 37], ParameterKind::Matrix);
        let (x_codes, x_scales, _) = activations(&mut b, x);
        let out = b.poison([1, 1, 5, 7]);
        let integer = Some(IntegerProduct { x_scales: Some(x_scales), weight: scales });
        b.run(Linear { integer, ..Linear::new(x_codes, codes, None, out) });
        for i in 0..35 {
            let row = |k: usize| f64::from(numbers[i % 7 * 37 + k]);
            let exact: f64 = (0..37).map(|k| f64::from(b.get(x)[i / 7 * 37 + k]) * row(k)).sum();
            // Half a code for each input.
            let bound = 0.500_01 * f64::from(b.get(x_scales)[i / 7]) * (0..37).map(|k| row(k).abs()).sum::<f64>();
            let off = (f64::from(b.get(out)[i]) - exact).abs();
            assert!(off > 0.0 && off <= bound, "{off} {bound}");
        }
    }

    #[test]
    fn a_transposed_weight_is_read_as_the_numbers_of_its_codes() {
        for integer in [Integer::Int8, Integer::Int4] {
            let mut b = Room::new();
            let x = b.normal([1, 1, 5, 7], 1, 1.0);
            let (codes, weight, numbers) = weight(&mut b, integer, [7, 37], ParameterKind::Matrix);
            let out = b.poison([1, 1, 5, 37]);
            let integer = Some(IntegerProduct { x_scales: None, weight });
            b.run(Linear { integer, transposed: true, ..Linear::new(x, codes, None, out) });
            for i in 0..5 * 37 {
                let (r, o) = (i / 37, i % 37);
                let expected: f64 =
                    (0..7).map(|k| f64::from(b.get(x)[r * 7 + k]) * f64::from(numbers[k * 37 + o])).sum();
                approx::assert_relative_eq!(f64::from(b.get(out)[i]), expected, epsilon = 1e-5, max_relative = 1e-5);
            }
        }
    }

    #[test]
    fn rows_of_a_table_are_the_numbers_of_its_codes() {
        for integer in [Integer::Int8, Integer::Int4] {
            let mut b = Room::new();
            let (table, scales, numbers) = weight(&mut b, integer, [8, 37], ParameterKind::Table);
            let (ids, out) = (b.ids(&[7, 0, 3]), b.poison([1, 1, 3, 37]));
            b.run(Embed { ids, table, scales: Some(scales), out });
            for (id, row) in [7, 0, 3].into_iter().zip(b.get(out).chunks_exact(37)) {
                assert_eq!(row, &numbers[id * 37..][..37]);
            }
        }
    }

    #[test]
    fn losses_of_a_head_in_integers_are_those_of_the_numbers_of_its_codes() {
        for integer in [Integer::Int8, Integer::Int4] {
            let mut b = Room::new();
            let targets = [3, IGNORE, 8, 0, 3];
            let x = b.normal([1, 1, 5, 37], 1, 1.0);
            let (codes, weight, numbers) = weight(&mut b, integer, [9, 37], ParameterKind::Table);
            let (x_codes, x_scales, x_numbers) = activations(&mut b, x);
            let bias = b.normal([1, 1, 1, 9], 6, 1.0);
            let op = HeadLoss {
                x: x_codes,
                weight: codes,
                bias: Some(bias),
                softcap: 5.0,
                ids: 9,
                targets: b.ids(&targets),
                logits: b.poison([1, 1, 2, 9]),
                losses: b.poison([1, 1, 1, 5]),
                settings: b.settings(Settings { loss_scale: 1.0, ..Settings::default() }),
                results: b.results(Results { loss: 7.0, squared_norm: 0.0 }),
                add_loss: false,
                gradient: None,
                integer: Some(IntegerProduct { x_scales: Some(x_scales), weight }),
            };
            b.run(op);
            for (r, target) in targets.into_iter().enumerate() {
                let mut expected = 0.0;
                if target != IGNORE {
                    let z = |b: &mut Room, v: usize| -> f64 {
                        let product = (0..37).map(|i| x_numbers[r * 37 + i] * f64::from(numbers[v * 37 + i]));
                        5.0 * libm::tanh((product.sum::<f64>() + f64::from(b.get(bias)[v])) / 5.0)
                    };
                    let sum: f64 = (0..9).map(|v| libm::exp(z(&mut b, v))).sum();
                    expected = libm::log(sum) - z(&mut b, target as usize);
                }
                approx::assert_relative_eq!(f64::from(b.get(op.losses)[r]), expected, epsilon = 1e-5);
            }
            assert_eq!(op.flops_8bit(), 2 * 5 * 9 * 37);
        }
    }

    /// [`Single`], without multiplications of integers.
    struct Floats;

    impl Profile for Floats {
        fn dtype(&self, role: Role) -> Dtype {
            Single.dtype(role)
        }
    }

    #[test]
    fn what_does_not_belong_together_is_refused_by_name() {
        let mut b = Room::new();
        let x = b.normal([1, 1, 5, 64], 1, 1.0);
        let (codes, weight, _) = weight(&mut b, Integer::Int4, [7, 64], ParameterKind::Matrix);
        let (x_codes, x_scales, _) = activations(&mut b, x);
        let out = b.poison([1, 1, 5, 7]);
        let product = IntegerProduct { x_scales: Some(x_scales), weight };
        let linear = Linear { integer: Some(product), ..Linear::new(x_codes, codes, None, out) };
        let found = |op: Linear, profile: &dyn Profile| check(&op.into(), profile);
        let (operation, shape) = ("linear", |operand| Err(OperationError::Shape { operation: "linear", operand }));
        let kind = |operand| Err(OperationError::Type { operation, operand });
        assert_eq!(found(linear, &Single), Ok(()));
        assert_eq!(found(linear, &Floats), kind("x"));
        assert_eq!(found(Linear { x, ..linear }, &Single), kind("x"));
        assert_eq!(found(Linear { integer: None, ..linear }, &Single), kind("x"));
        assert_eq!(found(Linear { x, integer: None, ..linear }, &Single), kind("weight"));
        let with = |product| Linear { integer: Some(product), ..linear };
        // Scales of another group, an odd group, too few scales, floats with a weight that is not transposed.
        let group = |group| with(IntegerProduct { weight: WeightScales { group, ..weight }, ..product });
        assert_eq!(found(group(64), &Single), shape("integer"));
        assert_eq!(found(group(33), &Single), shape("integer"));
        assert_eq!(found(group(0), &Single), shape("integer"));
        let few = WeightScales { scales: weight.scales.slice_rows(0, 6), ..weight };
        assert_eq!(found(with(IntegerProduct { weight: few, ..product }), &Single), shape("integer"));
        let floats = Linear { x, ..with(IntegerProduct { x_scales: None, ..product }) };
        assert_eq!(found(floats, &Single), shape("integer"));
        let halves = WeightScales { scales: Region { dtype: Dtype::Bf16, ..weight.scales }, ..weight };
        assert_eq!(found(with(IntegerProduct { weight: halves, ..product }), &Single), kind("weight scales"));
        // Activations have 8 bits.
        let narrow = QuantiseRows { x, codes: Region { dtype: Dtype::I4, ..x_codes }, scales: x_scales };
        assert_eq!(narrow.validate(), Err(OperationError::Shape { operation: "quantise_rows", operand: "codes" }));
        assert!(Element::Integers.admits(Dtype::I4, &Single) && !Element::Integers.admits(Dtype::E4m3, &Single));
        assert!(!Element::Codes.admits(Dtype::I8, &Single));
    }
}
