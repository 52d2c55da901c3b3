//! Updates in place with a factored second moment.

use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{EmbedUpdate, FactoredUpdate};

use crate::OnCuda;
use crate::arguments::{EmbedUpdateArgs, FactoredArgs};
use crate::device::{Cuda, blocks, width};
use crate::product::columns::{Pieces, Places};
use crate::product::linear_grad::Pass;
use crate::product::product::{Case, Product};
use crate::profile::WORKSPACE;
use crate::room::optimizer::FactoredRoom;

const NAME: &str = "factored";
/// THREADS of factored.cu, and the most blocks: about the number of multiprocessors of a large GPU.
const THREADS: u32 = 512;
const BLOCKS: u32 = 128;

impl OnCuda for FactoredUpdate {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.exact(
            NAME,
            [self.x, self.out_grad, self.weight, self.bias, self.row_moment, self.column_moment, self.tile],
        )?;
        let (rows, columns, vocabulary) = (self.x.rows(), self.x.columns(), self.weight.rows());
        let tile = self.tile.rows().min(vocabulary);
        // Where f32 may be rounded, bf16 is used: its matrix multiplication is twice as fast as TF32's, which needs
        // both operands transposed.
        let half = cuda.library.tf32;
        let dtype = if half { Dtype::Bf16 } else { Dtype::F32 };
        let room = FactoredRoom::of(&self, half);
        let start = cuda.scratch_at(0, room.bytes())? + WORKSPACE;
        let bias_grad = start + room.slab + room.x;
        let partial = bias_grad + room.bias_grad;
        let copy_at = |offset| Region { dtype, offset, ..self.x };
        let slab = copy_at(cuda.scratch().offset + WORKSPACE);
        let x = if half { copy_at(slab.offset + room.slab) } else { self.x };
        let (out_grad, weight, from) =
            (cuda.address(self.out_grad)?, cuda.address(self.weight)?, cuda.address(self.tile)?);
        let column_moment = cuda.address(self.column_moment)?;
        let to = Places { to: bias_grad, copy: 0, accumulate: false, dtype: Dtype::F32 };
        cuda.bias_grad(Pass::over(self.out_grad), Pieces { at: partial, wait: false }, to)?;
        let wide = width(Dtype::F32, columns.into(), &[weight, from, column_moment]);
        let mut arguments = FactoredArgs {
            out_grad,
            slab: start,
            tile: from,
            weight,
            bias: cuda.address(self.bias)?,
            row_moment: cuda.address(self.row_moment)?,
            column_moment,
            bias_grad,
            mean: partial + room.partial,
            settings: cuda.address(self.settings)?,
            results: cuda.address(self.results)?,
            rows,
            columns,
            vocabulary,
            first: 0,
            count: tile,
            piece: 0,
            wide: (wide > 1).into(),
            beta2: self.beta2,
            rate: self.rate,
        };
        cuda.launch(NAME, "factored_mean", [1, 1, 1], 1024, &arguments)?;
        if half {
            // Copies all columns of the inputs.
            let (out_grad, slab) = (cuda.address(self.x)?, start + room.slab);
            cuda.copy_slab(FactoredArgs { out_grad, slab, vocabulary: columns, count: columns, ..arguments }, dtype)?;
        }
        for first in (0..vocabulary).step_by(tile as usize) {
            let count = tile.min(vocabulary - first);
            (arguments.first, arguments.count, arguments.piece) = (first, count, count.div_ceil(BLOCKS));
            let logits = if count == vocabulary && !half {
                self.out_grad
            } else {
                cuda.copy_slab(arguments, dtype)?;
                slab.reshaped([1, 1, rows, count])
            };
            cuda.product(Product::new(NAME, Case::Tn, logits, x, self.tile.slice_rows(0, count)))?;
            // The rows' kernel divides by the columns' moments of the previous step, so it runs before the columns'
            // kernel.
            cuda.launch(NAME, "factored_rows", [count.div_ceil(arguments.piece), 1, 1], THREADS, &arguments)?;
            cuda.launch(NAME, "factored_columns", [blocks(columns.into(), 32), 1, 1], 1024, &arguments)?;
        }
        Ok(())
    }
}

impl Cuda {
    /// Copies columns of a matrix to `slab`, converted to `dtype`.
    fn copy_slab(&mut self, arguments: FactoredArgs, dtype: Dtype) -> Result<(), OperationError> {
        let FactoredArgs { out_grad, slab, rows, vocabulary, first, count, .. } = arguments;
        // 16 bytes of bf16 correspond to 32 bytes of f32.
        let wide = width(dtype, u64::from(first | count | vocabulary), &[out_grad, slab]);
        let arguments = FactoredArgs { wide: (wide > 1).into(), ..arguments };
        self.launch(NAME, &format!("factored_slab_{}", dtype.name()), [rows, 1, 1], 256, &arguments)
    }
}

impl OnCuda for EmbedUpdate {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.exact(NAME, [self.x_grad, self.table, self.moment])?;
        let (rows, columns, vocabulary) = (self.x_grad.rows(), self.table.columns(), self.table.rows());
        let ids = cuda.address(self.ids)?;
        let sorted = cuda.sort(ids, rows, vocabulary)?;
        let arguments = EmbedUpdateArgs {
            ids,
            sorted,
            x_grad: cuda.address(self.x_grad)?,
            table: cuda.address(self.table)?,
            moment: cuda.address(self.moment)?,
            settings: cuda.address(self.settings)?,
            results: cuda.address(self.results)?,
            rows,
            columns,
            vocabulary,
            beta2: self.beta2,
        };
        cuda.launch(NAME, "embed_update", [rows, 1, 1], 256, &arguments)
    }
}
