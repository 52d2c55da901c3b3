//! The sizes and constants of a NeuroGen in the form of `[model]` and `--set`.

use capful_core::model::NeuroGen;
use capful_core::model::neurogen::{self, Connectome};
use capful_core::ops::Cell;
use serde::{Deserialize, Serialize};

use super::keys::{Key, SIZE, SIZES, Values, WORD, model_keys, words};

words! {
    /// How synapses learn.
    SynapseLearning => neurogen::SynapseLearning {
        /// e-prop with the readout's own weights.
        Eprop "eprop" => neurogen::SynapseLearning::Eprop;
        /// e-prop with fixed random weights.
        EpropRandom "eprop-random" => neurogen::SynapseLearning::EpropRandom;
        /// Backpropagation through time.
        Bptt "bptt" => neurogen::SynapseLearning::Bptt;
        /// Not at all.
        Frozen "frozen" => neurogen::SynapseLearning::Frozen;
    }
}

words! {
    /// How a token passes through the modules; whether each works on what those before it gave at the token before.
    Mode => bool {
        /// Through all of them in its step.
        Sequential "sequential" => false;
        /// Each module works on what those before it gave at the token before.
        Pipelined "pipelined" => true;
    }
}

words! {
    /// What a synapse's eligibility follows; whether that is the threshold's adaptation too.
    Eligibility => bool {
        /// The potential.
        Factored "factored" => false;
        /// The potential and the threshold's adaptation.
        Full "full" => true;
    }
}

model_keys! {
    /// Everything about a NeuroGen's model.
    NeuroGenConfig, NEUROGEN {
        /// token ids; the same as --vocab-size
        vocab_size: u32 = SIZE;
        /// the most tokens of a prompt and its continuation
        context: u32 = SIZE;
        /// columns of the embedding
        embedding: u32 = SIZE;
        /// last tokens whose embeddings neurons read
        taps: u32 = SIZE;
        /// share of a neuron's synapses that read them
        tap_share: f32 = Values::Fraction;
        /// neurons of the Thalamus
        thalamus_neurons: u32 = SIZE;
        /// neurons of Wernicke's area
        wernicke_neurons: u32 = SIZE;
        /// neurons of Broca's area
        broca_neurons: u32 = SIZE;
        /// neurons of the Hippocampus
        hippocampus_neurons: u32 = SIZE;
        /// neurons of the prefrontal cortex
        pfc_neurons: u32 = SIZE;
        /// neurons of the Basal Ganglia
        basal_ganglia_neurons: u32 = SIZE;
        /// outputs of the Thalamus
        thalamus_outputs: u32 = SIZE;
        /// outputs of Wernicke's area
        wernicke_outputs: u32 = SIZE;
        /// outputs of Broca's area: the decoder's width
        broca_outputs: u32 = SIZE;
        /// outputs of the Hippocampus
        hippocampus_outputs: u32 = SIZE;
        /// outputs of the prefrontal cortex
        pfc_outputs: u32 = SIZE;
        /// outputs of the Basal Ganglia
        basal_ganglia_outputs: u32 = SIZE;
        /// synapses of a neuron of the Thalamus
        thalamus_fan_in: u32 = SIZE;
        /// synapses of a neuron of Wernicke's area
        wernicke_fan_in: u32 = SIZE;
        /// synapses of a neuron of Broca's area
        broca_fan_in: u32 = SIZE;
        /// synapses of a neuron of the Hippocampus
        hippocampus_fan_in: u32 = SIZE;
        /// synapses of a neuron of the prefrontal cortex
        pfc_fan_in: u32 = SIZE;
        /// synapses of a neuron of the Basal Ganglia
        basal_ganglia_fan_in: u32 = SIZE;
        /// dimensions of the residual stream that an output writes to
        fan_out: u32 = SIZE;
        /// rank of the direct path from the last token; 0 for none
        skip: u32 = Values::Whole(0, SIZES);
        /// key size of the associative memory; 0 for none
        memory: u32 = Values::Whole(0, SIZES);
        /// how much of the memory stays from token to token
        memory_decay: f32 = Values::Fraction;
        /// whether the Basal Ganglia gate Broca's area
        gate: bool = Values::Switch;
        /// whether the prefrontal cortex feeds back
        feedback: bool = Values::Switch;
        /// how synapses learn
        rule: SynapseLearning = Values::Word(SynapseLearning::WORDS);
        /// whether it includes the threshold's adaptation
        eligibility: Eligibility = Values::Word(Eligibility::WORDS);
        /// how a token passes through the modules
        mode: Mode = Values::Word(Mode::WORDS);
        /// how strongly reward scales a token's error
        dopamine: f32 = Values::Number;
        /// how strongly novelty scales a token's error
        novelty: f32 = Values::Number;
        /// how much of the potential stays from token to token
        leak: f32 = Values::Fraction;
        /// the resting threshold
        threshold: f32 = Values::Positive;
        /// how much of a neuron's fatigue stays from token to token
        adaptation_decay: f32 = Values::Fraction;
        /// how much fatigue raises the threshold
        adaptation: f32 = Values::Number;
        /// how much of the filtered spikes stays from token to token
        filter: f32 = Values::Fraction;
        /// target firing rate
        rate: f32 = Values::Fraction;
        /// how fast it is approached, per token
        homeostasis: f32 = Values::Fraction;
        /// neurons that compete
        block: u32 = SIZE;
        /// how many of them may fire at once, at most block
        winners: u32 = SIZE;
        /// consecutive tokens that a stream reads
        span: u32 = Values::Whole(1, WORD);
        /// seed of the wiring
        wiring_seed: u32 = Values::Whole(0, WORD);
    }
}

impl NeuroGenConfig {
    /// The defaults of missing keys.
    pub(super) fn defaults() -> toml::Table {
        // Constants of the published trials; a test parses them together with every preset.
        toml::from_str(include_str!("presets/neurogen.toml")).unwrap_or_default()
    }

    /// The model, with this number of streams.
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
            pipelined: self.mode.core(),
            feedback: self.feedback,
            seed: self.wiring_seed.into(),
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
            rule: self.rule.core(),
            full: self.eligibility.core(),
            dopamine: self.dopamine,
            novelty: self.novelty,
            cell,
            streams,
        }
    }
}
