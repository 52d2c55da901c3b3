//! `host doctor`.

use capful_base::human_bytes;
use serde_json::json;

use super::Failure;
use super::output::say;
use crate::allocations;
use crate::device::cuda::{Description, Gpu, describe};
use crate::plan::memory::Free;

/// Flags of `host doctor`.
#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

/// The instruction sets that the cpu device can use, and whether this machine has them.
fn features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    return vec![
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
    ];
    #[cfg(target_arch = "aarch64")]
    return vec![("neon", std::arch::is_aarch64_feature_detected!("neon"))];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return Vec::new();
}

impl Doctor {
    pub(super) fn run(self) -> Result<(), Failure> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let free = Free::here().map(|free| free.bytes);
        let features = features();
        let cuda = describe();
        if self.json {
            let have: serde_json::Map<_, _> = features.iter().map(|(f, has)| ((*f).to_owned(), json!(has))).collect();
            say!(
                "{}",
                json!({
                    "version": env!("CARGO_PKG_VERSION"), "os": std::env::consts::OS, "arch": std::env::consts::ARCH,
                    "cores": cores, "free_bytes": free, "cpu_features": have,
                    "counts_allocations": allocations::installed(),
                    "devices": { "cpu": "ready", "reference": "ready", "cuda": cuda_json(&cuda) },
                })
            )?;
            return Ok(());
        }
        say!("capful {} on {} {}", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH)?;
        say!("cores      {cores}")?;
        say!("memory     {} free", free.map_or("unknown".to_owned(), human_bytes))?;
        for (feature, has) in &features {
            say!("{feature:<10} {}", if *has { "yes" } else { "no" })?;
        }
        say!(
            "cpu        ready, {}",
            if features.iter().any(|(f, has)| *f == "avx512f" && *has) {
                "512-bit vectors"
            } else if features.iter().any(|(_, has)| *has) {
                "256-bit or 128-bit vectors"
            } else {
                "no vectors found: slow but right"
            }
        )?;
        say!("reference  ready (plain loops, one thread)")?;
        match &cuda.driver {
            Ok((version, library)) => say!("cuda       driver for CUDA {version} ({library})")?,
            Err(why) => say!("cuda       {why}")?,
        }
        for (number, gpu) in cuda.gpus.iter().enumerate() {
            say!("  cuda:{number}   {}", gpu_line(gpu))?;
        }
        say!("  kernels  for {}", cuda.targets)?;
        for missing in cuda.missing.iter().filter(|_| cuda.driver.is_ok()) {
            say!("  {missing}")?;
        }
        Ok(())
    }
}

fn gpu_line(gpu: &Gpu) -> String {
    let (major, minor) = gpu.capability;
    let bf16 = if gpu.bf16 { "multiplies bf16" } else { "keeps bf16 as storage only and computes in f32" };
    let memory = human_bytes(gpu.bytes);
    format!("{}, compute {major}.{minor}, {memory}, {} multiprocessors, {bf16}", gpu.name, gpu.multiprocessors)
}

fn cuda_json(cuda: &Description) -> serde_json::Value {
    let gpus = cuda.gpus.iter().map(|gpu| {
        json!({
            "name": gpu.name, "compute": format!("{}.{}", gpu.capability.0, gpu.capability.1),
            "bytes": gpu.bytes, "multiprocessors": gpu.multiprocessors, "bf16_products": gpu.bf16,
        })
    });
    match &cuda.driver {
        Ok((version, library)) => json!({
            "driver": version, "library": library, "gpus": gpus.collect::<Vec<_>>(), "kernels": cuda.targets,
            "missing": cuda.missing,
        }),
        Err(why) => json!(why),
    }
}
