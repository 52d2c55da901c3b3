//! Adds rows of a value table to the values of attention; and the gradients of this.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::{Heads, IntegerRows, WeightScales};
use crate::views;

/// `v[r] += gain · table[ids[r]]` for the values v of a fused projection (value embeddings: Jordan et al. 2024, after
/// Zhou et al. 2024, Value Residual Learning). Queries and keys stay unchanged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddValues {
    /// `[rows]` u32, each below the table's rows.
    pub ids: Region,
    /// [vocabulary, keys · size]: a row has the value heads in their order.
    pub table: Region,
    /// The table's scales, where the table is in integers.
    pub scales: Option<WeightScales>,
    /// `[1]`.
    pub gain: Region,
    /// [rows, width].
    pub qkv: Region,
    /// The heads of a row.
    pub heads: Heads,
}

impl Operation for AddValues {
    const NAME: &'static str = "add_values";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("ids", self.ids).ids());
        match self.scales {
            Some(WeightScales { scales, .. }) => {
                visit(Operand::read("table", self.table).integers());
                visit(Operand::read("scales", scales).half());
            }
            None => visit(Operand::read("table", self.table)),
        }
        visit(Operand::read("gain", self.gain));
        visit(Operand::update("qkv", self.qkv));
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.qkv.columns() == self.heads.width() && self.qkv.rows() == self.ids.columns(), "qkv")?;
        self.expect(self.table.columns() == self.heads.values() && self.heads.size > 0, "table")?;
        self.expect(self.gain.elements() == 1, "gain")?;
        self.expect(self.scales.is_none_or(|scales| scales.fits(&self.table)), "scales")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [ids, table, scales, gain, mut qkv] = arena.views([
            Some(self.ids),
            Some(self.table),
            self.scales.map(|s| s.scales),
            Some(self.gain),
            Some(self.qkv),
        ])?;
        let (heads, gain, columns) = (self.heads, gain.f32()?[0], self.table.columns() as usize);
        let rows = qkv.f32_mut()?.chunks_exact_mut(heads.width() as usize).zip(ids.u32()?);
        if let Some(of) = self.scales {
            let table = IntegerRows::new(self.table, of, &table, &scales)?;
            for (row, &id) in rows {
                table.row(id as usize).ok_or(self.misfit("ids"))?.decoded(columns, |i, x| {
                    if let Some(place) = row.get_mut(heads.value_element(i)) {
                        *place += gain * x;
                    }
                });
            }
            return Ok(());
        }
        let table = table.f32()?;
        for (row, &id) in rows {
            let from = table.get(id as usize * columns..).and_then(|rest| rest.get(..columns));
            add(&heads, gain, from.ok_or(self.misfit("ids"))?, row);
        }
        Ok(())
    }
}

/// Adds a row of a table to the values of a row of the projection.
#[inline(always)]
fn add(heads: &Heads, gain: f32, from: &[f32], row: &mut [f32]) {
    for (h, from) in (0..heads.keys).zip(from.chunks_exact(heads.size as usize)) {
        for (v, x) in row[heads.value(h)..].iter_mut().zip(from) {
            *v += gain * x;
        }
    }
}

/// With d the gradient of the values after [`AddValues`]: `out[r] = gain · d[r]`, to be added to the table's gradient
/// at `ids[r]` ([`crate::ops::EmbedGrad`]), and `gain_grad (+)= Σ over r of d[r] · table[ids[r]]`. The gradient of the
/// values before the addition is d itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddValuesGrad {
    /// `[rows]` u32, each below the table's rows.
    pub ids: Region,
    /// [vocabulary, keys · size].
    pub table: Region,
    /// `[1]`.
    pub gain: Region,
    /// [rows, width]: the gradients of queries, keys and values.
    pub qkv_grad: Region,
    /// [rows, keys · size].
    pub out: Region,
    /// `[1]`.
    pub gain_grad: Region,
    /// The heads of a row.
    pub heads: Heads,
    /// Whether to add to the gain's gradient instead of overwriting it.
    pub accumulate: bool,
}

impl Operation for AddValuesGrad {
    const NAME: &'static str = "add_values_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("ids", self.ids).ids());
        visit(Operand::read("table", self.table));
        visit(Operand::read("gain", self.gain));
        visit(Operand::read("qkv_grad", self.qkv_grad));
        visit(Operand::write("out", self.out));
        visit(Operand::sum("gain_grad", self.gain_grad, self.accumulate));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, values) = (self.ids.columns(), self.heads.values());
        self.expect(self.qkv_grad.columns() == self.heads.width() && self.qkv_grad.rows() == rows, "qkv_grad")?;
        self.expect(self.table.columns() == values && self.heads.size > 0, "table")?;
        self.expect(self.out.rows() == rows && self.out.columns() == values, "out")?;
        self.expect(self.gain.elements() == 1 && self.gain_grad.elements() == 1, "gain")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        views!(arena;
            ids = Some(self.ids),
            table = Some(self.table),
            gain = Some(self.gain),
            qkv_grad = Some(self.qkv_grad),
            mut out = Some(self.out),
            mut gain_grad = Some(self.gain_grad),
        );
        let (heads, gain, columns) = (self.heads, gain.f32()?[0], self.table.columns() as usize);
        let (table, width, mut sum) = (table.f32()?, heads.width() as usize, 0.0);
        let rows = qkv_grad.f32()?.chunks_exact(width).zip(out.f32_mut()?.chunks_exact_mut(columns));
        for ((row, out), &id) in rows.zip(ids.u32()?) {
            let from = table.get(id as usize * columns..).and_then(|rest| rest.get(..columns));
            sum += take(&heads, gain, row, from.ok_or(self.misfit("ids"))?, out);
        }
        let gain_grad = &mut gain_grad.f32_mut()?[0];
        *gain_grad = if self.accumulate { *gain_grad + sum } else { sum };
        Ok(())
    }
}

/// Writes the values' gradient of a row, times the gain, and returns the gradient's dot product with the table's row.
fn take(heads: &Heads, gain: f32, row: &[f32], table: &[f32], out: &mut [f32]) -> f32 {
    let (size, mut lanes) = (heads.size as usize, [0.0; 8]);
    for h in 0..heads.keys {
        let (at, row) = (h as usize * size, &row[heads.value(h)..][..size]);
        for (i, (d, (out, x))) in row.iter().zip(out[at..].iter_mut().zip(&table[at..])).enumerate() {
            *out = gain * d;
            lanes[i % 8] += d * x;
        }
    }
    crate::ops::math::sum(&lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn rows_are_added_to_values_alone() {
        for heads in [Heads::grouped(4, 2, 3), Heads::interleaved(2, 3)] {
            let (mut b, width, values) = (Bench::<1024>::new(), heads.width(), heads.values());
            let ids = b.ids(&[2, 0]);
            let table = b.normal([1, 1, 3, values], 1, 1.0);
            let (gain, qkv) = (b.values([1, 1, 1, 1], &[0.5]), b.normal([1, 1, 2, width], 2, 1.0));
            let (mut before, mut rows) = ([0.0; 64], [0.0; 64]);
            before[..2 * width as usize].copy_from_slice(b.get(qkv));
            rows[..3 * values as usize].copy_from_slice(b.get(table));
            b.run(AddValues { ids, table, scales: None, gain, qkv, heads });
            for (r, id) in [2, 0].into_iter().enumerate() {
                let (at, from) = (r * width as usize, &rows[id * values as usize..][..values as usize]);
                let mut expected = [0.0; 64];
                expected[..width as usize].copy_from_slice(&before[at..][..width as usize]);
                for (i, x) in from.iter().enumerate() {
                    expected[heads.value(i as u32 / 3) + i % 3] += 0.5 * x;
                }
                assert_eq!(b.get(qkv)[at..][..width as usize], expected[..width as usize]);
            }
        }
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        for (heads, accumulate) in [(Heads::grouped(4, 2, 3), false), (Heads::interleaved(2, 3), true)] {
            let (mut b, width, values) = (Bench::<2048>::new(), heads.width(), heads.values());
            let ids = b.ids(&[2, 0, 2]);
            let table = b.normal([1, 1, 3, values], 1, 1.0);
            let gain = b.values([1, 1, 1, 1], &[0.75]);
            let qkv_grad = b.normal([1, 1, 3, width], 3, 1.0);
            let (out, table_grad) = (b.poison([1, 1, 3, values]), b.poison([1, 1, 3, values]));
            let gain_grad = b.values([1, 1, 1, 1], &[if accumulate { 7.0 } else { f32::NAN }]);
            b.run(AddValuesGrad { ids, table, gain, qkv_grad, out, gain_grad, heads, accumulate });
            b.run(crate::ops::EmbedGrad { ids, out_grad: out, table_grad, accumulate: false });
            // The addition is linear in table and gain, so any step size gives the slope.
            let project = |b: &mut Bench<2048>| {
                let qkv = b.normal([1, 1, 3, width], 2, 1.0);
                b.run(AddValues { ids, table, scales: None, gain, qkv, heads });
                b.project(qkv, qkv_grad)
            };
            let start = project(&mut b);
            b.set(gain, &[1.75]);
            let slope = project(&mut b) - start;
            b.set(gain, &[0.75]);
            let found = f64::from(b.get(gain_grad)[0]) - if accumulate { 7.0 } else { 0.0 };
            assert!((found - slope).abs() < 1e-5 * (1.0 + slope.abs()), "{found} {slope}");
            for i in [0, 4, 2 * values as usize + 1] {
                let at = Region { offset: table.offset + 4 * i as u64, shape: [1; 4], ..table };
                let x = b.get(at)[0];
                b.set(at, &[x + 1.0]);
                let slope = project(&mut b) - start;
                b.set(at, &[x]);
                let found = f64::from(b.get(table_grad)[i]);
                assert!((found - slope).abs() < 1e-5 * (1.0 + slope.abs()), "{i}: {found} {slope}");
            }
        }
    }

    #[test]
    fn an_id_without_a_row_is_an_error() {
        let (mut b, heads) = (Bench::<256>::new(), Heads::grouped(1, 1, 2));
        let (table, gain) = (b.values([1, 1, 2, 2], &[1.0; 4]), b.values([1, 1, 1, 1], &[1.0]));
        let (ids, qkv) = (b.ids(&[2]), b.values([1, 1, 1, 6], &[0.0; 6]));
        let added = AddValues { ids, table, scales: None, gain, qkv, heads };
        assert_eq!(b.fails(added), Some(added.misfit("ids")));
    }
}
