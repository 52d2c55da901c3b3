//! The recorded programs in text form: each operation with its operands, bytes, floating-point operations and roofline
//! time.

use capful_base::human_bytes;
use std::fmt::Write as _;

use capful_core::device::{self, Access, Device as _, Meter, Op, Rates};
use capful_core::memory::Region;
use serde::Serialize;

use super::profile::profile;
use super::{Laid, Line, Sequence};
use crate::config::{Config, ConfigError};
use crate::device::AnyProfile;

/// An operand of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operand {
    /// Its name in the operation.
    pub operand: &'static str,
    /// The region that contains it, by its name in the ledger, with the layer's number in place of `*`, or after a name
    /// without `*`: `layers.x[2]`.
    pub name: String,
    /// read, write or update.
    pub access: &'static str,
    /// Element type.
    pub dtype: &'static str,
    /// Shape of the used part.
    pub shape: [u32; 4],
    /// First byte in the arena.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// An operation and its cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Operation {
    /// Its name.
    pub operation: &'static str,
    /// Its operands, in its own order.
    pub operands: Vec<Operand>,
    /// Bytes of its operands, counted twice if they are updated: the minimum memory traffic.
    pub bytes: u64,
    /// Floating-point operations of matrix multiplications.
    pub flops: u64,
    /// Seconds by the roofline model.
    pub seconds: f64,
}

/// A program: the operations of one sequence, in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Program {
    /// Its purpose.
    pub program: String,
    /// Its operations.
    pub operations: Vec<Operation>,
}

/// The purpose of a sequence, for people, and the section of the arena that it uses.
fn described(sequence: Sequence, stages: usize) -> (String, Option<String>) {
    match sequence {
        Sequence::MicroBatch { stage, first, warming } => {
            let section = if stages == 1 { "training".to_owned() } else { format!("stage {}", stage + 1) };
            let which = if first { "the step's first" } else { "each further" };
            let warming = if warming { ", while scales are learnt" } else { "" };
            (format!("{section}: {which} micro-batch{warming}"), Some(section))
        }
        Sequence::Update => ("update".to_owned(), Some("update".to_owned())),
        Sequence::Exchange => ("exchange of weights and averages".to_owned(), Some("update".to_owned())),
        Sequence::Evaluate => ("evaluation".to_owned(), Some("evaluation".to_owned())),
        Sequence::Logits { chunk } => (format!("logits of chunk {chunk}"), Some("evaluation".to_owned())),
        Sequence::Decode => ("one more token".to_owned(), Some("decoding".to_owned())),
        Sequence::Continue => ("one more token, and the most likely after it".to_owned(), Some("decoding".to_owned())),
        Sequence::Sample => ("one more token, and one drawn after it".to_owned(), Some("decoding".to_owned())),
    }
}

/// The ledger's name for the region that contains `region`. Sections share memory: only `section` and the persistent
/// regions are considered.
fn named(lines: &[&Line], section: Option<&str>, region: Region) -> String {
    let holds = |line: &&&Line| {
        let here = line.section.is_none() || line.section.as_deref() == section;
        here && line.layer_of(region.offset).is_some()
    };
    let Some(line) = lines.iter().find(holds) else { return "?".to_owned() };
    let layer = line.layer_of(region.offset).unwrap_or(0);
    match line.name.contains('*') {
        false if line.layers > 1 => format!("{}[{layer}]", line.name),
        true if line.in_turn => line.name.clone(),
        _ => line.name.replace('*', &layer.to_string()),
    }
}

fn operation(op: &Op, name: &dyn Fn(Region) -> String, profile: &AnyProfile, rates: Rates) -> Operation {
    let mut operands = Vec::new();
    op.operands(&mut |device::Operand { name: operand, region, access, .. }| {
        let access = match access {
            Access::Read => "read",
            Access::Write => "write",
            Access::Update => "update",
        };
        let Region { dtype, shape, offset, .. } = region;
        operands.push(Operand {
            operand,
            name: name(region),
            access,
            dtype: dtype.name(),
            shape,
            offset,
            bytes: region.bytes(),
        });
    });
    let mut meter = Meter::new(profile, rates);
    // The operation was run on a meter when it was laid out.
    let _ = meter.run(op);
    let Meter { bytes, flops, seconds, .. } = meter;
    Operation { operation: op.name(), operands, bytes, flops, seconds }
}

/// The recorded operations of one sequence in text form; empty if it was not recorded.
pub fn operations(laid: &Laid, sequence: Sequence, profile: &AnyProfile, rates: Rates) -> Vec<Operation> {
    let lines: Vec<&Line> = laid.lines.iter().chain(&laid.overlays).collect();
    let (_, section) = described(sequence, laid.sections.training.len());
    let name = |region| named(&lines, section.as_deref(), region);
    let ops = laid.programs.get(sequence).unwrap_or_default();
    ops.iter().map(|op| operation(op, &name, profile, rates)).collect()
}

/// Every program of the run of `config`.
///
/// # Errors
/// A device that does not exist; a step that its operations refuse.
pub fn programs(config: &Config, laid: Laid, rates: Rates) -> Result<Vec<Program>, ConfigError> {
    let profile = profile(config)?;
    let laid = laid.recorded(&config.family(), &profile)?;
    let program = |(sequence, _): (Sequence, &[Op])| {
        let (program, _) = described(sequence, laid.sections.training.len());
        Program { program, operations: operations(&laid, sequence, &profile, rates) }
    };
    Ok(laid.programs.iter().map(program).collect())
}

/// The programs as a table for people.
pub fn table(programs: &[Program]) -> String {
    let mut out = String::new();
    for Program { program, operations } in programs {
        let total = |of: fn(&Operation) -> u64| operations.iter().map(of).sum::<u64>();
        let milliseconds = operations.iter().map(|o| o.seconds).sum::<f64>() * 1e3;
        let (count, gflops) = (operations.len(), total(|o| o.flops) as f64 / 1e9);
        let bytes = human_bytes(total(|o| o.bytes));
        let _ =
            writeln!(out, "{program}: {count} operations, {bytes}, {gflops:.3} GFLOP, at best {milliseconds:.3} ms");
        for (number, o) in operations.iter().enumerate() {
            let shown = |operand: &Operand| {
                let first = operand.shape.iter().position(|&n| n != 1).unwrap_or(3);
                let dims: Vec<_> = operand.shape[first..].iter().map(u32::to_string).collect();
                let Operand { operand, name, access, dtype, .. } = operand;
                format!("{access} {operand}: {name} {dtype}[{}]", dims.join(", "))
            };
            let operands: Vec<_> = o.operands.iter().map(shown).collect();
            let (bytes, flops, micros) = (o.bytes, o.flops, o.seconds * 1e6);
            let _ = writeln!(out, "  {number:>5} {:<16} {bytes:>13} B {flops:>15} FLOP {micros:>10.2} µs", o.operation);
            let _ = writeln!(out, "        {}", operands.join("; "));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;
    use crate::plan::{Machine, Plan};

    #[test]
    fn every_operand_has_the_name_of_a_region_that_holds_it_and_sums_are_the_plan_s() {
        let zero = |zero| format!("accumulate = 2\nzero = {zero}");
        for (preset, more, ranks) in [
            ("pythia-tiny", String::new(), 1),
            ("yxanul-tiny", String::new(), 1),
            ("neurogen-tiny", String::new(), 1),
            ("pythia-tiny", zero(1), 2),
            ("pythia-tiny", zero(2), 2),
            ("yxanul-tiny", zero(2), 2),
        ] {
            let raw = toml::from_str(&format!("preset = '{preset}'\nseq_len = 32\n{more}")).unwrap();
            let config = Config::resolve(RawConfig { ranks: Some(ranks), ..raw }).unwrap();
            let machine = Machine::of(&config).unwrap();
            let (plan, laid) = Plan::new(&config, &machine).unwrap();
            let known: Vec<String> = laid.lines.iter().chain(&laid.overlays).map(|l| l.name.clone()).collect();
            let programs = programs(&config, laid, machine.rates).unwrap();
            for operand in programs.iter().flat_map(|p| &p.operations).flat_map(|o| &o.operands) {
                let name = operand.name.split('[').next().unwrap_or_default();
                let part = |part: &str| if part.parse::<u32>().is_ok() { "*".to_owned() } else { part.to_owned() };
                let pattern = name.split('.').map(part).collect::<Vec<_>>().join(".");
                assert!(known.iter().any(|k| *k == name || *k == pattern), "{preset}: {operand:?}");
            }
            // A layer's gradient has the name of its weight; ranks that share gradients have one region for all layers.
            let gradients = programs.iter().flat_map(|p| &p.operations).filter(|o| o.operation == "linear_grad");
            for o in gradients.filter(|_| !preset.starts_with("neurogen")) {
                let called = |name| o.operands.iter().find(|operand| operand.operand == name).map(|o| o.name.clone());
                let (Some(weight), Some(gradient)) = (called("weight"), called("weight_grad")) else { continue };
                let layer = (0..16).find(|l| weight.contains(&format!(".{l}."))).filter(|_| config.zero == 2);
                let weight = layer.map_or(weight.clone(), |l| weight.replace(&format!(".{l}."), ".*."));
                assert_eq!(gradient, format!("gradient.{weight}"), "{preset}, {ranks} ranks");
            }
            let step = programs.iter().filter(|p| p.program.starts_with("training") || p.program == "update");
            let (mut flops, mut bytes, mut operations) = (0, 0, 0);
            for o in step.flat_map(|p| &p.operations) {
                (flops, bytes, operations) = (flops + o.flops, bytes + o.bytes, operations + 1);
            }
            assert_eq!(
                (flops, bytes, operations),
                (plan.flops_per_step, plan.bytes_per_step, plan.operations_per_step)
            );
            assert!(table(&programs).lines().count() > 2 * operations as usize);
        }
    }
}
