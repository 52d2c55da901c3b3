//! SwiGLU and its gradient.

use capful_core::device::{OperationError, Run};
use capful_core::memory::Region;
use capful_core::ops::{SwiGlu, SwiGluGrad};

use super::device::{Cuda, blocks, width};

/// Mirrors SwiGluArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct SwiGluArgs {
    gate_up: u64,
    narrow: u64,
    count: u64,
    d: u32,
    vectors: u32,
    wide: u32,
}

impl Cuda {
    fn swiglu(&mut self, name: &'static str, gate_up: Region, narrow: Region) -> Result<(), OperationError> {
        let dtype = self.dtype(name, [gate_up, narrow])?;
        let d = narrow.columns();
        let (gate_up, rows, narrow) = (self.address(gate_up)?, narrow.rows(), self.address(narrow)?);
        let width = width(dtype, d.into(), &[gate_up, narrow]);
        let vectors = d / width;
        let count = u64::from(rows) * u64::from(vectors);
        let arguments = SwiGluArgs { gate_up, narrow, count, d, vectors, wide: (width > 1).into() };
        self.launch("swiglu", &format!("{name}_{}", dtype.name()), [blocks(count, 256), 1, 1], 256, &arguments)
    }
}

impl Run<SwiGlu> for Cuda {
    fn run(&mut self, o: SwiGlu) -> Result<(), OperationError> {
        self.swiglu("swiglu", o.gate_up, o.out)
    }
}

impl Run<SwiGluGrad> for Cuda {
    fn run(&mut self, o: SwiGluGrad) -> Result<(), OperationError> {
        self.swiglu("swiglu_grad", o.gate_up, o.out_grad)
    }
}
