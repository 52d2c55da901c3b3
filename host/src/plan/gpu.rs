//! Known GPUs, so that a run can be planned for one that is not in this machine.

use capful_core::device::Rates;

use crate::config::Precision;

/// A GPU's memory and speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpu {
    /// The name that `--gpu` takes.
    pub name: &'static str,
    /// What the driver's name of such a GPU contains.
    pub driver: &'static str,
    /// Bytes a program can use.
    pub usable: u64,
    /// Bytes of context, kernels and libraries outside the arena.
    pub context: u64,
    /// FLOP a second of large products in f32.
    pub f32_flops: f64,
    /// The same in bf16; as f32 where the GPU keeps bf16 and computes in f32.
    pub bf16_flops: f64,
    /// The same of products of numbers of 8 bits; as bf16 where the GPU has no units for them. Data sheets say twice
    /// bf16; the H200 reaches 11/7 of it, and the others are taken to.
    pub fp8_flops: f64,
    /// Bytes a second of copies, read and written together.
    pub copy: f64,
    /// Whether the figures were measured on such a GPU or taken from its data sheet less a reserve.
    pub measured: bool,
}

const MIB: u64 = 1 << 20;

/// The table.
#[rustfmt::skip]
pub const GPUS: [Gpu; 5] = [
    Gpu { name: "gtx1650", driver: "GTX 1650", usable: 3717 * MIB, context: 256 * MIB, f32_flops: 2.6e12, bf16_flops: 2.6e12, fp8_flops: 2.6e12, copy: 115e9, measured: false },
    Gpu { name: "rtx4090", driver: "RTX 4090", usable: 24_080 * MIB, context: 420 * MIB, f32_flops: 60e12, bf16_flops: 150e12, fp8_flops: 235e12, copy: 900e9, measured: false },
    Gpu { name: "a100-80", driver: "A100", usable: 80_500 * MIB, context: 450 * MIB, f32_flops: 18e12, bf16_flops: 250e12, fp8_flops: 250e12, copy: 1.7e12, measured: false },
    Gpu { name: "h100", driver: "H100", usable: 80_500 * MIB, context: 560 * MIB, f32_flops: 50e12, bf16_flops: 650e12, fp8_flops: 1020e12, copy: 2.9e12, measured: false },
    Gpu { name: "h200", driver: "H200", usable: 142_300 * MIB, context: 560 * MIB, f32_flops: 50e12, bf16_flops: 700e12, fp8_flops: 1100e12, copy: 4.2e12, measured: true },
];

impl Gpu {
    /// The GPU called `name`.
    pub fn find(name: &str) -> Option<&'static Gpu> {
        GPUS.iter().find(|gpu| gpu.name == name)
    }

    /// The GPU that the driver calls `name`.
    pub fn named(name: &str) -> Option<&'static Gpu> {
        GPUS.iter().find(|gpu| name.contains(gpu.driver))
    }

    /// Whether it has units for products of numbers of 8 bits.
    pub fn multiplies_eighths(&self) -> bool {
        self.fp8_flops > self.bf16_flops
    }

    /// Speeds for the roofline.
    pub fn rates(&self, precision: Precision) -> Rates {
        let flops_per_s = if precision == Precision::F32 { self.f32_flops } else { self.bf16_flops };
        Rates { flops_per_s, flops_8bit_per_s: self.fp8_flops, bytes_per_s: self.copy }
    }
}
