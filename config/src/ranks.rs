//! The ranks of a run: a launcher determines how many there are, and the number of this rank.

use capful_core::model::Capability;
use capful_core::train::Ranks;

use super::error::error;
use super::{Config, ConfigError};

impl Config {
    /// This rank and the run's number of ranks.
    pub const fn ranks(&self) -> Ranks {
        Ranks { rank: self.rank, count: self.ranks, exact: self.exact_ranks, gradients: self.zero == 2 }
    }

    /// Checks that the run can be shared by its ranks.
    pub(super) fn validate_ranks(&self) -> Result<(), ConfigError> {
        if !matches!(self.zero, 1 | 2) {
            return error(format!(
                "--zero {}: use 1, where ranks share the optimizer state, or 2, where they share gradients too",
                self.zero
            ));
        }
        let ranks = self.ranks();
        if !ranks.shares() {
            return Ok(());
        }
        let why = if ranks.count > 1 { format!("{} ranks", ranks.count) } else { "--exact-ranks".to_owned() };
        if let Some(lacks) = self.family().lacks(Capability::Accumulation) {
            return error(format!("{why}: {lacks}, so one process trains it alone"));
        }
        match self.stages().iter().find(|stage| !stage.accumulate.is_multiple_of(ranks.count)) {
            None => Ok(()),
            Some(stage) => error(format!(
                "{why} share a step of {} micro-batch{}, which is not divisible by {}; use --accumulate {} or another \
                 multiple",
                stage.accumulate,
                if stage.accumulate == 1 { "" } else { "es" },
                ranks.count,
                stage.accumulate.next_multiple_of(ranks.count),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawConfig;

    fn resolved(text: &str, count: u32) -> Result<Config, String> {
        let raw: RawConfig = toml::from_str(text).unwrap();
        Config::resolve(RawConfig { ranks: Some(count), ..raw }).map_err(|e| e.to_string())
    }

    #[test]
    fn what_ranks_cannot_share_is_refused_in_a_line() {
        let three = Ranks { rank: 0, count: 3, exact: false, gradients: false };
        assert_eq!(resolved("accumulate = 6", 3).unwrap().ranks(), three);
        assert_eq!(resolved("accumulate = 6\nzero = 2", 3).unwrap().ranks(), Ranks { gradients: true, ..three });
        assert!(!resolved("zero = 2", 1).unwrap().ranks().shares());
        assert!(resolved("exact_ranks = true", 1).unwrap().ranks().shares());
        let stages = "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2\naccumulate = 4\n\
                      [[stage]]\nfrom = 5\nseq_len = 16\nbatch_size = 1\naccumulate = 6";
        for (text, count, says) in [
            ("", 2, "2 ranks share a step of 1 micro-batch, which is not divisible by 2; use --accumulate 2 or"),
            ("accumulate = 4", 3, "4 micro-batches, which is not divisible by 3; use --accumulate 6"),
            (stages, 4, "6 micro-batches, which is not divisible by 4; use --accumulate 8"),
            ("zero = 3", 1, "--zero 3: use 1, where"),
            ("accumulate = 2\nzero = 0", 2, "--zero 0: use 1, where"),
            ("preset = 'neurogen-tiny'\nzero = 2", 2, "2 ranks: a NeuroGen"),
            ("preset = 'neurogen-tiny'", 2, "one process trains it alone"),
            ("preset = 'neurogen-tiny'\nexact_ranks = true", 1, "--exact-ranks: a NeuroGen"),
        ] {
            let message = resolved(text, count).unwrap_err();
            assert!(message.contains(says) && !message.contains('\n'), "{message}");
        }
    }
}
