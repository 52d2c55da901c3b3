//! The state of the averages of a run's weights. It is part of the run's state in a checkpoint.

use capful_core::train::Averaging;
use serde::{Deserialize, Serialize};

/// Which weights the averages contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Averaged {
    /// The kind of average.
    pub kind: AverageKind,
    /// The number of steps in the average, never 0.
    pub steps: u64,
}

/// How weights are averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AverageKind {
    /// By an exponential moving average.
    Ema,
    /// By the mean of the last steps.
    Mean,
}

impl AverageKind {
    /// The kind of `averaging`.
    pub fn of(averaging: &Averaging) -> AverageKind {
        match averaging {
            Averaging::Exponential(_) => AverageKind::Ema,
            Averaging::Last { .. } => AverageKind::Mean,
        }
    }
}

impl Averaged {
    /// For the step after `step` others, where `averaged` is the state before it: the factor of the step's weights, and
    /// the state after it.
    pub fn next(averaging: &Averaging, step: u64, averaged: Option<Averaged>) -> (f32, Option<Averaged>) {
        let (factor, steps) = averaging.next(step, averaged.map_or(0, |averaged| averaged.steps));
        (factor, (steps > 0).then_some(Averaged { kind: AverageKind::of(averaging), steps }))
    }
}
