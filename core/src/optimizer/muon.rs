//! Muon (Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks): a matrix is updated by its
//! momentum with all singular values made about equal. It updates whole matrices; vectors and tables need another rule.

use super::Group;
use super::rule::{Constants, State, Update};

/// The constants of Muon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Muon {
    /// μ, after the first [`Muon::WARMUP`] updates.
    pub momentum: f32,
    /// Whether decay applies only to weights that the update moves towards 0.
    pub cautious: bool,
    /// Whether the rows of an update are normalised (NorMuon, Li et al. 2025): see
    /// [`RowFactors`](crate::ops::RowFactors).
    pub row_norm: bool,
}

impl Muon {
    /// The number of updates during which μ rises linearly.
    pub const WARMUP: u64 = 300;
    /// The amount by which μ is lower at the first update.
    const LESS: f32 = 0.1;
}

impl Update for Muon {
    const NAME: &'static str = "muon";
    const TAKES: &'static [&'static str] = &["muon_momentum"];
    const WHOLE: &'static [Group] = &[Group::Matrix];
    /// Jordan's learning rate is 0.02 where AdamW's is 0.001.
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
