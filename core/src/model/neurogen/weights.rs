//! The list of a NeuroGen's parameters.

use super::NeuroGen;
use super::connectome::{MODULES, Module};
use crate::memory::{Init, Region, Stacked};
use crate::model::{Parameter, Parameters};
use crate::ops::GateGrad;
use crate::optimizer::{Group, Learns};

/// The parameters of the associative memory, or their gradients; C is the number of columns of its input, K its key
/// size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MemoryParameters {
    /// [K, C].
    pub(super) key: Region,
    /// [K, C].
    pub(super) query: Region,
    /// [K, C].
    pub(super) value: Region,
    /// [D, K].
    pub(super) out: Region,
    /// `[K]`: gains of the norms of keys and queries.
    pub(super) gains: [Region; 2],
}

/// Every parameter, or the gradient of every parameter that has one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// [fan_out, O].
    pub(super) readout: Region,
    /// [skip, E] and [D, skip].
    pub(super) skip: Option<[Region; 2]>,
    pub(super) memory: Option<MemoryParameters>,
    /// [N, F] for each module.
    pub(super) synapses: [Region; MODULES],
    /// `[D]`: weight and bias of the gate.
    pub(super) gate: Option<[Region; 2]>,
    /// [V, E].
    pub(super) embedding: Region,
    /// [V, D].
    pub(super) decoder: Region,
    /// `[V]`.
    pub(super) decoder_bias: Region,
    /// `[N]` for each module: the amount that homeostasis adds to the thresholds.
    pub(super) thresholds: [Region; MODULES],
}

impl Weights {
    pub(super) fn gate_grad(&self) -> Option<GateGrad> {
        self.gate.map(|[weight, bias]| GateGrad { weight, bias })
    }
}

impl Parameters for NeuroGen {
    type Table = Weights;

    fn parameters(&self, place: &mut dyn FnMut(&Parameter) -> Stacked) -> Weights {
        let (c, v, e, d) = (&self.connectome, self.vocab_size, self.embedding, self.width());
        let (readout, skip, matrices) = self.readout_parameters(place);
        let learns = if self.rule.learns() { Learns::FromGradient } else { Learns::Never };
        let synapses = self.each(|m, shape| {
            let drawn = c.fan_in[m] - c.reserved(Module::ALL[m]);
            // At a firing rate of 0.1, the sum of a neuron's inputs has a standard deviation of half a threshold.
            let deviation = 0.5 / libm::sqrtf(0.1 * drawn.max(1) as f32);
            let matrix = Self::matrix(named!("synapses.weight")[m], shape, deviation);
            place(&Parameter { learns, group: Group::Synapse, ..matrix }).first
        });
        let mut vector = |name, len, init| place(&Parameter::vector(name, 1, len, init)).first;
        let gate = self.gate.then(|| [vector("gate.weight", d, Init::Zero), vector("gate.bias", d, Init::Zero)]);
        let mut gain = |name| vector(name, self.memory, Init::One);
        let memory = matrices.map(|[key, query, value, out]| MemoryParameters {
            key,
            query,
            value,
            out,
            gains: [gain("memory.key_norm.weight"), gain("memory.query_norm.weight")],
        });
        let mut other = |learns, group, parameter| place(&Parameter { learns, group, ..parameter }).first;
        // Taps and other synapses are drawn alike, and shall contribute about equally to a potential.
        let share = c.tap_share.clamp(0.05, 0.95);
        let table = Self::matrix("embedding.weight", [v, e], 0.38 * libm::sqrtf((1.0 - share) / share));
        let embedding = other(Learns::InBackward, Group::Embedding, table);
        let table = Self::matrix("decoder.weight", [v, d], 0.3 / libm::sqrtf(d as f32));
        let decoder = other(Learns::InBackward, Group::Head, table);
        let bias = Parameter::vector("decoder.bias", 1, v, Init::Zero);
        let decoder_bias = other(Learns::InBackward, Group::Vector, bias);
        // Homeostasis updates the thresholds in the forward pass.
        let thresholds = self.each(|m, [neurons, _]| {
            other(Learns::Never, Group::Vector, Parameter::vector(named!("thresholds")[m], 1, neurons, Init::Zero))
        });
        Weights { readout, skip, memory, synapses, gate, embedding, decoder, decoder_bias, thresholds }
    }
}

impl NeuroGen {
    fn matrix(name: &'static str, [rows, columns]: [u32; 2], deviation: f32) -> Parameter {
        Parameter::matrix(name, 1, [rows, columns], Init::Normal(deviation))
    }

    /// The parameters of the readout and of the paths added to it: the direct path, and the associative memory without
    /// its gains.
    fn readout_parameters(
        &self,
        place: &mut dyn FnMut(&Parameter) -> Stacked,
    ) -> (Region, Option<[Region; 2]>, Option<[Region; 4]>) {
        let (c, d, e) = (&self.connectome, self.width(), self.embedding);
        let (k, read) = (self.memory, self.context());
        let root = |n: u32| libm::sqrtf(n.max(1) as f32);
        let mut matrix = |name, shape, deviation| place(&Self::matrix(name, shape, deviation)).first;
        let readout = matrix("readout.weight", [self.fan_out, c.projected()], self.readout_deviation());
        let skip = (self.skip > 0).then(|| {
            [
                matrix("skip.down.weight", [self.skip, e], 1.0 / root(e)),
                matrix("skip.up.weight", [d, self.skip], 0.3 / root(self.skip)),
            ]
        });
        let memory = (k > 0).then(|| {
            [
                matrix("memory.key.weight", [k, read], 1.0 / root(read)),
                matrix("memory.query.weight", [k, read], 1.0 / root(read)),
                matrix("memory.value.weight", [k, read], 1.0 / root(read)),
                matrix("memory.out.weight", [d, k], 0.3 / root(k)),
            ]
        });
        (readout, skip, memory)
    }

    /// The standard deviation of the readout's weights: each projected output reaches a share of the stream's dims.
    pub(super) fn readout_deviation(&self) -> f32 {
        let reaches = self.fan_out as f32 * self.connectome.projected() as f32 / self.width() as f32;
        0.3 / libm::sqrtf(reaches)
    }
}
