//! The times of a step's operations in the order they ran, and their sums by kind.

use capful_base::human_bytes;
use std::fmt::Write as _;

use serde::Serialize;

use crate::plan::listing::{self, Operand};

/// An operation of a step, as it ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timed {
    /// The operation.
    pub operation: &'static str,
    /// The part of the step that it belongs to: a micro-batch or the update.
    pub part: String,
    /// Its number in that part's program, as `host plan --program` counts.
    pub number: usize,
    /// Its operands, in its own order.
    pub operands: Vec<Operand>,
    /// Bytes of its operands; bytes that are read and written count twice.
    pub bytes: u64,
    /// Floating-point operations of matrix multiplications.
    pub flops: u64,
    /// Seconds by the roofline model.
    pub roofline_seconds: f64,
    /// Seconds of the operations before it in the step.
    pub start_seconds: f64,
    /// Seconds from the end of the operation before it to its own end.
    pub seconds: f64,
    /// Its share of the operations' time.
    pub share: f64,
}

/// All operations of a kind in a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Total {
    /// The operation.
    pub operation: &'static str,
    /// How often it ran.
    pub count: u64,
    /// Operand bytes together.
    pub bytes: u64,
    /// Floating-point operations together.
    pub flops: u64,
    /// Seconds by the roofline model together.
    pub roofline_seconds: f64,
    /// Seconds together.
    pub seconds: f64,
    /// Their share of the operations' time.
    pub share: f64,
}

/// A step, operation by operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Profile {
    /// Seconds of all operations.
    pub seconds: f64,
    /// Sums by kind, the longest first.
    pub totals: Vec<Total>,
    /// Each operation, in the order they ran.
    pub operations: Vec<Timed>,
}

/// Number of operations in the table; JSON has all.
const SHOWN: usize = 40;

impl Profile {
    /// A profile of the parts of a step: the name of each, its operations and their seconds.
    pub fn new(parts: impl Iterator<Item = (String, Vec<listing::Operation>, Vec<f64>)>) -> Profile {
        let mut operations = Vec::new();
        let mut start_seconds = 0.0;
        for (part, listed, seconds) in parts {
            for ((number, o), seconds) in listed.into_iter().enumerate().zip(seconds) {
                operations.push(Timed {
                    operation: o.operation,
                    part: part.clone(),
                    number,
                    operands: o.operands,
                    bytes: o.bytes,
                    flops: o.flops,
                    roofline_seconds: o.seconds,
                    start_seconds,
                    seconds,
                    share: 0.0,
                });
                start_seconds += seconds;
            }
        }
        let seconds = start_seconds;
        let mut totals: Vec<Total> = Vec::new();
        for o in &mut operations {
            o.share = o.seconds / seconds;
            let at = totals.iter().position(|t| t.operation == o.operation).unwrap_or_else(|| {
                let (operation, roofline_seconds) = (o.operation, 0.0);
                totals.push(Total {
                    operation,
                    count: 0,
                    bytes: 0,
                    flops: 0,
                    roofline_seconds,
                    seconds: 0.0,
                    share: 0.0,
                });
                totals.len() - 1
            });
            let total = &mut totals[at];
            total.count += 1;
            total.bytes += o.bytes;
            total.flops += o.flops;
            total.roofline_seconds += o.roofline_seconds;
            total.seconds += o.seconds;
            total.share += o.share;
        }
        totals.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Profile { seconds, totals, operations }
    }

    /// The table for people, with the time of a step without profiling.
    pub fn table(&self, step_seconds: f64) -> String {
        let mut out = format!(
            "profile of a step: {} operations take {:.3} ms together, {:.1} % of a step that is not profiled\n",
            self.operations.len(),
            self.seconds * 1e3,
            100.0 * self.seconds / step_seconds
        );
        let head = ["ms", "share", "roofline", "GFLOP/s", "GB/s"].map(|name| format!("{name:>10}")).concat();
        let _ = writeln!(out, "  {:<22}{:>6}{head}", "by kind", "count");
        for t in &self.totals {
            let numbers = numbers(t.seconds, t.share, t.roofline_seconds, [t.flops, t.bytes]);
            let _ = writeln!(out, "  {:<22}{:>6}{numbers}", t.operation, t.count);
        }
        let sum = |of: fn(&Total) -> u64| self.totals.iter().map(of).sum::<u64>();
        let roofline = self.totals.iter().map(|t| t.roofline_seconds).sum();
        let all = numbers(self.seconds, 1.0, roofline, [sum(|t| t.flops), sum(|t| t.bytes)]);
        let _ = writeln!(out, "  {:<22}{:>6}{all}", "all", self.operations.len());
        let mut longest: Vec<&Timed> = self.operations.iter().collect();
        longest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let left = longest.len().saturating_sub(SHOWN);
        let _ = writeln!(out, "  {:<22}{:>6}{head}  bytes, what it writes", "each", "number");
        for o in longest.into_iter().take(SHOWN) {
            let numbers = numbers(o.seconds, o.share, o.roofline_seconds, [o.flops, o.bytes]);
            let written: Vec<_> = o.operands.iter().filter(|o| o.access != "read").map(|o| o.name.as_str()).collect();
            let (bytes, written) = (human_bytes(o.bytes), written.join(", "));
            let _ = writeln!(out, "  {:<22}{:>6}{numbers}  {bytes}, {written} ({})", o.operation, o.number, o.part);
        }
        if left > 0 {
            let _ = writeln!(out, "  {left} shorter ones: --json and --trace have them");
        }
        out
    }
}

/// Columns of the table. An operation without measurable time has no rate.
fn numbers(seconds: f64, share: f64, roofline: f64, [flops, bytes]: [u64; 2]) -> String {
    let rate = |n: u64| if seconds > 0.0 { format!("{:.1}", n as f64 / seconds / 1e9) } else { "-".to_owned() };
    let share = format!("{:.1} %", 100.0 * share);
    format!("{:>10.3}{share:>10}{:>10.3}{:>10}{:>10}", seconds * 1e3, roofline * 1e3, rate(flops), rate(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(operation: &'static str, bytes: u64) -> listing::Operation {
        listing::Operation { operation, operands: Vec::new(), bytes, flops: 2 * bytes, seconds: bytes as f64 }
    }

    #[test]
    fn totals_are_the_sums_of_what_ran_and_come_longest_first() {
        let parts = [
            (
                "micro-batch 1".to_owned(),
                vec![listed("norm", 1), listed("linear", 2), listed("norm", 4)],
                vec![1.0, 5.0, 2.0],
            ),
            ("update".to_owned(), vec![listed("adamw", 8)], vec![0.0]),
        ];
        let profile = Profile::new(parts.into_iter());
        let totals: Vec<_> =
            profile.totals.iter().map(|t| (t.operation, t.count, t.bytes, t.flops, t.seconds)).collect();
        assert_eq!(totals, [("linear", 1, 2, 4, 5.0), ("norm", 2, 5, 10, 3.0), ("adamw", 1, 8, 16, 0.0)]);
        let starts: Vec<_> = profile.operations.iter().map(|o| (o.start_seconds, o.number, o.share)).collect();
        assert_eq!(starts, [(0.0, 0, 0.125), (1.0, 1, 0.625), (6.0, 2, 0.25), (8.0, 0, 0.0)]);
        let table = profile.table(10.0);
        assert!(table.contains("4 operations take 8000.000 ms together, 80.0 %"), "{table}");
        assert!(table.lines().any(|l| l.contains("adamw") && l.contains('-')), "{table}");
        assert!(!table.contains("shorter"), "{table}");
        assert!(Profile::new(std::iter::empty()).table(1.0).starts_with("profile of a step: 0"));
    }
}
