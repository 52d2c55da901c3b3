//! The sizes and constants of a NeuroGen, as they are written in `[model]` and with `--set`.

use capful_core::model::NeuroGen;
use capful_core::model::neurogen::{self, Connectome};
use capful_core::ops::Cell;
use serde::{Deserialize, Serialize};

/// How synapses learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rule {
    /// e-prop with the readout's own weights.
    #[serde(rename = "eprop")]
    Eprop,
    /// e-prop with fixed random weights.
    #[serde(rename = "eprop-random")]
    EpropRandom,
    /// Backpropagation through time.
    #[serde(rename = "bptt")]
    Bptt,
    /// Not at all.
    #[serde(rename = "frozen")]
    Frozen,
}

/// How a token passes through the modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Through all of them in its step.
    Sequential,
    /// Each module works on what those before it gave at the token before.
    Pipelined,
}

/// What a synapse's eligibility follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Eligibility {
    /// The potential.
    Factored,
    /// The potential and the threshold's adaptation.
    Full,
}

/// Everything about a NeuroGen's model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeuroGenConfig {
    /// Token ids.
    pub vocab_size: u32,
    /// The most tokens of a prompt and its continuation.
    pub context: u32,
    /// Columns of the embedding.
    pub embedding: u32,
    /// Tokens that neurons see.
    pub taps: u32,
    /// The share of a neuron's synapses that read them.
    pub tap_share: f32,
    /// Neurons.
    pub thalamus_neurons: u32,
    /// Neurons.
    pub wernicke_neurons: u32,
    /// Neurons.
    pub broca_neurons: u32,
    /// Neurons.
    pub hippocampus_neurons: u32,
    /// Neurons.
    pub pfc_neurons: u32,
    /// Neurons.
    pub basal_ganglia_neurons: u32,
    /// Outputs.
    pub thalamus_outputs: u32,
    /// Outputs.
    pub wernicke_outputs: u32,
    /// Outputs: the decoder's width.
    pub broca_outputs: u32,
    /// Outputs.
    pub hippocampus_outputs: u32,
    /// Outputs.
    pub pfc_outputs: u32,
    /// Outputs.
    pub basal_ganglia_outputs: u32,
    /// Synapses of a neuron.
    pub thalamus_fan_in: u32,
    /// Synapses of a neuron.
    pub wernicke_fan_in: u32,
    /// Synapses of a neuron.
    pub broca_fan_in: u32,
    /// Synapses of a neuron.
    pub hippocampus_fan_in: u32,
    /// Synapses of a neuron.
    pub pfc_fan_in: u32,
    /// Synapses of a neuron.
    pub basal_ganglia_fan_in: u32,
    /// Dims of the residual stream that an output reaches.
    pub fan_out: u32,
    /// Rank of the direct path; 0 for none.
    pub skip: u32,
    /// Key size of the associative memory; 0 for none.
    pub memory: u32,
    /// λ.
    pub memory_decay: f32,
    /// Whether the Basal Ganglia gate Broca.
    pub gate: bool,
    /// Whether the prefrontal cortex feeds back.
    pub feedback: bool,
    /// How synapses learn.
    pub rule: Rule,
    /// What eligibility follows.
    pub eligibility: Eligibility,
    /// How a token passes through.
    pub mode: Mode,
    /// How much dopamine counts.
    pub dopamine: f32,
    /// How much novelty counts.
    pub novelty: f32,
    /// α.
    pub leak: f32,
    /// θ₀.
    pub threshold: f32,
    /// ρ.
    pub adaptation_decay: f32,
    /// β.
    pub adaptation: f32,
    /// κ.
    pub filter: f32,
    /// The firing rate to hold.
    pub rate: f32,
    /// How fast it is held, a token.
    pub homeostasis: f32,
    /// Neurons that compete.
    pub block: u32,
    /// How many of them fire at once.
    pub winners: u32,
    /// Tokens that a stream reads before it goes on elsewhere.
    pub span: u32,
    /// Decides the wiring.
    pub wiring_seed: u32,
}

impl NeuroGenConfig {
    /// What is not written.
    pub(super) fn defaults() -> toml::Table {
        // Constants of the published trials; a test parses them with every preset.
        toml::from_str(include_str!("presets/neurogen.toml")).unwrap_or_default()
    }

    /// The model, of so many streams.
    pub(super) fn family(&self, streams: u32) -> NeuroGen {
        let connectome = Connectome {
            taps: self.taps.saturating_mul(self.embedding),
            neurons: [
                self.thalamus_neurons,
                self.wernicke_neurons,
                self.broca_neurons,
                self.hippocampus_neurons,
                self.pfc_neurons,
                self.basal_ganglia_neurons,
            ],
            outputs: [
                self.thalamus_outputs,
                self.wernicke_outputs,
                self.broca_outputs,
                self.hippocampus_outputs,
                self.pfc_outputs,
                self.basal_ganglia_outputs,
            ],
            fan_in: [
                self.thalamus_fan_in,
                self.wernicke_fan_in,
                self.broca_fan_in,
                self.hippocampus_fan_in,
                self.pfc_fan_in,
                self.basal_ganglia_fan_in,
            ],
            tap_share: self.tap_share,
            pipelined: self.mode == Mode::Pipelined,
            feedback: self.feedback,
            seed: self.wiring_seed.into(),
        };
        let rule = match self.rule {
            Rule::Eprop => neurogen::Rule::Eprop,
            Rule::EpropRandom => neurogen::Rule::EpropRandom,
            Rule::Bptt => neurogen::Rule::Bptt,
            Rule::Frozen => neurogen::Rule::Frozen,
        };
        let cell = Cell {
            leak: self.leak,
            threshold: self.threshold,
            fatigue: self.adaptation_decay,
            adaptation: self.adaptation,
            filter: self.filter,
            rate: self.rate,
            homeostasis: self.homeostasis,
            block: self.block,
            winners: self.winners,
        };
        NeuroGen {
            vocab_size: self.vocab_size,
            embedding: self.embedding,
            taps: self.taps,
            connectome,
            fan_out: self.fan_out,
            skip: self.skip,
            memory: self.memory,
            memory_decay: self.memory_decay,
            gate: self.gate,
            rule,
            full: self.eligibility == Eligibility::Full,
            dopamine: self.dopamine,
            novelty: self.novelty,
            cell,
            streams,
        }
    }
}
