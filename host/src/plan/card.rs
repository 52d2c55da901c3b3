//! Known cards, so that a run can be planned for one that is not in this machine.

use capful_core::device::Rates;

use crate::config::Precision;

/// A card's memory and speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Card {
    /// The name that `--gpu` takes.
    pub name: &'static str,
    /// What the driver's name of such a card contains.
    pub driver: &'static str,
    /// Bytes a program can use.
    pub usable: u64,
    /// Bytes of context, kernels and libraries outside the arena.
    pub context: u64,
    /// FLOP a second of large products in f32.
    pub f32_flops: f64,
    /// The same in bf16; as f32 where the card keeps bf16 and computes in f32.
    pub bf16_flops: f64,
    /// The same of products of numbers of 8 bits; as bf16 where the card has no units for them. Data sheets say twice
    /// bf16; the H200 reaches 11/7 of it, and the others are taken to.
    pub fp8_flops: f64,
    /// Bytes a second of copies, read and written together.
    pub copy: f64,
    /// Whether the figures were measured on such a card or taken from its data sheet less a reserve.
    pub measured: bool,
}

const MIB: u64 = 1 << 20;

/// The table.
#[rustfmt::skip]
pub const CARDS: [Card; 5] = [
    Card { name: "gtx1650", driver: "GTX 1650", usable: 3717 * MIB, context: 256 * MIB, f32_flops: 2.6e12, bf16_flops: 2.6e12, fp8_flops: 2.6e12, copy: 115e9, measured: false },
    Card { name: "rtx4090", driver: "RTX 4090", usable: 24_080 * MIB, context: 420 * MIB, f32_flops: 60e12, bf16_flops: 150e12, fp8_flops: 235e12, copy: 900e9, measured: false },
    Card { name: "a100-80", driver: "A100", usable: 80_500 * MIB, context: 450 * MIB, f32_flops: 18e12, bf16_flops: 250e12, fp8_flops: 250e12, copy: 1.7e12, measured: false },
    Card { name: "h100", driver: "H100", usable: 80_500 * MIB, context: 560 * MIB, f32_flops: 50e12, bf16_flops: 650e12, fp8_flops: 1020e12, copy: 2.9e12, measured: false },
    Card { name: "h200", driver: "H200", usable: 142_300 * MIB, context: 560 * MIB, f32_flops: 50e12, bf16_flops: 700e12, fp8_flops: 1100e12, copy: 4.2e12, measured: true },
];

impl Card {
    /// The card called `name`.
    pub fn find(name: &str) -> Option<&'static Card> {
        CARDS.iter().find(|card| card.name == name)
    }

    /// The card that the driver calls `name`.
    pub fn named(name: &str) -> Option<&'static Card> {
        CARDS.iter().find(|card| name.contains(card.driver))
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
