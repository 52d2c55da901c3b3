//! Runs a step without arithmetic: checks it and counts what it costs.

use super::{Device, Op, OperationError, Profile, check};

/// The speeds that a roofline is drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Floating-point operations a second that matrix products reach.
    pub flops_per_s: f64,
    /// The same of products of numbers of 8 bits.
    pub flops_8bit_per_s: f64,
    /// Bytes a second that a copy reads and writes.
    pub bytes_per_s: f64,
}

impl Rates {
    /// 1 of everything, where the time does not matter.
    pub const ONE: Rates = Rates { flops_per_s: 1.0, flops_8bit_per_s: 1.0, bytes_per_s: 1.0 };

    /// Seconds of `flops`, `flops_8bit` of them of numbers of 8 bits, and `bytes` of traffic beside them: the longer of
    /// both.
    pub fn seconds(&self, flops: u64, flops_8bit: u64, bytes: u64) -> f64 {
        let wide = (flops - flops_8bit) as f64 / self.flops_per_s;
        (wide + flops_8bit as f64 / self.flops_8bit_per_s).max(bytes as f64 / self.bytes_per_s)
    }
}

/// Counts floating-point operations, bytes and scratch of the operations it is given.
pub struct Meter<'p> {
    profile: &'p dyn Profile,
    rates: Rates,
    /// Operations run.
    pub operations: u64,
    /// Floating-point operations of the products.
    pub flops: u64,
    /// Operand bytes, each read or written once: the least traffic.
    pub bytes: u64,
    /// Bytes sent to other ranks.
    pub sent: u64,
    /// Messages that they are sent in.
    pub messages: u64,
    /// The most scratch that one operation wants, in bytes.
    pub scratch: u64,
    /// Seconds on the roofline: for each operation the longer of its arithmetic and its traffic.
    pub seconds: f64,
}

impl<'p> Meter<'p> {
    /// A meter that starts at zero.
    pub fn new(profile: &'p dyn Profile, rates: Rates) -> Self {
        Self { profile, rates, operations: 0, flops: 0, bytes: 0, sent: 0, messages: 0, scratch: 0, seconds: 0.0 }
    }
}

impl Device for Meter<'_> {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        check(op, self.profile)?;
        let (flops, bytes) = (op.flops(), op.traffic());
        let fits = |n: &u64| *n < u64::MAX;
        let sum = |a: u64, b| a.checked_add(b).filter(fits).ok_or(OperationError::TooLarge { operation: op.name() });
        (self.flops, self.bytes) = (sum(self.flops, flops)?, sum(self.bytes, bytes)?);
        let [sent, messages] = op.sent();
        (self.sent, self.messages) = (sum(self.sent, sent)?, sum(self.messages, messages)?);
        self.operations += 1;
        self.scratch = self.scratch.max(self.profile.scratch(op));
        self.seconds += self.rates.seconds(flops, op.flops_8bit(), bytes);
        Ok(())
    }
}
