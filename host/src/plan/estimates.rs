//! The highest possible speed of a run: the plan's counts applied to the machine's roofline. Measured speeds can only
//! be lower.

use capful_core::device::Meter;
use serde::Serialize;

use super::StagePlan;
use crate::config::Link;

/// Speeds by the roofline model, for a step of the last stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimates {
    /// The basis of the numbers, so that no reader mistakes them for measurements.
    pub basis: &'static str,
    /// Seconds of a step.
    pub seconds_per_step: f64,
    /// The part of these seconds in which ranks send gradients and weights to each other, if their link was named: the
    /// part that the backward pass does not hide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_seconds_per_step: Option<f64>,
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// Sequences a second.
    pub sequences_per_s: f64,
    /// Hours of a billion tokens.
    pub hours_per_billion_tokens: f64,
    /// The estimates for generated text, one sequence at a time.
    pub generation: Option<Generation>,
}

/// The cost of generating one more token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Generation {
    /// Positions of the cache, all of which are read for a token.
    pub context: u32,
    /// Floating-point operations of matrix multiplications.
    pub flops_per_token: u64,
    /// Bytes of operands, counted once for each operation.
    pub bytes_per_token: u64,
    /// Tokens a second.
    pub tokens_per_s: f64,
}

impl Estimates {
    /// The estimates for a step, including the time of `link` if it is named.
    pub(super) fn of(stage: &StagePlan, link: Option<Link>, generation: Option<Generation>) -> Estimates {
        let over = link.map(|link| stage.seconds_over_links[link as usize]);
        let seconds = over.unwrap_or(stage.roofline_seconds);
        let tokens_per_s = stage.tokens_per_step as f64 / seconds;
        Estimates {
            basis: "roofline",
            seconds_per_step: seconds,
            // Hidden communication may take longer than the computation that hides it.
            link_seconds_per_step: over.map(|over| (over - stage.roofline_seconds).max(0.0)),
            tokens_per_s,
            sequences_per_s: tokens_per_s / f64::from(stage.seq_len),
            hours_per_billion_tokens: 1e9 / tokens_per_s / 3600.0,
            generation,
        }
    }
}

impl Generation {
    /// The estimates for a token whose operations `meter` has counted.
    pub(super) fn of(context: u32, meter: &Meter<'_>) -> Generation {
        Generation {
            context,
            flops_per_token: meter.flops,
            bytes_per_token: meter.bytes,
            tokens_per_s: 1.0 / meter.seconds,
        }
    }
}
