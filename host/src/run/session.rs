//! A model on a device: its arena, and the few operations that commands use.

use capful_core::device::Op;
use capful_core::integer::Integer;
use capful_core::memory::{Dtype, Entry, Init, Region, Role};
use capful_core::model::{Batch, Control, FirstValues, MicroBatch, Scales};
use capful_core::ops::Sample;
use capful_core::remainder;
use capful_core::train::{Results, Settings};
use half::slice::HalfFloatSliceExt as _;

use super::rehearsal::Rehearsed;
use super::wiring;
use crate::config::Config;
use crate::device::{AnyDevice, AnyProfile, Choice, DeviceError, Held, Stopwatch, Storage, Ticket};
use crate::plan::{EvaluationPlaces, Laid, Programs, Sequence, staging};
use crate::ranks::SharedPeers;
use crate::ranks::together::together;

/// A batch in main memory: three slices of its rows, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// The id after each.
    pub targets: &'a [u32],
    /// The number of tokens of the same document before each token, as far as its row or stream reaches.
    pub offsets: &'a [u32],
}

impl<'a> Rows<'a> {
    /// Rows of zeros, where every token begins a document.
    pub fn of(zeros: &'a [u32]) -> Rows<'a> {
        Rows { ids: zeros, targets: zeros, offsets: zeros }
    }
}

/// How tokens are chosen on the device where the logits are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choosing {
    /// The most likely one.
    MostLikely,
    /// Drawn with the settings of [`Sample::settings`].
    Drawn([u32; Sample::SETTINGS]),
}

/// The state before the first token of a sequence of turns.
#[derive(Debug, Clone, Copy)]
pub struct After {
    /// The token before.
    pub id: u32,
    /// Its position.
    pub position: u32,
    /// The number of ids to choose from.
    pub limit: u32,
    /// Number of random numbers drawn before.
    pub drawn: u64,
}

/// A model, its memory and the device that runs it.
pub struct Session {
    /// The layout of its memory.
    pub laid: Laid,
    /// The device that runs it.
    pub device: AnyDevice,
    /// Logits copied from the device, `[vocabulary]`.
    logits: Vec<f32>,
    /// Number of steps in the history of the largest values; when the history is full, its scales are used.
    pub(super) seen: u32,
    /// The times of a run's parts in the rehearsal, if there was one.
    pub(super) rehearsed: Option<Rehearsed>,
    /// The results of a step copied from the device: if ranks share a run, with the results of each rank.
    results: Vec<f32>,
    /// The other ranks, if there are any.
    peers: Option<SharedPeers>,
}

/// Bytes that initialisation writes at a time.
const PIECE: usize = 1 << 20;

impl Session {
    /// Allocates the arena, fills its tables, and initialises the weights from `seed`; without a seed they stay zero
    /// and must be loaded.
    ///
    /// # Errors
    /// The system refuses memory or threads; there is no such GPU or too little memory on it.
    pub fn start(laid: Laid, profile: &AnyProfile, seed: Option<u64>, vocab_size: u32) -> Result<Self, DeviceError> {
        let staging = staging(&laid, vocab_size, &[]);
        let mut session = Session::open(laid, profile, vocab_size, staging)?;
        session.initialise(seed)?;
        Ok(session)
    }

    /// As [`Session::start`], for the training that `config` describes: all of its parts have run once when this
    /// returns, so that nothing is chosen, recorded, loaded or allocated later. With several ranks it connects to those
    /// of `peers`. Matrix multiplications use the `algorithms` of an earlier run again; the GPU warns where it cannot.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_training(
        laid: Laid,
        profile: &AnyProfile,
        config: &Config,
        algorithms: &[Choice],
        peers: Option<SharedPeers>,
    ) -> Result<Self, DeviceError> {
        let laid = laid.recorded(&config.family(), profile).map_err(|e| DeviceError::Refused(e.to_string()))?;
        let staging = staging(&laid, config.vocab_size(), &config.stages());
        let opened = Session::open(laid, profile, config.vocab_size(), staging);
        // If one rank lacks the memory, no other rank waits for it.
        let line = |e: &DeviceError| e.to_string();
        let mut session = together(peers.as_ref(), opened, line, |elsewhere| DeviceError::Refused(elsewhere.what))?;
        if let Some(peers) = peers {
            session.device.join(&peers)?;
            session.peers = Some(peers);
        }
        session.rehearse(config, algorithms)?;
        session.initialise(Some(config.seed))?;
        Ok(session)
    }

    fn open(laid: Laid, profile: &AnyProfile, vocab_size: u32, staging: u64) -> Result<Self, DeviceError> {
        let device = AnyDevice::start(profile, laid.bytes, laid.scratch, staging)?;
        let results = vec![0.0; results_of(&laid.places.control).elements() as usize];
        let logits = vec![0.0; vocab_size as usize];
        Ok(Session { laid, device, logits, seen: 0, rehearsed: None, results, peers: None })
    }

    /// The other ranks, if there are any.
    pub fn peers(&self) -> Option<SharedPeers> {
        self.peers.clone()
    }

    /// The session's storage: for tables that ranks share, this rank's part.
    pub fn storage(&mut self) -> Held<'_> {
        Held { storage: &mut self.device, windows: &self.laid.windows }
    }

    /// Makes a GPU's matrix multiplications use the algorithms of an earlier run, before anything is recorded; the GPU
    /// warns where it cannot.
    pub fn reuse(&mut self, algorithms: &[Choice]) {
        let Some(gpu) = self.device.gpu() else { return };
        if let Err(warning) = gpu.reuse(algorithms) {
            gpu.warn(warning);
        }
    }

    /// The algorithms of the GPU's matrix multiplications.
    pub fn algorithms(&mut self) -> Option<Vec<Choice>> {
        self.device.gpu().map(|gpu| gpu.choices())
    }

    /// Determines how much of the history exists, after a checkpoint was read. A checkpoint without a history, from a
    /// run in another precision, leaves the history to be filled.
    ///
    /// # Errors
    /// A lost device.
    pub fn count_history(&mut self) -> Result<(), DeviceError> {
        let history = |e: &&Entry| e.slot.role == Role::State && e.slot.name == "history";
        let Some(place) = self.laid.lasting.iter().find(history).map(|e| e.place.first) else { return Ok(()) };
        let mut row = vec![0.0f32; place.columns() as usize];
        self.seen = 0;
        for step in 0..place.rows() {
            self.device.read(place.slice_rows(step, 1), bytemuck::cast_slice_mut(&mut row))?;
            // Weights are never all zero, so a filled row is not zero.
            self.seen += u32::from(row.iter().any(|x| *x != 0.0));
        }
        Ok(())
    }

    /// Treats the history as full, so that steps are timed in the form in which most of them run.
    pub fn assume_history(&mut self) {
        self.seen = Scales::WARMUP;
    }

    fn initialise(&mut self, seed: Option<u64>) -> Result<(), DeviceError> {
        let mut piece = vec![0.0f32; PIECE / 4];
        let mut halves = vec![half::bf16::ZERO; PIECE / 4];
        let threads = self.device.threads();
        let mut storage = Held { storage: &mut self.device, windows: &self.laid.windows };
        for entry in &self.laid.lasting {
            let slot = &entry.slot;
            // New memory is zero; gradients and moments start from zero.
            let parameter = matches!(slot.role, Role::Weight | Role::Master);
            let wanted = matches!(slot.role, Role::Constant | Role::State) || parameter && seed.is_some();
            // Integers are loaded and not drawn.
            if slot.init == Init::Zero || !wanted || Integer::of(slot.dtype).is_some() {
                continue;
            }
            if let Init::Wiring { wiring, part, neurons, fan_in } = slot.init {
                let table = wiring::table(&wiring, part, [neurons, fan_in], slot.elements() as usize, threads);
                storage.write(entry.place.first, bytemuck::cast_slice(&table))?;
                continue;
            }
            for layer in 0..slot.layers {
                let region = entry.place.at(layer);
                let values = FirstValues::new(slot, layer, seed.unwrap_or(0));
                let mut done = 0;
                while done < slot.elements() {
                    let count = (slot.elements() - done).min(piece.len() as u64) as usize;
                    fill(&mut piece[..count], done, |first, part| values.fill(first, part));
                    let offset = region.offset + done * region.dtype.size();
                    let place = Region { offset, shape: [1, 1, 1, count as u32], ..region };
                    let (piece, halves) = (&piece[..count], &mut halves[..count]);
                    let bytes = match region.dtype {
                        Dtype::Bf16 => {
                            halves.convert_from_f32_slice(piece);
                            bytemuck::cast_slice(halves)
                        }
                        Dtype::Remainder => {
                            let lacks = bytemuck::cast_slice_mut(halves);
                            lacks.iter_mut().zip(piece).for_each(|(r, x)| *r = remainder::split(*x).1);
                            bytemuck::cast_slice(lacks)
                        }
                        Dtype::Remainder8 => {
                            let lacks = &mut bytemuck::cast_slice_mut(halves)[..count];
                            lacks.iter_mut().zip(piece).for_each(|(r, x)| *r = remainder::split8(*x).1);
                            bytemuck::cast_slice::<i8, u8>(lacks)
                        }
                        _ => bytemuck::cast_slice(piece),
                    };
                    storage.write(place, bytes)?;
                    done += count as u64;
                }
            }
        }
        Ok(())
    }

    /// Begins a step with the settings that change from step to step.
    ///
    /// # Errors
    /// A lost device.
    pub fn begin(&mut self, settings: Settings) -> Result<(), DeviceError> {
        self.device.next_step()?;
        self.set(settings)
    }

    /// Changes the settings for the rest of this step.
    ///
    /// # Errors
    /// A lost device.
    pub fn set(&mut self, settings: Settings) -> Result<(), DeviceError> {
        self.device.queue_write(self.laid.places.control.settings, bytemuck::bytes_of(&settings))
    }

    /// Sends a number to the other ranks in this step; does nothing if there are none.
    ///
    /// # Errors
    /// A lost device.
    pub fn tell(&mut self, number: f32) -> Result<(), DeviceError> {
        match self.laid.places.control.told(self.laid.sections.ranks.rank) {
            Some(place) => self.device.queue_write(place, &number.to_le_bytes()),
            None => Ok(()),
        }
    }

    /// Ends a step and requests its results.
    ///
    /// # Errors
    /// A lost device.
    pub fn finish(&mut self) -> Result<Ticket, DeviceError> {
        self.device.queue_read(results_of(&self.laid.places.control))
    }

    /// Waits for a step and returns its results. On a GPU the next step may be under way.
    ///
    /// # Errors
    /// An error in that step.
    pub fn results(&mut self, ticket: Ticket) -> Result<Results, DeviceError> {
        self.device.results(ticket, bytemuck::cast_slice_mut(&mut self.results))?;
        let results = Results::from_slice(&self.results[..Results::LEN as usize]);
        results.copied().map_err(|e| DeviceError::Failed(e.to_string()))
    }

    /// For the step whose results were read last: the loss of each rank's micro-batches, and the number that it sent.
    pub fn of_ranks(&self) -> impl Iterator<Item = [f32; 2]> + '_ {
        let rows = self.results.chunks_exact(Control::RANK as usize).skip(1);
        rows.map(|row| [row[0], row[Results::LEN as usize]])
    }

    /// Writes a batch, after all queued work.
    pub(super) fn write_batch(&mut self, place: Batch, rows: Rows<'_>) -> Result<(), DeviceError> {
        self.device.queue_write(place.ids, bytemuck::cast_slice(rows.ids))?;
        self.device.queue_write(place.targets, bytemuck::cast_slice(rows.targets))?;
        match place.offsets {
            Some(offsets) => self.device.queue_write(offsets, bytemuck::cast_slice(rows.offsets)),
            None => Ok(()),
        }
    }

    /// Writes the key of the dropout masks for the stage's next micro-batch: see
    /// [`Dropout::key`](capful_core::ops::Dropout::key). Does nothing without dropout.
    ///
    /// # Errors
    /// A lost device.
    pub fn mask(&mut self, stage: usize, key: [u32; 2]) -> Result<(), DeviceError> {
        match self.laid.places.training.get(stage).and_then(|batch| batch.key) {
            Some(place) => self.device.queue_write(place, bytemuck::bytes_of(&key)),
            None => Ok(()),
        }
    }

    /// Runs the recording of `sequence`.
    fn replay(&mut self, sequence: Sequence, section: &str) -> Result<(), DeviceError> {
        let program = self.laid.programs.get(sequence).ok_or_else(|| missing(section))?;
        self.device.replay(sequence.key(), &[program])
    }

    /// Prepares the program of `sequence` for timing.
    pub(super) fn stopwatch(&mut self, sequence: Sequence) -> Result<Stopwatch, DeviceError> {
        let program = self.laid.programs.get(sequence).ok_or_else(|| missing("training"))?;
        self.device.stopwatch(program)
    }

    /// Runs the program of `sequence`; returns the seconds of each operation.
    pub(super) fn run_timed(&mut self, sequence: Sequence, stopwatch: &Stopwatch) -> Result<Vec<f64>, DeviceError> {
        let program = self.laid.programs.get(sequence).ok_or_else(|| missing("training"))?;
        self.device.run_timed(program, stopwatch)
    }

    /// Forward and backward pass of one micro-batch of the stage of this index: [batch · seq_len].
    ///
    /// # Errors
    /// A session without that training section, a lost device.
    pub fn micro_batch(&mut self, stage: usize, rows: Rows<'_>, first: bool) -> Result<(), DeviceError> {
        let sequence = self.next_micro_batch(stage, rows, first)?;
        self.replay(sequence, "training")
    }

    /// The step's last micro-batch, as [`Session::micro_batch`], and [`Session::update`]: on a GPU in one recording, so
    /// that ranks send complete gradients while the others are computed.
    ///
    /// # Errors
    /// As those.
    pub fn last_micro_batch(&mut self, stage: usize, rows: Rows<'_>, first: bool) -> Result<(), DeviceError> {
        let sequence = self.next_micro_batch(stage, rows, first)?;
        if self.peers.is_none() && !first {
            // The sequence is recorded already, and nothing is sent.
            self.replay(sequence, "training")?;
            return self.update();
        }
        self.seen = (self.seen + 1).min(Scales::WARMUP);
        let program = |sequence| self.laid.programs.get(sequence).ok_or_else(|| missing("training"));
        let programs = [program(sequence)?, program(Sequence::Update)?];
        self.device.replay(sequence.key_with_update(), &programs)
    }

    /// Writes the batch of the next micro-batch, and returns its sequence.
    fn next_micro_batch(&mut self, stage: usize, rows: Rows<'_>, first: bool) -> Result<Sequence, DeviceError> {
        let warming = self.seen < Scales::WARMUP && self.laid.sections.quantises(stage);
        let batch = self.laid.places.training.get(stage).copied().ok_or_else(|| missing("training"))?;
        self.write_batch(batch, rows)?;
        Ok(Sequence::MicroBatch { stage, first, warming })
    }

    /// Updates the parameters.
    ///
    /// # Errors
    /// A session without a training section, a lost device.
    pub fn update(&mut self) -> Result<(), DeviceError> {
        self.seen = (self.seen + 1).min(Scales::WARMUP);
        self.replay(Sequence::Update, "training")
    }

    /// Exchanges the weights with their averages; a second call restores them. Evaluations between the two use the
    /// averages.
    ///
    /// # Errors
    /// A session without averages, a lost device.
    pub fn exchange(&mut self) -> Result<(), DeviceError> {
        self.replay(Sequence::Exchange, "averages")
    }

    /// The sum of the losses of one batch, in nats; padded rows have the target `IGNORE`.
    ///
    /// # Errors
    /// A session without an evaluation section, a lost device.
    pub fn evaluate(&mut self, rows: Rows<'_>) -> Result<f64, DeviceError> {
        let EvaluationPlaces { batch, .. } = self.laid.places.evaluation.ok_or_else(|| missing("evaluation"))?;
        self.begin(Settings { loss_scale: 1.0, ..Settings::default() })?;
        self.write_batch(batch, rows)?;
        self.replay(Sequence::Evaluate, "evaluation")?;
        let ticket = self.finish()?;
        Ok(f64::from(self.results(ticket)?.loss))
    }

    /// The loss of each token of the batch last evaluated, in nats, `[batch · seq_len]`; 0 if the target is `IGNORE`.
    ///
    /// # Errors
    /// A session without an evaluation section, a lost device.
    pub fn losses(&mut self, losses: &mut [f32]) -> Result<(), DeviceError> {
        let EvaluationPlaces { losses: place, .. } =
            self.laid.places.evaluation.ok_or_else(|| missing("evaluation"))?;
        self.device.read(place, bytemuck::cast_slice_mut(losses))
    }

    /// Passes the logits of the first `rows` rows of the last evaluated batch to `visit`, row by row.
    ///
    /// # Errors
    /// A session without an evaluation section, a lost device.
    pub fn logits(&mut self, rows: u32, visit: &mut dyn FnMut(&[f32])) -> Result<(), DeviceError> {
        let EvaluationPlaces { logits: place, .. } =
            self.laid.places.evaluation.ok_or_else(|| missing("evaluation"))?;
        for (chunk, first) in (0..rows).step_by(place.rows().max(1) as usize).enumerate() {
            let sequence = Sequence::Logits { chunk: chunk as u32 };
            let program = self.laid.programs.get(sequence).ok_or_else(|| missing("evaluation"))?;
            self.device.run_all(program)?;
            for row in 0..place.rows().min(rows - first) {
                self.device.read(place.slice_rows(row, 1), bytemuck::cast_slice_mut(&mut self.logits))?;
                visit(&self.logits);
            }
        }
        Ok(())
    }

    /// Feeds one token at `position` and returns the next token's logits, `[vocabulary]`, mutable.
    ///
    /// # Errors
    /// A session without a decoding section, a position beyond its context, a lost device.
    pub fn decode(&mut self, id: u32, position: u32) -> Result<&mut [f32], DeviceError> {
        let [place, cursor, logits] = self.laid.places.decoding.ok_or_else(|| missing("decoding"))?;
        self.device.next_step()?;
        self.device.queue_write(place, &id.to_le_bytes())?;
        self.device.queue_write(cursor, &position.to_le_bytes())?;
        self.replay(Sequence::Decode, "decoding")?;
        let ticket = self.device.queue_read(logits)?;
        let logits = self.device.results_soon(ticket, bytemuck::cast_slice_mut(&mut self.logits))?;
        Ok(bytemuck::cast_slice_mut(logits))
    }

    /// How many tokens are chosen in one turn; `None` in a session that does not choose. On a GPU a turn has many
    /// tokens, and a turn may be queued while the one before is running: the host's time for a token is then hidden.
    pub fn turn(&mut self) -> Option<usize> {
        self.laid.places.choice.map(|_| if self.device.gpu().is_some() { Programs::TOGETHER } else { 1 })
    }

    /// Whether all of a model's memory is indexed by position, like keys and values, so that feeding a position again
    /// overwrites its old content. The state of a spiking model cannot be rewound.
    pub fn remembers_by_position(&self) -> bool {
        let decode = self.laid.programs.get(Sequence::Decode).unwrap_or_default();
        decode.iter().any(|op| matches!(op, Op::CachedAttention(_)))
    }

    /// Queues a turn of `count` tokens, a whole turn or 1, after the previous turn, or else after the state `after`.
    ///
    /// # Errors
    /// A session that does not choose, a lost device.
    pub fn choose(&mut self, count: usize, how: Choosing, after: Option<After>) -> Result<Ticket, DeviceError> {
        let choice = self.laid.places.choice.ok_or_else(|| missing("choosing"))?;
        self.device.next_step()?;
        if let Some(after) = after {
            for (place, word) in [(choice.id, after.id), (choice.cursor, after.position), (choice.limit, after.limit)] {
                self.device.queue_write(place, &word.to_le_bytes())?;
            }
            if let Choosing::Drawn(settings) = how {
                self.device.queue_write(choice.settings, bytemuck::cast_slice(&settings))?;
                self.device.queue_write(choice.drawn, &after.drawn.to_le_bytes())?;
            }
        }
        let sequence = match how {
            Choosing::MostLikely => Sequence::Continue,
            Choosing::Drawn(_) => Sequence::Sample,
        };
        let program = self.laid.programs.get(sequence).ok_or_else(|| missing("choosing"))?;
        self.device.replay(sequence.key_of(count), &[program; Programs::TOGETHER][..count])?;
        self.device.queue_read(choice.chosen)
    }

    /// The tokens that a turn chose: the one after position p at index p modulo their number.
    ///
    /// # Errors
    /// An error in that turn.
    pub fn chosen(&mut self, turn: Ticket) -> Result<[u32; Programs::TOGETHER], DeviceError> {
        let mut ids = [0; Programs::TOGETHER];
        let mut here = ids;
        ids.copy_from_slice(bytemuck::cast_slice(self.device.results_soon(turn, bytemuck::cast_slice_mut(&mut here))?));
        Ok(ids)
    }

    /// The shape of an evaluation.
    ///
    /// # Errors
    /// A session without an evaluation section.
    pub fn evaluation_stage(&self) -> Result<MicroBatch, DeviceError> {
        self.laid.sections.evaluation.ok_or_else(|| missing("evaluation"))
    }
}

/// The region that a step's results come from: where ranks share, with those of each.
fn results_of(control: &Control) -> Region {
    control.of_ranks.unwrap_or(control.results)
}

fn missing(section: &str) -> DeviceError {
    DeviceError::Failed(format!("this session has no {section} section"))
}

/// Number of elements that are worth a thread.
const SHARE: usize = 16 << 10;

/// Passes the elements in parts to `write`, each with the number of its first element, on all available threads: on a
/// single thread, drawing the weights of a model of 200 M parameters takes longer than preparing a GPU.
fn fill(elements: &mut [f32], first: u64, write: impl Fn(u64, &mut [f32]) + Sync) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = elements.len().div_ceil(cores).max(SHARE);
    let write = &write;
    std::thread::scope(|scope| {
        let mut parts = (first..).step_by(share).zip(elements.chunks_mut(share));
        let last = parts.next();
        for (first, part) in parts {
            scope.spawn(move || write(first, part));
        }
        last.into_iter().for_each(|(first, part)| write(first, part));
    });
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn every_element_is_filled_with_the_value_of_its_number() {
        for len in [0, 1, SHARE - 1, SHARE, SHARE + 1, 5 * SHARE + 7] {
            let mut elements = vec![-1.0; len];
            fill(&mut elements, 11, |first, part| (first..).zip(part).for_each(|(i, x)| *x = i as f32));
            assert!(elements.iter().zip(11u32..).all(|(x, i)| *x == i as f32), "{len}");
        }
    }

    /// The fields of a struct of f32 in the kernels' header, in order.
    fn fields_of(name: &str) -> Vec<&'static str> {
        const HEADER: &str = include_str!("../../../kernels/cuda/control.cuh");
        let (_, body) = HEADER.split_once(&format!("struct {name} {{")).expect("the struct is there");
        let (body, _) = body.split_once("};").expect("it ends");
        let field =
            |line: &'static str| line.trim().strip_prefix("float ")?.split_once([';', '[']).map(|(name, _)| name);
        body.trim().lines().map(|line| field(line).expect("one field of f32 a line")).collect()
    }

    #[test]
    fn the_kernels_have_the_fields_of_a_steps_settings_and_results_in_the_same_order() {
        macro_rules! agree {
            ($name:ident: $($field:ident)*) => {{
                let expected = [$((offset_of!($name, $field), stringify!($field))),*];
                assert!((0..).step_by(4).zip(fields_of(stringify!($name))).eq(expected), "{}", stringify!($name));
            }};
        }
        agree!(Settings: learning_rate clip loss_scale factored decay average corrections);
        agree!(Results: loss squared_norm);
    }
}
