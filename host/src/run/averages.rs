//! What a run knows of the averages of its weights. It is part of where a run stands.

use capful_core::train::Averaging;
use serde::{Deserialize, Serialize};

/// The weights that are in the averages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Averaged {
    /// How they are averaged.
    pub kind: Kind,
    /// Those of so many steps, never 0.
    pub steps: u64,
}

/// How weights are averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// By an exponential moving average.
    Ema,
    /// By the mean of the last steps.
    Mean,
}

impl Kind {
    /// That of `averaging`.
    pub fn of(averaging: &Averaging) -> Kind {
        match averaging {
            Averaging::Exponential(_) => Kind::Ema,
            Averaging::Last { .. } => Kind::Mean,
        }
    }
}

impl Averaged {
    /// Of the step after `step` others, with `averaged` before it: what its weights count for, and what is averaged then.
    pub fn next(averaging: &Averaging, step: u64, averaged: Option<Averaged>) -> (f32, Option<Averaged>) {
        let (factor, steps) = averaging.next(step, averaged.map_or(0, |averaged| averaged.steps));
        (factor, (steps > 0).then_some(Averaged { kind: Kind::of(averaging), steps }))
    }
}
