//! The properties of this machine: speeds for the roofline, free memory, the budget.

use capful_base::human_bytes;
use capful_core::device::Rates;

use super::memory::{self, Free};
use super::{Gpu, Outside, Plan, gpu, outside};
use crate::config::{ByteSize, Config, ConfigError, Device, FoundSource, Order, Precision};
use crate::data::found;
use crate::device::cuda::gpus;

/// The planner's view of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Speeds.
    pub rates: Rates,
    /// The free memory, if the system tells.
    pub free: Option<Free>,
    /// Bytes that this process already uses.
    pub held: u64,
    /// Bytes of the program itself and its libraries.
    pub mapped: u64,
    /// The GPU of the run, if it is known.
    pub gpu: Option<&'static Gpu>,
    /// Bytes of the GPU in this machine on which the run will be.
    pub gpu_bytes: Option<u64>,
    /// The information about the run's data on disk.
    pub source: FoundSource,
    /// Bytes of a page that is served during the run; 0 without such a page.
    pub live: u64,
}

/// The speed of matrix multiplication of a core with wide vectors, in FLOP a second; two such cores share the copy rate
/// below. Round figures for current server cores: a roofline needs a scale; `host bench` measures real speeds.
const CORE_FLOPS: f64 = 175e9;
const COPY_BYTES: f64 = 20e9;

/// Bytes outside the arena for a GPU that is not in the table.
const UNKNOWN_CONTEXT: u64 = 600 << 20;

impl Machine {
    /// The machine that `config` runs on or, with the key `gpu`, is planned for.
    ///
    /// # Errors
    /// A device that does not exist; a GPU that does not support the precision.
    pub fn of(config: &Config) -> Result<Machine, ConfigError> {
        Machine::with(config, found::source(config))
    }

    /// The machine, with the information about the data given.
    ///
    /// # Errors
    /// As [`Machine::of`].
    pub fn with(config: &Config, source: FoundSource) -> Result<Machine, ConfigError> {
        let mut machine = Machine { source, ..Machine::here(config.threads) };
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
            // A roofline needs a scale: for an unknown GPU, that of the GPU that was measured.
            let known = machine.gpu.or(Gpu::find("h200"));
            machine.rates = known.map_or(machine.rates, |gpu| gpu.rates(config.precision));
        }
        Ok(machine)
    }

    /// The machine with the current free and used memory.
    #[must_use]
    pub fn now(self) -> Machine {
        Machine { free: Free::here(), held: memory::resident().unwrap_or(0), ..self }
    }

    /// This machine's processors and memory.
    pub fn here(threads: u32) -> Machine {
        let cores = CORE_FLOPS * f64::from(threads);
        Machine {
            rates: Rates { flops_per_s: cores, flops_8bit_per_s: cores, bytes_per_s: COPY_BYTES },
            free: Free::here(),
            held: memory::resident().unwrap_or(0),
            mapped: memory::mapped(),
            gpu: None,
            gpu_bytes: None,
            source: FoundSource::default(),
            live: 0,
        }
    }

    /// The memory outside the arena on the run's GPU; `None` without a GPU.
    pub(super) fn context(&self, config: &Config) -> Option<Outside> {
        let known = self.gpu.or_else(|| config.gpu.as_deref().and_then(Gpu::find)).map(|gpu| gpu.context);
        let there = self.gpu_bytes.is_some() || config.device.starts_with("cuda");
        let bytes = known.or(there.then_some(UNKNOWN_CONTEXT))?;
        Some(Outside { name: "CUDA context, kernels and libraries".to_owned(), bytes })
    }

    /// Bytes that the n-gram baselines may use once the arena is freed: the bytes that the plan reserves for them, or
    /// more if memory is free and no budget forbids it.
    pub fn for_baselines(&self, config: &Config, plan: &Plan) -> u64 {
        let on_cpu = !config.device.starts_with("cuda");
        let free = || self.free.map(|free| free.bytes.saturating_add(self.held));
        let most = config.budget.filter(|_| on_cpu).or_else(free).unwrap_or(0);
        let with = plan.moments.last().map_or(0, |moment| moment.bytes);
        most.saturating_sub(with - plan.baseline_bytes.min(with)).max(plan.baseline_bytes)
    }

    /// Refuses an allocation of a command without training if it exceeds the free memory. If the free memory is
    /// unknown, nothing is refused.
    ///
    /// # Errors
    /// Names the consumer, its bytes, the free bytes, and advice.
    pub fn require_room(&self, what: &str, needed: u64, advice: &str) -> Result<(), ConfigError> {
        match self.free.filter(|free| needed > free.bytes) {
            None => Ok(()),
            Some(free) => Err(ConfigError(format!(
                "{what} needs {} of main memory and {} are free here; {advice}",
                human_bytes(needed),
                human_bytes(free.bytes)
            ))),
        }
    }

    /// Refuses a run that exceeds main memory in parts that the budget does not count: the main memory of a run on a
    /// GPU, or a pool with too large a budget.
    ///
    /// # Errors
    /// A run that needs more than the free main memory.
    pub fn require_main_memory(&self, config: &Config, plan: &Plan) -> Result<(), ConfigError> {
        let Some(free) = self.free.map(|free| free.bytes.saturating_add(self.held)) else { return Ok(()) };
        let pool = if config.order == Order::Pool { config.pool } else { 0 };
        let needed = if config.device.starts_with("cuda") { plan.main_memory_bytes } else { pool };
        if needed <= free {
            return Ok(());
        }
        let held_out = outside::held_out(config);
        let advice = if pool >= held_out.min(needed / 2) {
            format!("lower --pool {}, or keep the tokens with --cache DIR", human_bytes(pool))
        } else {
            format!("lower --eval-tokens {} or --accumulate {}", config.eval_tokens, config.accumulate)
        };
        Err(ConfigError(format!(
            "this run needs {} of main memory and {} are free here; {advice}",
            human_bytes(needed),
            human_bytes(free)
        )))
    }

    /// The budget, if it is known, and its origin or the reason why it is unknown.
    ///
    /// # Errors
    /// A value that is neither a GPU in the table nor a size.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_free_is_refused_with_both_numbers() {
        let machine =
            |free: Option<u64>| Machine { free: free.map(|bytes| Free { bytes, limited: false }), ..Machine::here(1) };
        let room = |free, needed| machine(free).require_room("this", needed, "do that");
        assert_eq!((room(Some(1 << 30), 1 << 30), room(None, u64::MAX)), (Ok(()), Ok(())));
        let refused = room(Some(1 << 30), 3 << 30).unwrap_err().to_string();
        assert_eq!(refused, "this needs 3.0 GiB of main memory and 1.0 GiB are free here; do that");
    }
}
