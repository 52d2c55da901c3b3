//! The operations of a session, recorded once as lists. This is the only module that distinguishes the families of
//! models.

use capful_core::device::{Device, Op, OperationError, Profile};
use capful_core::memory::{Dtype, Layout, Ledger as _, Region, Role, Slot};
use capful_core::model::{Batch, Control, Family, Gauge, MicroBatch, Products, Purpose};
use capful_core::ops::{MostLikely, Pattern, Sample};
use capful_core::optimizer::{Optimizer, Room};

use super::layout::{Section, Sections};
use crate::config::AnyFamily;

/// The error for a sequence of operations that does not exist.
pub(super) const UNLAID: OperationError = OperationError::Unsupported("no room was laid for this part of a plan");

/// A step whose operations depend on plan and stage only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// A micro-batch of a step.
    MicroBatch {
        /// The index of its stage.
        stage: usize,
        /// Whether it is the step's first.
        first: bool,
        /// Whether 8-bit copies are made but not read yet.
        warming: bool,
    },
    /// The optimizer.
    Update,
    /// Exchanges the weights with their averages.
    Exchange,
    /// An evaluation of one batch.
    Evaluate,
    /// The logits of a chunk of the last evaluated batch.
    Logits {
        /// Number of chunks before it.
        chunk: u32,
    },
    /// One more token.
    Decode,
    /// One more token and the choice of the most likely one after it.
    Continue,
    /// One more token and a random choice of the one after it.
    Sample,
}

impl Sequence {
    /// The key of its recording on a GPU.
    pub fn key(self) -> u64 {
        match self {
            Sequence::Update => 0,
            Sequence::Evaluate => 1,
            Sequence::Decode => 2,
            Sequence::Continue => 8,
            Sequence::Sample => 16,
            Sequence::Exchange => 24,
            Sequence::MicroBatch { stage, first, warming } => {
                8 * stage as u64 + 4 + 2 * u64::from(warming) + u64::from(first)
            }
            Sequence::Logits { chunk } => 8 * u64::from(chunk) + 3,
        }
    }

    /// The key of the recording of this sequence followed by an update.
    pub fn key_with_update(self) -> u64 {
        self.key() | 1 << 63
    }

    /// The key of the recording of `count` repetitions of it, below 2^15.
    pub fn key_of(self, count: usize) -> u64 {
        self.key() | (count as u64) << 48
    }
}

/// The constants of steps that are not part of their shapes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// The optimizer's constants.
    pub optimizer: Optimizer,
    /// The attention pattern of a decoded token.
    pub pattern: Pattern,
}

/// The operations of every sequence of a plan.
#[derive(Debug, Clone, Default)]
pub struct Programs(Vec<(Sequence, Vec<Op>)>);

impl Programs {
    /// The most tokens that are chosen in a row before the host reads them.
    pub const TOGETHER: usize = 16;

    /// Bytes of this number of operations.
    pub const fn bytes(operations: u64) -> u64 {
        operations * size_of::<Op>() as u64
    }

    /// The operations of `sequence`; `None` if no section of the plan has it.
    pub fn get(&self, sequence: Sequence) -> Option<&[Op]> {
        self.0.iter().find(|(s, _)| *s == sequence).map(|(_, ops)| &ops[..])
    }

    /// Every sequence and its operations.
    pub fn iter(&self) -> impl Iterator<Item = (Sequence, &[Op])> {
        self.0.iter().map(|(sequence, ops)| (*sequence, &ops[..]))
    }

    /// Records every sequence of `sections`.
    ///
    /// # Errors
    /// A step that does not exist.
    pub(super) fn record(model: &dyn Model, sections: &Sections) -> Result<Programs, OperationError> {
        let record = |sequence| {
            let mut recorder = Recorder(Vec::new());
            model.run(sequence, sections, &mut recorder)?;
            // Exactly the memory that the plan counts.
            recorder.0.shrink_to_fit();
            Ok((sequence, recorder.0))
        };
        sections.sequences().into_iter().map(record).collect::<Result<_, _>>().map(Programs)
    }
}

/// A device that stores the operations it receives.
struct Recorder(Vec<Op>);

impl Device for Recorder {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        self.0.push(*op);
        Ok(())
    }
}

/// The regions of an evaluation's batch and results.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationPlaces {
    /// The batch to score.
    pub batch: Batch,
    /// [chunk, vocabulary].
    pub logits: Region,
    /// `[batch · seq_len]`: nats of each token.
    pub losses: Region,
}

/// The regions that the host writes and reads.
#[derive(Debug, Clone)]
pub struct Places {
    /// Settings and results of a step.
    pub control: Control,
    /// The batch of each training section.
    pub training: Vec<Batch>,
    /// The regions of an evaluation.
    pub evaluation: Option<EvaluationPlaces>,
    /// A token's id and position, and the logits after it.
    pub decoding: Option<[Region; 3]>,
    /// The operation that samples a token, if tokens are only generated. The choice of the most likely token uses the
    /// same regions.
    pub choice: Option<Sample>,
    /// The gauges of the model.
    pub gauges: Vec<Gauge>,
}

/// A model of any family: laid out section by section, then run.
pub(super) trait Model {
    /// Lays out the persistent regions.
    fn lay_lasting(&mut self, profile: &dyn Profile, purpose: Purpose, layout: &mut Layout<'_>);

    /// Lays out a section.
    fn lay(&mut self, section: Section, profile: &dyn Profile, layout: &mut Layout<'_>);

    /// Lays out the operations that choose the most likely token and that sample one, after a section that decodes.
    fn lay_choice(&mut self, layout: &mut Layout<'_>);

    /// The regions of inputs and results; `None` before the persistent regions are laid out.
    fn places(&self) -> Option<Places>;

    /// Runs a sequence on `device`.
    ///
    /// # Errors
    /// An operation that failed; a section that was not laid out.
    fn run(&self, sequence: Sequence, sections: &Sections, device: &mut dyn Device) -> Result<(), OperationError>;

    /// See [`capful_core::model::Family::flops_per_token`].
    fn flops_per_token(&self, seq_len: u32) -> u64;

    /// See [`capful_core::model::Family::introduce`], a line each.
    fn introduction(&self) -> Vec<String>;
}

/// The model of `family`, with nothing laid out yet.
pub(super) fn model(family: &AnyFamily) -> Box<dyn Model> {
    match *family {
        AnyFamily::Transformer(family) => Box::new(Placed::new(family)),
        #[cfg(feature = "neurogen")]
        AnyFamily::NeuroGen(family) => Box::new(Placed::new(family)),
    }
}

/// A family and its regions.
struct Placed<F: Family> {
    family: F,
    lasting: Option<F::Lasting>,
    training: Vec<Option<F::Training>>,
    update: Option<Room>,
    evaluation: Option<F::Evaluation>,
    decoding: Option<F::Decoding>,
    choice: Option<Sample>,
}

impl<F: Family> Placed<F> {
    fn new(family: F) -> Self {
        let training = Vec::new();
        Placed { family, lasting: None, training, update: None, evaluation: None, decoding: None, choice: None }
    }
}

impl<F: Family> Model for Placed<F> {
    fn lay_lasting(&mut self, profile: &dyn Profile, purpose: Purpose, layout: &mut Layout<'_>) {
        self.lasting = Some(self.family.lay_lasting(profile, purpose, layout));
    }

    fn lay(&mut self, section: Section, profile: &dyn Profile, layout: &mut Layout<'_>) {
        match section {
            Section::Training(i, stage) => {
                self.training.resize(self.training.len().max(i + 1), None);
                self.training[i] = Some(self.family.lay_training(&stage, profile, layout));
            }
            Section::Update(optimizer) => self.update = self.family.lay_update(&optimizer, profile, layout),
            Section::Evaluation(stage) => self.evaluation = Some(self.family.lay_evaluation(&stage, profile, layout)),
            Section::Decoding(context) => self.decoding = Some(self.family.lay_decoding(context, profile, layout)),
        }
    }

    fn lay_choice(&mut self, layout: &mut Layout<'_>) {
        let Some((id, cursor, logits)) = self.decoding.as_ref().map(F::decoding_io) else { return };
        let mut words = |name, count| layout.region(Slot::new(name, Role::Batch, Dtype::U32, [1, 1, 1, count])).first;
        let (limit, chosen) = (words("decode.limit", 1), words("decode.chosen", Programs::TOGETHER as u32));
        let settings = words("decode.sampler", Sample::SETTINGS as u32);
        let drawn = words("decode.drawn", 2);
        self.choice = Some(Sample { logits, limit, settings, drawn, id, cursor, chosen });
    }

    fn places(&self) -> Option<Places> {
        let lasting = self.lasting.as_ref()?;
        let mut gauges = Vec::new();
        self.family.gauges(lasting, &mut |gauge| gauges.push(gauge));
        Some(Places {
            control: F::control(lasting),
            training: self.training.iter().flatten().map(F::training_batch).collect(),
            evaluation: self.evaluation.as_ref().map(|e| EvaluationPlaces {
                batch: F::evaluation_batch(e),
                logits: F::evaluation_logits(e),
                losses: F::evaluation_losses(e),
            }),
            decoding: self.decoding.as_ref().map(|d| F::decoding_io(d).into()),
            choice: self.choice,
            gauges,
        })
    }

    fn run(&self, sequence: Sequence, sections: &Sections, device: &mut dyn Device) -> Result<(), OperationError> {
        let (family, lasting) = (&self.family, self.lasting.as_ref().ok_or(UNLAID)?);
        let evaluation = self.evaluation.as_ref().zip(sections.evaluation);
        match sequence {
            Sequence::MicroBatch { stage: i, first, warming } => {
                let laid = self.training.get(i).and_then(Option::as_ref).zip(sections.training.get(i));
                let (training, stage) = laid.ok_or(UNLAID)?;
                let products = if warming { Products::Warming } else { stage.products };
                family.micro_batch(device, lasting, training, &MicroBatch { products, ..*stage }, first)
            }
            Sequence::Update => family.update(device, lasting, self.update.as_ref()),
            Sequence::Exchange => family.exchange(device, lasting),
            Sequence::Evaluate => {
                let (evaluation, stage) = evaluation.ok_or(UNLAID)?;
                family.evaluate(device, lasting, evaluation, &stage)
            }
            Sequence::Logits { chunk } => {
                let (evaluation, stage) = evaluation.ok_or(UNLAID)?;
                let rows = stage.chunk_rows();
                let first = chunk * rows;
                family.logits(device, lasting, evaluation, first, rows.min(stage.tokens() - first))
            }
            Sequence::Decode => {
                let decoding = self.decoding.as_ref().ok_or(UNLAID)?;
                family.decode(device, lasting, decoding, sections.constants.pattern)
            }
            Sequence::Continue => {
                self.run(Sequence::Decode, sections, device)?;
                let Sample { logits, limit, id, cursor, chosen, .. } = self.choice.ok_or(UNLAID)?;
                device.run(&MostLikely { logits, limit, id, cursor, chosen }.into())
            }
            Sequence::Sample => {
                self.run(Sequence::Decode, sections, device)?;
                device.run(&self.choice.ok_or(UNLAID)?.into())
            }
        }
    }

    fn flops_per_token(&self, seq_len: u32) -> u64 {
        self.family.flops_per_token(seq_len)
    }

    fn introduction(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.family.introduce(&mut |line| lines.push(line.to_string()));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::plan::profile;
    use crate::plan::{Laid, Machine, Plan};
    use capful_core::device::{Meter, Rates};

    /// A plan and its layout, with its programs.
    fn recorded(text: &str) -> (Plan, Laid) {
        let raw = toml::from_str(text).expect("TOML");
        let config = Config::resolve(raw).expect("a configuration");
        let (plan, laid) = Plan::new(&config, &Machine::of(&config).expect("a machine")).expect("a plan");
        assert!(laid.programs.get(Sequence::Update).is_none(), "recorded before it was known to fit");
        let profile = profile(&config).expect("a device");
        (plan, laid.recorded(&config.family(), &profile).expect("programs"))
    }

    #[test]
    fn what_is_recorded_is_what_the_plan_counts() {
        for (preset, accumulate) in [("pythia-tiny", 3), ("yxanul-tiny", 1), ("neurogen-tiny", 1)] {
            let (plan, laid) = recorded(&format!("preset = '{preset}'\naccumulate = {accumulate}"));
            let operations: usize = laid.programs.0.iter().map(|(_, ops)| ops.len()).sum();
            let line = plan.outside.iter().find(|o| o.name == "recorded operations").map(|o| o.bytes);
            assert_eq!(line, Some((operations * size_of::<Op>()) as u64), "{preset}");
            let further = accumulate - 1;
            let micro = |first| laid.programs.get(Sequence::MicroBatch { stage: 0, first, warming: false });
            assert_eq!(micro(false).is_some(), further > 0, "{preset}");
            let step = [micro(true), laid.programs.get(Sequence::Update)].into_iter().flatten().flatten();
            let step = step.chain((0..further).flat_map(|_| micro(false).unwrap_or_default()));
            let mut meter = Meter::new(&capful_core::device::Single, Rates::ONE);
            step.for_each(|op| meter.run(op).expect("a sound operation"));
            let planned = (plan.operations_per_step, plan.flops_per_step, plan.bytes_per_step);
            assert_eq!((meter.operations, meter.flops, meter.bytes), planned, "{preset}");
        }
    }

    #[test]
    fn every_sequence_has_a_key_of_its_own() {
        let mut sections = recorded("preset = 'yxanul-197m'\nchunk = 64\nema = 0.5").1.sections;
        sections.training.iter_mut().for_each(|stage| stage.products = Products::Quantised);
        let mut keys: Vec<u64> = sections.sequences().into_iter().map(Sequence::key).collect();
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert!(keys.len() == count && count > 40, "{count}");
    }
}
