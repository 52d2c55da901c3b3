//! Ranks: processes that train one model together, each on micro-batches of its own (data parallelism).

/// A rank among those of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranks {
    /// The number of this rank.
    pub rank: u32,
    /// The number of ranks.
    pub count: u32,
    /// Whether gradients are summed micro-batch by micro-batch, so that their bits do not depend on `count`.
    pub exact: bool,
    /// Whether ranks share gradients as well, not only the optimizer (ZeRO stage 2).
    pub gradients: bool,
}

impl Ranks {
    /// A single process.
    pub const ALONE: Ranks = Ranks { rank: 0, count: 1, exact: false, gradients: false };

    /// Whether gradients are summed outside of a micro-batch, and the optimizer's tables are shared.
    pub const fn shares(&self) -> bool {
        self.count > 1 || self.exact
    }

    /// Whether every micro-batch forms its gradient separately, which is then added to the step's.
    pub const fn each(&self) -> bool {
        self.exact || self.gradients
    }
}
