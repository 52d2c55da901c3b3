//! Runs a step without arithmetic: checks its operations and counts their costs.

use super::{Device, Op, OperationError, Profile, check};

/// The speeds that define a roofline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Floating-point operations a second that matrix multiplications reach.
    pub flops_per_s: f64,
    /// Operations a second that 8-bit matrix multiplications reach.
    pub flops_8bit_per_s: f64,
    /// Bytes a second that a copy reads and writes.
    pub bytes_per_s: f64,
}

impl Rates {
    /// All rates are 1, for when times do not matter.
    pub const ONE: Rates = Rates { flops_per_s: 1.0, flops_8bit_per_s: 1.0, bytes_per_s: 1.0 };

    /// Seconds of `flops` operations, of which `flops_8bit` are 8-bit, or of `bytes` of traffic, whichever takes
    /// longer.
    pub fn seconds(&self, flops: u64, flops_8bit: u64, bytes: u64) -> f64 {
        let wide = (flops - flops_8bit) as f64 / self.flops_per_s;
        (wide + flops_8bit as f64 / self.flops_8bit_per_s).max(bytes as f64 / self.bytes_per_s)
    }
}

/// Counts floating-point operations, bytes and scratch of the operations that it runs.
pub struct Meter<'p> {
    profile: &'p dyn Profile,
    rates: Rates,
    /// Operations run.
    pub operations: u64,
    /// Floating-point operations of the matrix multiplications.
    pub flops: u64,
    /// Bytes of operands, each read or written once: the minimal traffic.
    pub bytes: u64,
    /// Bytes sent to other ranks.
    pub sent: u64,
    /// The number of messages to other ranks.
    pub messages: u64,
    /// The largest scratch of any operation, in bytes.
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
