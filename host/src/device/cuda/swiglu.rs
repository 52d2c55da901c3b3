//! SwiGLU and its gradient.

use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{Quantised, SwiGlu, SwiGluGrad};

use super::device::{Cuda, blocks, width};
use super::quantise::CopyArgs;

/// Mirrors SwiGluArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct SwiGluArgs {
    gate_up: u64,
    single: u64,
    again: u64,
    copy: CopyArgs,
    count: u64,
    d: u32,
    vectors: u32,
    wide: u32,
}

impl Cuda {
    fn swiglu(
        &mut self,
        name: &'static str,
        [gate_up, single]: [Region; 2],
        again: Option<Region>,
        (copy, format): (Option<Quantised>, Dtype),
    ) -> Result<(), OperationError> {
        let (copy, format) = self.copy(name, copy, format)?;
        let dtype = self.dtype(name, [gate_up, single].into_iter().chain(again))?;
        let d = single.columns();
        let (gate_up, rows, single) = (self.address(gate_up)?, single.rows(), self.address(single)?);
        let again = self.address_or_null(again)?;
        let width = width(dtype, d.into(), &[gate_up, single, again, copy.codes]);
        let vectors = d / width;
        let count = u64::from(rows) * u64::from(vectors);
        let arguments = SwiGluArgs { gate_up, single, again, copy, count, d, vectors, wide: (width > 1).into() };
        self.launch("swiglu", &format!("{name}{format}_{}", dtype.name()), [blocks(count, 256), 1, 1], 256, &arguments)
    }
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_swiglu(&mut self, o: SwiGlu) -> Result<(), OperationError> {
        self.swiglu("swiglu", [o.gate_up, o.out], None, (o.copy, Dtype::E4m3))
    }
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_swiglu_grad(&mut self, o: SwiGluGrad) -> Result<(), OperationError> {
        self.swiglu("swiglu_grad", [o.gate_up, o.out_grad], o.out, (o.copy, Dtype::E5m2))
    }
}
