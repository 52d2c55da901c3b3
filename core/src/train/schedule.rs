//! The learning rate as a function of the step.

/// How the rate changes from its peak to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Half a cosine.
    Cosine,
    /// A straight line.
    Linear,
    /// Constant at the peak.
    Constant,
    /// Constant at the peak, falling over the last steps: warm-up, stable, decay (Hu et al. 2024).
    Wsd,
}

/// The fall of the rate of [`Shape::Wsd`], as a function of the completed part of the decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// 1 - x.
    Linear,
    /// Half a cosine.
    Cosine,
    /// 1 - √x (Hägele et al. 2024).
    Sqrt,
}

/// A linear warm-up to the peak, then the shape down to the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The shape after the warm-up.
    pub shape: Shape,
    /// The highest rate.
    pub peak: f64,
    /// The rate at the last step, as a share of the peak.
    pub end: f64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// The number of last steps over which the rate of [`Shape::Wsd`] falls, and how.
    pub decay: (u64, Decay),
    /// The part of the decay that was completed before those steps: not 0 where the end of a run was moved during the
    /// decay.
    pub fallen: f64,
}

impl Schedule {
    /// Steps before the decay of [`Shape::Wsd`].
    pub fn stable_until(&self) -> u64 {
        self.steps.saturating_sub(self.decay.0)
    }

    /// The rate of step `step`, counted from 0. Beyond the run's last step it stays at the end.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let span = self.steps.saturating_sub(self.warmup).saturating_sub(1).max(1);
        let progress = ((step - self.warmup) as f64 / span as f64).min(1.0);
        let share = match self.shape {
            Shape::Cosine => half_cosine(progress),
            Shape::Linear => 1.0 - progress,
            Shape::Constant => return self.peak,
            Shape::Wsd => {
                let (steps, shape) = self.decay;
                // The first step of the decay is below the peak, the last one at the end.
                let done = (step + 1).saturating_sub(self.stable_until()).min(steps);
                if done == 0 {
                    return self.peak;
                }
                let done = self.fallen + (1.0 - self.fallen) * (done as f64 / steps as f64);
                match shape {
                    Decay::Linear => 1.0 - done,
                    Decay::Cosine => half_cosine(done),
                    Decay::Sqrt => 1.0 - libm::sqrt(done),
                }
            }
        };
        self.peak * (self.end + (1.0 - self.end) * share)
    }
}

/// From 1 to 0.
fn half_cosine(x: f64) -> f64 {
    0.5 * (1.0 + libm::cos(core::f64::consts::PI * x))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    const NONE: (u64, Decay) = (0, Decay::Linear);

    /// Every step of a run, compared with independent formulas.
    #[test]
    fn warm_up_stable_and_decay_are_the_formulas_at_every_step() {
        for (warmup, steps, decay, end) in
            [(10u64, 200u64, 40u64, 0.1), (0, 50, 50, 0.0), (3, 10, 1, 0.0), (1, 7, 6, 0.5)]
        {
            for shape in [Decay::Linear, Decay::Cosine, Decay::Sqrt] {
                let s =
                    Schedule { shape: Shape::Wsd, peak: 3e-3, end, warmup, steps, decay: (decay, shape), fallen: 0.0 };
                assert_eq!(s.stable_until(), steps - decay);
                for step in 0..steps + 5 {
                    // The number of the step, counted from 1.
                    let t = (step + 1) as f64;
                    let x = ((t - (steps - decay) as f64) / decay as f64).clamp(0.0, 1.0);
                    let falls = match shape {
                        Decay::Linear => 1.0 - x,
                        Decay::Cosine => (x * std::f64::consts::FRAC_PI_2).cos().powi(2),
                        Decay::Sqrt => 1.0 - x.powf(0.5),
                    };
                    let rises = if step < warmup { t / warmup as f64 } else { 1.0 };
                    let expected = 3e-3 * rises * (end + (1.0 - end) * falls);
                    let found = s.rate(step);
                    assert!((found - expected).abs() <= 1e-12 * 3e-3, "{s:?} {step}: {found}, not {expected}");
                    if (warmup..steps - decay).contains(&step) {
                        assert_eq!(found, 3e-3, "stable");
                    }
                }
                assert_eq!(s.rate(steps - 1), 3e-3 * end, "{s:?}");
            }
        }
    }

    /// The steps before either decay do not depend on the length of the run.
    #[test]
    fn the_stable_steps_of_longer_runs_are_the_same() {
        let of = |steps, decay| Schedule {
            shape: Shape::Wsd,
            peak: 0.7,
            end: 0.0,
            warmup: 9,
            steps,
            decay: (decay, Decay::Sqrt),
            fallen: 0.0,
        };
        let (short, long) = (of(100, 20), of(3000, 7));
        assert!((0..80).all(|step| short.rate(step).to_bits() == long.rate(step).to_bits()));
        assert!(short.rate(80) < long.rate(80));
    }

    /// A rate that is partly decayed continues from there, whatever the number of remaining steps.
    #[test]
    fn an_end_that_moves_bends_the_fall_and_breaks_it_nowhere() {
        for shape in [Decay::Linear, Decay::Cosine, Decay::Sqrt] {
            let plan = |steps, decay, fallen| Schedule {
                shape: Shape::Wsd,
                peak: 2.0,
                end: 0.1,
                warmup: 0,
                steps,
                decay: (decay, shape),
                fallen,
            };
            // 40 of the 100 steps of a decay that begins after 50.
            let before = plan(150, 100, 0.0);
            for left in [30, 60, 90] {
                let after = plan(90 + left, left, 0.4);
                assert_eq!(after.stable_until(), 90);
                let drop = before.rate(88) - before.rate(89);
                let slower = 60.0 / left as f64;
                let next = before.rate(89) - after.rate(90);
                assert!(
                    next > 0.0 && (next / drop - slower).abs() < 0.05 * slower,
                    "{shape:?} {left}: {next} after {drop}"
                );
                approx::assert_relative_eq!(after.rate(89 + left), 0.2, max_relative = 1e-12);
                let alike = |step: u64| (after.rate(step) - before.rate(step)).abs() < 1e-12;
                assert_eq!((90..150).all(alike), left == 60, "{shape:?} {left}");
            }
        }
    }

    #[test]
    fn rates_start_peak_and_end_where_they_should() {
        for shape in [Shape::Cosine, Shape::Linear] {
            let s = Schedule { shape, peak: 1e-3, end: 0.1, warmup: 10, steps: 1011, decay: NONE, fallen: 0.0 };
            approx::assert_relative_eq!(s.rate(0), 1e-4);
            approx::assert_relative_eq!(s.rate(9), 1e-3);
            approx::assert_relative_eq!(s.rate(10), 1e-3);
            approx::assert_relative_eq!(s.rate(510), 0.55e-3, max_relative = 1e-9);
            approx::assert_relative_eq!(s.rate(1010), 1e-4, max_relative = 1e-9);
            approx::assert_relative_eq!(s.rate(5000), 1e-4, max_relative = 1e-9);
        }
        let s = Schedule { shape: Shape::Constant, peak: 2.0, end: 0.0, warmup: 0, steps: 5, decay: NONE, fallen: 0.0 };
        assert_eq!([s.rate(0), s.rate(4), s.rate(9)], [2.0; 3]);
    }

    #[test]
    fn a_run_of_one_step_has_a_rate() {
        for warmup in [0, 1, 7] {
            let s = Schedule { shape: Shape::Cosine, peak: 1.0, end: 0.0, warmup, steps: 1, decay: NONE, fallen: 0.0 };
            assert!(s.rate(0) > 0.0 && s.rate(0) <= 1.0);
        }
    }
}
