//! Averages of the weights over the steps of a run.

use super::control::power;

/// The kind of average. [`Averaging::next`] gives the weight of each step in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Averaging {
    /// An exponential moving average with this decay D, below 1: the parameters after k earlier steps count Dᵏ times as
    /// much as the last ones. All weights are divided by their sum, as Adam does with its moments (Kingma and Ba 2015,
    /// section 3), so that the average begins as a plain mean and not with the parameters of one step; in the long run
    /// it equals other averages such as `get_ema_avg_fn(D)` of torch.optim.swa_utils.
    Exponential(f64),
    /// The mean of the weights after each of the run's last steps (Polyak and Juditsky 1992; Izmailov et al. 2018).
    Last {
        /// The number of steps in the mean.
        count: u64,
        /// Steps of the run.
        steps: u64,
    },
}

impl Averaging {
    /// For the step after `step` others, with `averaged` steps in the average so far: the weight of the step's
    /// parameters, which is [`Settings::average`], and the number of steps in the average afterwards. The average
    /// starts anew where it contains steps that do not belong in it.
    ///
    /// [`Settings::average`]: super::Settings::average
    pub fn next(&self, step: u64, averaged: u64) -> (f32, u64) {
        match *self {
            Averaging::Exponential(decay) => {
                let (one, all) = (1.0 - decay, 1.0 - power(decay, averaged + 1));
                (if averaged == 0 { 1.0 } else { (one / all) as f32 }, averaged + 1)
            }
            Averaging::Last { count, steps } => {
                let first = steps.saturating_sub(count);
                let Some(within) = step.checked_sub(first) else { return (0.0, 0) };
                let averaged = if averaged > within { 0 } else { averaged };
                ((1.0 / (averaged + 1) as f64) as f32, averaged + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    /// The weight of each step at the end, computed by going through all steps from the first.
    fn counts(averaging: impl Fn(u64) -> Averaging, steps: u64) -> (Vec<f64>, u64) {
        let (mut all, mut averaged) = (Vec::new(), 0);
        for step in 0..steps {
            let c;
            (c, averaged) = averaging(step).next(step, averaged);
            all.iter_mut().for_each(|count| *count *= 1.0 - f64::from(c));
            all.push(f64::from(c));
        }
        (all, averaged)
    }

    #[test]
    fn an_exponential_average_counts_weights_by_the_powers_of_its_decay() {
        for (decay, steps) in [(0.9, 1), (0.9, 5), (0.9, 200), (0.999, 300), (0.1, 9), (1e-9, 3)] {
            let (found, averaged) = counts(|_| Averaging::Exponential(decay), steps);
            let sum: f64 = (0..steps).map(|k| decay.powi(k as i32)).sum();
            assert_eq!(averaged, steps);
            for (step, count) in found.iter().enumerate() {
                let expected = decay.powi((steps - 1) as i32 - step as i32) / sum;
                assert!(
                    (count - expected).abs() < 1e-6 * expected.max(1e-3),
                    "{decay} {step}: {count}, not {expected}"
                );
            }
        }
        // With another decay, the existing average counts as one of that decay.
        assert_eq!(Averaging::Exponential(0.75).next(9, u64::MAX - 1).0, 0.25);
    }

    #[test]
    fn a_mean_is_of_the_last_steps_and_begins_anew_where_the_run_grows() {
        let last = |count, steps| move |_| Averaging::Last { count, steps };
        for (count, steps) in [(1, 10), (4, 10), (10, 10), (99, 10)] {
            let (found, averaged) = counts(last(count, steps), steps);
            assert_eq!(averaged, count.min(steps));
            for (step, share) in (0..).zip(found) {
                let within = step + count >= steps;
                let expected = if within { 1.0 / count.min(steps) as f64 } else { 0.0 };
                assert!((share - expected).abs() < 1e-6, "{count} of {steps}, {step}: {share}");
            }
        }
        // A run of 10 steps that is extended to 14 at step 8, when 2 of the last 4 were averaged.
        let grown = |step| Averaging::Last { count: 4, steps: if step < 8 { 10 } else { 14 } };
        let (found, averaged) = counts(grown, 14);
        assert!(averaged == 4 && found[..10].iter().all(|share| *share == 0.0));
        // Extended to 11 at step 9, when 3 were averaged: the last four begin at 7, and the first of the three lies
        // before.
        let (_, averaged) = counts(|step| Averaging::Last { count: 4, steps: if step < 9 { 10 } else { 11 } }, 11);
        assert_eq!(averaged, 2);
    }
}
