//! The readout and its gradients as small matrix multiplications on tensor cores, which `readout_tensor.cu` describes.

use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{Readout, ReadoutGrad, ReadoutLayout};

use crate::arguments::ReadoutArgs;
use crate::device::Cuda;

const NAME: &str = "readout_tensor";
/// Bytes of the weights from 16 outputs to 16 dims: Weights of readout_tensor.cu.
const WEIGHTS: u64 = 1024;
/// The most bytes of weights that its kernels store in shared memory.
const ROOM: u64 = 144 << 10;
/// ROWS of readout_tensor.cu.
const ROWS: u32 = 3;

/// Number of groups of outputs, each with as many outputs as there are dims.
const fn groups(a: &ReadoutArgs) -> u32 {
    a.outputs.div_ceil(a.dims)
}

/// Bytes of the weights of one residue of the outputs modulo the step.
fn weights_bytes(a: &ReadoutArgs) -> u64 {
    let tiles = u64::from(a.fan_out / 16);
    u64::from(groups(a)) * tiles * tiles * WEIGHTS
}

impl Cuda {
    /// The arguments where the kernels support the readout: whole tiles of dims and of streams, in bf16, and no gate.
    fn readout_tensor(
        &mut self,
        [signals, weights, out]: [Region; 3],
        layout: ReadoutLayout,
    ) -> Result<Option<ReadoutArgs>, OperationError> {
        let (dims, fan_out, outputs) = (out.shape[3], weights.rows(), weights.columns());
        let step = dims / fan_out;
        let apart = layout.direct >= layout.first + outputs || layout.first >= layout.direct + dims;
        let tiles = fan_out.is_multiple_of(16) && fan_out <= 64 && dims == fan_out * step && step.is_multiple_of(2);
        let aligned = [signals, out].iter().all(|r| r.offset.is_multiple_of(16)) && out.shape[1].is_multiple_of(8);
        let fits = self.hardware.tensor_cores && signals.dtype == Dtype::Bf16 && apart && tiles && aligned;
        fits.then(|| self.readout([signals, weights, out], layout, None)).transpose()
    }

    /// The number of tokens of a block, where `blocks` blocks cover the other dimensions and a multiprocessor runs
    /// `most` blocks.
    fn share(&self, tokens: u32, blocks: u32, most: u32) -> u32 {
        tokens.div_ceil((most * self.hardware.multiprocessors / blocks).max(1))
    }

    /// Queues the readout; returns false where these kernels do not support it.
    pub(crate) fn readout_on_tensor_cores(&mut self, o: &Readout) -> Result<bool, OperationError> {
        let arguments = match o.gate {
            None => self.readout_tensor([o.signals, o.weights, o.out], o.layout)?,
            Some(_) => None,
        };
        let Some(a) = arguments.filter(|a| weights_bytes(a) <= self.hardware.shared.min(ROOM)) else {
            return Ok(false);
        };
        let a = ReadoutArgs { share: self.share(a.tokens, a.step, 4), ..a };
        let grid = [a.step, a.tokens.div_ceil(a.share), 1];
        self.launch_with(NAME, "readout_tensor", grid, 128, weights_bytes(&a) as u32, &a)?;
        Ok(true)
    }

    /// Queues the readout's gradients; returns false where these kernels do not support them.
    pub(crate) fn readout_grad_on_tensor_cores(&mut self, o: &ReadoutGrad) -> Result<bool, OperationError> {
        let arguments = match (o.gate, o.feedback) {
            (None, None) => self.readout_tensor([o.signals, o.weights, o.out_grad], o.layout)?,
            _ => None,
        };
        let Some(a) = arguments.filter(|a| 2 * weights_bytes(a) <= self.hardware.shared.min(ROOM)) else {
            return Ok(false);
        };
        self.exact(NAME, [o.weight_grad])?;
        let blocks = a.step / 2;
        let a = ReadoutArgs {
            signals_grad: self.address(o.signals_grad)?,
            weight_grad: self.address(o.weight_grad)?,
            share: self.share(a.tokens, blocks, 2),
            ..a
        };
        let dtype = o.signals_grad.dtype.name();
        let grid = [blocks, a.tokens.div_ceil(a.share), 1];
        self.launch_with(NAME, &format!("readout_signals_{dtype}"), grid, 256, 2 * weights_bytes(&a) as u32, &a)?;
        let grid = [(a.rows - a.outputs - a.dims).div_ceil(8), a.tokens, 1];
        self.launch(NAME, &format!("readout_rest_{dtype}"), grid, 256, &a)?;
        let grid = [blocks, (groups(&a) * a.fan_out / 16).div_ceil(ROWS), 1];
        self.launch(NAME, "readout_weights", grid, 32 * a.fan_out / 8, &a)?;
        Ok(true)
    }
}
