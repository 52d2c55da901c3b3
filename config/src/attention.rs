//! Describes for people which share of the attention a pattern computes.

use capful_core::model::Capability;
use capful_core::ops::Pattern;

use super::error::error;
use super::{Attention, Config, ConfigError};

impl Config {
    /// Refuses a pattern flag that the run's attention does not use.
    pub(super) fn require_used(&self, name: &str, value: u32) -> Result<(), ConfigError> {
        let (used, by) = match name {
            "window" => (matches!(self.attention, Attention::Local | Attention::Mixed), "local or mixed"),
            "stride" => (matches!(self.attention, Attention::Global | Attention::Mixed), "global or mixed"),
            _ => (self.attention != Attention::Dense, "local, global or mixed"),
        };
        if let Some(why) = self.family().lacks(Capability::Attention) {
            return error(format!("--{name} {value}: {why}; leave it away"));
        }
        if used {
            return Ok(());
        }
        let attention = format!("{:?}", self.attention).to_lowercase();
        error(format!(
            "--{name} {value} is for --attention {by}, and the attention is {attention}; leave it away, or name another"
        ))
    }

    /// The share of the pairs of a query and a key that the pattern includes, in the sequences of the run; `None` for
    /// dense attention and for models without attention.
    pub fn attention_kept(&self) -> Option<String> {
        if self.attention == Attention::Dense || self.family().lacks(Capability::Attention).is_some() {
            return None;
        }
        let mut lengths: Vec<u32> = self.stages().iter().map(|stage| stage.seq_len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let shares: Vec<_> = lengths.iter().map(|&length| (length, share(&self.pattern(), length))).collect();
        let name = match self.attention {
            Attention::Local => format!("local attention, {} blocks of {} back", self.window, self.block),
            Attention::Global => format!("global attention, one block of {} in {}", self.block, self.stride),
            _ => format!("mixed attention, {} blocks of {} back and one in {}", self.window, self.block, self.stride),
        };
        if shares.iter().all(|(_, share)| *share == 1.0) {
            let longest = lengths.last().copied().unwrap_or(0);
            return Some(format!(
                "{name}: hides nothing in sequences of {longest} tokens, the same as --attention dense; --window, --stride \
                 and --block count blocks"
            ));
        }
        let kept = |(length, share): &(u32, f64)| format!("{:.1} % at {length}", 100.0 * share);
        let kept: Vec<_> = shares.iter().map(kept).collect();
        Some(format!("{name}: of the pairs of a query and an earlier key it keeps {} tokens", kept.join(", ")))
    }
}

/// The share of the causal pairs that `pattern` includes.
fn share(pattern: &Pattern, length: u32) -> f64 {
    pattern.active_pairs(length) as f64 / Pattern::DENSE.active_pairs(length) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawConfig;

    fn kept(text: &str) -> Option<String> {
        Config::resolve(toml::from_str::<RawConfig>(text).unwrap()).unwrap().attention_kept()
    }

    #[test]
    fn a_pattern_says_what_it_keeps() {
        assert_eq!(kept("attention = 'dense'"), None);
        // Four blocks of 16: each query block sees itself, 16 · 17 / 2 pairs, and three see the block before, 16 · 16.
        let (seen, all) = (4 * 136 + 3 * 256, 64 * 65 / 2);
        let line = kept("attention = 'local'\nblock = 16\nwindow = 1\nseq_len = 64").unwrap();
        let expected = format!("{:.1} % at 64", 100.0 * f64::from(seen) / f64::from(all));
        assert!(line.contains(&expected), "{line}");
        // 64 blocks and not 64 tokens.
        let line = kept("attention = 'local'\nblock = 16\nwindow = 64\nseq_len = 64").unwrap();
        assert!(line.contains("hides nothing") && line.contains("dense"), "{line}");
    }
}
