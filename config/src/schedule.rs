//! The learning rate as a function of the step, and its decay when a run continues.

use capful_core::train::Schedule;

use super::error::error;
use super::{Config, ConfigError, DecayShape, LrSchedule, Span};

/// The default share of the decay.
const DECAY: f64 = 0.1;

impl Config {
    /// The schedule of the learning rate.
    pub fn lr_schedule(&self) -> Schedule {
        Schedule {
            shape: self.schedule.core(),
            peak: self.lr,
            end: self.lr_end,
            warmup: self.warmup,
            steps: self.steps,
            decay: (of_share(self.decay, self.steps), self.decay_shape.core()),
            fallen: 0.0,
        }
    }

    /// The step after which the decay begins in a run of `steps` steps.
    pub fn decays_after(&self, steps: u64) -> u64 {
        steps - of_share(self.decay, steps)
    }

    /// Checks that a run with a time limit can be planned: its rate may depend on steps only during the decay.
    ///
    /// # Errors
    /// A setting that needs the run's number of steps in advance.
    pub(super) fn validate_time(&self) -> Result<(), ConfigError> {
        let Some(time) = self.time.map(Span) else { return Ok(()) };
        let needs = |what: &dyn std::fmt::Display| {
            error(format!(
                "--time {time} beside {what}, which needs to know the run's steps; give --steps, or leave it away"
            ))
        };
        match self.schedule {
            LrSchedule::Cosine => needs(&"--schedule cosine"),
            LrSchedule::Linear => needs(&"--schedule linear"),
            _ if !self.stage.is_empty() => needs(&"the stages of a curriculum"),
            _ if self.average > 0 => needs(&format_args!("--average {}", self.average)),
            _ => Ok(()),
        }
    }

    /// The number of steps before a separate decay begins: all steps if there is none, or if epochs are not converted
    /// yet.
    pub(super) fn steps_before_decay(&self) -> u64 {
        match self.schedule {
            LrSchedule::Wsd if self.steps > 0 => self.steps - of_share(self.decay, self.steps),
            _ => u64::MAX,
        }
    }

    /// Checks that the schedule's parts fit in the run, as far as its number of steps is known.
    ///
    /// # Errors
    /// Decay settings of a schedule without a separate decay; a decay that leaves no room for the warm-up.
    pub fn validate_schedule(&self) -> Result<(), ConfigError> {
        let Config { schedule, decay, decay_shape, warmup, steps, .. } = *self;
        if schedule != LrSchedule::Wsd {
            return match (decay != DECAY, decay_shape != DecayShape::Linear) {
                (true, _) => {
                    error(format!("--decay {decay} is for --schedule wsd; leave it away, or name that schedule"))
                }
                (_, true) => {
                    error("--decay-shape is for --schedule wsd; leave it away, or name that schedule".to_owned())
                }
                _ => Ok(()),
            };
        }
        let falls = of_share(decay, steps);
        // Epochs may not be converted to steps yet.
        if steps > 0 && warmup.saturating_add(falls) > steps {
            return error(format!(
                "a warm-up of {warmup} steps and a decay of {falls} (--decay {decay}) are more than the {steps} of the run; \
                 lower --warmup or --decay, or give more --steps"
            ));
        }
        Ok(())
    }

    /// Whether the first `step` steps are the same as with the schedule of `before`, because neither decay has begun by
    /// then.
    pub fn decays_ahead(&self, before: &Config, step: u64) -> bool {
        let [now, then] = [self, before].map(Config::lr_schedule);
        let alike = Schedule { steps: then.steps, decay: then.decay, ..now } == then;
        self.schedule == LrSchedule::Wsd && alike && step <= now.stable_until().min(then.stable_until())
    }

    /// Checks that a run that did `step` steps of `before` can continue with this decay. Returns a line for people if
    /// the rate was decaying and another decay changes it at once.
    ///
    /// # Errors
    /// A run in its stable part whose decay would have begun earlier.
    pub fn require_decay_ahead(&self, before: &Config, step: u64) -> Result<Option<String>, ConfigError> {
        let [now, then] = [self, before].map(Config::lr_schedule);
        let both = [self, before].iter().all(|config| config.schedule == LrSchedule::Wsd);
        if !both || now == then || self.decays_ahead(before, step) {
            return Ok(None);
        }
        if step > then.stable_until() {
            // There is no step after the last one.
            return Ok((step < now.steps).then(|| {
                format!(
                    "the learning rate was falling since step {}: it goes from {:.3e} to {:.3e} at once",
                    then.stable_until(),
                    then.rate(step.saturating_sub(1)),
                    now.rate(step)
                )
            }));
        }
        let most = match share_of(self.steps.saturating_sub(step), self.steps) {
            Some(share) => format!("give --decay {share}, less, or more --steps"),
            None => "give more --steps".to_owned(),
        };
        error(format!(
            "the decay of {} steps with --decay {} begins after step {}, and the run is at step {step} already; {most}",
            self.steps,
            self.decay,
            now.stable_until()
        ))
    }
}

/// The number of steps of a decay: a share of the run's, at least one.
fn of_share(share: f64, steps: u64) -> u64 {
    ((share * steps as f64).round() as u64).clamp(steps.min(1), steps)
}

/// A number of steps as a share of all steps, with few digits; `None` for 0 steps.
fn share_of(part: u64, steps: u64) -> Option<String> {
    let short = (1..17).map(|digits| format!("{:.digits$}", part as f64 / steps as f64));
    let exact = |share: &String| share.parse().is_ok_and(|share: f64| share > 0.0 && of_share(share, steps) == part);
    (part > 0).then(|| short.into_iter().find(exact)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawConfig;

    fn resolved(text: &str) -> Result<Config, ConfigError> {
        Config::resolve(toml::from_str(&format!("preset = 'pythia-tiny'\n{text}")).unwrap())
    }

    fn wsd(steps: u64, decay: f64) -> Config {
        resolved(&format!("schedule = 'wsd'\nwarmup = 10\nsteps = {steps}\ndecay = {decay}")).unwrap()
    }

    #[test]
    fn a_decay_that_does_not_fit_or_is_not_used_is_refused() {
        for (text, says) in [
            ("decay = 0.2", "--decay 0.2 is for --schedule wsd"),
            ("schedule = 'linear'\ndecay_shape = 'sqrt'", "--decay-shape is for --schedule wsd"),
            ("schedule = 'wsd'\nsteps = 100\nwarmup = 91", "a warm-up of 91 steps and a decay of 10 (--decay 0.1)"),
            ("schedule = 'wsd'\nsteps = 100\nwarmup = 200", "a warm-up of 200 steps"),
            ("schedule = 'wsd'\nsteps = 100\nwarmup = 1\ndecay = 1.0", "the 100 of the run; lower --warmup"),
        ] {
            let refused = resolved(text).unwrap_err().to_string();
            assert!(refused.contains(says) && !refused.contains('\n'), "{text}: {refused}");
        }
        for text in [
            "decay = 0.1\ndecay_shape = 'linear'",
            "schedule = 'wsd'\nsteps = 100\nwarmup = 90",
            "schedule = 'wsd'\nsteps = 100\nwarmup = 0\ndecay = 1",
            "schedule = 'wsd'\nepochs = 1\nwarmup = 200",
        ] {
            resolved(text).unwrap();
        }
    }

    #[test]
    fn it_is_saved_where_it_is_not_usual_and_read_back() {
        let text = |config: &Config| toml::to_string(config).unwrap();
        let usual = text(&resolved("").unwrap());
        assert!(!usual.contains("\ndecay"), "{usual}");
        let own = resolved("schedule = 'wsd'\ndecay = 0.25\ndecay_shape = 'sqrt'\nlr_end = 0").unwrap();
        assert!(text(&own).contains("\ndecay = 0.25\ndecay_shape = \"sqrt\"\n"), "{}", text(&own));
        assert_eq!(toml::from_str::<Config>(&text(&own)).unwrap(), own);
        assert_eq!(own.resumed(RawConfig::default()).unwrap(), own);
    }

    #[test]
    fn a_stable_run_gets_more_steps_or_begins_its_decay() {
        let run = wsd(1000, 0.1);
        let more = run.resumed(toml::from_str("steps = 5000\ndecay = 0.2\ndecay_shape = 'sqrt'").unwrap()).unwrap();
        assert_eq!((more.steps, more.decay, more.warmup), (5000, 0.2, run.warmup));
        for (now, step, ahead) in [
            (wsd(5000, 0.2), 900, true),
            (wsd(5000, 0.2), 901, false),
            (wsd(600, 0.1), 540, true),
            (wsd(600, 0.1), 541, false),
            (resolved("schedule = 'wsd'\nwarmup = 11\nsteps = 1000").unwrap(), 5, false),
        ] {
            assert_eq!(now.decays_ahead(&run, step), ahead, "{} {step}", now.steps);
        }
        let says = |now: &Config, step| now.require_decay_ahead(&run, step).map_err(|e| e.to_string());
        assert_eq!(
            (says(&run, 950), says(&wsd(5000, 0.2), 900), says(&wsd(600, 0.1), 540)),
            (Ok(None), Ok(None), Ok(None))
        );
        let refused = says(&wsd(600, 0.5), 500).unwrap_err();
        assert_eq!(
            refused,
            "the decay of 600 steps with --decay 0.5 begins after step 300, and the run is at step 500 already; give --decay \
             0.167, less, or more --steps"
        );
        assert_eq!(says(&wsd(600, 0.167), 500), Ok(None));
        assert!(says(&wsd(600, 0.5), 600).unwrap_err().ends_with("already; give more --steps"));
        // Within its decay the run continues at another rate, and reports that.
        let line = says(&wsd(5000, 0.2), 950).unwrap().unwrap();
        assert_eq!(line, "the learning rate was falling since step 900: it goes from 1.650e-3 to 3.000e-3 at once");
    }

    #[test]
    fn a_share_is_written_in_the_digits_that_say_its_steps() {
        for (part, steps) in [(1, 3), (100, 600), (1, 1_000_000), (7, 7), (123_456, 9_876_543)] {
            let share = share_of(part, steps).unwrap();
            assert_eq!(of_share(share.parse().unwrap(), steps), part, "{share}");
        }
        assert_eq!((share_of(0, 9), share_of(100, 600).as_deref()), (None, Some("0.167")));
        assert_eq!((of_share(0.1, 1), of_share(1.0, u64::MAX), of_share(0.5, 0)), (1, u64::MAX, 0));
    }
}
