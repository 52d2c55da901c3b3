//! What a NeuroGen keeps in memory, and where.

use super::connectome::{MODULES, Module};
use super::{NeuroGen, Rule};
use crate::device::Profile;
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot, WiringPart};
use crate::model::shared::{Groups, Must, check_constants, check_limits, check_sizes, larger};
use crate::model::stage::{Batch, Control, Family, Gauge, Measure, ModelError, Products, Purpose, Stage};
use crate::ops::{Feedback, GateGrad, Stored};

/// A name for each module.
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

/// The parameters of the associative memory, or their gradients; C is the columns of what it reads, K its key size.
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

/// Every parameter, or what belongs to those that AdamW moves: gradients, moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// [fan_out, O].
    pub(super) readout: Region,
    /// [skip, E] and [D, skip].
    pub(super) skip: Option<[Region; 2]>,
    pub(super) memory: Option<MemoryParameters>,
    /// [N, F] a module.
    pub(super) synapses: [Region; MODULES],
    /// `[D]`: weight and bias of the gate.
    pub(super) gate: Option<[Region; 2]>,
    /// What AdamW moves, in its ranges.
    pub(super) groups: Groups,
    /// [V, E].
    pub(super) embedding: Region,
    /// [V, D].
    pub(super) decoder: Region,
    /// `[V]`.
    pub(super) decoder_bias: Region,
    /// `[N]` a module: what homeostasis adds to the thresholds.
    pub(super) thresholds: [Region; MODULES],
}

impl Parameters {
    pub(super) fn gate_grad(&self) -> Option<GateGrad> {
        self.gate.map(|[weight, bias]| GateGrad { weight, bias })
    }
}

/// What AdamW keeps, or the gradients that it reads: the parameters' table without those that others move.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moment {
    pub(super) groups: Groups,
}

/// A module's synapses by source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Index {
    /// `[2 H + N + 1]` u32.
    pub(super) starts: Region,
    /// [N, F] u32.
    pub(super) synapses: Region,
}

/// What a chunk leaves to the next one of its streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Kept {
    /// [H, B].
    pub(super) signals: Region,
    /// [N, B] a module.
    pub(super) spikes: [Region; MODULES],
    /// [N, B] a module.
    pub(super) potential: [Region; MODULES],
    /// [N, B] a module.
    pub(super) fatigue: [Region; MODULES],
    pub(super) memory: Option<Stored>,
}

impl Kept {
    /// The chunk with this as its state, and this memory to write.
    pub(super) fn serve(&self, chunk: &Chunk) -> Chunk {
        let memory = chunk.memory.map(|m| MemoryChunk { after: self.memory.unwrap_or(m.after), ..m });
        Chunk { potential: self.potential, fatigue: self.fatigue, memory, ..*chunk }
    }
}

/// What training keeps besides the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Learning {
    pub(super) gradient: Parameters,
    pub(super) moments: [Moment; 2],
    /// [2, V].
    pub(super) decoder_rows: Region,
    /// [2, D].
    pub(super) decoder_columns: Region,
    /// [V, 2].
    pub(super) embedding_moment: Region,
    pub(super) feedback: Option<Feedback>,
    /// The reward's predictor and running means, with dopamine or novelty.
    pub(super) reward: Option<[Region; 2]>,
    pub(super) kept: Kept,
}

/// What lasts from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    pub(super) weights: Parameters,
    /// [N, F] u32 a module.
    pub(super) sources: [Region; MODULES],
    /// For backpropagation through time.
    pub(super) index: Option<[Index; MODULES]>,
    pub(super) control: Control,
    pub(super) learning: Option<Learning>,
}

/// The associative memory's part of a chunk; C columns are read, K is the key size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MemoryChunk {
    /// [B, T, C]: taps and the Hippocampus' outputs.
    pub(super) context: Region,
    /// [B, T, K]: keys and queries, before their norms.
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
pub(super) struct Chunk {
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
    /// [T + 1, N, B] a module.
    pub(super) spikes: [Region; MODULES],
    /// [N, B] a module.
    pub(super) potential: [Region; MODULES],
    /// [N, B] a module.
    pub(super) fatigue: [Region; MODULES],
    /// [T, N, B] a module, in training.
    pub(super) slope: Option<[Region; MODULES]>,
    /// [B, T, D].
    pub(super) stream: Region,
    /// [B, T, skip].
    pub(super) low: Option<Region>,
    pub(super) memory: Option<MemoryChunk>,
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

/// What a training step needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Training {
    pub(super) batch: Batch,
    pub(super) chunk: Chunk,
    /// The chunk's: pseudo-derivatives, then gradients.
    pub(super) slope: [Region; MODULES],
    /// [B · T, V]; makes room for the signals' gradient.
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
    /// [N, B] a module, for eligibility in full.
    pub(super) fatigue_grad: Option<[Region; MODULES]>,
    /// [N, B] a module, for backpropagation through time.
    pub(super) spikes_grad: Option<[Region; MODULES]>,
    /// [T, B], with dopamine or novelty.
    pub(super) factors: Option<Region>,
    /// [tile, D].
    pub(super) tile: Region,
}

/// What an evaluation needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    pub(super) batch: Batch,
    pub(super) chunk: Chunk,
    /// `[B · T]` u32.
    pub(super) targets: Region,
    /// [chunk, V].
    pub(super) logits: Region,
}

/// What decoding needs besides the state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decoding {
    pub(super) chunk: Chunk,
    /// [1, V].
    pub(super) logits: Region,
}

/// Rows of the decoder's gradient that exist at once.
const TILE: u32 = 1024;
/// The fewest that are worth a round of the decoder's update.
const LEAST_TILE: u32 = 64;

impl NeuroGen {
    fn each(&self, mut lay: impl FnMut(usize, [u32; 2]) -> Region) -> [Region; MODULES] {
        let c = &self.connectome;
        core::array::from_fn(|m| lay(m, [c.neurons[m], c.fan_in[m]]))
    }

    /// Columns of what the associative memory reads: taps, and behind them the Hippocampus' outputs.
    const fn context(&self) -> u32 {
        self.connectome.taps + self.connectome.outputs[Module::Hippocampus.index()]
    }

    /// Lays what AdamW moves, or what belongs to it.
    fn lay_moved(&self, prefix: &'static str, role: Role, ledger: &mut dyn Ledger) -> Parameters {
        let (c, d, e) = (&self.connectome, self.width(), self.embedding);
        let mut lay = |name, shape: [u32; 2], deviation: f32| {
            let init = if role == Role::Weight { Init::Normal(deviation) } else { Init::Zero };
            let shape = [1, 1, shape[0], shape[1]];
            ledger.region(Slot { prefix, init, ..Slot::new(name, role, Dtype::F32, shape) }).first
        };
        let root = |n: u32| libm::sqrtf(n.max(1) as f32);
        let projected = c.projected();
        let reaches = self.fan_out as f32 * projected as f32 / d as f32;
        let readout = lay("readout.weight", [self.fan_out, projected], 0.3 / libm::sqrtf(reaches));
        let start = readout.offset;
        let skip = (self.skip > 0).then(|| {
            [
                lay("skip.down.weight", [self.skip, e], 1.0 / root(e)),
                lay("skip.up.weight", [d, self.skip], 0.3 / root(self.skip)),
            ]
        });
        let (k, read) = (self.memory, self.context());
        let matrices = (k > 0).then(|| {
            [
                lay("memory.key.weight", [k, read], 1.0 / root(read)),
                lay("memory.query.weight", [k, read], 1.0 / root(read)),
                lay("memory.value.weight", [k, read], 1.0 / root(read)),
                lay("memory.out.weight", [d, k], 0.3 / root(k)),
            ]
        });
        let synapses = self.each(|m, shape| {
            let drawn = c.fan_in[m] - c.reserved(Module::ALL[m]);
            // At a firing rate of a tenth their sum has a deviation of half a threshold.
            lay(named!("synapses.weight")[m], shape, 0.5 / libm::sqrtf(0.1 * drawn.max(1) as f32))
        });
        let middle = synapses[0].offset;
        let one = if role == Role::Weight { Init::One } else { Init::Zero };
        let mut vector = |name, len, init| {
            ledger.region(Slot { prefix, init, ..Slot::new(name, role, Dtype::F32, [1, 1, 1, len]) }).first
        };
        let gate = self.gate.then(|| [vector("gate.weight", d, Init::Zero), vector("gate.bias", d, Init::Zero)]);
        let memory = matrices.map(|[key, query, value, out]| MemoryParameters {
            key,
            query,
            value,
            out,
            gains: [vector("memory.key_norm.weight", k, one), vector("memory.query_norm.weight", k, one)],
        });
        let groups = Groups::new(Dtype::F32, [start, middle, ledger.mark()], ledger);
        // Tables that nobody here owns lie where the group ends: of no size, and read by no one.
        let nothing = Region { shape: [1, 1, 0, 0], ..readout };
        Parameters {
            readout,
            skip,
            memory,
            synapses,
            gate,
            groups,
            embedding: nothing,
            decoder: nothing,
            decoder_bias: nothing,
            thresholds: [nothing; MODULES],
        }
    }

    fn lay_weights(&self, decoder: Dtype, ledger: &mut dyn Ledger) -> Parameters {
        let moved = self.lay_moved("", Role::Weight, ledger);
        let mut lay = |dtype, name, shape: [u32; 2], deviation: f32| {
            let init = if deviation > 0.0 { Init::Normal(deviation) } else { Init::Zero };
            let shape = [1, 1, shape[0], shape[1]];
            ledger.region(Slot { init, ..Slot::new(name, Role::Weight, dtype, shape) }).first
        };
        let (v, e, d) = (self.vocab_size, self.embedding, self.width());
        // Taps and other synapses, drawn alike, shall bring a potential about as much.
        let share = (self.connectome.tap_share).clamp(0.05, 0.95);
        let deviation = 0.38 * libm::sqrtf((1.0 - share) / share);
        let embedding = lay(Dtype::F32, "embedding.weight", [v, e], deviation);
        let decoder = lay(decoder, "decoder.weight", [v, d], 0.3 / libm::sqrtf(d as f32));
        let decoder_bias = lay(Dtype::F32, "decoder.bias", [1, v], 0.0);
        let thresholds = self.each(|m, shape| lay(Dtype::F32, named!("thresholds")[m], [1, shape[0]], 0.0));
        Parameters { embedding, decoder, decoder_bias, thresholds, ..moved }
    }

    /// The wiring's tables, drawn at the start.
    fn lay_wiring(&self, part: WiringPart, ledger: &mut dyn Ledger) -> [Region; MODULES] {
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

    fn lay_learning(&self, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Learning {
        let gradient = self.lay_moved("gradient.", Role::Gradient, ledger);
        let moments = ["first_moment.", "second_moment."]
            .map(|prefix| Moment { groups: self.lay_moved(prefix, Role::Moment, ledger).groups });
        let (v, d) = (self.vocab_size, self.width());
        let mut lay = |name, shape: [u32; 2], role| {
            ledger.region(Slot::new(name, role, Dtype::F32, [1, 1, shape[0], shape[1]])).first
        };
        let decoder_rows = lay("row_moment.decoder", [2, v], Role::Moment);
        let decoder_columns = lay("column_moment.decoder", [2, d], Role::Moment);
        let embedding_moment = lay("row_moment.embedding", [v, 2], Role::Moment);
        let predictor = self.connectome.outputs[Module::BasalGanglia.index()] + 1;
        let reward = self.modulated().then(|| {
            [lay("state.reward_predictor", [1, predictor], Role::State), lay("state.reward", [1, 2], Role::State)]
        });
        let feedback = (self.rule == Rule::EpropRandom).then(|| {
            let projected = self.connectome.projected();
            let reaches = self.fan_out as f32 * projected as f32 / d as f32;
            let mut lay = |name, shape: [u32; 2], deviation| {
                let init = Init::Normal(deviation);
                let shape = [1, 1, shape[0], shape[1]];
                ledger.region(Slot { init, ..Slot::new(name, Role::Constant, Dtype::F32, shape) }).first
            };
            Feedback {
                weights: lay("feedback.weight", [self.fan_out, projected], 0.3 / libm::sqrtf(reaches)),
                direct: lay("feedback.direct", [1, d], 1.0),
            }
        });
        let kept = self.lay_kept(profile.dtype(Role::Saved), ledger);
        Learning { gradient, moments, decoder_rows, decoder_columns, embedding_moment, feedback, reward, kept }
    }

    /// Whether tokens count differently.
    fn modulated(&self) -> bool {
        self.dopamine != 0.0 || self.novelty != 0.0
    }

    fn lay_memory(&self, [b, t]: [u32; 2], training: bool, ledger: &mut dyn Ledger) -> MemoryChunk {
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
        MemoryChunk { context, raw, stats, normed, values, before, after, out }
    }

    /// Lays a forward pass. In training the neurons' state and the memory's are what is kept: see [`Kept::serve`].
    fn lay_chunk(
        &self,
        io: (Region, Region),
        [b, t]: [u32; 2],
        training: bool,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Chunk {
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
        Chunk { ids, offsets, x, signals, keep, spikes, potential, fatigue, slope, stream, low, memory, losses }
    }
}

impl Family for NeuroGen {
    type State = State;
    type Training = Training;
    type Evaluation = Evaluation;
    type Decoding = Decoding;

    fn validate(&self) -> Result<(), ModelError> {
        let c = &self.connectome;
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("embedding", self.embedding),
            ("taps", self.taps),
            ("fan_out", self.fan_out),
            ("block", self.cell.block),
            ("batch-size", self.streams),
        ])?;
        check_constants(&[
            ("leak", self.cell.leak, Must::Share),
            ("threshold", self.cell.threshold, Must::Positive),
            ("adaptation_decay", self.cell.fatigue, Must::Share),
            ("adaptation", self.cell.adaptation, Must::Finite),
            ("filter", self.cell.filter, Must::Share),
            ("rate", self.cell.rate, Must::Share),
            ("homeostasis", self.cell.homeostasis, Must::Share),
            ("memory_decay", self.memory_decay, Must::Share),
            ("tap_share", c.tap_share, Must::Share),
            ("dopamine", self.dopamine, Must::Finite),
            ("novelty", self.novelty, Must::Finite),
        ])?;
        if self.cell.winners == 0 || self.cell.winners > self.cell.block {
            return Err(ModelError::Winners { winners: self.cell.winners, block: self.cell.block });
        }
        check_limits(&[("taps", c.taps), ("skip", self.skip), ("memory", self.memory)])?;
        for module in Module::ALL {
            let (m, name) = (module.index(), module.name());
            let (neurons, outputs, fan_in) = (c.neurons[m], c.outputs[m], c.fan_in[m]);
            check_limits(&[neurons, outputs, fan_in].map(|size| (name, size)))?;
            if neurons == 0 || outputs == 0 || fan_in == 0 {
                return Err(ModelError::Empty(name));
            }
            if outputs > neurons {
                return Err(ModelError::Outputs { module: name, outputs, neurons });
            }
            let (reserved, wiring) = (c.reserved(module), c.wiring(module));
            if reserved > c.taps || u64::from(fan_in - reserved) > wiring.others() {
                let sources = u64::from(c.taps.min(reserved)) + wiring.others();
                return Err(ModelError::FanIn { module: name, fan_in, sources });
            }
            if u64::from(neurons) * u64::from(fan_in) > u64::from(u32::MAX) {
                return Err(ModelError::TooLarge(name));
            }
        }
        if self.fan_out > self.width() {
            return Err(ModelError::FanOut { fan_out: self.fan_out, dims: self.width() });
        }
        Ok(())
    }

    fn validate_stage(&self, stage: &Stage) -> Result<(), ModelError> {
        check_sizes(&[("batch-size", stage.batch), ("seq-len", stage.seq_len), ("chunk", stage.chunk)])?;
        if stage.batch != self.streams {
            return Err(ModelError::Streams { batch: stage.batch, streams: self.streams });
        }
        let tokens = u64::from(stage.batch) * u64::from(stage.seq_len);
        let slots = (u64::from(stage.seq_len) + 1) * u64::from(stage.batch);
        let most = self.connectome.neurons.iter().copied().max().unwrap_or(0).max(self.connectome.signals());
        let widest = (tokens * u64::from(self.vocab_size.max(self.width()))).max(slots * u64::from(most));
        if widest > u64::from(u32::MAX) {
            return Err(ModelError::TooLarge("a micro-batch's widest activation"));
        }
        if stage.products == Products::Wide { Ok(()) } else { Err(ModelError::Wide) }
    }

    fn flops_per_token(&self, _: u32) -> u64 {
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

    fn lay_state(&self, profile: &dyn Profile, purpose: Purpose, ledger: &mut dyn Ledger) -> State {
        let training = purpose == Purpose::Training;
        // A token by itself is bound by how fast the decoder is read.
        let decoder = if purpose == Purpose::Decoding { profile.dtype(Role::Weight) } else { Dtype::F32 };
        let weights = self.lay_weights(decoder, ledger);
        let sources = self.lay_wiring(WiringPart::Sources, ledger);
        let index = (training && self.rule == Rule::Bptt).then(|| {
            let starts = self.lay_wiring(WiringPart::Starts, ledger);
            let synapses = self.lay_wiring(WiringPart::Synapses, ledger);
            core::array::from_fn(|m| Index { starts: starts[m], synapses: synapses[m] })
        });
        let control = Control::lay(ledger);
        let learning = training.then(|| self.lay_learning(profile, ledger));
        State { weights, sources, index, control, learning }
    }

    fn lay_training(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Training {
        let Stage { batch: b, seq_len: t, .. } = *stage;
        let batch = Batch::with_offsets(stage.tokens(), ledger);
        let io = (batch.ids, batch.offsets.unwrap_or(batch.ids));
        let chunk = self.lay_chunk(io, [b, t], true, profile, ledger);
        let (rows, d, k) = (self.connectome.signals(), self.width(), self.memory);
        let mut lay = |name, shape| ledger.region(Slot::new(name, Role::Work, Dtype::F32, shape)).first;
        let (logits, signals_grad) = ([1, 1, stage.tokens(), self.vocab_size], [1, t, rows, b]);
        let shared = lay("logits_or_grad.signals", larger(logits, signals_grad));
        let (logits, signals_grad) = (shared.reshaped(logits), shared.reshaped(signals_grad));
        let stream_grad = lay("grad.stream", [1, b, t, d]);
        let x_grad = lay("grad.x", [1, b, t, self.embedding]);
        let low_grad = (self.skip > 0).then(|| lay("grad.skip.low", [1, b, t, self.skip]));
        let memory = (k > 0).then(|| MemoryBackward {
            out_grad: lay("grad.memory.out", [1, b, t, k]),
            values_grad: lay("grad.memory.value", [1, b, t, k]),
            normed_grad: [lay("grad.memory.key", [1, b, t, k]), lay("grad.memory.query", [1, b, t, k])],
            raw_grad: lay("grad.memory.raw", [1, b, t, k]),
            context_grad: lay("grad.memory.context", [1, b, t, self.context()]),
            work: lay("grad.memory.matrix", [1, b, k, k]),
        });
        let mut each = |names: [&'static str; MODULES]| self.each(|m, [n, _]| lay(names[m], [1, 1, n, b]));
        let fatigue_grad = self.full.then(|| each(named!("grad.fatigue")));
        let spikes_grad = (self.rule == Rule::Bptt).then(|| each(named!("grad.spikes")));
        let factors = self.modulated().then(|| lay("factors", [1, 1, t, b]));
        // The decoder moves before the memory's gradient comes to its place.
        let enough = |place: &Region| place.elements() >= u64::from(LEAST_TILE.min(self.vocab_size)) * u64::from(d);
        let tile = match memory.map(|m| m.context_grad).filter(enough) {
            Some(place) => {
                let rows = (place.elements() / u64::from(d)).min(TILE.min(self.vocab_size).into());
                place.reshaped([1, 1, rows as u32, d])
            }
            None => lay("grad.decoder.tile", [1, 1, TILE.min(self.vocab_size), d]),
        };
        let slope = chunk.slope.unwrap_or(chunk.spikes);
        Training {
            batch,
            chunk,
            slope,
            logits,
            stream_grad,
            signals_grad,
            x_grad,
            low_grad,
            memory,
            fatigue_grad,
            spikes_grad,
            factors,
            tile,
        }
    }

    fn lay_evaluation(&self, stage: &Stage, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Evaluation {
        let batch = Batch::with_offsets(stage.tokens(), ledger);
        let io = (batch.ids, batch.offsets.unwrap_or(batch.ids));
        let chunk = self.lay_chunk(io, [stage.batch, stage.seq_len], false, profile, ledger);
        let shape = [1, 1, stage.chunk.min(stage.tokens()), self.vocab_size];
        let logits = ledger.region(Slot::new("logits", Role::Work, Dtype::F32, shape)).first;
        Evaluation { batch, chunk, targets: batch.targets, logits }
    }

    fn lay_decoding(&self, _: u32, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Decoding {
        let mut lay =
            |name, role, dtype, columns| ledger.region(Slot::new(name, role, dtype, [1, 1, 1, columns])).first;
        let id = lay("decode.id", Role::Batch, Dtype::U32, 1);
        // A token's position is also how many tokens of its document it can see.
        let cursor = lay("decode.cursor", Role::Batch, Dtype::U32, 1);
        let logits = lay("decode.logits", Role::Work, Dtype::F32, self.vocab_size);
        Decoding { chunk: self.lay_chunk((id, cursor), [1, 1], false, profile, ledger), logits }
    }

    fn introduce(&self, say: &mut dyn FnMut(core::fmt::Arguments<'_>)) {
        let (c, streams) = (&self.connectome, self.streams);
        let mode = if c.pipelined { "pipelined" } else { "sequential" };
        let rule = match self.rule {
            Rule::Eprop => "e-prop",
            Rule::EpropRandom => "e-prop with random feedback",
            Rule::Bptt => "backpropagation through time",
            Rule::Frozen => "frozen synapses",
        };
        say(format_args!("{mode} mode, {rule}, streams: {streams}"));
        for module in Module::ALL {
            let (m, name) = (module.index(), module.name());
            let (neurons, outputs, synapses) = (c.neurons[m], c.outputs[m], c.neurons[m] * c.fan_in[m]);
            say(format_args!("  {name:<14}{neurons:>8} neurons {outputs:>7} outputs {synapses:>10} synapses"));
        }
    }

    fn gauges(&self, state: &State, visit: &mut dyn FnMut(Gauge)) {
        let Some(learning) = &state.learning else { return };
        for (name, spikes) in named!("firing").into_iter().zip(learning.kept.spikes) {
            visit(Gauge { name, measure: Measure::Mean(spikes) });
        }
        if let Some([weight, bias]) = state.weights.gate {
            let outputs = self.connectome.outputs(Module::BasalGanglia);
            let signals = learning.kept.signals.slice_rows(outputs.first, outputs.count);
            visit(Gauge { name: "gate", measure: Measure::Gate { signals, weight, bias } });
        }
        if let Some([_, running]) = learning.reward {
            let expected = running.reshaped([1, 1, 2, 1]).slice_rows(1, 1);
            visit(Gauge { name: "expected_reward", measure: Measure::Mean(expected) });
        }
    }

    fn control(state: &State) -> Control {
        state.control
    }

    fn training_batch(training: &Training) -> Batch {
        training.batch
    }

    fn evaluation_batch(evaluation: &Evaluation) -> Batch {
        evaluation.batch
    }

    fn evaluation_logits(evaluation: &Evaluation) -> Region {
        evaluation.logits
    }

    fn decoding_io(decoding: &Decoding) -> (Region, Region, Region) {
        (decoding.chunk.ids, decoding.chunk.offsets, decoding.logits)
    }
}
