//! The memory of a NeuroGen: the regions and their shapes.

use super::NeuroGen;
use super::connectome::{MODULES, Module};
use super::weights::Weights;
use crate::device::Profile;
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot, WiringPart};
use crate::model::family::{Batch, Control};
use crate::ops::{Feedback, Stored};
use crate::optimizer::{self, Factored, InPlace, Updater};

/// A module's synapses, ordered by source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Index {
    /// `[2 H + N + 1]` u32.
    pub(super) starts: Region,
    /// [N, F] u32.
    pub(super) synapses: Region,
}

/// The state that a segment leaves to the next segment of its streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Kept {
    /// [H, B].
    pub(super) signals: Region,
    /// [N, B] for each module.
    pub(super) spikes: [Region; MODULES],
    /// [N, B] for each module.
    pub(super) potential: [Region; MODULES],
    /// [N, B] for each module.
    pub(super) fatigue: [Region; MODULES],
    pub(super) memory: Option<Stored>,
}

impl Kept {
    /// The segment with these regions as its state, and with this memory as the one that it writes.
    pub(super) fn serve(&self, segment: &Segment) -> Segment {
        let memory = segment.memory.map(|m| MemorySegment { after: self.memory.unwrap_or(m.after), ..m });
        Segment { potential: self.potential, fatigue: self.fatigue, memory, ..*segment }
    }
}

/// The training state apart from the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Learning {
    pub(super) gradients: Weights,
    pub(super) updater: Updater,
    pub(super) decoder: Factored,
    pub(super) embedding: InPlace,
    pub(super) feedback: Option<Feedback>,
    /// The reward predictor and its running means, with dopamine or novelty.
    pub(super) reward: Option<[Region; 2]>,
    pub(super) kept: Kept,
}

/// The regions that a forward pass reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    pub(super) weights: Weights,
    /// [N, F] u32 for each module.
    pub(super) sources: [Region; MODULES],
}

impl Network {
    /// The sources of each module's neurons, `[neurons, fan_in]` u32.
    pub const fn sources(&self) -> &[Region; MODULES] {
        &self.sources
    }
}

/// The persistent regions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lasting {
    pub(super) network: Network,
    /// For backpropagation through time only.
    pub(super) index: Option<[Index; MODULES]>,
    pub(super) control: Control,
    pub(super) learning: Option<Learning>,
}

/// The associative memory's part of a segment; C is the number of columns of its input, K the key size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MemorySegment {
    /// [B, T, C]: taps and the Hippocampus' outputs.
    pub(super) context: Region,
    /// [B, T, K]: keys and queries before normalisation.
    pub(super) raw: [Region; 2],
    /// [B, T, 1].
    pub(super) stats: [Region; 2],
    /// [B, T, K].
    pub(super) normed: [Region; 2],
    /// [B, T, K].
    pub(super) values: Region,
    pub(super) before: Stored,
    pub(super) after: Stored,
    /// [B, T, K].
    pub(super) out: Region,
}

/// A forward pass over T tokens of B streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Segment {
    /// `[B · T]` u32.
    pub(super) ids: Region,
    /// `[B · T]` u32.
    pub(super) offsets: Region,
    /// [B, T, E].
    pub(super) x: Region,
    /// [T + 1, H, B].
    pub(super) signals: Region,
    /// [T, B].
    pub(super) keep: Region,
    /// [T + 1, N, B] for each module.
    pub(super) spikes: [Region; MODULES],
    /// [N, B] for each module.
    pub(super) potential: [Region; MODULES],
    /// [N, B] for each module.
    pub(super) fatigue: [Region; MODULES],
    /// [T, N, B] for each module, in training.
    pub(super) slope: Option<[Region; MODULES]>,
    /// [B, T, D].
    pub(super) stream: Region,
    /// [B, T, skip].
    pub(super) low: Option<Region>,
    pub(super) memory: Option<MemorySegment>,
    /// `[B · T]`: nats.
    pub(super) losses: Region,
}

/// Gradients of the associative memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MemoryBackward {
    /// [B, T, K].
    pub(super) out_grad: Region,
    /// [B, T, K].
    pub(super) values_grad: Region,
    /// [B, T, K].
    pub(super) normed_grad: [Region; 2],
    /// [B, T, K].
    pub(super) raw_grad: Region,
    /// [B, T, C].
    pub(super) context_grad: Region,
    /// [B, K, K].
    pub(super) work: Region,
}

/// The regions of a training step in addition to the persistent ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    pub(super) batch: Batch,
    pub(super) segment: Segment,
    /// The segment's slopes: pseudo-derivatives, overwritten by gradients.
    pub(super) slope: [Region; MODULES],
    /// [B · T, V]; the region is reused for the signals' gradient.
    pub(super) logits: Region,
    /// [B, T, D].
    pub(super) stream_grad: Region,
    /// [T, H, B].
    pub(super) signals_grad: Region,
    /// [B, T, E].
    pub(super) x_grad: Region,
    /// [B, T, skip].
    pub(super) low_grad: Option<Region>,
    pub(super) memory: Option<MemoryBackward>,
    /// [N, B] for each module, where eligibility includes adaptation.
    pub(super) fatigue_grad: Option<[Region; MODULES]>,
    /// [N, B] for each module, for backpropagation through time.
    pub(super) spikes_grad: Option<[Region; MODULES]>,
    /// [T, B], with dopamine or novelty.
    pub(super) factors: Option<Region>,
    /// [tile, D].
    pub(super) tile: Region,
}

/// The regions of an evaluation in addition to the persistent ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    pub(super) batch: Batch,
    pub(super) segment: Segment,
    /// `[B · T]` u32.
    pub(super) targets: Region,
    /// [chunk, V].
    pub(super) logits: Region,
}

/// The regions of decoding in addition to the persistent ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decoding {
    pub(super) segment: Segment,
    /// [1, V].
    pub(super) logits: Region,
}

/// The number of rows of the decoder's gradient that exist at once.
pub(super) const TILE: u32 = 1024;
/// The smallest number of rows for which a round of the decoder's update is worth its cost.
pub(super) const LEAST_TILE: u32 = 64;

impl NeuroGen {
    /// Lays a table of the wiring for each module; it is drawn at start-up.
    pub(super) fn lay_wiring(&self, part: WiringPart, ledger: &mut dyn Ledger) -> [Region; MODULES] {
        let rows = self.connectome.signals();
        self.each(|m, [neurons, fan_in]| {
            let (name, shape) = match part {
                WiringPart::Sources => (named!("synapses.sources")[m], [neurons, fan_in]),
                WiringPart::Starts => (named!("synapses.starts")[m], [1, 2 * rows + neurons + 1]),
                WiringPart::Synapses => (named!("synapses.by_source")[m], [neurons, fan_in]),
            };
            let wiring = self.connectome.wiring(Module::ALL[m]);
            let init = Init::Wiring { wiring, part, neurons, fan_in };
            let shape = [1, 1, shape[0], shape[1]];
            ledger.region(Slot { init, ..Slot::new(name, Role::Constant, Dtype::U32, shape) }).first
        })
    }

    fn lay_stored(&self, role: Role, names: [&'static str; 2], batch: u32, ledger: &mut dyn Ledger) -> Stored {
        let k = self.memory;
        let mut lay = |name, shape| ledger.region(Slot::new(name, role, Dtype::F32, shape)).first;
        Stored { matrix: lay(names[0], [1, batch, k, k]), key: lay(names[1], [1, 1, batch, k]) }
    }

    fn lay_kept(&self, dtype: Dtype, ledger: &mut dyn Ledger) -> Kept {
        let (b, rows) = (self.streams, self.connectome.signals());
        let mut lay = |name, dtype, n| ledger.region(Slot::new(name, Role::State, dtype, [1, 1, n, b])).first;
        let signals = lay("state.signals", dtype, rows);
        let spikes = self.each(|m, [n, _]| lay(named!("state.spikes")[m], dtype, n));
        let potential = self.each(|m, [n, _]| lay(named!("state.potential")[m], Dtype::F32, n));
        let fatigue = self.each(|m, [n, _]| lay(named!("state.fatigue")[m], Dtype::F32, n));
        let names = ["state.memory", "state.memory_key"];
        let memory = (self.memory > 0).then(|| self.lay_stored(Role::State, names, b, ledger));
        Kept { signals, spikes, potential, fatigue, memory }
    }

    pub(super) fn lay_learning(
        &self,
        learning: optimizer::Learning<Weights>,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Learning {
        let optimizer::Learning { gradients, updater } = learning;
        let (v, d) = (self.vocab_size, self.width());
        let decoder = Factored::lay(["row_moment.decoder", "column_moment.decoder"], [v, d], ledger);
        let embedding = InPlace::lay("row_moment.embedding", v, ledger);
        let mut lay = |name, shape: [u32; 2], role| {
            ledger.region(Slot::new(name, role, Dtype::F32, [1, 1, shape[0], shape[1]])).first
        };
        let predictor = self.connectome.outputs[Module::BasalGanglia.index()] + 1;
        let reward = self.modulated().then(|| {
            [lay("state.reward_predictor", [1, predictor], Role::State), lay("state.reward", [1, 2], Role::State)]
        });
        let feedback = self.rule.by_random_weights().then(|| {
            let mut lay = |name, shape: [u32; 2], deviation| {
                let init = Init::Normal(deviation);
                let shape = [1, 1, shape[0], shape[1]];
                ledger.region(Slot { init, ..Slot::new(name, Role::Constant, Dtype::F32, shape) }).first
            };
            Feedback {
                weights: lay("feedback.weight", [self.fan_out, self.connectome.projected()], self.readout_deviation()),
                direct: lay("feedback.direct", [1, d], 1.0),
            }
        });
        let kept = self.lay_kept(profile.dtype(Role::Saved), ledger);
        Learning { gradients, updater, decoder, embedding, feedback, reward, kept }
    }

    /// Whether tokens have different learning rates.
    pub(super) fn modulated(&self) -> bool {
        self.dopamine != 0.0 || self.novelty != 0.0
    }

    fn lay_memory(&self, [b, t]: [u32; 2], training: bool, ledger: &mut dyn Ledger) -> MemorySegment {
        let k = self.memory;
        let mut row = |name, columns| ledger.region(Slot::new(name, Role::Work, Dtype::F32, [1, b, t, columns])).first;
        let context = row("memory.context", self.context());
        let raw = [row("memory.raw_key", k), row("memory.raw_query", k)];
        let stats = [row("memory.key_stats", 1), row("memory.query_stats", 1)];
        let normed = [row("memory.key", k), row("memory.query", k)];
        let (values, out) = (row("memory.value", k), row("memory.out", k));
        let before = self.lay_stored(Role::Work, ["memory.before", "memory.key_before"], b, ledger);
        let names = ["memory.after", "memory.key_after"];
        let after = if training { before } else { self.lay_stored(Role::Work, names, b, ledger) };
        MemorySegment { context, raw, stats, normed, values, before, after, out }
    }

    /// Lays a forward pass. In training, the state of neurons and memory is persistent: see [`Kept::serve`].
    pub(super) fn lay_segment(
        &self,
        io: (Region, Region),
        [b, t]: [u32; 2],
        training: bool,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Segment {
        let (rows, d) = (self.connectome.signals(), self.width());
        let saved = profile.dtype(Role::Saved);
        let mut lay = |name, role, dtype, shape| ledger.region(Slot::new(name, role, dtype, shape)).first;
        let mut row = |name, columns| lay(name, Role::Work, Dtype::F32, [1, b, t, columns]);
        let (x, stream) = (row("x", self.embedding), row("stream", d));
        let low = (self.skip > 0).then(|| row("skip.low", self.skip));
        let losses = lay("losses", Role::Work, Dtype::F32, [1, 1, 1, b * t]);
        let keep = lay("keep", Role::Work, Dtype::F32, [1, 1, t, b]);
        let signals = lay("signals", Role::Saved, saved, [1, t + 1, rows, b]);
        let spikes = self.each(|m, [n, _]| lay(named!("spikes")[m], Role::Saved, saved, [1, t + 1, n, b]));
        let slope = training
            .then(|| self.each(|m, [n, _]| lay(named!("slope_or_gradient")[m], Role::Saved, saved, [1, t, n, b])));
        let mut state = |names: [&'static str; MODULES]| match training {
            true => spikes,
            false => self.each(|m, [n, _]| lay(names[m], Role::Work, Dtype::F32, [1, 1, n, b])),
        };
        let (potential, fatigue) = (state(named!("potential")), state(named!("fatigue")));
        let memory = (self.memory > 0).then(|| self.lay_memory([b, t], training, ledger));
        let (ids, offsets) = io;
        Segment { ids, offsets, x, signals, keep, spikes, potential, fatigue, slope, stream, low, memory, losses }
    }
}
