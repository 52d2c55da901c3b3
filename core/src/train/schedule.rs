//! The learning rate as a function of the step.

/// How the rate goes from its peak to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Half a cosine.
    Cosine,
    /// A straight line.
    Linear,
    /// It stays at the peak.
    Constant,
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
}

impl Schedule {
    /// The rate of step `step`, counted from 0. Beyond the run's last step it stays at the end.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let span = self.steps.saturating_sub(self.warmup).saturating_sub(1).max(1);
        let progress = ((step - self.warmup) as f64 / span as f64).min(1.0);
        let share = match self.shape {
            Shape::Cosine => 0.5 * (1.0 + libm::cos(core::f64::consts::PI * progress)),
            Shape::Linear => 1.0 - progress,
            Shape::Constant => return self.peak,
        };
        self.peak * (self.end + (1.0 - self.end) * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_start_peak_and_end_where_they_should() {
        for shape in [Shape::Cosine, Shape::Linear] {
            let s = Schedule { shape, peak: 1e-3, end: 0.1, warmup: 10, steps: 1011 };
            approx::assert_relative_eq!(s.rate(0), 1e-4);
            approx::assert_relative_eq!(s.rate(9), 1e-3);
            approx::assert_relative_eq!(s.rate(10), 1e-3);
            approx::assert_relative_eq!(s.rate(510), 0.55e-3, max_relative = 1e-9);
            approx::assert_relative_eq!(s.rate(1010), 1e-4, max_relative = 1e-9);
            approx::assert_relative_eq!(s.rate(5000), 1e-4, max_relative = 1e-9);
        }
        let s = Schedule { shape: Shape::Constant, peak: 2.0, end: 0.0, warmup: 0, steps: 5 };
        assert_eq!([s.rate(0), s.rate(4), s.rate(9)], [2.0; 3]);
    }

    #[test]
    fn a_run_of_one_step_has_a_rate() {
        for warmup in [0, 1, 7] {
            let s = Schedule { shape: Shape::Cosine, peak: 1.0, end: 0.0, warmup, steps: 1 };
            assert!(s.rate(0) > 0.0 && s.rate(0) <= 1.0);
        }
    }
}
