//! Looks up rows of a table, and adds gradients to them.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

use crate::ops::math::axpy;
use crate::ops::{IntegerRows, WeightScales};

/// `out[r] = table[ids[r]]`; for a table in integers the dequantised row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embed {
    /// `[rows]` u32, each below the table's rows.
    pub ids: Region,
    /// [vocabulary, d].
    pub table: Region,
    /// The table's scales, where the table is in integers.
    pub scales: Option<WeightScales>,
    /// [rows, d].
    pub out: Region,
}

impl Operation for Embed {
    const NAME: &'static str = "embed";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("ids", self.ids).ids());
        match self.scales {
            Some(WeightScales { scales, .. }) => {
                visit(Operand::read("table", self.table).integers());
                visit(Operand::read("scales", scales).half());
            }
            None => visit(Operand::read("table", self.table)),
        }
        visit(Operand::write("out", self.out));
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.out.rows() == self.ids.columns(), "out")?;
        self.expect(self.out.columns() == self.table.columns(), "table")?;
        self.expect(self.scales.is_none_or(|scales| scales.fits(&self.table)), "scales")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let scales = self.scales.map(|s| s.scales);
        let [ids, table, scales, mut out] = arena.views([Some(self.ids), Some(self.table), scales, Some(self.out)])?;
        let (d, rows) = (self.table.columns() as usize, out.f32_mut()?);
        self.expect(d > 0, "table")?;
        if let Some(of) = self.scales {
            let table = IntegerRows::new(self.table, of, &table, &scales)?;
            for (row, &id) in rows.chunks_exact_mut(d).zip(ids.u32()?) {
                table.row(id as usize).ok_or(self.misfit("ids"))?.decoded(d, |i, x| {
                    if let Some(place) = row.get_mut(i) {
                        *place = x;
                    }
                });
            }
            return Ok(());
        }
        let table = table.f32()?.chunks_exact(d);
        for (row, &id) in rows.chunks_exact_mut(d).zip(ids.u32()?) {
            row.copy_from_slice(table.clone().nth(id as usize).ok_or(self.misfit("ids"))?);
        }
        Ok(())
    }
}

/// `table_grad[v] (+)= Σ over r with ids[r] = v of out_grad[r]`, in the order of the rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbedGrad {
    /// `[rows]` u32.
    pub ids: Region,
    /// [rows, d].
    pub out_grad: Region,
    /// [vocabulary, d].
    pub table_grad: Region,
    /// Whether to add to the table's gradient instead of overwriting it.
    pub accumulate: bool,
}

impl Operation for EmbedGrad {
    const NAME: &'static str = "embed_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("ids", self.ids).ids());
        visit(Operand::read("out_grad", self.out_grad));
        visit(Operand::sum("table_grad", self.table_grad, self.accumulate));
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.out_grad.rows() == self.ids.columns(), "out_grad")?;
        self.expect(self.out_grad.columns() == self.table_grad.columns(), "table_grad")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [ids, out_grad, mut table_grad] =
            arena.views([Some(self.ids), Some(self.out_grad), Some(self.table_grad)])?;
        let d = self.table_grad.columns() as usize;
        let table_grad = table_grad.f32_mut()?;
        if !self.accumulate {
            table_grad.fill(0.0);
        }
        for (row, &id) in out_grad.f32()?.chunks_exact(d).zip(ids.u32()?) {
            axpy(1.0, row, &mut table_grad[id as usize * d..][..d]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn rows_are_looked_up_and_their_gradients_added_back() {
        let mut bench = Bench::<256>::new();
        let ids = bench.ids(&[2, 0, 2]);
        let table = bench.values([1, 1, 3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let out = bench.poison([1, 1, 3, 2]);
        bench.run(Embed { ids, table, scales: None, out });
        assert_eq!(bench.get(out), [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
        let table_grad = bench.poison([1, 1, 3, 2]);
        bench.run(EmbedGrad { ids, out_grad: out, table_grad, accumulate: false });
        assert_eq!(bench.get(table_grad), [1.0, 2.0, 0.0, 0.0, 10.0, 12.0]);
        bench.run(EmbedGrad { ids, out_grad: out, table_grad, accumulate: true });
        assert_eq!(bench.get(table_grad), [2.0, 4.0, 0.0, 0.0, 20.0, 24.0]);
    }

    #[test]
    fn an_id_without_a_row_is_an_error() {
        let mut bench = Bench::<64>::new();
        let (table, out) = (bench.values([1, 1, 3, 2], &[1.0; 6]), bench.poison([1, 1, 1, 2]));
        for (id, expected) in [(2, None), (3, Some("ids")), (u32::MAX, Some("ids"))] {
            let embed = Embed { ids: bench.ids(&[id]), table, scales: None, out };
            assert_eq!(bench.fails(embed), expected.map(|operand| embed.misfit(operand)), "{id}");
        }
        let ids = bench.ids(&[0]);
        let embed = Embed { ids, table: table.reshaped([1, 1, 3, 0]), scales: None, out };
        assert_eq!(bench.fails(embed), Some(embed.misfit("table")));
    }
}
