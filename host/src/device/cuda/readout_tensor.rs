//! The readout and its gradients as small products on tensor cores: `readout_tensor.cu` says which.

use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{Readout, ReadoutGrad, ReadoutLayout};

use super::device::Cuda;

const NAME: &str = "readout_tensor";
/// Bytes of the weights of 16 outputs to 16 dims: Weights of readout_tensor.cu.
const WEIGHTS: u64 = 1024;
/// The most of them that its kernels lay down.
const ROOM: u64 = 144 << 10;
/// ROWS of readout_tensor.cu.
const ROWS: u32 = 3;

/// Mirrors ReadoutTensorArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct ReadoutTensorArgs {
    signals: u64,
    weights: u64,
    out: u64,
    signals_grad: u64,
    weight_grad: u64,
    rows: u32,
    streams: u32,
    tokens: u32,
    dims: u32,
    fan_out: u32,
    outputs: u32,
    step: u32,
    groups: u32,
    first: u32,
    direct: u32,
    share: u32,
}

impl ReadoutTensorArgs {
    /// Bytes of the weights of one place of a step.
    fn weights_bytes(&self) -> u64 {
        let tiles = u64::from(self.fan_out / 16);
        u64::from(self.groups) * tiles * tiles * WEIGHTS
    }
}

impl Cuda {
    /// The arguments where the kernels can take it: whole tiles of dims and of streams, of bf16, and no gate.
    fn readout_tensor(
        &mut self,
        [signals, weights, out]: [Region; 3],
        layout: ReadoutLayout,
    ) -> Result<Option<ReadoutTensorArgs>, OperationError> {
        let [_, streams, tokens, dims] = out.shape;
        let (rows, fan_out, outputs) = (signals.shape[2], weights.rows(), weights.columns());
        let step = dims / fan_out;
        let apart = layout.direct >= layout.first + outputs || layout.first >= layout.direct + dims;
        let tiles = fan_out.is_multiple_of(16) && fan_out <= 64 && dims == fan_out * step && step.is_multiple_of(2);
        let aligned = streams.is_multiple_of(8) && signals.offset.is_multiple_of(16) && out.offset.is_multiple_of(16);
        if !(self.tensor_cores && signals.dtype == Dtype::Bf16 && apart && tiles && aligned) {
            return Ok(None);
        }
        self.exact(NAME, [weights, out])?;
        Ok(Some(ReadoutTensorArgs {
            signals: self.address(signals.slice_rows(rows, tokens * rows))?,
            weights: self.address(weights)?,
            out: self.address(out)?,
            signals_grad: 0,
            weight_grad: 0,
            rows,
            streams,
            tokens,
            dims,
            fan_out,
            outputs,
            step,
            groups: outputs.div_ceil(dims),
            first: layout.first,
            direct: layout.direct,
            share: tokens,
        }))
    }

    /// The tokens of a block where `blocks` of them lie side by side and a multiprocessor takes `most`.
    fn share(&self, tokens: u32, blocks: u32, most: u32) -> u32 {
        tokens.div_ceil((most * self.multiprocessors / blocks).max(1))
    }

    /// Queues the readout, or says that it is not one for these kernels.
    pub(super) fn readout_on_tensor_cores(&mut self, o: &Readout) -> Result<bool, OperationError> {
        let arguments = match o.gate {
            None => self.readout_tensor([o.signals, o.weights, o.out], o.layout)?,
            Some(_) => None,
        };
        let Some(a) = arguments.filter(|a| a.weights_bytes() <= self.shared.min(ROOM)) else { return Ok(false) };
        let a = ReadoutTensorArgs { share: self.share(a.tokens, a.step, 4), ..a };
        let grid = [a.step, a.tokens.div_ceil(a.share), 1];
        self.launch_with(NAME, "readout_tensor", grid, 128, a.weights_bytes() as u32, &a)?;
        Ok(true)
    }

    /// Queues its gradients, or says that they are not for these kernels.
    pub(super) fn readout_grad_on_tensor_cores(&mut self, o: &ReadoutGrad) -> Result<bool, OperationError> {
        let arguments = match (o.gate, o.feedback) {
            (None, None) => self.readout_tensor([o.signals, o.weights, o.out_grad], o.layout)?,
            _ => None,
        };
        let Some(a) = arguments.filter(|a| 2 * a.weights_bytes() <= self.shared.min(ROOM)) else { return Ok(false) };
        self.exact(NAME, [o.weight_grad])?;
        let blocks = a.step / 2;
        let a = ReadoutTensorArgs {
            signals_grad: self.address(o.signals_grad)?,
            weight_grad: self.address(o.weight_grad)?,
            share: self.share(a.tokens, blocks, 2),
            ..a
        };
        let dtype = o.signals_grad.dtype.name();
        let grid = [blocks, a.tokens.div_ceil(a.share), 1];
        self.launch_with(NAME, &format!("readout_signals_{dtype}"), grid, 256, 2 * a.weights_bytes() as u32, &a)?;
        let grid = [(a.rows - a.outputs - a.dims).div_ceil(8), a.tokens, 1];
        self.launch(NAME, &format!("readout_rest_{dtype}"), grid, 256, &a)?;
        let grid = [blocks, (a.groups * a.fan_out / 16).div_ceil(ROWS), 1];
        self.launch(NAME, "readout_weights", grid, 32 * a.fan_out / 8, &a)?;
        Ok(true)
    }
}
