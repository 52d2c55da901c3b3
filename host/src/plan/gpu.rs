//! Known GPUs, so that a run can be planned for a GPU that is not in this machine.

use capful_core::device::Rates;

use crate::config::Precision;

/// A GPU's memory and speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpu {
    /// Its name for `--gpu`.
    pub name: &'static str,
    /// A word in the driver's name of such a GPU.
    pub driver: &'static str,
    /// Bytes that a program can use.
    pub usable: u64,
    /// Bytes of context, kernels and libraries outside the arena.
    pub context: u64,
    /// FLOP a second of large matrix multiplications in f32.
    pub f32_flops: f64,
    /// FLOP a second in bf16; the number for f32 if the GPU only stores bf16 and computes in f32.
    pub bf16_flops: f64,
    /// FLOP a second of 8-bit matrix multiplications; the number for bf16 if the GPU has no 8-bit units. Data sheets
    /// promise twice bf16; the H200 reaches 11/7 of bf16, and the same is assumed for the others.
    pub fp8_flops: f64,
    /// Bytes a second of copies, counting both read and written bytes.
    pub copy: f64,
    /// Whether the figures were measured on such a GPU, or taken from its data sheet minus a reserve.
    pub measured: bool,
}

const MIB: u64 = 1 << 20;

/// The table of known GPUs.
#[rustfmt::skip]
pub const GPUS: [Gpu; 15] = [
    Gpu { name: "gtx1650", driver: "GTX 1650", usable: 3717 * MIB, context: 256 * MIB, f32_flops: 2.6e12, bf16_flops: 2.6e12, fp8_flops: 2.6e12, copy: 115e9, measured: false },
    Gpu { name: "t4", driver: "T4", usable: 14_900 * MIB, context: 300 * MIB, f32_flops: 6e12, bf16_flops: 6e12, fp8_flops: 6e12, copy: 270e9, measured: false },
    Gpu { name: "rtx3060", driver: "RTX 3060", usable: 11_800 * MIB, context: 320 * MIB, f32_flops: 9.5e12, bf16_flops: 21e12, fp8_flops: 21e12, copy: 315e9, measured: false },
    Gpu { name: "rtx3090", driver: "RTX 3090", usable: 24_000 * MIB, context: 420 * MIB, f32_flops: 26e12, bf16_flops: 58e12, fp8_flops: 58e12, copy: 820e9, measured: false },
    Gpu { name: "rtx4060", driver: "RTX 4060", usable: 7800 * MIB, context: 320 * MIB, f32_flops: 11e12, bf16_flops: 27e12, fp8_flops: 42e12, copy: 240e9, measured: false },
    Gpu { name: "rtx4070", driver: "RTX 4070", usable: 11_800 * MIB, context: 350 * MIB, f32_flops: 21e12, bf16_flops: 52e12, fp8_flops: 82e12, copy: 445e9, measured: false },
    Gpu { name: "rtx4090", driver: "RTX 4090", usable: 24_080 * MIB, context: 420 * MIB, f32_flops: 60e12, bf16_flops: 150e12, fp8_flops: 235e12, copy: 900e9, measured: false },
    Gpu { name: "rtx5090", driver: "RTX 5090", usable: 31_900 * MIB, context: 500 * MIB, f32_flops: 78e12, bf16_flops: 185e12, fp8_flops: 290e12, copy: 1.58e12, measured: false },
    Gpu { name: "l4", driver: "L4", usable: 22_500 * MIB, context: 350 * MIB, f32_flops: 22e12, bf16_flops: 90e12, fp8_flops: 141e12, copy: 265e9, measured: false },
    Gpu { name: "l40s", driver: "L40S", usable: 45_400 * MIB, context: 450 * MIB, f32_flops: 68e12, bf16_flops: 270e12, fp8_flops: 424e12, copy: 760e9, measured: false },
    Gpu { name: "a10", driver: "A10", usable: 22_500 * MIB, context: 350 * MIB, f32_flops: 23e12, bf16_flops: 95e12, fp8_flops: 95e12, copy: 530e9, measured: false },
    Gpu { name: "a100-80", driver: "A100", usable: 80_500 * MIB, context: 450 * MIB, f32_flops: 18e12, bf16_flops: 250e12, fp8_flops: 250e12, copy: 1.7e12, measured: false },
    Gpu { name: "h100", driver: "H100", usable: 80_500 * MIB, context: 576 * MIB, f32_flops: 50e12, bf16_flops: 650e12, fp8_flops: 1020e12, copy: 2.9e12, measured: false },
    Gpu { name: "h200", driver: "H200", usable: 142_300 * MIB, context: 576 * MIB, f32_flops: 50e12, bf16_flops: 700e12, fp8_flops: 1100e12, copy: 4.2e12, measured: true },
    Gpu { name: "b200", driver: "B200", usable: 180_000 * MIB, context: 576 * MIB, f32_flops: 55e12, bf16_flops: 1500e12, fp8_flops: 2357e12, copy: 6.9e12, measured: false },
];

impl Gpu {
    /// The GPU called `name`.
    pub fn find(name: &str) -> Option<&'static Gpu> {
        GPUS.iter().find(|gpu| gpu.name == name)
    }

    /// The GPU with the driver's name `name`.
    pub fn named(name: &str) -> Option<&'static Gpu> {
        // An L40S is not an L4, and an A100 is not an A10.
        let word =
            |gpu: &&Gpu| name.split(gpu.driver).nth(1).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
        GPUS.iter().find(word)
    }

    /// Whether it has units for 8-bit matrix multiplication.
    pub fn multiplies_eighths(&self) -> bool {
        self.fp8_flops > self.bf16_flops
    }

    /// Speeds for the roofline.
    pub fn rates(&self, precision: Precision) -> Rates {
        let flops_per_s = if precision == Precision::F32 { self.f32_flops } else { self.bf16_flops };
        Rates { flops_per_s, flops_8bit_per_s: self.fp8_flops, bytes_per_s: self.copy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_names_are_of_one_gpu_each() {
        for (name, expected) in [
            ("NVIDIA H200", Some("h200")),
            ("NVIDIA A100-SXM4-80GB", Some("a100-80")),
            ("NVIDIA A10", Some("a10")),
            ("NVIDIA L40S", Some("l40s")),
            ("NVIDIA L4", Some("l4")),
            ("Tesla T4", Some("t4")),
            ("NVIDIA T400 4GB", None),
            ("NVIDIA L40", None),
            ("NVIDIA GeForce RTX 4060", Some("rtx4060")),
        ] {
            assert_eq!(Gpu::named(name).map(|gpu| gpu.name), expected, "{name}");
        }
        for (i, gpu) in GPUS.iter().enumerate() {
            assert!(GPUS[..i].iter().all(|other| other.name != gpu.name && other.driver != gpu.driver), "{}", gpu.name);
            assert!(gpu.fp8_flops >= gpu.bf16_flops && gpu.bf16_flops >= gpu.f32_flops, "{}", gpu.name);
        }
    }
}
