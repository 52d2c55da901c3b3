//! How fast a run could be: the plan's counts on the machine's roofline. What is measured can only be slower.

use capful_core::device::Meter;
use serde::Serialize;

use super::StagePlan;
use crate::config::Link;

/// Speeds on the roofline, a step's of the last stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimates {
    /// What they rest on, so that no reader takes them for measurements.
    pub basis: &'static str,
    /// Seconds of a step.
    pub seconds_per_step: f64,
    /// Of those, seconds that ranks add by sending each other gradients and weights, where their link was named: what the
    /// backward pass does not hide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_seconds_per_step: Option<f64>,
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// Sequences a second.
    pub sequences_per_s: f64,
    /// Hours of a billion tokens.
    pub hours_per_billion_tokens: f64,
    /// The same of text that is generated, one sequence at a time.
    pub generation: Option<Generation>,
}

/// What one more token costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Generation {
    /// Positions of the cache, all of which a token reads.
    pub context: u32,
    /// Floating-point operations of products.
    pub flops_per_token: u64,
    /// Operand bytes, each once an operation.
    pub bytes_per_token: u64,
    /// Tokens a second.
    pub tokens_per_s: f64,
}

impl Estimates {
    /// Of a step, with the time of `link` where it is named.
    pub(super) fn of(stage: &StagePlan, link: Option<Link>, generation: Option<Generation>) -> Estimates {
        let over = link.map(|link| stage.seconds_over_links[link as usize]);
        let seconds = over.unwrap_or(stage.roofline_seconds);
        let tokens_per_s = stage.tokens_per_step as f64 / seconds;
        Estimates {
            basis: "roofline",
            seconds_per_step: seconds,
            // Sums that are hidden may take longer than what is not.
            link_seconds_per_step: over.map(|over| (over - stage.roofline_seconds).max(0.0)),
            tokens_per_s,
            sequences_per_s: tokens_per_s / f64::from(stage.seq_len),
            hours_per_billion_tokens: 1e9 / tokens_per_s / 3600.0,
            generation,
        }
    }
}

impl Generation {
    /// Of a token whose operations `meter` counted.
    pub(super) fn of(context: u32, meter: &Meter<'_>) -> Generation {
        Generation {
            context,
            flops_per_token: meter.flops,
            bytes_per_token: meter.bytes,
            tokens_per_s: 1.0 / meter.seconds,
        }
    }
}
