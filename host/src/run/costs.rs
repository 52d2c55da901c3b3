//! Measures the times of steps, evaluations and saves during a run, and predicts the time of the rest of the run.

use std::time::Instant;

use capful_core::model::MicroBatch;
use capful_core::train::{Curriculum, Stage};

use super::Session;
use crate::config::Config;
use crate::data::validation::ValidationSet;

/// The longest measurement that is needed before the run's end is predicted, in seconds.
const ENOUGH: f64 = 10.0;
/// The share of the run after which its end is predicted if that is sooner, and the shortest measurement in seconds.
const SHARE: f64 = 0.03;
const LEAST: f64 = 1.0;
/// A forward pass is a third of a training step's floating-point operations.
const FORWARD: f64 = 1.0 / 3.0;
/// Bytes that a disk writes in a second, assumed until a save was timed.
const DISK: f64 = 1e9;

/// The number of steps in each stage after `step` steps, up to step `end`.
pub fn steps_ahead(stages: &[Stage], step: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
    let ends = stages.iter().skip(1).map(|stage| stage.from).chain([u64::MAX]);
    stages.iter().zip(ends).map(move |(stage, until)| until.min(end).saturating_sub(stage.from.max(step)))
}

/// Number of evaluations, of the weights and of their averages, and of saves except those by time, in the run of
/// `config` after `step` steps, including those at the end, `end`.
pub fn others_ahead(config: &Config, step: u64, end: u64) -> [u64; 2] {
    // The last step has an evaluation and a save in any case.
    let multiples = |every: u64| match every {
        0 => 0,
        every => (end.saturating_sub(1) / every).saturating_sub(step / every),
    };
    let due = multiples(config.eval_every);
    let saves = multiples(config.save_every) + if config.keep_best { due } else { 0 } + 1;
    [(due + 1) * scored(config), saves]
}

/// Scorings in an evaluation: the averages of the weights are scored too.
fn scored(config: &Config) -> u64 {
    if config.averaging().is_some() { 2 } else { 1 }
}

/// A mean that gives old measurements less weight: speeds change as a machine warms up or other programs use it.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    seconds: f64,
    count: f64,
}

impl Mean {
    /// Adds a time; a measurement from `window` seconds before has a weight smaller by a factor of e.
    fn add(&mut self, seconds: f64, window: f64) {
        let keep = (-seconds / window).exp();
        (self.seconds, self.count) = (self.seconds * keep + seconds, self.count * keep + 1.0);
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.seconds / self.count)
    }
}

/// The expected times of a run's parts before they are measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// Seconds of a step of each stage, or numbers in the same proportions.
    pub steps: Vec<f64>,
    /// Number of micro-batches of an evaluation, and seconds of one if that was timed.
    pub evaluation: (u64, Option<f64>),
    /// Tokens of an evaluation's micro-batch.
    pub evaluation_tokens: u64,
    /// Bytes of a save.
    pub save_bytes: u64,
}

impl Expected {
    /// For the run of `config` in this session: the times of its rehearsal, or estimates from the numbers of tokens.
    pub fn of(session: &Session, config: &Config, stages: &[Stage], set: &ValidationSet, save_bytes: u64) -> Expected {
        let tokens = || stages.iter().map(|stage| stage.step_tokens() as f64).collect();
        let rehearsed = session.rehearsed.as_ref();
        let shape = session.laid.sections.evaluation;
        let batches = shape.map_or(0, |shape| batches(set, shape, config.ranks));
        Expected {
            steps: rehearsed.map_or_else(tokens, |rehearsed| rehearsed.steps.clone()),
            evaluation: (batches, rehearsed.map(|rehearsed| rehearsed.evaluation)),
            evaluation_tokens: shape.map_or(0, |shape| shape.tokens().into()),
            save_bytes,
        }
    }
}

/// Number of micro-batches of an evaluation of `set`, in the `shape` of one, on each of `ranks` ranks.
pub fn batches(set: &ValidationSet, shape: MicroBatch, ranks: u32) -> u64 {
    let rows: usize =
        set.iter().map(|document| document.len().saturating_sub(1).div_ceil(shape.seq_len as usize)).sum();
    (rows as u64).div_ceil(shape.batch.into()).div_ceil(ranks.into())
}

/// Measures a session of a run.
#[derive(Debug)]
pub struct Costs {
    begun: Instant,
    /// When the last part of the work ended.
    at: Instant,
    expected: Expected,
    steps: Vec<Mean>,
    evaluation: Mean,
    save: Mean,
    /// Seconds of measured steps.
    measured: f64,
}

impl Costs {
    /// Starts the clock.
    pub fn start(expected: Expected) -> Costs {
        let (now, stages) = (Instant::now(), expected.steps.len());
        Costs {
            begun: now,
            at: now,
            steps: vec![Mean::default(); stages],
            evaluation: Mean::default(),
            save: Mean::default(),
            measured: 0.0,
            expected,
        }
    }

    /// Restarts the clock: earlier time no longer counts.
    pub fn restart(&mut self) {
        self.begun = Instant::now();
        self.at = self.begun;
    }

    /// Ends a part of the work; returns the seconds since the previous part ended.
    fn lap(&mut self) -> f64 {
        let before = std::mem::replace(&mut self.at, Instant::now());
        (self.at - before).as_secs_f64()
    }

    /// The time window of measurements that count: the last third of the session, or ten seconds.
    fn window(&self) -> f64 {
        (self.elapsed() / 3.0).max(ENOUGH)
    }

    /// Seconds of this session.
    pub fn elapsed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Ends a part of the work that does not predict others.
    pub fn pass(&mut self) {
        self.lap();
    }

    /// A step of the stage of this index is done.
    pub fn step(&mut self, stage: usize) {
        let seconds = self.lap();
        self.time_step(stage, seconds);
    }

    /// Adds a step of that stage, with its seconds.
    pub(super) fn time_step(&mut self, stage: usize, seconds: f64) {
        let window = self.window();
        self.measured += seconds;
        if let Some(mean) = self.steps.get_mut(stage) {
            mean.add(seconds, window);
        }
    }

    /// An evaluation is done.
    pub fn evaluation(&mut self) {
        let (seconds, window) = (self.lap(), self.window());
        self.evaluation.add(seconds, window);
    }

    /// A checkpoint is written.
    pub fn save(&mut self) {
        let (seconds, window) = (self.lap(), self.window());
        self.save.add(seconds, window);
    }

    /// Seconds of a step of a stage: as measured, or else derived from the nearest measured stage by the ratio of their
    /// expected times.
    pub fn of_step(&self, stage: usize) -> Option<f64> {
        let measured = |index: usize| Some((index, self.steps.get(index)?.get()?));
        let nearest = (0..self.steps.len()).filter_map(measured).min_by_key(|(index, _)| index.abs_diff(stage));
        let (index, seconds) = nearest?;
        Some(seconds * self.expected.steps.get(stage)? / self.expected.steps[index])
    }

    /// Seconds of an evaluation.
    pub fn of_evaluation(&self, stages: &[Stage]) -> Option<f64> {
        let Expected { evaluation: (batches, timed), evaluation_tokens, .. } = self.expected;
        let by_forward = || {
            let index = (0..stages.len()).find(|index| self.steps[*index].get().is_some())?;
            let share = evaluation_tokens as f64 / stages[index].step_tokens() as f64;
            Some(FORWARD * share * self.of_step(index)?)
        };
        self.evaluation.get().or_else(|| Some(batches as f64 * timed.or_else(by_forward)?))
    }

    /// Seconds of a save.
    pub fn of_save(&self) -> f64 {
        self.save.get().unwrap_or(self.expected.save_bytes as f64 / DISK)
    }

    /// Seconds of a step of the last stage, of an evaluation and of a save, where they were measured.
    pub fn parts(&self) -> [Option<f64>; 3] {
        [self.steps.last().and_then(Mean::get), self.evaluation.get(), self.save.get()]
    }

    /// Seconds of the last evaluation and save.
    pub fn of_end(&self, config: &Config, stages: &[Stage]) -> Option<f64> {
        Some(scored(config) as f64 * self.of_evaluation(stages)? + self.of_save())
    }

    /// Seconds of a run of `config` from step `step` to its end after step `end`.
    pub fn left(&self, config: &Config, stages: &[Stage], step: u64, end: u64) -> Option<f64> {
        let mut steps = 0.0;
        for (index, count) in steps_ahead(stages, step, end).enumerate().filter(|(_, count)| *count > 0) {
            steps += count as f64 * self.of_step(index)?;
        }
        let [evaluations, saves] = others_ahead(config, step, end);
        let save = self.of_save();
        let seconds = steps + evaluations as f64 * self.of_evaluation(stages)? + saves as f64 * save;
        Some(seconds + self.saves_by_the_clock(config, stages, step, seconds)? as f64 * save)
    }

    /// Number of saves by time in `seconds` of work, in addition to the saves by step.
    fn saves_by_the_clock(&self, config: &Config, stages: &[Stage], step: u64, seconds: f64) -> Option<u64> {
        let every = 60.0 * config.save_minutes;
        let stage = Curriculum::new(stages).map_or(0, |curriculum| curriculum.at(step));
        let by_step = config.save_every as f64 * self.of_step(stage)?;
        let needed = every > 0.0 && (config.save_every == 0 || by_step > every);
        Some(if needed { (seconds / every) as u64 } else { 0 })
    }

    /// Whether enough was measured to predict the end of a session of `total` seconds.
    pub fn are_known(&self, total: f64) -> bool {
        self.measured >= (SHARE * total).clamp(LEAST, ENOUGH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    fn config(text: &str) -> Config {
        Config::resolve(toml::from_str::<RawConfig>(&format!("preset = 'pythia-tiny'\n{text}")).unwrap()).unwrap()
    }

    /// The parts of the training loop, counted step by step.
    fn walked(config: &Config, step: u64, end: u64) -> (Vec<u64>, [u64; 2]) {
        let stages = config.stages();
        let (mut steps, mut evaluations, mut saves) = (vec![0; stages.len()], 1, 1);
        for done in step + 1..=end {
            steps[Curriculum::new(&stages).unwrap().at(done - 1)] += 1;
            let turn = |every: u64| u64::from(every > 0 && done % every == 0 && done < end);
            evaluations += turn(config.eval_every);
            saves += turn(config.save_every) + if config.keep_best { turn(config.eval_every) } else { 0 };
        }
        (steps, [evaluations, saves])
    }

    #[test]
    fn the_work_that_is_ahead_is_what_the_loop_does() {
        let stages =
            "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2\n[[stage]]\nfrom = 7\nseq_len = 16\nbatch_size = 2";
        for text in [
            "eval_every = 0",
            "eval_every = 5\nsave_every = 3",
            "eval_every = 4\nkeep_best = true",
            &format!("eval_every = 6\nsave_every = 1\n{stages}"),
        ] {
            let config = config(&format!("steps = 20\n{text}"));
            for (step, end) in [(0, 20), (0, 1), (3, 20), (7, 12), (19, 20), (20, 20)] {
                let found = steps_ahead(&config.stages(), step, end).collect();
                assert_eq!(
                    (found, others_ahead(&config, step, end)),
                    walked(&config, step, end),
                    "{text} {step} {end}"
                );
            }
        }
        assert_eq!(others_ahead(&config("steps = 20\neval_every = 5\nema = 0.9"), 0, 20), [8, 1]);
    }

    #[test]
    fn a_mean_follows_what_was_measured_last() {
        let mut mean = Mean::default();
        assert_eq!(mean.get(), None);
        (0..50).for_each(|_| mean.add(1.0, 10.0));
        approx::assert_relative_eq!(mean.get().unwrap(), 1.0, max_relative = 1e-12);
        (0..20).for_each(|_| mean.add(2.0, 10.0));
        // The weight e⁻⁴ remains of the earlier values: (2 Σ q^i + e⁻⁴ Σ p^i) / the weights, with q = e^-0.2, p =
        // e^-0.1.
        let (q, p) = ((-0.2f64).exp(), (-0.1f64).exp());
        let sums = [(1.0 - q.powi(20)) / (1.0 - q), q.powi(20) * (1.0 - p.powi(50)) / (1.0 - p)];
        approx::assert_relative_eq!(
            mean.get().unwrap(),
            (2.0 * sums[0] + sums[1]) / (sums[0] + sums[1]),
            max_relative = 1e-12
        );
    }

    #[test]
    fn what_is_left_is_the_work_at_what_its_parts_took() {
        let stages =
            "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2\n[[stage]]\nfrom = 10\nseq_len = 16\nbatch_size = 2";
        let config = config(&format!("steps = 30\neval_every = 10\nsave_every = 25\n{stages}"));
        let stages = config.stages();
        let expected =
            Expected { steps: vec![1.0, 3.0], evaluation: (4, None), evaluation_tokens: 32, save_bytes: 500_000_000 };
        let mut costs = Costs::start(expected);
        assert_eq!((costs.left(&config, &stages, 0, 30), costs.of_step(0)), (None, None));
        costs.steps[0].add(0.6, 10.0);
        // A step of 16 tokens took 0.6 s; one of the second stage takes three times that.
        let evaluation = 4.0 * 0.6 / 3.0 * 2.0;
        let expected = 10.0 * 0.6 + 20.0 * 1.8 + 3.0 * evaluation + 2.0 * 0.5;
        approx::assert_relative_eq!(costs.left(&config, &stages, 0, 30).unwrap(), expected, max_relative = 1e-12);
        // Measurements replace expectations.
        (costs.steps[1], costs.evaluation, costs.save) = Default::default();
        costs.steps[1].add(2.0, 10.0);
        costs.evaluation.add(7.0, 10.0);
        costs.save.add(0.25, 10.0);
        let expected = 15.0 * 2.0 + 7.0 * 2.0 + 2.0 * 0.25;
        approx::assert_relative_eq!(costs.left(&config, &stages, 15, 30).unwrap(), expected, max_relative = 1e-12);
        approx::assert_relative_eq!(costs.of_end(&config, &stages).unwrap(), 7.25, max_relative = 1e-12);
    }

    #[test]
    fn saves_by_the_clock_are_those_that_steps_do_not_make() {
        let expected = Expected { steps: vec![1.0], evaluation: (1, Some(0.0)), evaluation_tokens: 1, save_bytes: 0 };
        let mut costs = Costs::start(expected);
        costs.steps[0].add(6.0, 10.0);
        costs.save.add(1.0, 10.0);
        for (text, saves) in
            [("save_minutes = 0", 1), ("save_minutes = 2", 6), ("save_minutes = 2\nsave_every = 10", 10)]
        {
            let config = config(&format!("steps = 100\n{text}"));
            let found = costs.left(&config, &config.stages(), 0, 100).unwrap();
            assert_eq!(found, 600.0 + f64::from(saves), "{text}");
        }
    }

    #[test]
    fn the_end_is_told_after_ten_seconds_or_a_small_share() {
        let expected = Expected { steps: vec![1.0], evaluation: (1, None), evaluation_tokens: 1, save_bytes: 0 };
        let mut costs = Costs::start(expected);
        for (measured, total, known) in [
            (0.5, 1.0, false),
            (1.0, 20.0, true),
            (1.0, 100.0, false),
            (3.0, 100.0, true),
            (9.9, 1e6, false),
            (10.0, 1e6, true),
        ] {
            costs.measured = measured;
            assert_eq!(costs.are_known(total), known, "{measured} of {total}");
        }
    }
}
