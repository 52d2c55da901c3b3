//! Makes 8-bit copies of tensors.

use capful_core::device::OperationError;
use capful_core::fp8::Format;
use capful_core::memory::Dtype;
use capful_core::ops::{Quantise, Quantised};

use crate::OnCuda;
use crate::arguments::{CopyArgs, QuantiseArgs};
use crate::device::{Cuda, blocks};
use crate::error::CudaError;

impl Cuda {
    /// The arguments for a copy of the output of `operation`, and the suffix of the kernel's name for a copy in
    /// `format`.
    pub(crate) fn copy(
        &mut self,
        operation: &'static str,
        copy: Option<Quantised>,
        format: Dtype,
    ) -> Result<(CopyArgs, String), OperationError> {
        let Some(Quantised { codes, scaling }) = copy else { return Ok((CopyArgs::default(), String::new())) };
        if codes.dtype != format {
            let why = "values are copied in E4M3 and gradients in E5M2";
            return Err(self.fail(CudaError::Unsupported { operation, why }));
        }
        let (codes, scale) = (self.address(codes)?, self.address(scaling.scale())?);
        Ok((CopyArgs { codes, scale, amax: self.address(scaling.amax())? }, format!("_{}", format.name())))
    }
}

/// Values that a thread converts at a time.
pub(crate) const RUN: u32 = 16;
/// The side of a tile that is transposed.
pub(crate) const TILE: u32 = 64;
/// Enough blocks for any GPU; each block loops where there is more work.
const BLOCKS: u32 = 2048;

impl OnCuda for Quantise {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let format = match self.format() {
            Some(Format::E4m3) => Dtype::E4m3,
            Some(Format::E5m2) => Dtype::E5m2,
            None => {
                let why = "its copy is not of 8 bits";
                return Err(cuda.fail(CudaError::Unsupported { operation: "quantise", why }));
            }
        };
        let mut arguments = QuantiseArgs {
            x: cuda.address(self.x)?,
            codes: cuda.address_or_null(self.codes)?,
            transposed: cuda.address_or_null(self.transposed)?,
            scale: cuda.address(self.scaling.scale())?,
            amax: cuda.address(self.scaling.amax())?,
            count: self.x.elements(),
            rows: self.x.rows(),
            columns: self.x.columns(),
            wide: 0,
        };
        let QuantiseArgs { x, codes, transposed, count, rows, columns, .. } = arguments;
        let turned = self.transposed.is_some();
        let whole = !turned || rows.is_multiple_of(RUN) && columns.is_multiple_of(RUN);
        arguments.wide = (whole && (x | codes | transposed).is_multiple_of(16)).into();
        let (grid, turned) = if turned {
            (blocks(rows.into(), TILE) * blocks(columns.into(), TILE), "turned_")
        } else {
            (blocks(count, 256 * RUN).min(BLOCKS), "")
        };
        let kernel = format!("quantise_{turned}{}_{}", format.name(), self.x.dtype.name());
        cuda.launch("quantise", &kernel, [grid, 1, 1], 256, &arguments)
    }
}
