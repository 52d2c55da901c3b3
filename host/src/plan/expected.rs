//! The expected time of a step: for each operation its roofline time divided by the share of the roofline that its kind
//! reaches, but at least the time of the smallest operation of its kind.
//!
//! The numbers were fitted to profiles of steps, `host bench --profile`: see docs/performance/prediction.md for the
//! shapes and for the errors on shapes that were left out of the fit.

use capful_core::device::{Device, Op, OperationError, Rates};

use crate::config::{Config, ModelConfig, Precision};

/// The speed of operations of one kind.
#[derive(Debug, Clone, Copy, PartialEq)]
struct KindCost {
    name: &'static str,
    /// Seconds of the smallest operation.
    least: f64,
    /// The share of the roofline that large operations reach. Above 1 if operands come from a cache.
    share: f64,
}

const fn kind(name: &'static str, microseconds: f64, share: f64) -> KindCost {
    KindCost { name, least: microseconds * 1e-6, share }
}

/// On a GPU, in bf16: measured on an H200.
const GPU: &[KindCost] = &[
    kind("adamw", 5.1, 1.00),
    kind("add_values", 3.4, 2.27),
    kind("add_values_grad", 6.7, 1.51),
    kind("attention", 9.1, 0.75),
    kind("attention_grad", 28.6, 0.71),
    kind("blend", 2.5, 1.15),
    kind("blend_grad", 3.1, 1.09),
    kind("embed", 4.8, 1.93),
    kind("embed_grad", 30.0, 1.89),
    kind("head_loss", 107.6, 0.92),
    kind("linear", 4.9, 1.08),
    kind("linear_grad", 11.0, 1.05),
    kind("matrix_momentum", 9.7, 0.88),
    kind("matrix_move", 10.4, 0.80),
    kind("norm", 3.4, 1.02),
    kind("norm_grad", 6.5, 0.88),
    kind("orthogonalise", 130.3, 0.29),
    kind("qk_norm", 4.3, 1.28),
    kind("qk_norm_grad", 12.0, 1.29),
    kind("rotate", 0.7, 1.14),
    kind("row_factors", 5.9, 0.48),
    kind("squared_norm", 10.0, 1.01),
    kind("swiglu", 1.5, 1.02),
    kind("swiglu_grad", 2.0, 1.01),
];
/// Any other kind.
const OTHER: KindCost = kind("", 5.0, 0.8);

/// Number of operations of a kind in a step, and their seconds by the roofline model.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Count {
    name: &'static str,
    operations: f64,
    seconds: f64,
}

/// Counts the operations of a step by kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Tally {
    rates: Rates,
    kinds: Vec<Count>,
}

impl Tally {
    /// An empty tally.
    pub(super) fn new(rates: Rates) -> Tally {
        Tally { rates, kinds: Vec::new() }
    }

    /// Adds the counts of `other`, `times` times.
    pub(super) fn and(mut self, times: u64, other: &Tally) -> Tally {
        for Count { name, operations, seconds } in &other.kinds {
            self.add(name, times as f64 * operations, times as f64 * seconds);
        }
        self
    }

    fn add(&mut self, name: &'static str, operations: f64, seconds: f64) {
        match self.kinds.iter_mut().find(|kind| kind.name == name) {
            Some(kind) => (kind.operations, kind.seconds) = (kind.operations + operations, kind.seconds + seconds),
            None => self.kinds.push(Count { name, operations, seconds }),
        }
    }

    /// The expected seconds of these operations in a step of `config`; `None` if such operations were not measured.
    pub fn seconds(&self, config: &Config) -> Option<f64> {
        let known = kinds(config)?;
        let of = |name| known.iter().find(|kind| kind.name == name).unwrap_or(&OTHER);
        Some(
            self.kinds
                .iter()
                .map(|count| count.operations * of(count.name).least + count.seconds / of(count.name).share)
                .sum(),
        )
    }
}

impl Device for Tally {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        self.add(op.name(), 1.0, self.rates.seconds(op.flops(), op.flops_8bit(), op.traffic()));
        Ok(())
    }
}

/// The measured kinds for the run of `config`; `None` if none were measured.
fn kinds(config: &Config) -> Option<&'static [KindCost]> {
    let transformer = matches!(config.model, ModelConfig::Pythia(_) | ModelConfig::Yxanul(_));
    let gpu = config.device.starts_with("cuda") && config.precision == Precision::Bf16;
    (transformer && gpu && config.ranks == 1).then_some(GPU)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;
    use crate::plan::{Machine, Plan};

    fn planned(text: &str) -> Plan {
        let config = Config::resolve(toml::from_str::<RawConfig>(text).unwrap()).unwrap();
        Plan::of(&config, &Machine::of(&config).unwrap()).unwrap()
    }

    /// Compared with milliseconds of steps measured by `host bench` on an H200.
    #[test]
    fn steps_take_about_what_they_took() {
        let shape = |layers: u32, width: u32, heads: u32, feed: u32, batch: u32, length: u32| {
            format!(
                "preset = 'quick-70m'\nbatch_size = {batch}\nseq_len = {length}\n[model]\nlayers = {layers}\nd_model = {width}\n\
                 heads = {heads}\nd_ff = {feed}"
            )
        };
        let preset = |name: &str| format!("preset = '{name}'");
        for (text, milliseconds, off) in [
            (preset("quick-70m"), 8.39, 0.1),
            (preset("quick-14m"), 2.84, 0.1),
            (preset("quick-160m"), 29.10, 0.1),
            (shape(4, 128, 4, 352, 16, 256), 1.25, 0.3),
            (shape(6, 256, 4, 704, 32, 512), 4.09, 0.1),
            (shape(6, 384, 6, 1056, 16, 1024), 6.27, 0.1),
            (shape(8, 1024, 16, 2816, 8, 512), 18.82, 0.1),
            (preset("pythia-70m") + "\nbatch_size = 32\nseq_len = 512", 5.41, 0.1),
            (preset("pythia-160m") + "\nbatch_size = 8\nseq_len = 2048", 20.87, 0.1),
        ] {
            let plan = planned(&format!("gpu = 'h200'\nprecision = 'bf16'\n{text}"));
            let expected = 1e3 * plan.stages[0].expected_seconds.unwrap();
            assert!((expected / milliseconds - 1.0).abs() < off, "{text}: {expected} ms, not {milliseconds}");
        }
    }

    #[test]
    fn what_was_not_measured_has_no_expectation() {
        for text in ["preset = 'quick-14m'\ngpu = 'h200'", "preset = 'neurogen-4gb'\ngpu = 'h200'\nprecision = 'bf16'"]
        {
            assert_eq!(planned(text).stages[0].expected_seconds, None, "{text}");
        }
    }

    /// Each micro-batch after the first adds the time of its own operations.
    #[test]
    fn every_micro_batch_counts() {
        let seconds = |accumulate: u32| {
            let text = format!("preset = 'quick-14m'\ngpu = 'h200'\nprecision = 'bf16'\naccumulate = {accumulate}");
            planned(&text).stages[0].expected_seconds.unwrap()
        };
        let [one, two, nine] = [1, 2, 9].map(seconds);
        approx::assert_relative_eq!(nine, one + 8.0 * (two - one), max_relative = 1e-9);
        assert!(two < 2.0 * one, "the update is one");
    }
}
