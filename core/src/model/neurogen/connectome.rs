//! The connectome: six modules, the rows of their outputs among the signals, and the sources of each module.

use crate::ops::{Outputs, ReadoutLayout};
use crate::wiring::{POOLS, Pool, Wiring};

/// The modules, in the order in which a configuration lists their sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    /// Relays the input.
    Thalamus,
    /// Comprehension.
    Wernicke,
    /// Production: its outputs are the residual stream.
    Broca,
    /// Memory.
    Hippocampus,
    /// Prefrontal cortex: working memory and feedback.
    Pfc,
    /// Basal Ganglia: gates production and predicts the reward.
    BasalGanglia,
}

/// The number of modules.
pub const MODULES: usize = 6;

impl Module {
    /// All modules, in the order of a configuration.
    pub const ALL: [Module; MODULES] =
        [Module::Thalamus, Module::Wernicke, Module::Broca, Module::Hippocampus, Module::Pfc, Module::BasalGanglia];

    /// The order in which a token passes through the modules, each after the modules that it reads.
    pub const ORDER: [Module; MODULES] =
        [Module::Thalamus, Module::Wernicke, Module::Hippocampus, Module::Pfc, Module::BasalGanglia, Module::Broca];

    /// The order of the modules' outputs among the signals: the outputs that dense layers read follow the taps, and
    /// Broca's, which are the residual stream, are last.
    const ROWS: [Module; MODULES] =
        [Module::Hippocampus, Module::Thalamus, Module::Wernicke, Module::Pfc, Module::BasalGanglia, Module::Broca];

    /// The module's name.
    pub const fn name(self) -> &'static str {
        match self {
            Module::Thalamus => "thalamus",
            Module::Wernicke => "wernicke",
            Module::Broca => "broca",
            Module::Hippocampus => "hippocampus",
            Module::Pfc => "pfc",
            Module::BasalGanglia => "basal_ganglia",
        }
    }

    /// The index of the module in a configuration.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The modules whose outputs it reads, and whether it always reads them at the previous token, even where a token
    /// passes through all modules in one step.
    const fn sources(self) -> &'static [(Module, bool)] {
        match self {
            Module::Thalamus => &[(Module::Pfc, true)],
            Module::Wernicke => &[(Module::Thalamus, false), (Module::Pfc, true)],
            Module::Hippocampus => &[(Module::Wernicke, false)],
            Module::Pfc => &[(Module::Hippocampus, false), (Module::Wernicke, false), (Module::Pfc, true)],
            Module::BasalGanglia | Module::Broca => &[(Module::Pfc, false)],
        }
    }
}

/// The sizes that wiring depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Connectome {
    /// Signals that are taps of the embedding.
    pub taps: u32,
    /// Neurons of each module.
    pub neurons: [u32; MODULES],
    /// Outputs of each module.
    pub outputs: [u32; MODULES],
    /// Synapses of a neuron.
    pub fan_in: [u32; MODULES],
    /// The share of a neuron's synapses that read taps.
    pub tap_share: f32,
    /// Whether modules read the modules before them at the previous token.
    pub pipelined: bool,
    /// Whether the prefrontal cortex feeds back to Thalamus and Wernicke and to itself.
    pub feedback: bool,
    /// The seed of the wiring.
    pub seed: u64,
}

impl Connectome {
    /// Signals: taps and all outputs.
    pub fn signals(&self) -> u32 {
        self.taps + self.outputs.iter().sum::<u32>()
    }

    /// The rows of a module's outputs among the signals.
    pub fn outputs(&self, module: Module) -> Outputs {
        let before = Module::ROWS.iter().take_while(|m| **m != module);
        let first = self.taps + before.map(|m| self.outputs[m.index()]).sum::<u32>();
        Outputs { first, count: self.outputs[module.index()] }
    }

    /// The rows of the readout's sources among the signals.
    pub fn readout(&self) -> ReadoutLayout {
        ReadoutLayout { first: self.taps, direct: self.outputs(Module::Broca).first }
    }

    /// The outputs that the readout projects: those of all modules except Broca.
    pub fn projected(&self) -> u32 {
        self.outputs(Module::Broca).first - self.taps
    }

    /// Synapses of a neuron that read taps.
    pub fn reserved(&self, module: Module) -> u32 {
        // Rounds halves up, so that a share above 0 of a small fan-in is at least one synapse.
        let wanted = libm::roundf(self.fan_in[module.index()] as f32 * self.tap_share) as u32;
        wanted.min(self.fan_in[module.index()])
    }

    /// The wiring of a module's synapses. Sources are numbered as [`crate::ops::Spike`] reads them.
    pub fn wiring(&self, module: Module) -> Wiring {
        let rows = self.signals();
        let mut pools = heapless::Vec::<Pool, POOLS>::new();
        for (source, before) in module.sources() {
            if *before && !self.feedback {
                continue;
            }
            let Outputs { first, count } = self.outputs(*source);
            let behind = if *before || self.pipelined { rows } else { 0 };
            // Four pools at most: three modules and the neurons themselves.
            let _ = pools.push(Pool { first: first + behind, count });
        }
        let _ = pools.push(Pool { first: 2 * rows, count: self.neurons[module.index()] });
        // In ascending order, so that the drawn sources come out sorted.
        pools.sort_unstable_by_key(|pool| pool.first);
        let mut all = [Pool { first: u32::MAX, count: 0 }; POOLS];
        all[..pools.len()].copy_from_slice(&pools);
        Wiring {
            seed: self.seed,
            stream: module.index() as u64,
            front: Pool { first: 0, count: self.taps },
            reserved: self.reserved(module),
            pools: all,
            own: 2 * rows,
        }
    }

    /// The sources through which the prefrontal cortex inhibits the Thalamus.
    pub fn inhibitory(&self) -> Pool {
        let Outputs { first, count } = self.outputs(Module::Pfc);
        Pool { first: first + self.signals(), count }
    }
}
