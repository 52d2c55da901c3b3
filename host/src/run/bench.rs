//! Timing a plan's steps on synthetic tokens, as a whole and operation by operation.

use std::time::Instant;

use capful_core::device::{Operation, OperationError, Run};
use capful_core::random::{Random, stream};
use capful_core::train::settings;

use super::{HostFamily, Session};
use crate::allocations::{self, Activity};
use crate::config::Config;
use crate::device::{AnyDevice, DeviceError};

/// What the steps took.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Seconds of each measured step.
    pub steps: Vec<f64>,
    /// Heap allocations of the measured steps, in the threads that run them.
    pub allocations: u64,
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
    /// Operand bytes together.
    pub bytes: u64,
}

/// A device that notes how long each operation takes.
pub struct Profiler<'a> {
    device: &'a mut AnyDevice,
    shares: Vec<Share>,
}

impl<O: Operation> Run<O> for Profiler<'_>
where
    AnyDevice: Run<O>,
{
    fn run(&mut self, operation: O) -> Result<(), OperationError> {
        let start = Instant::now();
        self.device.run(operation)?;
        let seconds = start.elapsed().as_secs_f64();
        let mut bytes = 0;
        operation.operands(&mut |region, access| {
            bytes += region.bytes() * if access == capful_core::device::Access::Update { 2 } else { 1 };
        });
        let at = self.shares.iter().position(|s| s.name == O::NAME).unwrap_or_else(|| {
            self.shares.push(Share { name: O::NAME, count: 0, seconds: 0.0, flops: 0, bytes: 0 });
            self.shares.len() - 1
        });
        let share = &mut self.shares[at];
        share.count += 1;
        share.seconds += seconds;
        share.flops += operation.flops();
        share.bytes += bytes;
        Ok(())
    }
}

/// Steps of a session on synthetic tokens.
pub struct Bench<'a, F: HostFamily> {
    session: &'a mut Session<F>,
    config: &'a Config,
    ids: Vec<u32>,
    targets: Vec<u32>,
}

impl<'a, F: HostFamily> Bench<'a, F> {
    /// Makes the tokens: uniform over the vocabulary.
    ///
    /// # Errors
    /// A lost device.
    pub fn new(session: &'a mut Session<F>, config: &'a Config) -> Result<Self, DeviceError> {
        let tokens = config.stage().tokens() as usize;
        let random = Random::new(config.seed, stream("bench"));
        let ids: Vec<u32> =
            (0..=tokens).map(|i| random.below(i as u64, u64::from(config.vocab_size())) as u32).collect();
        let mut values = [0.0; settings::LEN as usize];
        values[settings::LEARNING_RATE] = 1e-4;
        values[settings::CORRECTION1] = 1.0;
        values[settings::CORRECTION2] = 1.0;
        values[settings::CLIP] = 1.0;
        values[settings::LOSS_SCALE] = 1.0 / config.tokens_per_step() as f32;
        session.set(values)?;
        Ok(Bench { session, config, targets: ids[1..].to_vec(), ids: ids[..tokens].to_vec() })
    }

    fn step(&mut self) -> Result<(), DeviceError> {
        for micro in 0..self.config.accumulate {
            self.session.micro_batch(&self.ids, &self.targets, micro == 0)?;
        }
        self.session.update(&self.config.optimizer())?;
        self.session.results().map(drop)
    }

    /// Times `steps` steps after `warmup` others.
    ///
    /// # Errors
    /// A lost device.
    pub fn time(&mut self, warmup: u64, steps: u64) -> Result<Timing, DeviceError> {
        for _ in 0..warmup {
            self.step()?;
        }
        let mut timing = Timing { steps: Vec::with_capacity(steps as usize), allocations: 0 };
        let before = allocations::count(Activity::Step);
        for _ in 0..steps {
            let start = Instant::now();
            self.step()?;
            timing.steps.push(start.elapsed().as_secs_f64());
        }
        timing.allocations = allocations::since(Activity::Step, before).allocations;
        Ok(timing)
    }

    /// One step, operation by operation, the longest first.
    ///
    /// # Errors
    /// A lost device.
    pub fn profile(&mut self) -> Result<Vec<Share>, DeviceError> {
        let Session { family, laid, device, .. } = &mut *self.session;
        let mut profiler = Profiler { device, shares: Vec::new() };
        if let (Some(training), Some(stage)) = (&laid.training, &laid.sections.training) {
            for micro in 0..self.config.accumulate {
                family.micro_batch(&mut profiler, &laid.state, training, stage, micro == 0)?;
            }
            family.update(&mut profiler, &laid.state, &self.config.optimizer())?;
        }
        profiler.shares.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(profiler.shares)
    }
}
