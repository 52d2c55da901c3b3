//! Looking up rows of a table, and adding gradients back to them.

use capful_core::device::{OperationError, Run};
use capful_core::ops::{Embed, EmbedGrad};

use super::device::{Cuda, blocks};

/// Mirrors EmbedArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct EmbedArgs {
    ids: u64,
    table: u64,
    out: u64,
    columns: u32,
    vocabulary: u32,
}

impl Run<Embed> for Cuda {
    fn run(&mut self, o: Embed) -> Result<(), OperationError> {
        let dtype = self.dtype("embed", [o.table, o.out])?;
        let arguments = EmbedArgs {
            ids: self.address(o.ids)?,
            table: self.address(o.table)?,
            out: self.address(o.out)?,
            columns: o.table.columns(),
            vocabulary: o.table.rows(),
        };
        self.launch("embed", &format!("embed_{}", dtype.name()), [o.out.rows(), 1, 1], 128, &arguments)
    }
}

/// Mirrors EmbedGradArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct EmbedGradArgs {
    ids: u64,
    out_grad: u64,
    table_grad: u64,
    first: u64,
    rows: u32,
    columns: u32,
    vocabulary: u32,
}

impl Run<EmbedGrad> for Cuda {
    fn run(&mut self, o: EmbedGrad) -> Result<(), OperationError> {
        let (rows, vocabulary) = (o.out_grad.rows(), o.table_grad.rows());
        let arguments = EmbedGradArgs {
            ids: self.address(o.ids)?,
            out_grad: self.address(o.out_grad)?,
            table_grad: self.address(o.table_grad)?,
            first: self.scratch_at(0, 4 * u64::from(vocabulary))?,
            rows,
            columns: o.table_grad.columns(),
            vocabulary,
        };
        if !o.accumulate {
            self.fill(arguments.table_grad, 0, o.table_grad.elements())?;
        }
        self.fill(arguments.first, u32::MAX, u64::from(vocabulary))?;
        self.launch("embed", "embed_first", [blocks(u64::from(rows), 256), 1, 1], 256, &arguments)?;
        let kernel = format!("embed_grad_{}", o.out_grad.dtype.name());
        self.launch("embed", &kernel, [rows, 1, 1], 256, &arguments)
    }
}
