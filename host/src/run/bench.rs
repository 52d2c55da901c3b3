//! Times a plan's steps on synthetic tokens, as a whole and operation by operation.

use std::time::Instant;

use capful_core::device::Rates;
use capful_core::random::{Random, stream};
use capful_core::train::Settings;

use super::Session;
use super::profile::Profile;
use super::session::Rows;
use crate::allocations::{self, Activity};
use crate::config::Config;
use crate::device::{AnyProfile, DeviceError, Stopwatch, Ticket};
use crate::plan::{Sequence, listing};

/// The most steps in which each operation is timed.
const PROFILED: u64 = 5;

/// Number of distinct batches in a measurement of training.
const BATCHES: usize = 8;

/// Tokens of a document on average, where attention stays inside documents.
const DOCUMENT: u64 = 200;

/// The times of the measured steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Seconds of each measured step.
    pub steps: Vec<f64>,
    /// Heap allocations of the measured steps, in the threads that run steps.
    pub allocations: u64,
    /// Growth of the GPU's memory in use during these steps, in bytes.
    pub device_bytes: u64,
}

impl Timing {
    /// The median of the steps.
    pub fn median(&self) -> f64 {
        let mut sorted = self.steps.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Runs steps of a session on synthetic tokens.
pub struct Bench<'a> {
    session: &'a mut Session,
    config: &'a Config,
    ids: Vec<u32>,
    targets: Vec<u32>,
    offsets: Vec<u32>,
    settings: Settings,
    /// Index of the next micro-batch's batch.
    next: usize,
    /// Number of steps so far, if the run learns.
    steps: Option<u64>,
}

/// Offsets of tokens; every token begins a document with the same probability.
fn documents(seed: u64, tokens: usize) -> Vec<u32> {
    let random = Random::new(seed, stream("documents"));
    let mut offset = 0;
    let next = |i| {
        offset = if random.below(i, DOCUMENT) == 0 { 0 } else { offset + 1 };
        offset
    };
    (0..tokens as u64).map(next).collect()
}

impl<'a> Bench<'a> {
    /// A bench with tokens that are uniform over the vocabulary.
    ///
    /// # Errors
    /// A lost device.
    pub fn new(session: &'a mut Session, config: &'a Config) -> Result<Self, DeviceError> {
        session.assume_history();
        let random = Random::new(config.seed, stream("bench"));
        let id = |i| random.below(i, u64::from(config.vocab_size())) as u32;
        Ok(Bench::of(session, config, 1, id, 1e-4))
    }

    /// As [`Bench::new`], but with the run's own updates from its first step on, and with tokens whose frequencies are
    /// the inverse of their ranks, as in text: a GPU that learns draws more power than one that learns nothing, and is
    /// slower.
    pub fn as_training(session: &'a mut Session, config: &'a Config) -> Self {
        session.assume_history();
        let random = Random::new(config.seed, stream("measure"));
        let vocabulary = f64::from(config.vocab_size());
        let id = |i| (vocabulary.powf(random.uniform(i)) as u32).saturating_sub(1);
        Bench { steps: Some(0), ..Bench::of(session, config, BATCHES, id, 0.0) }
    }

    fn of(session: &'a mut Session, config: &'a Config, batches: usize, id: impl Fn(u64) -> u32, rate: f32) -> Self {
        let tokens = config.micro_batch().tokens() as usize;
        let all = batches * tokens;
        let ids: Vec<u32> = (0..=all as u64).map(id).collect();
        let settings =
            Settings { learning_rate: rate, loss_scale: 1.0 / config.tokens_per_step() as f32, ..Settings::UNIT };
        let offsets = match config.mask_documents {
            true => documents(config.seed, tokens),
            // All tokens are inside documents.
            false => vec![config.context(); tokens],
        };
        Bench {
            session,
            config,
            targets: ids[1..].to_vec(),
            ids: ids[..all].to_vec(),
            offsets,
            settings,
            next: 0,
            steps: None,
        }
    }

    /// The settings of the next step.
    fn next_settings(&mut self) -> Settings {
        let Some(step) = &mut self.steps else { return self.settings };
        let config = self.config;
        let rate = config.lr_schedule().rate(*step);
        let settings = Settings::of(*step, rate, &config.optimizer(), config.clip, config.tokens_per_step());
        *step += 1;
        Settings { decay: config.decay_factor(rate), ..settings }
    }

    fn step(&mut self) -> Result<Ticket, DeviceError> {
        let settings = self.next_settings();
        self.session.begin(settings)?;
        let last = self.config.accumulate - 1;
        for micro in 0..=last {
            let tokens = self.offsets.len();
            let here = self.next * tokens..(self.next + 1) * tokens;
            self.next = (self.next + 1) % (self.ids.len() / tokens);
            let rows = Rows { ids: &self.ids[here.clone()], targets: &self.targets[here], offsets: &self.offsets };
            match micro < last {
                true => self.session.micro_batch(0, rows, micro == 0)?,
                false => self.session.last_micro_batch(0, rows, last == 0)?,
            }
        }
        self.session.finish()
    }

    /// Runs steps for `seconds`, at least two steps, and returns the seconds of one step: from the last half of the
    /// time, when the machine is warm.
    ///
    /// # Errors
    /// A lost device.
    pub fn time_for(&mut self, seconds: f64) -> Result<f64, DeviceError> {
        let warm = self.step()?;
        self.session.results(warm)?;
        let (begun, ahead) = (Instant::now(), self.session.device.gpu().is_some());
        let (mut pending, mut half, mut done) = (None, (0, 0.0), 0);
        loop {
            let ticket = self.step()?;
            let due = if ahead { pending.replace(ticket) } else { Some(ticket) };
            if let Some(ticket) = due {
                self.session.results(ticket)?;
                done += 1;
            }
            let now = begun.elapsed().as_secs_f64();
            if now < seconds / 2.0 {
                half = (done, now);
            } else if now >= seconds && done > half.0 {
                pending.take().map(|ticket| self.session.results(ticket)).transpose()?;
                return Ok((now - half.1) / f64::from(done - half.0));
            }
        }
    }

    /// Times `steps` steps after `warmup` untimed steps.
    ///
    /// # Errors
    /// A lost device.
    pub fn time(&mut self, warmup: u64, steps: u64) -> Result<Timing, DeviceError> {
        for _ in 0..warmup {
            let ticket = self.step()?;
            self.session.results(ticket)?;
        }
        let used = self.used()?;
        let mut timing = Timing { steps: Vec::with_capacity(steps as usize), allocations: 0, device_bytes: 0 };
        // A GPU's results are read while the next step runs, as in training.
        let ahead = self.session.device.gpu().is_some();
        let mut pending = None;
        let before = allocations::count(Activity::Step);
        for _ in 0..steps {
            let start = Instant::now();
            let ticket = self.step()?;
            let due = if ahead { pending.replace(ticket) } else { Some(ticket) };
            if let Some(ticket) = due {
                self.session.results(ticket)?;
            }
            timing.steps.push(start.elapsed().as_secs_f64());
        }
        if let Some(ticket) = pending {
            self.session.results(ticket)?;
        }
        timing.allocations = allocations::since(Activity::Step, before).allocations;
        timing.device_bytes = self.used()?.saturating_sub(used);
        Ok(timing)
    }

    /// Bytes of the GPU in use by any process; 0 without a GPU.
    fn used(&mut self) -> Result<u64, DeviceError> {
        Ok(match self.session.device.gpu() {
            Some(gpu) => gpu.used()?,
            None => 0,
        })
    }

    /// Times every operation of a step at its place in the step's programs. Of up to `steps` such steps it returns the
    /// one with the median total time.
    ///
    /// # Errors
    /// A lost device.
    pub fn profile(&mut self, profile: &AnyProfile, rates: Rates, steps: u64) -> Result<Profile, DeviceError> {
        let micro_batches = (0..self.config.accumulate).map(|i| {
            (format!("micro-batch {}", i + 1), Sequence::MicroBatch { stage: 0, first: i == 0, warming: false })
        });
        let parts: Vec<(String, Sequence)> = micro_batches.chain([("update".to_owned(), Sequence::Update)]).collect();
        // All micro-batches after the first run the same program.
        let mut ready: Vec<(Sequence, Stopwatch)> = Vec::new();
        for (_, sequence) in &parts {
            if ready.iter().all(|(known, _)| known != sequence) {
                ready.push((*sequence, self.session.stopwatch(*sequence)?));
            }
        }
        // A GPU prepares a graph at its first run.
        if self.session.device.gpu().is_some() {
            self.profiled_step(&parts, &ready)?;
        }
        let steps = (0..steps.clamp(1, PROFILED)).map(|_| self.profiled_step(&parts, &ready));
        let mut steps = steps.collect::<Result<Vec<_>, _>>()?;
        let total = |step: &Vec<Vec<f64>>| step.iter().flatten().sum::<f64>();
        steps.sort_by(|a, b| total(a).total_cmp(&total(b)));
        let median = steps.swap_remove(steps.len() / 2);
        let laid = &self.session.laid;
        let parts = parts
            .into_iter()
            .zip(median)
            .map(|((name, sequence), seconds)| (name, listing::operations(laid, sequence, profile, rates), seconds));
        Ok(Profile::new(parts))
    }

    /// Runs a step with each operation timed; returns the seconds of each part's operations.
    fn profiled_step(
        &mut self,
        parts: &[(String, Sequence)],
        ready: &[(Sequence, Stopwatch)],
    ) -> Result<Vec<Vec<f64>>, DeviceError> {
        self.session.begin(self.settings)?;
        let mut seconds = Vec::with_capacity(parts.len());
        for (_, sequence) in parts {
            if let (Sequence::MicroBatch { .. }, Some(batch)) = (sequence, self.session.laid.places.training.first()) {
                let rows = Rows { ids: &self.ids, targets: &self.targets, offsets: &self.offsets };
                self.session.write_batch(*batch, rows)?;
            }
            let stopwatch = ready.iter().find(|(known, _)| known == sequence).map(|(_, stopwatch)| stopwatch);
            let stopwatch = stopwatch.ok_or_else(|| DeviceError::Failed("a program was not made ready".to_owned()))?;
            seconds.push(self.session.run_timed(*sequence, stopwatch)?);
        }
        let ticket = self.session.finish()?;
        self.session.results(ticket)?;
        Ok(seconds)
    }
}
