//! When a run ends, and its learning rate until then: after a number of steps, or at a time limit.
//!
//! A run with a time limit has a learning rate that does not depend on its length before the rate decays. The decay
//! begins when its share of the time is left, over as many steps as fit in that time by the measured times of steps,
//! evaluations and saves. If the machine turns out faster or slower, the end moves, and the rate decays on from its
//! current value.

use std::time::Instant;

use capful_core::train::{Schedule, Shape, Stage};
use serde::{Deserialize, Serialize};

use super::Session;
use super::costs::{Costs, Expected, batches};
use super::rehearsal::Rehearsed;
use crate::config::{Config, ConfigError, Span};
use crate::data::validation::ValidationSet;
use crate::ranks::{SharedPeers, share_numbers};
use crate::suggest::ending::Steps;

/// The share of the time by which the end may be off before it is moved.
const OFF: f64 = 0.002;
/// The number of steps for which the decay has exactly its share replaces the planned end, if both differ by at most
/// this fraction.
const NEAR: f64 = 0.005;
/// Seconds after which the prediction of a run's time is recorded.
const PREDICTED: f64 = 10.0;
/// The fewest steps of a run with a time limit.
const FEWEST: u64 = 10;

/// The state of a run with a time limit: part of its checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Timed {
    /// Seconds of all its sessions, each from the beginning of its command.
    pub seconds: f64,
    /// Among these, the seconds from the first step on.
    pub training: f64,
    /// The decay of its learning rate, once it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fall: Option<Fall>,
}

/// The decay of the learning rate of a run with a time limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Fall {
    /// The time limit for which it was planned, in seconds.
    pub time: f64,
    /// Steps done when it began: the checkpoint of that step is preserved.
    pub begun: u64,
    /// Steps done when its end was last planned, and the fraction of the decay that was done then.
    pub from: u64,
    /// See [`Fall::from`].
    pub fallen: f64,
    /// The run's last step.
    pub end: u64,
}

/// When a run ends.
pub struct Ending {
    schedule: Schedule,
    /// Steps of the run; for a run with a time limit `None`, until its rate decays.
    end: Option<u64>,
    deadline: Option<Deadline>,
    pub(super) costs: Costs,
    /// The predicted seconds of the session, after they were announced.
    told: Option<f64>,
    /// The prediction after ten seconds of the session, or after a third if that is shorter.
    pub(super) predicted: Option<f64>,
}

/// The time limit of a run.
struct Deadline {
    /// Limit in seconds for the whole run.
    time: f64,
    /// When this command began.
    begun: Instant,
    /// The state of the run at that time.
    before: Timed,
    fall: Option<Fall>,
}

impl Deadline {
    /// Seconds of the run so far.
    fn seconds(&self) -> f64 {
        self.before.seconds + self.begun.elapsed().as_secs_f64()
    }
}

/// Number of steps of `config` from step `at` that fit in `left` seconds together with the other work in them, at the
/// measured time of a step.
fn steps_in(config: &Config, stages: &[Stage], costs: &Costs, at: u64, left: f64) -> Option<u64> {
    let step = costs.of_step(0)?;
    let mut steps = (left / step).max(1.0) as u64;
    // Evaluations and saves are few: one or two iterations suffice for their time.
    for _ in 0..4 {
        let off = left - costs.left(config, stages, at, at.saturating_add(steps))?;
        let by = (off / step).trunc();
        if by == 0.0 {
            break;
        }
        steps = (steps as f64 + by).max(1.0) as u64;
    }
    Some(steps)
}

impl Ending {
    /// For the run of `config`; `timed` is its state if it has a time limit. This command began at `begun`.
    pub fn new(config: &Config, timed: Option<Timed>, expected: Expected, begun: Instant) -> Ending {
        let before = timed.unwrap_or_default();
        let deadline = config.time.map(|time| Deadline { time, begun, before, fall: before.fall });
        let mut ending = Ending {
            schedule: config.lr_schedule(),
            end: Some(config.steps),
            deadline,
            costs: Costs::start(expected),
            told: None,
            predicted: None,
        };
        if ending.deadline.is_some() {
            ending.plan(before.fall);
        }
        ending
    }

    /// Begins the training.
    pub fn start(&mut self) {
        self.costs.restart();
    }

    /// Number of steps after which the run ends; larger than possible as long as the end is unknown.
    pub fn end(&self) -> u64 {
        self.end.unwrap_or(u64::MAX)
    }

    /// The run's steps, once their number is known; with a time limit the number may still change a little.
    pub fn steps(&self) -> Option<Steps> {
        let fall = self.deadline.as_ref().and_then(|deadline| deadline.fall);
        let stable = fall.map_or(self.schedule.stable_until(), |fall| fall.begun);
        Some(Steps { all: self.end?, stable })
    }

    /// The learning rate of the step after `step` others, before its stage's factor.
    pub fn rate(&self, step: u64) -> f64 {
        self.schedule.rate(step)
    }

    /// The state of a run with a time limit.
    pub fn timed(&self) -> Option<Timed> {
        let deadline = self.deadline.as_ref()?;
        let training = deadline.before.training + self.costs.elapsed();
        Some(Timed { seconds: deadline.seconds(), training, fall: deadline.fall })
    }

    /// The number of steps of the run, as far as it can be predicted after `step` of them.
    pub fn likely_end(&self, config: &Config, stages: &[Stage], step: u64) -> Option<u64> {
        if self.end.is_some() {
            return self.end;
        }
        let deadline = self.deadline.as_ref()?;
        Some(step + steps_in(config, stages, &self.costs, step, deadline.time - deadline.seconds())?)
    }

    /// Seconds that are left after `step` steps.
    pub fn left(&self, config: &Config, stages: &[Stage], step: u64) -> Option<f64> {
        match (&self.deadline, self.end) {
            (Some(deadline), None) => Some((deadline.time - deadline.seconds()).max(0.0)),
            _ => self.costs.left(config, stages, step, self.end()),
        }
    }

    /// The predicted seconds of this session; returned once, when enough was measured for a prediction.
    pub fn tell(&mut self, config: &Config, stages: &[Stage], step: u64) -> Option<f64> {
        let total = self.costs.elapsed() + self.left(config, stages, step)?;
        if self.predicted.is_none() || self.costs.elapsed() <= PREDICTED.min(total / 3.0) {
            self.predicted = Some(total);
        }
        if self.told.is_some() || !self.costs.are_known(total) {
            return None;
        }
        self.told = Some(total);
        self.told
    }

    /// Whether the rate must begin to decay after `step` steps, or its end must be moved.
    pub fn is_due(&self, config: &Config, stages: &[Stage], step: u64) -> bool {
        let Some(Deadline { time, fall, before, .. }) = self.deadline else { return false };
        let (Some(one), Some(end)) = (self.costs.of_step(0), self.costs.of_end(config, stages)) else { return false };
        let left = time - self.deadline.as_ref().map_or(0.0, Deadline::seconds);
        match fall {
            None => {
                let (done, left) = (before.training + self.costs.elapsed(), left - end - self.costs.of_save());
                // A constant rate needs no steps for a decay.
                let share = if self.schedule.shape == Shape::Wsd { config.decay } else { 0.0 };
                left - one <= share * (done + left.max(0.0))
            }
            Some(fall) => {
                // Rarely, and not by less than a step.
                let often = ((fall.end - fall.begun) / 50).max(1);
                let off = self.costs.left(config, stages, step, fall.end).map_or(0.0, |needed| (needed - left).abs());
                step > fall.from
                    && (step - fall.from).is_multiple_of(often)
                    && step + 1 < fall.end
                    && off > (OFF * time).max(one)
            }
        }
    }

    /// Begins the decay after `step` steps, or moves its end: all ranks follow the plan of the first of the `peers`.
    ///
    /// # Errors
    /// A rank that is lost.
    pub fn fall(
        &mut self,
        config: &Config,
        stages: &[Stage],
        step: u64,
        peers: Option<&SharedPeers>,
    ) -> Result<u64, String> {
        let Some(Deadline { time, fall, .. }) = self.deadline else { return Ok(self.end()) };
        let left = time - self.deadline.as_ref().map_or(0.0, Deadline::seconds);
        let steps = steps_in(config, stages, &self.costs, step, left).unwrap_or(1);
        let (begun, fallen) = fall.map_or((step, 0.0), |fall| (fall.begun, self.fallen(&fall, step)));
        let mut end = step.saturating_add(steps);
        if fall.is_none() && self.schedule.shape == Shape::Wsd {
            let exact = (step as f64 / (1.0 - config.decay)).round().min(1e15) as u64;
            let near = exact.abs_diff(end) as f64 <= NEAR * end as f64;
            end = if near && exact > step && config.decays_after(exact) == step { exact } else { end };
        }
        let mut numbers = [begun, step, fallen.to_bits(), end];
        share_numbers(peers, &mut numbers).map_err(|e| e.to_string())?;
        let [begun, from, fallen, end] = numbers;
        self.plan(Some(Fall { time, begun, from, fallen: f64::from_bits(fallen), end }));
        Ok(end)
    }

    /// The fraction of a decay that is done after `step` steps.
    fn fallen(&self, fall: &Fall, step: u64) -> f64 {
        let (done, steps) = ((step - fall.from) as f64, (fall.end - fall.from) as f64);
        fall.fallen + (1.0 - fall.fallen) * (done / steps)
    }

    /// Sets the decay of the rate; without a decay as long as nothing is planned.
    fn plan(&mut self, fall: Option<Fall>) {
        if let Some(deadline) = &mut self.deadline {
            deadline.fall = fall;
        }
        self.end = fall.map(|fall| fall.end);
        // Without an end no step belongs to the decay.
        let (steps, decay, fallen) =
            fall.map_or((u64::MAX, 0, 0.0), |fall| (fall.end, fall.end - fall.from, fall.fallen));
        self.schedule = Schedule { steps, decay: (decay, self.schedule.decay.1), fallen, ..self.schedule };
    }
}

impl Session {
    /// About how many steps fit in the time limit of `config`, after `spent` seconds of it and with the rehearsal's
    /// times for the parts of the run; `set` is evaluated at the end.
    ///
    /// # Errors
    /// A time limit that is too short.
    pub fn steps_in_time(&self, config: &Config, set: &ValidationSet, spent: f64) -> Result<u64, ConfigError> {
        let batches = self.laid.sections.evaluation.map_or(0, |shape| batches(set, shape, config.ranks));
        match &self.rehearsed {
            Some(rehearsed) => first_guess(config, rehearsed, batches, spent),
            None => Ok(config.steps),
        }
    }
}

/// About how many steps fit in the time limit of `config`, with the rehearsal's times for the parts of the run; an
/// error if none fits. `spent` seconds pass before the first step, and an evaluation has `batches` micro-batches.
///
/// # Errors
/// A time limit that is too short.
fn first_guess(config: &Config, rehearsed: &Rehearsed, batches: u64, spent: f64) -> Result<u64, ConfigError> {
    let Some(time) = config.time else { return Ok(config.steps) };
    let step = rehearsed.steps.first().copied().unwrap_or(0.0).max(1e-6);
    let evaluation = batches as f64 * rehearsed.evaluation;
    let steps = (time - spent - evaluation) / step;
    if steps >= FEWEST as f64 {
        return Ok(steps as u64);
    }
    let least = Span((spent + evaluation + FEWEST as f64 * step).ceil());
    Err(ConfigError(format!(
        "--time {} is too short: what comes before the first step took {spent:.1} s, a step takes {step:.2} s and the \
         evaluation at the end {evaluation:.1} s; give at least {least}, for {FEWEST} steps, or lower --eval-tokens",
        Span(time)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    const TIME: f64 = 1000.0;

    fn config(text: &str) -> Config {
        let text = format!("preset = 'quick-tiny'\neval_every = 0\nsave_minutes = 0\ntime = '1000s'\n{text}");
        Config::resolve(toml::from_str::<RawConfig>(&text).unwrap()).unwrap()
    }

    /// A run with a clock controlled by the test.
    struct Simulated {
        config: Config,
        stages: Vec<Stage>,
        ending: Ending,
        step: u64,
    }

    impl Simulated {
        /// A simulation of `config`, where an evaluation takes 4 s and a save 1 s, `spent` seconds after the beginning
        /// of its command.
        fn new(config: Config, timed: Option<Timed>, spent: f64) -> Simulated {
            let expected = Expected {
                steps: vec![1.0],
                evaluation: (4, Some(1.0)),
                evaluation_tokens: 1,
                save_bytes: 1_000_000_000,
            };
            let mut ending = Ending::new(&config, timed, expected, Instant::now());
            ending.deadline.as_mut().unwrap().before.seconds += spent;
            Simulated { stages: config.stages(), config, ending, step: 0 }
        }

        fn pass(&mut self, seconds: f64) {
            let before = &mut self.ending.deadline.as_mut().unwrap().before;
            (before.seconds, before.training) = (before.seconds + seconds, before.training + seconds);
        }

        /// Runs a step that takes `seconds`.
        fn step(&mut self, seconds: f64) {
            self.pass(seconds);
            self.ending.costs.time_step(0, seconds);
            self.step += 1;
            if self.ending.is_due(&self.config, &self.stages, self.step) {
                if self.ending.timed().unwrap().fall.is_none() {
                    self.pass(1.0);
                }
                self.ending.fall(&self.config, &self.stages, self.step, None).unwrap();
            }
        }

        /// Runs to the end with steps that take these seconds; returns the learning rates and the time of the end.
        fn run(&mut self, seconds: impl Fn(u64) -> f64) -> (Vec<f64>, f64) {
            let mut rates = Vec::new();
            while self.step < self.ending.end() {
                rates.push(self.ending.rate(self.step));
                self.step(seconds(self.step));
            }
            self.pass(5.0);
            (rates, self.ending.timed().unwrap().seconds)
        }
    }

    #[test]
    fn at_an_even_speed_it_is_the_run_of_so_many_steps() {
        for decay in [0.1, 0.25, 0.6] {
            let config = config(&format!("decay = {decay}"));
            let mut run = Simulated::new(config.clone(), None, 20.0);
            assert_eq!(run.ending.steps(), None, "not before it falls");
            let (rates, seconds) = run.run(|_| 0.5);
            assert!((seconds - TIME).abs() < 0.01 * TIME, "{decay}: {seconds}");
            let all = rates.len() as u64;
            assert_eq!(run.ending.steps(), Some(Steps { all, stable: config.decays_after(all) }));
            let alike = Config { steps: rates.len() as u64, time: None, ..config };
            let expected: Vec<f64> = (0..alike.steps).map(|step| alike.lr_schedule().rate(step)).collect();
            assert!(rates == expected, "{decay}: {} steps", alike.steps);
            assert_eq!(*rates.last().unwrap(), 0.0);
        }
    }

    #[test]
    fn it_ends_on_time_whatever_the_machine_does() {
        let slower = |from: u64, factor: f64| move |step: u64| if step < from { 0.5 } else { 0.5 * factor };
        let uneven = |step: u64| 0.5 + 0.3 * (step as f64 / 40.0).sin();
        let cases: [(&str, &dyn Fn(u64) -> f64); 6] = [
            ("slower in the decay", &slower(1000, 1.5)),
            ("slower before it", &slower(300, 1.5)),
            ("faster in the decay", &slower(1000, 0.6)),
            ("slower at the end", &slower(1600, 1.3)),
            ("uneven", &uneven),
            ("long steps", &|_| 9.0),
        ];
        for (name, seconds) in cases {
            let config = config("decay = 0.6");
            let mut run = Simulated::new(config.clone(), None, 20.0);
            let (rates, ended) = run.run(seconds);
            // The end cannot be closer than one step.
            let most = (0.01 * TIME).max(seconds(0));
            assert!((ended - TIME).abs() <= most, "{name}: {ended}");
            let highest = rates.iter().copied().fold(0.0, f64::max);
            let falls: Vec<f64> = rates.windows(2).skip(config.warmup as usize).map(|pair| pair[0] - pair[1]).collect();
            let steepest = falls.iter().copied().fold(0.0, f64::max);
            assert!(falls.iter().all(|fall| *fall >= 0.0), "{name}: the rate rises");
            let mean = highest / falls.iter().filter(|fall| **fall > 0.0).count() as f64;
            assert!(steepest < 4.0 * mean, "{name}: {steepest} where {mean} is the mean");
            assert_eq!(*rates.last().unwrap(), 0.0, "{name}");
        }
    }

    #[test]
    fn it_goes_on_from_where_it_stood() {
        let config = config("decay = 0.6");
        let mut whole = Simulated::new(config.clone(), None, 20.0);
        let (rates, ended) = whole.run(|_| 0.5);
        for stop in [300, 1100] {
            let mut first = Simulated::new(config.clone(), None, 20.0);
            (0..stop).for_each(|_| first.step(0.5));
            let timed: Timed =
                serde_json::from_value(serde_json::to_value(first.ending.timed().unwrap()).unwrap()).unwrap();
            assert_eq!(timed.fall.is_some(), stop == 1100);
            let mut second = Simulated::new(config.clone(), Some(timed), 30.0);
            second.step = stop;
            let (rest, again) = second.run(|_| 0.5);
            // The resumed run has lost the 30 seconds of a second start.
            assert!((again - ended).abs() < 0.01 * TIME, "{stop}: {again}");
            let steps = stop + rest.len() as u64;
            assert!(rates.len() as u64 - steps < 80, "{stop}: {steps} of {}", rates.len());
            let same = first.ending.rate(stop);
            assert!((rest[0] - same).abs() < 1e-3 * config.lr, "{stop}: {} after {same}", rest[0]);
        }
        // With more time, and resumed from before its rate decayed, it has as many steps as a run that had that time
        // from the beginning.
        let stable = Timed { fall: None, ..Simulated::new(config.clone(), None, 20.0).ending.timed().unwrap() };
        let more = Config { time: Some(2.0 * TIME), ..config };
        let (rates, ended) = Simulated::new(more, Some(stable), 0.0).run(|_| 0.5);
        assert!((ended - 2.0 * TIME).abs() < 0.01 * TIME && rates.len() > 3800, "{ended}, {} steps", rates.len());
    }

    #[test]
    fn a_time_that_is_too_short_is_refused_with_one_that_is_not() {
        let rehearsed = Rehearsed { steps: vec![2.0], evaluation: 3.0 };
        let config = Config { time: Some(60.0), ..config("") };
        assert_eq!(first_guess(&config, &rehearsed, 4, 8.0), Ok(20));
        let refused = first_guess(&config, &rehearsed, 10, 12.5).unwrap_err().to_string();
        assert_eq!(
            refused,
            "--time 1m is too short: what comes before the first step took 12.5 s, a step takes 2.00 s and the evaluation at \
             the end 30.0 s; give at least 1m3s, for 10 steps, or lower --eval-tokens"
        );
    }
}
