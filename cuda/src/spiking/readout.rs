//! Computes the residual stream of a spiking model from its signals.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::{Gate, Readout, ReadoutGrad, ReadoutLayout};

use super::streams::{tile, tiles};
use crate::OnCuda;
use crate::arguments::ReadoutArgs;
use crate::device::{Cuda, blocks, width};
use crate::room::spiking::{READOUT_TOKENS, turned_bytes};

impl Cuda {
    /// The arguments common to the forward and the backward pass; `out` is [B, T, D].
    pub(crate) fn readout(
        &mut self,
        [signals, weights, out]: [Region; 3],
        layout: ReadoutLayout,
        gate: Option<Gate>,
    ) -> Result<ReadoutArgs, OperationError> {
        self.exact("readout", [weights, out].into_iter().chain(gate.into_iter().flat_map(|g| [g.weight, g.bias])))?;
        let [_, streams, tokens, dims] = out.shape;
        let (rows, fan_out, outputs) = (signals.shape[2], weights.rows(), weights.columns());
        let first = self.address(signals)?;
        let width = width(signals.dtype, streams.into(), &[first]);
        Ok(ReadoutArgs {
            signals: self.address(signals.slice_rows(rows, tokens * rows))?,
            weights: self.address(weights)?,
            gate_weight: self.address_or_null(gate.map(|g| g.weight))?,
            gate_bias: self.address_or_null(gate.map(|g| g.bias))?,
            out: self.address(out)?,
            back: 0,
            back_direct: 0,
            turned: 0,
            signals_grad: 0,
            weight_grad: 0,
            gate_weight_grad: 0,
            gate_bias_grad: 0,
            rows,
            streams,
            tokens,
            dims,
            fan_out,
            outputs,
            step: dims / fan_out,
            first: layout.first,
            direct: layout.direct,
            gate_first: gate.map_or(0, |g| g.first),
            gate_count: gate.map_or(1, |g| g.count),
            token: 0,
            share: tokens,
            tile: tile(streams),
            wide: (width > 1 && tile(streams) >= width).into(),
        })
    }
}

impl OnCuda for Readout {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        if cuda.readout_on_tensor_cores(&self)? {
            return Ok(());
        }
        let arguments = cuda.readout([self.signals, self.weights, self.out], self.layout, self.gate)?;
        let ReadoutArgs { dims, streams, tokens, tile, wide, .. } = arguments;
        // Number of streams that one thread processes.
        let own = if wide > 0 { 16 / self.signals.dtype.size() as u32 } else { 1 };
        let (kernel, grid) = match streams {
            1 => ("readout_one", [dims.div_ceil(32), 1, tokens]),
            _ => ("readout", [blocks(dims.into(), 256 * own / tile), streams.div_ceil(tile), tokens]),
        };
        cuda.launch("readout", &format!("{kernel}_{}", self.signals.dtype.name()), grid, 256, &arguments)
    }
}

impl OnCuda for ReadoutGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        if cuda.readout_grad_on_tensor_cores(&self)? {
            return Ok(());
        }
        let types = cuda.pair("readout_grad", self.signals.dtype, self.signals_grad.dtype)?;
        let feedback = self.feedback.into_iter().flat_map(|f| [f.weights, f.direct]);
        let gate_grad = self.gate_grad.into_iter().flat_map(|g| [g.weight, g.bias]);
        cuda.exact("readout_grad", [self.weight_grad].into_iter().chain(feedback).chain(gate_grad))?;
        let arguments = cuda.readout([self.signals, self.weights, self.out_grad], self.layout, self.gate)?;
        let mut arguments = ReadoutArgs {
            back: cuda.address(self.feedback.map_or(self.weights, |f| f.weights))?,
            back_direct: cuda.address_or_null(self.feedback.map(|f| f.direct))?,
            turned: cuda.scratch_at(0, turned_bytes(&self.out_grad))?,
            signals_grad: cuda.address(self.signals_grad)?,
            weight_grad: cuda.address(self.weight_grad)?,
            gate_weight_grad: cuda.address_or_null(self.gate_grad.map(|g| g.weight))?,
            gate_bias_grad: cuda.address_or_null(self.gate_grad.map(|g| g.bias))?,
            ..arguments
        };
        let kernel = format!("readout_grad_{types}");
        let ReadoutArgs { tokens, dims, streams, rows, .. } = arguments;
        // A few tokens at a time, whose gradients stay in L2.
        for token in (0..tokens).step_by(READOUT_TOKENS as usize) {
            arguments.token = token;
            cuda.launch("readout", "readout_turn", tiles(dims, streams, 1), 256, &arguments)?;
            cuda.launch("readout", &kernel, [rows.div_ceil(8), 1, 1], 256, &arguments)?;
        }
        Ok(())
    }
}
