//! Timing a plan's steps on synthetic tokens, as a whole and operation by operation.

use std::time::Instant;

use capful_core::device::{Device, Op, OperationError};
use capful_core::random::{Random, stream};
use capful_core::train::Settings;

use super::Session;
use super::session::Rows;
use crate::allocations::{self, Activity};
use crate::config::Config;
use crate::device::{AnyDevice, DeviceError, Ticket};
use crate::plan::Sequence;

/// What the steps took.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Seconds of each measured step.
    pub steps: Vec<f64>,
    /// Heap allocations of the measured steps, in the threads that run them.
    pub allocations: u64,
    /// Bytes that the GPU's memory in use grew by during them.
    pub device_bytes: u64,
}

impl Timing {
    /// The median.
    pub fn median(&self) -> f64 {
        let mut sorted = self.steps.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }
}

/// One kind of operation in a step.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Share {
    /// The operation.
    pub name: &'static str,
    /// How many ran.
    pub count: u64,
    /// Seconds together.
    pub seconds: f64,
    /// Floating-point operations together.
    pub flops: u64,
    /// Those of them whose operands are of 8 bits.
    pub flops_8bit: u64,
    /// Operand bytes together.
    pub bytes: u64,
}

/// A device that notes how long each operation takes.
pub struct Profiler<'a> {
    device: &'a mut AnyDevice,
    shares: Vec<Share>,
}

impl Device for Profiler<'_> {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        let (name, seconds) = (op.name(), self.device.time(op)?);
        let at = self.shares.iter().position(|s| s.name == name).unwrap_or_else(|| {
            self.shares.push(Share { name, count: 0, seconds: 0.0, flops: 0, flops_8bit: 0, bytes: 0 });
            self.shares.len() - 1
        });
        let share = &mut self.shares[at];
        share.count += 1;
        share.seconds += seconds;
        share.flops += op.flops();
        share.flops_8bit += op.flops_8bit();
        share.bytes += op.traffic();
        Ok(())
    }
}

/// Steps of a session on synthetic tokens.
pub struct Bench<'a> {
    session: &'a mut Session,
    config: &'a Config,
    ids: Vec<u32>,
    targets: Vec<u32>,
    offsets: Vec<u32>,
    settings: Settings,
}

impl<'a> Bench<'a> {
    /// Makes the tokens: uniform over the vocabulary.
    ///
    /// # Errors
    /// A lost device.
    pub fn new(session: &'a mut Session, config: &'a Config) -> Result<Self, DeviceError> {
        session.assume_history();
        let tokens = config.micro_batch().tokens() as usize;
        let random = Random::new(config.seed, stream("bench"));
        let ids: Vec<u32> =
            (0..=tokens).map(|i| random.below(i as u64, u64::from(config.vocab_size())) as u32).collect();
        let settings = Settings {
            learning_rate: 1e-4,
            correction1: 1.0,
            correction2: 1.0,
            clip: 1.0,
            loss_scale: 1.0 / config.tokens_per_step() as f32,
        };
        // In the midst of documents.
        let offsets = vec![config.context(); tokens];
        Ok(Bench { session, config, targets: ids[1..].to_vec(), ids: ids[..tokens].to_vec(), offsets, settings })
    }

    fn step(&mut self) -> Result<Ticket, DeviceError> {
        self.session.begin(self.settings)?;
        for micro in 0..self.config.accumulate {
            let rows = Rows { ids: &self.ids, targets: &self.targets, offsets: &self.offsets };
            self.session.micro_batch(0, rows, micro == 0)?;
        }
        self.session.update()?;
        self.session.finish()
    }

    /// Times `steps` steps after `warmup` others.
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

    /// Bytes of the GPU in use, by whomever; 0 without one.
    fn used(&mut self) -> Result<u64, DeviceError> {
        Ok(match self.session.device.gpu() {
            Some(gpu) => gpu.used()?,
            None => 0,
        })
    }

    /// One step, operation by operation, the longest first.
    ///
    /// # Errors
    /// A lost device.
    pub fn profile(&mut self) -> Result<Vec<Share>, DeviceError> {
        let Session { laid, device, .. } = &mut *self.session;
        let mut profiler = Profiler { device, shares: Vec::new() };
        let micro_batches =
            (0..self.config.accumulate).map(|i| Sequence::MicroBatch { stage: 0, first: i == 0, warming: false });
        let mut ops = micro_batches.chain([Sequence::Update]).filter_map(|s| laid.programs.get(s)).flatten();
        let ran = ops.try_for_each(|op| profiler.run(op));
        let Profiler { device, mut shares } = profiler;
        ran.map_err(|e| device.explain(e))?;
        shares.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(shares)
    }
}
