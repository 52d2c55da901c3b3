//! SwiGLU and its gradient.

use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{Quantised, SwiGlu, SwiGluGrad, TransposedCopies};

use crate::OnCuda;
use crate::arguments::{SwiGluArgs, SwiGluCopiesArgs};
use crate::device::{Cuda, blocks, width};
use crate::error::CudaError;
use crate::product::quantise::{RUN, TILE};

impl Cuda {
    fn swiglu(
        &mut self,
        name: &'static str,
        [gate_up, single]: [Region; 2],
        [again, kept]: [Option<Region>; 2],
        (copy, format): (Option<Quantised>, Dtype),
    ) -> Result<(), OperationError> {
        let (copy, mut format) = self.copy(name, copy, format)?;
        if kept.is_some() {
            format = "_kept".into();
        }
        let dtype = self.dtype(name, [gate_up, single].into_iter().chain(again))?;
        let d = single.columns();
        let (gate_up, rows, single) = (self.address(gate_up)?, single.rows(), self.address(single)?);
        let (again, kept) = (self.address_or_null(again)?, self.address_or_null(kept)?);
        let width = width(dtype, d.into(), &[gate_up, single, again, copy.codes, kept]);
        let vectors = d / width;
        let count = u64::from(rows) * u64::from(vectors);
        let arguments = SwiGluArgs { gate_up, single, again, copy, kept, count, d, vectors, wide: (width > 1).into() };
        self.launch("swiglu", &format!("{name}{format}_{}", dtype.name()), [blocks(count, 256), 1, 1], 256, &arguments)
    }
}

impl OnCuda for SwiGlu {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.swiglu("swiglu", [self.gate_up, self.out], [None, self.kept], (self.copy, Dtype::E4m3))
    }
}

impl OnCuda for SwiGluGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        if let Some(transposed) = self.transposed {
            return cuda.swiglu_copies(&self, transposed);
        }
        cuda.swiglu("swiglu_grad", [self.gate_up, self.out_grad], [self.out, self.kept], (self.copy, Dtype::E5m2))
    }
}

impl Cuda {
    fn swiglu_copies(&mut self, o: &SwiGluGrad, transposed: TransposedCopies) -> Result<(), OperationError> {
        const NAME: &str = "swiglu_grad";
        let (copy, _) = self.copy(NAME, o.copy, Dtype::E5m2)?;
        let out = transposed.out;
        let (rows, d) = (o.out_grad.rows(), o.out_grad.columns());
        let whole = out.codes.dtype == Dtype::E4m3 && rows.is_multiple_of(RUN) && d.is_multiple_of(RUN);
        let arguments = SwiGluCopiesArgs {
            gate_up: self.address(o.gate_up)?,
            out_grad: self.address(o.out_grad)?,
            copy,
            gate_up_turned: self.address(transposed.gate_up)?,
            out_turned: self.address(out.codes)?,
            out_scale: self.address(out.scaling.scale())?,
            rows,
            d,
        };
        let SwiGluCopiesArgs { gate_up, out_grad, gate_up_turned, out_turned, .. } = arguments;
        let all = gate_up | out_grad | copy.codes | gate_up_turned | out_turned;
        if !whole || !all.is_multiple_of(16) {
            let why = "transposed copies are of whole sixteens of rows and columns";
            return Err(self.fail(CudaError::Unsupported { operation: NAME, why }));
        }
        let dtype = self.dtype(NAME, [o.gate_up, o.out_grad])?;
        let kernel = format!("swiglu_grad_copies_{}", dtype.name());
        let grid = [blocks(rows.into(), TILE) * blocks(d.into(), TILE), 1, 1];
        self.launch("swiglu_copies", &kernel, grid, 256, &arguments)
    }
}
