//! Work that waits until one kernel can do it together with what follows.

use super::pointwise::carry::Carries;
use super::product::columns::Waiting;

/// Work that is not queued yet.
pub(super) struct Deferred {
    /// Copies that are recorded together.
    pub copies: Carries,
    /// Sums over rows that are finished together.
    pub sums: Waiting,
}

impl Deferred {
    /// Nothing.
    pub const fn new() -> Deferred {
        Deferred { copies: Carries::new(), sums: Waiting::new() }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.sums.clear();
        self.copies.clear();
    }
}
