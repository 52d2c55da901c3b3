//! Expands a weight that is stored in fewer bits than matrix multiplications read.

use super::{IntegerRows, WeightScales};
use crate::device::{Operand, Operation, OperationError};
use crate::integer::{Integer, ParameterKind};
use crate::memory::{Arena, Dtype, Region};

/// `out[r, c] = codes[r, c] · scales[r]` for a weight in integers of 8 bits, `out = codes` for one in bf16; rounded to
/// the type of `out`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dequantise {
    /// [rows, columns] i8, with rows in pairs ([`crate::integer::pair`]), or bf16: the whole weight.
    pub codes: Region,
    /// [rows, 1] f16: a scale for each row, for integers.
    pub scales: Option<Region>,
    /// [rows, columns].
    pub out: Region,
}

impl Operation for Dequantise {
    const NAME: &'static str = "dequantise";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("codes", self.codes).reduced());
        self.scales.into_iter().for_each(|scales| visit(Operand::read("scales", scales).reduced()));
        visit(Operand::write("out", self.out));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let Dequantise { codes, scales, out } = self;
        self.expect(out.rows() == codes.rows() && out.columns() == codes.columns(), "out")?;
        self.expect(matches!(codes.dtype, Dtype::I8 | Dtype::Bf16), "codes")?;
        let fits = match scales {
            Some(scales) => codes.dtype == Dtype::I8 && scales.dtype == Dtype::F16 && scales.rows() == codes.rows(),
            None => codes.dtype == Dtype::Bf16,
        };
        self.expect(fits && scales.is_none_or(|scales| scales.columns() == 1), "scales")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [codes, scales, mut out] = arena.views([Some(self.codes), self.scales, Some(self.out)])?;
        let (columns, out) = (self.codes.columns() as usize, out.f32_mut()?);
        self.expect(columns > 0, "codes")?;
        let Some(halves) = self.scales else {
            let numbers = codes.bf16()?.iter().map(|bits| f32::from_bits(u32::from(*bits) << 16));
            out.iter_mut().zip(numbers).for_each(|(out, x)| *out = x);
            return Ok(());
        };
        let group = Integer::Int8.group(ParameterKind::Matrix, self.codes.columns());
        let rows = IntegerRows::new(self.codes, WeightScales::new(&self.codes, halves, group), &codes, &scales)?;
        for (r, out) in out.chunks_exact_mut(columns).enumerate() {
            rows.row(r).ok_or(self.misfit("codes"))?.decoded(columns, |i, x| out[i] = x);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float16;
    use crate::integer::quantise_row;
    use crate::ops::testing::Bench;

    #[test]
    fn integers_are_their_codes_times_the_scales_of_their_rows() {
        // Rows in pairs, and a single one at the end.
        for rows in [1, 2, 5] {
            let mut b = Bench::<2048>::new();
            let whole = b.normal([1, 1, rows, 7], 1, 0.3);
            let (codes, scales) = (b.codes(Dtype::I8, whole.shape), b.codes(Dtype::F16, [1, 1, rows, 1]));
            let out = b.poison(whole.shape);
            let (mut all, mut numbers) = ([0; 35], [0.0; 35]);
            for r in 0..rows as usize {
                let x: [f32; 7] = b.get(whole)[7 * r..][..7].try_into().unwrap();
                let (mut row, mut scale) = ([0; 7], [0; 1]);
                quantise_row(Integer::Int8, &x, 8, &mut row, &mut scale);
                Integer::Int8.put_row([rows, r as u32], &row, &mut all);
                b.set_bytes(scales, 2 * r, bytemuck::cast_slice(&scale));
                for (i, code) in row.into_iter().enumerate() {
                    numbers[7 * r + i] = f32::from(code.cast_signed()) * float16::decode(scale[0]);
                    assert!((numbers[7 * r + i] - x[i]).abs() < 0.01);
                }
            }
            b.set_bytes(codes, 0, &all[..7 * rows as usize]);
            let op = Dequantise { codes, scales: Some(scales), out };
            b.run(op);
            assert_eq!(b.get(out), &numbers[..7 * rows as usize]);
            let without = Dequantise { scales: None, ..op };
            assert_eq!(without.validate(), Err(op.misfit("scales")));
            let others = Dequantise { codes: Region { dtype: Dtype::F32, ..codes }, ..op };
            assert_eq!(others.validate(), Err(op.misfit("codes")));
        }
    }

    #[test]
    fn bf16_are_their_numbers() {
        let mut b = Bench::<512>::new();
        let (codes, out) = (b.codes(Dtype::Bf16, [1, 1, 2, 3]), b.poison([1, 1, 2, 3]));
        let numbers = [1.0f32, -0.5, 3.0, 1e30, 0.0, -2.5];
        for (i, x) in numbers.into_iter().enumerate() {
            b.set_bytes(codes, 2 * i, &((x.to_bits() >> 16) as u16).to_le_bytes());
        }
        b.run(Dequantise { codes, scales: None, out });
        assert_eq!(b.get(out)[..3], numbers[..3]);
        assert_eq!(b.get(out)[4..], numbers[4..]);
        // bf16 preserves 8 binary digits of 1e30.
        assert!((b.get(out)[3] / 1e30 - 1.0).abs() < 1.0 / 128.0);
    }
}
