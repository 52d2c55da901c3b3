//! Whether a plan fits, decided before anything is allocated.

/// How many bytes a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The limit in bytes.
    pub bytes: u64,
}

/// The error of a plan that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// Bytes that the plan needs: the arena and the memory outside it.
    pub needed: u64,
    /// Bytes that the budget allows.
    pub allowed: u64,
}

impl Budget {
    /// Whether an arena of `arena` bytes fits together with `outside` bytes that lie outside it.
    ///
    /// # Errors
    /// [`Excess`] with both figures when they do not; a sum beyond 64 bits does not fit either.
    pub fn check(&self, arena: u64, outside: u64) -> Result<(), Excess> {
        let needed = arena.saturating_add(outside);
        if needed <= self.bytes && needed != u64::MAX { Ok(()) } else { Err(Excess { needed, allowed: self.bytes }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_fits_and_one_more_does_not() {
        let budget = Budget { bytes: 1000 };
        assert_eq!(budget.check(900, 100), Ok(()));
        assert_eq!(budget.check(901, 100), Err(Excess { needed: 1001, allowed: 1000 }));
        assert!(Budget { bytes: u64::MAX }.check(u64::MAX, 1).is_err());
    }
}
