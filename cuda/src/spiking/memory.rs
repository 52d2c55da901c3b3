//! An associative memory of fast weights.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::{Memory, MemoryGrad, Stored};

use crate::OnCuda;
use crate::arguments::MemoryArgs;
use crate::device::Cuda;
use crate::error::CudaError;
use crate::room::spiking::score_bytes;

impl Cuda {
    /// The arguments common to the forward and the backward pass.
    fn memory(
        &mut self,
        [keys, queries, values, keep, out]: [Region; 5],
        before: Stored,
        decay: f32,
    ) -> Result<MemoryArgs, OperationError> {
        self.exact("memory", [keys, queries, values, keep, out, before.matrix, before.key])?;
        let [_, streams, tokens, keys_size] = keys.shape;
        Ok(MemoryArgs {
            keys: self.address(keys)?,
            queries: self.address(queries)?,
            values: self.address(values)?,
            keep: self.address(keep)?,
            matrix: self.address(before.matrix)?,
            key: self.address(before.key)?,
            matrix_after: 0,
            key_after: 0,
            out: self.address(out)?,
            scores: 0,
            keys_grad: 0,
            queries_grad: 0,
            values_grad: 0,
            streams,
            tokens,
            keys_size,
            values_size: values.columns(),
            decay,
        })
    }
}

impl OnCuda for Memory {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.exact("memory", [self.after.matrix, self.after.key])?;
        let arguments =
            cuda.memory([self.keys, self.queries, self.values, self.keep, self.out], self.before, self.decay)?;
        let (matrix_after, key_after) = (cuda.address(self.after.matrix)?, cuda.address(self.after.key)?);
        let arguments = MemoryArgs { matrix_after, key_after, ..arguments };
        // Elements of a row in one lane.
        let each = arguments.keys_size.div_ceil(32);
        let Some(held) = [1, 2, 4, 8, 32].into_iter().find(|n| each <= *n) else {
            let why = "a memory's keys have more than 1,024 elements";
            return Err(cuda.fail(CudaError::Unsupported { operation: "memory", why }));
        };
        let grid = [arguments.values_size.div_ceil(4), arguments.streams, 1];
        cuda.launch("memory", &format!("memory_{held}"), grid, 128, &arguments)
    }
}

impl OnCuda for MemoryGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.exact("memory_grad", [self.keys_grad, self.queries_grad, self.values_grad])?;
        let arguments =
            cuda.memory([self.keys, self.queries, self.values, self.keep, self.out_grad], self.before, self.decay)?;
        let arguments = MemoryArgs {
            scores: cuda.scratch_at(0, score_bytes(&self.keys))?,
            keys_grad: cuda.address(self.keys_grad)?,
            queries_grad: cuda.address(self.queries_grad)?,
            values_grad: cuda.address(self.values_grad)?,
            ..arguments
        };
        let grid = [arguments.tokens, arguments.streams, 1];
        cuda.launch("memory", "memory_grad_scores", grid, 128, &arguments)?;
        cuda.launch("memory", "memory_grad", grid, 128, &arguments)
    }
}
