//! NeuroGen: six modules of spiking neurons that learn by local rules, an embedding in front and a decoder behind.
//!
//! The embeddings of the last tokens are inputs of every module, and every module's outputs reach the decoder's input,
//! a residual stream as wide as Broca's outputs. The decoder's error goes back to each module's outputs through the
//! readout's own weights, and from there to the module's synapses by e-prop (Bellec et al. 2020), or through all
//! synapses by backpropagation through time.

/// Makes one tensor name for each module.
macro_rules! named {
    ($what:literal) => {
        [
            concat!("modules.thalamus.", $what),
            concat!("modules.wernicke.", $what),
            concat!("modules.broca.", $what),
            concat!("modules.hippocampus.", $what),
            concat!("modules.pfc.", $what),
            concat!("modules.basal_ganglia.", $what),
        ]
    };
}

mod check;
mod connectome;
mod family;
mod regions;
#[cfg(test)]
mod tests;
mod weights;

pub use connectome::{Connectome, MODULES, Module};
pub use regions::{Decoding, Evaluation, Lasting, Network, Training};
pub use weights::Weights;

use self::regions::{Kept, Segment};
use super::family::Control;
use crate::device::{Device, OperationError};
use crate::memory::Region;
use crate::ops::{
    Affine, AffineGrad, Carry, Cell, Context, ContextGrad, Embed, Epilogue, Gate, HeadGrad, HeadLoss, Inhibit, Linear,
    LinearGrad, Memory, MemoryGrad, Norm, NormGrad, NormKind, Readout, Spike, SpikeGrad, SynapseGrad, SynapseInputGrad,
    Taps,
};

/// The learning rule of the synapses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynapseLearning {
    /// e-prop, the error carried back by the readout's own weights.
    Eprop,
    /// e-prop, the error carried back by fixed random weights.
    EpropRandom,
    /// Backpropagation through time within a segment, through all synapses.
    Bptt,
    /// The synapses do not learn.
    Frozen,
}

impl SynapseLearning {
    /// Whether the synapses learn.
    const fn learns(self) -> bool {
        match self {
            SynapseLearning::Eprop | SynapseLearning::EpropRandom | SynapseLearning::Bptt => true,
            SynapseLearning::Frozen => false,
        }
    }

    /// Whether the error goes back from token to token, through the synapses whose sources are spikes.
    const fn through_time(self) -> bool {
        match self {
            SynapseLearning::Bptt => true,
            SynapseLearning::Eprop | SynapseLearning::EpropRandom | SynapseLearning::Frozen => false,
        }
    }

    /// Whether fixed random weights carry the error back.
    const fn by_random_weights(self) -> bool {
        match self {
            SynapseLearning::EpropRandom => true,
            SynapseLearning::Eprop | SynapseLearning::Bptt | SynapseLearning::Frozen => false,
        }
    }
}

/// A NeuroGen's sizes and constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NeuroGen {
    /// Token ids.
    pub vocab_size: u32,
    /// Columns of the embedding.
    pub embedding: u32,
    /// The number of last tokens, the current one included, whose embeddings are inputs of the neurons.
    pub taps: u32,
    /// The modules' sizes and wiring.
    pub connectome: Connectome,
    /// Dims of the residual stream that an output reaches, Broca's own aside.
    pub fan_out: u32,
    /// Rank of the direct path from the last token to the residual stream; 0 for none.
    pub skip: u32,
    /// Key size of the associative memory; 0 for none.
    pub memory: u32,
    /// The factor by which the memory decays with each token.
    pub memory_decay: f32,
    /// Whether the Basal Ganglia gate Broca's outputs.
    pub gate: bool,
    /// The learning rule of the synapses.
    pub rule: SynapseLearning,
    /// Whether eligibility traces include the neurons' adaptation.
    pub full: bool,
    /// The weight of dopamine in a token's learning rate.
    pub dopamine: f32,
    /// The weight of novelty in a token's learning rate.
    pub novelty: f32,
    /// The neurons' constants.
    pub cell: Cell,
    /// The number of streams that are trained in parallel.
    pub streams: u32,
}

/// Added to a key's mean square.
const NORM_EPS: f32 = 1e-6;

/// The mode of a forward pass over a segment.
#[derive(Clone, Copy)]
struct Pass {
    /// Whether every sequence begins without state from earlier tokens.
    fresh: bool,
    /// Whether thresholds adapt to the firing rates.
    learning: bool,
}

impl NeuroGen {
    /// Dims of the residual stream.
    pub const fn width(&self) -> u32 {
        self.connectome.outputs[Module::Broca.index()]
    }

    /// Lays a region for each module, given its number of neurons and its fan-in.
    pub(super) fn each(&self, mut lay: impl FnMut(usize, [u32; 2]) -> Region) -> [Region; MODULES] {
        let c = &self.connectome;
        core::array::from_fn(|m| lay(m, [c.neurons[m], c.fan_in[m]]))
    }

    /// Columns of the associative memory's input: the taps, followed by the Hippocampus' outputs.
    pub(super) const fn context(&self) -> u32 {
        self.connectome.taps + self.connectome.outputs[Module::Hippocampus.index()]
    }

    /// See [`crate::model::Family::flops_per_token`].
    fn training_flops(&self) -> u64 {
        let c = &self.connectome;
        let synapses: u64 = c.neurons.iter().zip(c.fan_in).map(|(n, f)| u64::from(*n) * u64::from(f)).sum();
        let [v, d, e, skip, k, read, fan_out, projected] = [
            self.vocab_size,
            self.width(),
            self.embedding,
            self.skip,
            self.memory,
            self.context(),
            self.fan_out,
            c.projected(),
        ]
        .map(u64::from);
        let dense = v * d + skip * (e + d) + k * (3 * read + d) + fan_out * projected;
        6 * (synapses + dense)
    }

    fn gate(&self, w: &Weights) -> Option<Gate> {
        let outputs = self.connectome.outputs(Module::BasalGanglia);
        w.gate.map(|[weight, bias]| Gate { weight, bias, first: outputs.first, count: outputs.count })
    }

    fn inhibit(&self, device: &mut dyn Device, lasting: &Lasting) -> Result<(), OperationError> {
        let thalamus = Module::Thalamus.index();
        let inhibitory = self.connectome.inhibitory();
        device.emit(Inhibit {
            sources: lasting.network.sources[thalamus],
            weights: lasting.network.weights.synapses[thalamus],
            first: inhibitory.first,
            count: inhibitory.count,
        })
    }

    /// Runs all modules on token `t`.
    fn spike(
        &self,
        device: &mut dyn Device,
        network: &Network,
        c: &Segment,
        pass: Pass,
        t: u32,
    ) -> Result<(), OperationError> {
        for module in Module::ORDER {
            let m = module.index();
            let homeostasis = if pass.learning { self.cell.homeostasis } else { 0.0 };
            device.emit(Spike {
                token: t,
                signals: c.signals,
                spikes: c.spikes[m],
                keep: c.keep,
                sources: network.sources[m],
                weights: network.weights.synapses[m],
                potential: c.potential[m],
                fatigue: c.fatigue[m],
                offset: network.weights.thresholds[m],
                slope: c.slope.map(|s| s[m]),
                outputs: self.connectome.outputs(module),
                cell: Cell { homeostasis, ..self.cell },
            })?;
        }
        Ok(())
    }

    /// From token ids to the residual stream.
    fn forward(
        &self,
        device: &mut dyn Device,
        network: &Network,
        c: &Segment,
        pass: Pass,
    ) -> Result<(), OperationError> {
        let w = &network.weights;
        device.emit(Embed { ids: c.ids, table: w.embedding, scales: None, out: c.x })?;
        let Pass { fresh, .. } = pass;
        device.emit(Taps { x: c.x, offsets: c.offsets, signals: c.signals, keep: c.keep, taps: self.taps, fresh })?;
        for t in 0..c.x.shape[2] {
            self.spike(device, network, c, pass, t)?;
        }
        let layout = self.connectome.readout();
        device.emit(Readout { signals: c.signals, layout, weights: w.readout, gate: self.gate(w), out: c.stream })?;
        if let (Some([down, up]), Some(low)) = (w.skip, c.low) {
            device.emit(Linear::new(c.x, down, None, low))?;
            device.emit(Linear { epilogue: Epilogue::Add, ..Linear::new(low, up, None, c.stream) })?;
        }
        let (Some(w), Some(m)) = (&w.memory, &c.memory) else { return Ok(()) };
        device.emit(Context { signals: c.signals, first: 0, out: m.context })?;
        device.emit(Linear::new(m.context, w.value, None, m.values))?;
        for (i, weight) in [w.key, w.query].into_iter().enumerate() {
            device.emit(Linear::new(m.context, weight, None, m.raw[i]))?;
            device.emit(Norm {
                kind: NormKind::Rms,
                x: m.raw[i],
                eps: NORM_EPS,
                stats: m.stats[i],
                first: Affine { gain: w.gains[i], bias: None, out: m.normed[i] },
                second: None,
                copy: None,
            })?;
        }
        device.emit(Memory {
            keys: m.normed[0],
            queries: m.normed[1],
            values: m.values,
            keep: c.keep,
            before: m.before,
            after: m.after,
            decay: self.memory_decay,
            out: m.out,
        })?;
        device.emit(Linear { epilogue: Epilogue::Add, ..Linear::new(m.out, w.out, None, c.stream) })
    }

    /// The gradients of the direct path and of the associative memory, passed on to the taps and the Hippocampus'
    /// outputs.
    fn backward_dense(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        grads: &Weights,
        t: &Training,
    ) -> Result<(), OperationError> {
        let (w, c) = (&lasting.network.weights, &t.segment);
        let linear =
            |x, weight, out_grad, x_grad, weight_grad| LinearGrad::new([x, weight], out_grad, [x_grad, weight_grad]);
        if let (Some([down, up]), Some([down_grad, up_grad]), Some(low), Some(low_grad)) =
            (w.skip, grads.skip, c.low, t.low_grad)
        {
            device.emit(linear(low, up, t.stream_grad, low_grad, up_grad))?;
            device.emit(linear(c.x, down, low_grad, t.x_grad, down_grad))?;
        }
        let (Some(w), Some(g), Some(m), Some(b)) = (&w.memory, &grads.memory, &c.memory, &t.memory) else {
            return Ok(());
        };
        device.emit(linear(m.out, w.out, t.stream_grad, b.out_grad, g.out))?;
        device.emit(MemoryGrad {
            keys: m.normed[0],
            queries: m.normed[1],
            values: m.values,
            keep: c.keep,
            before: m.before,
            decay: self.memory_decay,
            out_grad: b.out_grad,
            work: b.work,
            keys_grad: b.normed_grad[0],
            queries_grad: b.normed_grad[1],
            values_grad: b.values_grad,
        })?;
        let back = ContextGrad { out_grad: b.context_grad, signals_grad: t.signals_grad, first: 0 };
        device.emit(linear(m.context, w.value, b.values_grad, b.context_grad, g.value))?;
        device.emit(back)?;
        for (i, [weight, weight_grad]) in [[w.key, g.key], [w.query, g.query]].into_iter().enumerate() {
            device.emit(NormGrad {
                kind: NormKind::Rms,
                x: m.raw[i],
                stats: m.stats[i],
                x_grad: b.raw_grad,
                first: AffineGrad {
                    gain: w.gains[i],
                    out_grad: b.normed_grad[i],
                    gain_grad: Some(g.gains[i]),
                    bias_grad: None,
                },
                second: None,
                add: false,
                accumulate: false,
                copy: None,
            })?;
            device.emit(linear(m.context, weight, b.raw_grad, b.context_grad, weight_grad))?;
            device.emit(back)?;
        }
        Ok(())
    }

    /// The gradient operation of a module's neurons for `count` tokens from token `first` on.
    fn spike_grad(&self, t: &Training, module: Module, first: u32, count: u32) -> SpikeGrad {
        let m = module.index();
        let tokens = t.segment.x.shape[2];
        SpikeGrad {
            first,
            count,
            signals_grad: t.signals_grad,
            slope: t.slope[m],
            keep: t.segment.keep,
            fatigue_grad: t.fatigue_grad.map(|g| g[m]),
            // No gradient comes back from tokens after the segment.
            spikes_grad: t.spikes_grad.map(|g| g[m]).filter(|_| first + 1 < tokens),
            outputs: self.connectome.outputs(module),
            cell: self.cell,
        }
    }

    /// From the gradient of the outputs to the gradient of the synapses.
    fn backward_spikes(
        &self,
        device: &mut dyn Device,
        lasting: &Lasting,
        grads: &Weights,
        t: &Training,
    ) -> Result<(), OperationError> {
        let (c, tokens) = (&t.segment, t.segment.x.shape[2]);
        match (&lasting.index, t.spikes_grad) {
            (Some(index), Some(spikes_grad)) => {
                for token in (0..tokens).rev() {
                    for module in Module::ORDER.into_iter().rev() {
                        let m = module.index();
                        device.emit(self.spike_grad(t, module, token, 1))?;
                        device.emit(SynapseInputGrad {
                            token,
                            grad: t.slope[m],
                            weights: lasting.network.weights.synapses[m],
                            starts: index[m].starts,
                            synapses: index[m].synapses,
                            keep: c.keep,
                            signals_grad: t.signals_grad,
                            spikes_grad: spikes_grad[m],
                        })?;
                    }
                }
            }
            _ => {
                for module in Module::ALL {
                    device.emit(self.spike_grad(t, module, 0, tokens))?;
                }
            }
        }
        for module in Module::ALL {
            let m = module.index();
            device.emit(SynapseGrad {
                grad: t.slope[m],
                signals: c.signals,
                spikes: c.spikes[m],
                keep: c.keep,
                sources: lasting.network.sources[m],
                weight_grad: grads.synapses[m],
            })?;
        }
        Ok(())
    }

    /// Copies the state that the previous segment left into this segment's first slots.
    fn resume(&self, device: &mut dyn Device, kept: &Kept, c: &Segment) -> Result<(), OperationError> {
        device.emit(Carry { from: kept.signals, to: Spike::slot(c.signals, 0) })?;
        for (kept, spikes) in kept.spikes.into_iter().zip(c.spikes) {
            device.emit(Carry { from: kept, to: Spike::slot(spikes, 0) })?;
        }
        let (Some(kept), Some(m)) = (kept.memory, &c.memory) else { return Ok(()) };
        device.emit(Carry { from: kept.matrix, to: m.before.matrix })?;
        device.emit(Carry { from: kept.key, to: m.before.key })
    }

    /// Copies the segment's last slots into the state of the next segment. The memory was already written there.
    fn hand_over(&self, device: &mut dyn Device, kept: &Kept, c: &Segment) -> Result<(), OperationError> {
        let last = c.x.shape[2];
        device.emit(Carry { from: Spike::slot(c.signals, last), to: kept.signals })?;
        for (kept, spikes) in kept.spikes.into_iter().zip(c.spikes) {
            device.emit(Carry { from: Spike::slot(spikes, last), to: kept })?;
        }
        Ok(())
    }

    fn head(
        &self,
        lasting: &Lasting,
        c: &Segment,
        targets: Region,
        logits: Region,
        gradient: Option<HeadGrad>,
    ) -> HeadLoss {
        let Control { settings, results, .. } = lasting.control;
        HeadLoss {
            x: c.stream,
            weight: lasting.network.weights.decoder,
            bias: Some(lasting.network.weights.decoder_bias),
            softcap: 0.0,
            ids: self.vocab_size,
            targets,
            logits,
            losses: c.losses,
            settings,
            results,
            add_loss: false,
            gradient,
            integer: None,
        }
    }
}
