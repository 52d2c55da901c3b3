//! Muon (Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks): a matrix moves by its momentum with all
//! singular values made about equal. It moves whole matrices; vectors and tables need another rule.

use super::Group;
use super::rule::{Constants, State, Update};

/// The constants of Muon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Muon {
    /// μ, after the first [`Muon::WARMUP`] updates.
    pub momentum: f32,
    /// Whether decay falls only on weights that move towards 0.
    pub cautious: bool,
    /// Whether rows of an update are normalised (NorMuon, Li et al. 2025): see [`RowFactors`](crate::ops::RowFactors).
    pub row_norm: bool,
}

impl Muon {
    /// Updates in which μ rises, in a straight line.
    pub const WARMUP: u64 = 300;
    /// How much less it is at the first one.
    const LESS: f32 = 0.1;
}

impl Update for Muon {
    const NAME: &'static str = "muon";
    const TAKES: &'static [&'static str] = &["muon_momentum"];
    const WHOLE: &'static [Group] = &[Group::Matrix];
    /// Jordan's 0.02 where AdamW has 0.001.
    const RATE: f32 = 20.0;

    fn of(constants: &Constants) -> Muon {
        Muon { momentum: constants.muon_momentum, cautious: constants.cautious, row_norm: constants.row_norm }
    }

    fn states(&self) -> &'static [State] {
        match self.row_norm {
            true => &[State::Moments("momentum."), State::Rows("row_square.")],
            false => &[State::Moments("momentum.")],
        }
    }

    /// μ of this update.
    fn corrections(&self, step: u64) -> [f32; 2] {
        let left = 1.0 - step.min(Self::WARMUP) as f32 / Self::WARMUP as f32;
        [(self.momentum - Self::LESS * left).max(0.0), 1.0]
    }
}
