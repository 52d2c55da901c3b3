//! What this machine offers and takes: speeds for the roofline, free memory, bytes outside the arena.

use std::path::Path;

use capful_core::device::Rates;
use capful_core::train::Stage;

use super::memory::{self, Free};
use super::{Gpu, Outside, gpu};
use crate::config::{ByteSize, Config, ConfigError, Device, Order, Precision, human_bytes};
use crate::data::sequences::pool;
use crate::data::shards::{Manifest, training};
use crate::data::{ahead, shuffle};
use crate::device::cuda::gpus;
use crate::run::train::largest_block;

/// A machine as the planner sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Speeds.
    pub rates: Rates,
    /// What is free, where the system says so.
    pub free: Option<Free>,
    /// Bytes that this process holds already.
    pub held: u64,
    /// The GPU that the run is for, where it is known.
    pub gpu: Option<&'static Gpu>,
    /// Bytes of the GPU in this machine that the run is for.
    pub gpu_bytes: Option<u64>,
}

/// What a core with wide vectors reaches in products, FLOP a second; two such cores share the copy rate below.
/// Round figures of current server cores: a roofline needs a scale, `host bench` measures the real ones.
const CORE_FLOPS: f64 = 175e9;
const COPY_BYTES: f64 = 20e9;

/// Batches that the reader makes ahead.
pub const LOADER_SLOTS: u64 = 3;
/// Bytes outside the arena of a GPU that is not in the table.
const UNKNOWN_CONTEXT: u64 = 600 << 20;
const CONTEXT: &str = "CUDA context, kernels and libraries";
/// Stack that a worker, the reader or the reporter touches.
const STACK: u64 = 256 << 10;
/// Heap of the command itself once it runs: tokenizer, tables of names, output buffers.
const HEAP: u64 = 16 << 20;

impl Machine {
    /// The machine that `config` runs on or, with `gpu`, is planned for.
    ///
    /// # Errors
    /// A device that does not exist; a GPU that has no such precision.
    pub fn of(config: &Config) -> Result<Machine, ConfigError> {
        let mut machine = Machine::here(config.threads);
        if let Device::Cuda(number) = config.device()? {
            let there = gpus().into_iter().nth(number as usize);
            machine.gpu_bytes = there.as_ref().map(|gpu| gpu.bytes);
            if let Some(gpu) = config.gpu.as_deref().and_then(Gpu::find)
                && config.precision == Precision::Fp8
                && !gpu.multiplies_eighths()
            {
                return Err(ConfigError(format!(
                    "--precision fp8: the {} multiplies no 8-bit floats; use --precision bf16",
                    gpu.name
                )));
            }
            machine.gpu = match &config.gpu {
                Some(name) => Gpu::find(name),
                None => there.and_then(|gpu| Gpu::named(&gpu.name)),
            };
            // A roofline needs a scale: that of the GPU that was measured where this one is not known.
            let known = machine.gpu.or(Gpu::find("h200"));
            machine.rates = known.map_or(machine.rates, |gpu| gpu.rates(config.precision));
        }
        Ok(machine)
    }

    /// This machine's processors and memory.
    pub fn here(threads: u32) -> Machine {
        let cores = CORE_FLOPS * f64::from(threads);
        Machine {
            rates: Rates { flops_per_s: cores, flops_8bit_per_s: cores, bytes_per_s: COPY_BYTES },
            free: Free::here(),
            held: memory::resident().unwrap_or(0),
            gpu: None,
            gpu_bytes: None,
        }
    }

    /// What lies outside the arena of this run, each with its name.
    pub fn outside(&self, config: &Config, programs: u64) -> Vec<Outside> {
        let line = |name: &str, bytes| Outside { name: name.to_owned(), bytes };
        if let Some(gpu) = self.gpu.or_else(|| config.gpu.as_deref().and_then(Gpu::find)) {
            return vec![line(CONTEXT, gpu.context)];
        }
        if self.gpu_bytes.is_some() || config.device.starts_with("cuda") {
            return vec![line(CONTEXT, UNKNOWN_CONTEXT)];
        }
        let encoders = ahead::threads(config);
        // Tokens, targets and offsets.
        let batch = 12 * config.stages().iter().map(Stage::micro_tokens).max().unwrap_or(0);
        let block = config.span().map_or(0, |span| 12 * largest_block(&config.stages(), span));
        let mut lines = vec![
            line("the program itself", memory::mapped() + HEAP),
            line("the reader's batches", LOADER_SLOTS * batch + block + (1 << 20)),
            line("thread stacks", STACK * (u64::from(config.threads) + 3 + u64::from(encoders))),
            line("recorded operations", programs),
        ];
        if encoders > 0 {
            lines.push(line("documents encoded ahead, at most", ahead::bytes(encoders)));
        }
        if config.order == Order::Pool {
            let grain = config.stretches().iter().map(|s| s.length).max().unwrap_or(1);
            lines.push(line("pool of sequences, at most", pool::memory(config.pool, config.vocab_size(), grain)));
        }
        if let Ok(Some(shards)) = Manifest::read(Path::new(&config.data)) {
            lines.push(line("index of the token shards", training::bytes(shards.documents)));
        }
        if config.shuffle > 0 && config.order != Order::Random {
            lines.push(line("documents to shuffle, at most", shuffle::bytes(config.shuffle)));
        }
        lines
    }

    /// Refuses a pool that main memory does not hold, whose bytes a GPU's budget does not count.
    ///
    /// # Errors
    /// It is larger than what is free here.
    pub fn require_pool(&self, config: &Config) -> Result<(), ConfigError> {
        match self.free.filter(|free| config.order == Order::Pool && config.pool > free.bytes) {
            None => Ok(()),
            Some(free) => Err(ConfigError(format!(
                "--pool {}: {} of memory are free here; lower it, or keep the tokens with --cache DIR",
                human_bytes(config.pool),
                human_bytes(free.bytes)
            ))),
        }
    }

    /// The budget, where one is known, and where it comes from or why none is known.
    ///
    /// # Errors
    /// A GPU that is not in the table and no size either.
    pub fn budget(&self, config: &Config) -> Result<(Option<u64>, String), ConfigError> {
        if let Some(bytes) = config.budget {
            return Ok((Some(bytes), "--budget".to_owned()));
        }
        if let Some(name) = &config.gpu {
            let Some(gpu) = Gpu::find(name) else {
                if let Ok(ByteSize(bytes)) = name.parse() {
                    return Ok((Some(bytes), format!("--gpu {name}")));
                }
                let known: Vec<_> = gpu::GPUS.iter().map(|c| c.name).collect();
                let known = known.join(", ");
                return Err(ConfigError(format!(
                    "no GPU is called '{name}'; there are {known}, or a size such as 22GiB"
                )));
            };
            let source = if gpu.measured { "measured" } else { "not measured" };
            return Ok((Some(gpu.usable), format!("--gpu {name}, {source}")));
        }
        if config.device.starts_with("cuda") {
            return Ok(match self.gpu_bytes {
                Some(bytes) => (Some(bytes), format!("all of {}", config.device)),
                None => (None, "no GPU here; name one with --gpu, or give a --budget".to_owned()),
            });
        }
        Ok(match self.free {
            Some(free) => (Some(free.bytes + self.held), free.source().to_owned()),
            None => (None, "this system does not say how much memory is free; give a --budget".to_owned()),
        })
    }
}
