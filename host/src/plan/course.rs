//! How long a run is, in words.

use capful_base::words::{counted, duration, grouped, short};
use capful_core::train::{Curriculum, Stage};

/// The steps of a session, and the tokens of them.
#[derive(Debug, Clone)]
pub struct Course {
    /// Steps of the run.
    pub steps: u64,
    /// Steps that were done before this session.
    pub first: u64,
    /// What a step is, by its number.
    pub stages: Vec<Stage>,
    /// Tokens of an epoch, where they are known.
    pub epoch: Option<u64>,
}

impl Course {
    /// Tokens of the first `step` steps.
    fn tokens(&self, step: u64) -> u64 {
        Curriculum::new(&self.stages).map_or(0, |curriculum| curriculum.tokens(step))
    }

    /// How long the run is: steps, tokens and, where they are known, epochs.
    pub fn length(&self) -> String {
        self.describe(self.steps, 0)
    }

    /// `steps` steps behind `from` others.
    fn describe(&self, steps: u64, from: u64) -> String {
        let tokens = self.tokens(from + steps).saturating_sub(self.tokens(from));
        let epochs = self
            .epoch
            .filter(|epoch| *epoch > 0)
            .map_or(String::new(), |epoch| format!(", {} epochs", rounded(tokens as f64 / epoch as f64)));
        format!("{} ({} tokens{epochs})", counted(steps, "step"), short(tokens))
    }

    /// What this session will take: so many seconds, at so many tokens a second.
    pub fn estimate(&self, seconds: f64, tokens_per_s: f64) -> String {
        let left = self.steps.saturating_sub(self.first);
        let behind = if self.first > 0 { " that are left" } else { "" };
        let work = self.describe(left, self.first).replacen(" (", &format!("{behind} ("), 1);
        format!("about {} for {work} at {} tokens/s", duration(seconds), grouped(tokens_per_s as u64))
    }
}

/// One decimal, or two of what is small.
fn rounded(number: f64) -> String {
    if number < 0.95 { format!("{number:.2}") } else { format!("{number:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(from: u64, batch: u32) -> Stage {
        Stage { from, batch, seq_len: 128, accumulate: 1, rate: 1.0, clip: 1.0 }
    }

    fn course(first: u64) -> Course {
        Course { steps: 2000, first, stages: vec![stage(0, 32)], epoch: Some(2_400_000) }
    }

    #[test]
    fn an_estimate_is_of_the_steps_of_this_session() {
        let line = course(0).estimate(999.5, 8192.0);
        assert_eq!(line, "about 17 min for 2,000 steps (8.2 M tokens, 3.4 epochs) at 8,192 tokens/s");
        // 1,989 steps were done by another session.
        let line = course(1989).estimate(22.0, 2048.0);
        assert_eq!(line, "about 22 s for 11 steps that are left (45.1 k tokens, 0.02 epochs) at 2,048 tokens/s");
        let unknown = Course { epoch: None, ..course(0) };
        assert_eq!(unknown.length(), "2,000 steps (8.2 M tokens)");
        let stages = Course { steps: 20, first: 0, stages: vec![stage(0, 1), stage(10, 3)], epoch: None };
        assert_eq!(stages.length(), "20 steps (5,120 tokens)");
    }
}
