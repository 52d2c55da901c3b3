//! A curriculum: the shape and other settings of a step as a function of the step's number.

use super::Ranks;

/// A part of a run whose steps have one shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// The number of steps before it begins.
    pub from: u64,
    /// Sequences of a micro-batch, B.
    pub batch: u32,
    /// Tokens of a sequence, T.
    pub seq_len: u32,
    /// Micro-batches of a step.
    pub accumulate: u32,
    /// The scheduled learning rate is multiplied by this.
    pub rate: f64,
    /// The largest global norm of the gradient; 0 for no clip.
    pub clip: f32,
}

impl Stage {
    /// Tokens of a micro-batch.
    pub const fn micro_tokens(&self) -> u64 {
        self.batch as u64 * self.seq_len as u64
    }

    /// Tokens of a step.
    pub const fn step_tokens(&self) -> u64 {
        self.micro_tokens() * self.accumulate as u64
    }

    /// Batches of a block of streams: as many as `span` tokens of a row take, at least one.
    pub fn batches_in(&self, span: u32) -> u64 {
        u64::from((span / self.seq_len.max(1)).max(1))
    }

    /// Tokens of the largest block of streams of `stages`.
    pub fn largest_block(stages: &[Stage], span: u32) -> u64 {
        stages.iter().map(|stage| stage.micro_tokens() * stage.batches_in(span)).max().unwrap_or(0)
    }
}

/// Why stages are no valid curriculum. Stages are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurriculumError {
    /// There is no stage.
    Empty,
    /// The first stage does not begin at step 0.
    Late {
        /// The step at which it begins.
        from: u64,
    },
    /// A stage begins no later than the one before it.
    Order {
        /// The number of the stage.
        number: usize,
        /// The step at which it begins.
        from: u64,
        /// The step at which the stage before it begins.
        before: u64,
    },
}

impl core::fmt::Display for CurriculumError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            CurriculumError::Empty => f.write_str("there is no stage; give at least one"),
            CurriculumError::Late { from } => {
                write!(f, "stage 1 begins at step {from}; the first stage must have from = 0")
            }
            CurriculumError::Order { number, from, before } => write!(
                f,
                "stage {number} begins at step {from}, the one before it at step {before}; put the stages in order, each \
                 from a later step"
            ),
        }
    }
}

impl core::error::Error for CurriculumError {}

/// Stages in order. Everything is a function of the number of a step or micro-batch, so that resuming a run needs no
/// other state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Curriculum<'a> {
    stages: &'a [Stage],
}

impl<'a> Curriculum<'a> {
    /// A curriculum of these stages.
    ///
    /// # Errors
    /// [`CurriculumError`].
    pub fn new(stages: &'a [Stage]) -> Result<Curriculum<'a>, CurriculumError> {
        let Some(first) = stages.first() else { return Err(CurriculumError::Empty) };
        if first.from != 0 {
            return Err(CurriculumError::Late { from: first.from });
        }
        for (i, pair) in stages.windows(2).enumerate() {
            let (before, from) = (pair[0].from, pair[1].from);
            if from <= before {
                return Err(CurriculumError::Order { number: i + 2, from, before });
            }
        }
        Ok(Curriculum { stages })
    }

    /// The index of the stage of the step after `step` others: the last stage that begins at `step` or before.
    pub fn at(&self, step: u64) -> usize {
        self.stages.partition_point(|p| p.from <= step).saturating_sub(1)
    }

    /// The sum of `count` over all steps before `step`.
    fn before(&self, step: u64, count: impl Fn(&Stage) -> u64) -> u64 {
        self.spans().map(|(p, end)| count(p) * (end.min(step).saturating_sub(p.from))).sum()
    }

    /// Micro-batches of the first `step` steps.
    pub fn micro_batches(&self, step: u64) -> u64 {
        self.before(step, |p| u64::from(p.accumulate))
    }

    /// The number in the run of a rank's micro-batch `round` in the step after `step` others. Ranks take micro-batches
    /// in turn, so the numbers do not depend on the number of ranks.
    pub fn number(&self, step: u64, round: u32, ranks: Ranks) -> u64 {
        self.micro_batches(step) + u64::from(round) * u64::from(ranks.count) + u64::from(ranks.rank)
    }

    /// Tokens of the first `step` steps.
    pub fn tokens(&self, step: u64) -> u64 {
        self.before(step, Stage::step_tokens)
    }

    /// The number of whole steps in `tokens` tokens.
    pub fn steps(&self, tokens: u64) -> u64 {
        let (mut left, mut steps) = (tokens, 0);
        for (p, end) in self.spans() {
            let here = (left / p.step_tokens().max(1)).min(end - p.from);
            (left, steps) = (left - here * p.step_tokens(), steps + here);
            if p.from + here < end {
                break;
            }
        }
        steps
    }

    /// The index of the stage of micro-batch `number`, counted from 0.
    pub fn of_micro_batch(&self, number: u64) -> usize {
        let after = |p: &Stage| self.micro_batches(p.from) <= number;
        self.stages.partition_point(after).saturating_sub(1)
    }

    /// Each stage with the first step after it.
    fn spans(&self) -> impl Iterator<Item = (&'a Stage, u64)> + use<'a> {
        let ends = self.stages[1..].iter().map(|p| p.from).chain([u64::MAX]);
        self.stages.iter().zip(ends)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    const fn stage(from: u64, batch: u32, seq_len: u32, accumulate: u32) -> Stage {
        Stage { from, batch, seq_len, accumulate, rate: 1.0, clip: 1.0 }
    }

    #[test]
    fn a_stage_is_the_last_whose_first_step_is_not_after_the_step() {
        let stages = [stage(0, 4, 8, 1), stage(3, 2, 16, 2), stage(4, 1, 32, 3)];
        let curriculum = Curriculum::new(&stages).unwrap();
        assert!((0..7).map(|step| curriculum.at(step)).eq([0, 0, 0, 1, 2, 2, 2]));
        assert_eq!(curriculum.at(u64::MAX), 2);
    }

    #[test]
    fn sums_are_those_of_walking_step_by_step() {
        let stages = [stage(0, 4, 8, 1), stage(3, 2, 16, 2), stage(4, 1, 32, 3), stage(9, 5, 7, 1)];
        let curriculum = Curriculum::new(&stages).unwrap();
        let (mut tokens, mut shapes) = (0, Vec::new());
        for step in 0..30 {
            assert_eq!(curriculum.tokens(step), tokens);
            assert_eq!(curriculum.micro_batches(step), shapes.len() as u64);
            assert_eq!(curriculum.steps(tokens), step);
            let of_step = stages[curriculum.at(step)];
            assert_eq!(curriculum.steps(tokens + of_step.step_tokens() - 1), step);
            tokens += of_step.step_tokens();
            shapes.extend((0..of_step.accumulate).map(|_| curriculum.at(step)));
        }
        assert!((0..).zip(&shapes).all(|(number, &index)| curriculum.of_micro_batch(number) == index));
    }

    #[test]
    fn every_number_is_one_micro_batch_of_one_rank_however_many_there_are() {
        let stages = [stage(0, 4, 8, 6), stage(3, 2, 16, 12), stage(4, 1, 32, 6)];
        let curriculum = Curriculum::new(&stages).unwrap();
        for count in [1, 2, 3, 6] {
            let mut numbers = Vec::new();
            for step in 0..6 {
                for round in 0..stages[curriculum.at(step)].accumulate / count {
                    let rank = |rank| curriculum.number(step, round, Ranks { rank, count, ..Ranks::ALONE });
                    numbers.extend((0..count).map(rank));
                }
            }
            assert!(numbers.into_iter().eq(0..3 * 6 + 12 + 2 * 6), "{count} ranks");
        }
    }

    #[test]
    fn stages_out_of_order_are_named() {
        let refused = |stages: &[Stage]| Curriculum::new(stages).unwrap_err();
        assert_eq!(refused(&[]), CurriculumError::Empty);
        assert_eq!(refused(&[stage(5, 1, 1, 1)]), CurriculumError::Late { from: 5 });
        let [a, b, c] = [stage(0, 1, 1, 1), stage(7, 1, 1, 1), stage(7, 2, 1, 1)];
        assert_eq!(refused(&[a, b, c]), CurriculumError::Order { number: 3, from: 7, before: 7 });
        assert!(Curriculum::new(&[a, b]).is_ok());
    }
}
