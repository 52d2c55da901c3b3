//! Does every part of a training run once in the empty arena: so nothing is chosen, recorded, loaded or allocated
//! later, and the times are known.

use std::time::Instant;

use capful_core::model::Scales;
use capful_core::train::{Settings, Stage};

use super::Session;
use super::session::Rows;
use crate::config::Config;
use crate::device::{Choice, DeviceError};
use crate::plan::Sequence;

/// Number of micro-batches of a step that are run: the first, one in between, and the last.
const MICRO_BATCHES: u32 = 3;

/// The times of the parts of a run in the empty arena, where numbers that are all 0 may be processed faster than
/// others.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rehearsed {
    /// Seconds of a step of each stage.
    pub steps: Vec<f64>,
    /// Seconds of a micro-batch in an evaluation.
    pub evaluation: f64,
}

impl Session {
    /// Runs every sequence in the empty arena and clears it: on a GPU once to choose algorithms, unless those of
    /// `algorithms` are used again, once to record, and once to time; on other devices only if the run has a time
    /// limit.
    pub(super) fn rehearse(&mut self, config: &Config, algorithms: &[Choice]) -> Result<(), DeviceError> {
        self.reuse(algorithms);
        if self.device.gpu().is_some() {
            self.tune(true);
            self.everything(config)?;
            self.tune(false);
            self.everything(config)?;
        } else if config.time.is_none() {
            return Ok(());
        } else {
            // Memory is touched for the first time.
            self.everything(config)?;
        }
        self.rehearsed = Some(self.everything(config)?);
        if let Some(gpu) = self.device.gpu() {
            gpu.name_outside("graphs and the libraries' kernels")?;
        }
        self.device.clear()
    }

    fn tune(&mut self, tuning: bool) {
        if let Some(gpu) = self.device.gpu() {
            gpu.set_tuning(tuning);
        }
    }

    /// Runs every part of a training run once.
    fn everything(&mut self, config: &Config) -> Result<Rehearsed, DeviceError> {
        let settings = Settings { learning_rate: 0.0, ..Settings::UNIT };
        let stages = config.stages();
        let most = stages.iter().map(Stage::micro_tokens).max().unwrap_or(0);
        let evaluated = self.laid.sections.evaluation.map_or(0, |stage| stage.tokens());
        let zeros = vec![0; most.max(evaluated.into()) as usize];
        let mut rehearsed = Rehearsed { steps: vec![0.0; stages.len()], evaluation: 0.0 };
        // While the history is being filled, and afterwards.
        let fills = (0..stages.len()).any(|index| self.laid.sections.quantises(index));
        let kinds = if fills { &[0, Scales::WARMUP][..] } else { &[0][..] };
        for (seen, (index, stage)) in kinds.iter().flat_map(|seen| stages.iter().enumerate().map(|p| (*seen, p))) {
            let zeros = &zeros[..stage.micro_tokens() as usize];
            let begun = Instant::now();
            self.seen = seen;
            self.begin(settings)?;
            let rows = Rows::of(zeros);
            let here = self.laid.sections.accumulate[index];
            let last = here.clamp(1, MICRO_BATCHES) - 1;
            for micro in 0..last {
                self.micro_batch(index, rows, micro == 0)?;
            }
            self.last_micro_batch(index, rows, last == 0)?;
            let ticket = self.finish()?;
            self.results(ticket)?;
            rehearsed.steps[index] = begun.elapsed().as_secs_f64() * f64::from(here) / f64::from(last + 1);
        }
        self.seen = 0;
        let zeros = &zeros[..evaluated as usize];
        if self.laid.programs.get(Sequence::Exchange).is_some() {
            self.device.next_step()?;
            self.exchange()?;
        }
        let begun = Instant::now();
        self.evaluate(Rows::of(zeros))?;
        rehearsed.evaluation = begun.elapsed().as_secs_f64();
        self.decode(0, 0)?;
        Ok(rehearsed)
    }
}
