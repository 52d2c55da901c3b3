//! Predicts where a run of the quick recipe ends from its evaluations so far. The formula was fitted to runs: see
//! "While a run goes on" in docs/scaling.md.

use super::law::{Course, PROSE};

/// The exponent of the rate's share of the highest rate in what the rate adds to the loss.
const GAMMA: f64 = 1.15;
/// The logarithm of what the highest rate adds to the loss: a constant, then its slopes in parameters, rate, tokens of
/// a step, loss and movement.
const RATE: [f64; 6] = [-3.1729, 0.2172, 0.275_71, -0.2267, -0.653_02, 0.364_98];
/// The slope of the rest of the run: a constant, then the weights of the slope so far, of the law's slope and of the
/// remaining movement.
const SLOPE: [f64; 4] = [0.121_21, 0.659_46, 0.748_09, -0.280_51];
/// Parts of a run and the error of predictions there: the root mean square of the logarithm, over runs or texts left
/// out of the fit.
const ERRORS: [[f64; 2]; 5] = [[0.5, 0.0209], [0.6, 0.0169], [0.7, 0.0124], [0.8, 0.006], [0.9, 0.0046]];
/// About the most passes over a text in the runs of the fit.
const MOST_PASSES: f64 = 4.0;
/// The preferred part of the current step for the earlier evaluation, and the range of parts allowed.
const BEFORE: f64 = 0.6;
const NEAR: [f64; 2] = [0.4, 0.75];
/// The most evaluations stored.
const KEPT: usize = 128;

/// Evaluations so far: steps and bits a byte. When the storage is full, every second one stays, then every fourth, and
/// so on.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    points: heapless::Vec<(u64, f64), KEPT>,
    /// The step of the last evaluation added, and how many were added.
    last: Option<u64>,
    seen: u64,
    /// One evaluation in 2^`halved` is stored.
    halved: u32,
}

impl Curve {
    /// Adds the next evaluation; a repeated evaluation of the last step is ignored.
    pub fn add(&mut self, step: u64, bits: f64) {
        if self.last.replace(step) == Some(step) {
            return;
        }
        let number = self.seen;
        self.seen += 1;
        if self.points.is_full() {
            self.halved += 1;
            let mut even = false;
            self.points.retain(|_| {
                even = !even;
                even
            });
        }
        if number.is_multiple_of(1 << self.halved) {
            // The push cannot fail: there is room.
            let _ = self.points.push((step, bits));
        }
    }

    /// The earlier evaluation that step `step` is compared with: among those at 0.4 to 0.75 of `step`, the one whose
    /// ratio is nearest to 0.6.
    fn before(&self, step: u64) -> Option<(u64, f64)> {
        let part = |of: u64| of as f64 / step as f64;
        let near = self.points.iter().filter(|(of, _)| (NEAR[0]..=NEAR[1]).contains(&part(*of)));
        let off = |of: u64| (part(of) / BEFORE).ln().abs();
        near.min_by(|a, b| off(a.0).total_cmp(&off(b.0))).copied()
    }
}

/// The steps of a run whose rate falls linearly to 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// All steps.
    pub all: u64,
    /// Steps before the rate falls.
    pub stable: u64,
}

impl Steps {
    /// The rate at step `step`, counted from 1, as a fraction of the highest rate; there is no warm-up.
    fn rate(&self, step: u64) -> f64 {
        let falls = self.all.saturating_sub(self.stable).max(1) as f64;
        (self.all.saturating_sub(step) as f64 / falls).min(1.0)
    }

    /// The sum of the rates up to `step`.
    fn moved(&self, step: u64) -> f64 {
        let falls = self.all.saturating_sub(self.stable).max(1) as f64;
        let fallen = step.saturating_sub(self.stable) as f64;
        step as f64 - fallen * (fallen + 1.0) / (2.0 * falls)
    }
}

/// Where a run is expected to end, in bits a byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// The most likely value.
    pub bits: f64,
    /// Twice the error of such predictions below the most likely value, and above it.
    pub between: [f64; 2],
}

impl Expected {
    /// Half of the interval's width.
    pub fn off(&self) -> f64 {
        (self.between[1] - self.between[0]) / 2.0
    }
}

/// What is known at an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Now {
    /// Steps done.
    pub step: u64,
    /// Bits a byte.
    pub bits: f64,
    /// Nats a token.
    pub nats: f64,
}

/// Predicts the end of a run of `course` that stands at `now` and had the evaluations in `curve`. `None` before half of
/// the run and at its end, without an earlier evaluation in the allowed range, and after too many passes.
pub fn expected(course: &Course, steps: Steps, curve: &Curve, now: Now) -> Option<Expected> {
    let Now { step, bits, nats } = now;
    if step < steps.all.div_ceil(2) || step >= steps.all || course.passes() > MOST_PASSES {
        return None;
    }
    let (before, higher) = curve.before(step)?;
    let (now, moved, all) = (step as f64, steps.moved(step), steps.all as f64);
    let ahead = (steps.moved(steps.all) / moved).ln();
    let law = |steps: f64| Course { tokens: steps * course.step, ..*course }.bits(PROSE);
    let law = (law(now) / law(all)).ln() / (all / now).ln();
    let known = [
        1.0,
        (course.matrices / 4e6).ln(),
        course.rate.ln(),
        (course.step / 16_384.0).ln(),
        nats.ln() - 1.3,
        (moved * course.rate / 500.0).ln(),
    ];
    let rate = RATE.iter().zip(known).map(|(by, value)| by * value).sum::<f64>().exp();
    let [added, more] = [step, before].map(|step| rate * steps.rate(step).powf(GAMMA));
    let slope = ((higher / bits).ln() - (more - added)) / (moved / steps.moved(before)).ln();
    let slope = SLOPE[0] + SLOPE[1] * slope + SLOPE[2] * law + SLOPE[3] * ahead;
    let found = |off: f64| bits * (off - slope * ahead - added).exp();
    let off = 2.0 * error(now / all);
    let all = [found(0.0), found(-off), found(off)];
    all.iter().all(|bits| bits.is_finite()).then_some(Expected { bits: all[0], between: [all[1], all[2]] })
}

/// The error of predictions at this part of a run: interpolated linearly between the measured ones.
fn error(part: f64) -> f64 {
    let line = ERRORS.windows(2).find(|pair| part <= pair[1][0]);
    line.map_or(ERRORS[ERRORS.len() - 1][1], |pair| {
        let [[from, low], [to, high]] = [pair[0], pair[1]];
        low + (high - low) * ((part - from) / (to - from)).max(0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// A run of the fit: its course, its steps and its evaluations.
    fn run(id: &str) -> (Course, Steps, Vec<Now>) {
        let file = include_str!("../../../tests/scaling/curves.jsonl");
        let mut all = file.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let run = all.find(|run| run["id"].as_str().unwrap().starts_with(id)).unwrap();
        let of = |name: &str| run[name].as_f64().unwrap();
        let course = Course {
            matrices: of("matrices"),
            tokens: of("tokens"),
            unique: of("unique"),
            bytes_a_token: of("bytes") / of("unique"),
            vocabulary: of("vocab"),
            step: of("batch") * of("t"),
            length: of("t"),
            rate: of("lr"),
        };
        let all = of("steps") as u64;
        let steps = Steps { all, stable: all - (of("decay") * of("steps")).round() as u64 };
        let each = of("nats") / of("bpb");
        let curve = run["curve"].as_array().unwrap().iter().map(|point| {
            let bits = point[1].as_f64().unwrap();
            Now { step: point[0].as_u64().unwrap(), bits, nats: bits * each }
        });
        (course, steps, curve.collect())
    }

    /// The prediction at each evaluation.
    fn predictions(id: &str) -> Vec<Option<Expected>> {
        let (course, steps, all) = run(id);
        let mut curve = Curve::default();
        let each = all.into_iter().map(|now| {
            let expected = expected(&course, steps, &curve, now);
            curve.add(now.step, now.bits);
            expected
        });
        each.collect()
    }

    /// The expected values come from `tests/scaling/ending.py`, which made the fit.
    #[test]
    fn it_says_what_the_fit_says() {
        for (id, bits) in [
            ("6x256 steps=1056 batch=32 t=512 clean:20000000", 1.325_069_664_612_136_3),
            ("6x256 steps=1000 batch=32 t=512 clean vocab=10000 lr=1.0 decay=0.6", 1.262_308_437_008_675),
            ("6x512 steps=500 batch=32 t=512 clean", 1.290_326_383_352_509_7),
        ] {
            let all = predictions(id);
            approx::assert_relative_eq!(all[9].unwrap().bits, bits, max_relative = 1e-12);
            // `None` before half of a run and at its end.
            let said: Vec<_> = all.iter().map(Option::is_some).collect();
            assert_eq!(said, [vec![false; 9], vec![true; 10], vec![false]].concat(), "{id}");
            let width = |expected: &Expected| (expected.between[1] / expected.between[0]).ln() / 4.0;
            let widths: Vec<_> = all.iter().flatten().map(width).collect();
            assert!(widths.is_sorted_by(|a, b| *a >= b - 1e-12), "{widths:?}");
            approx::assert_relative_eq!(widths[0], error(0.5), max_relative = 0.02);
            let within = all
                .iter()
                .flatten()
                .all(|expected| (expected.between[0]..expected.between[1]).contains(&expected.bits));
            assert!(within);
        }
    }

    #[test]
    fn its_constants_are_those_that_were_fitted() {
        let file: Value = serde_json::from_str(include_str!("../../../tests/scaling/ending.json")).unwrap();
        let fitted = |name: &str| file["constants"][name].as_f64().unwrap();
        assert_eq!(file["gamma"].as_f64(), Some(GAMMA));
        assert_eq!(RATE.to_vec(), ["p0", "p1", "p2", "p3", "p4", "p5"].map(fitted));
        assert_eq!(SLOPE.to_vec(), ["q0", "q1", "q2", "q3"].map(fitted));
        for (i, [part, error]) in ERRORS.into_iter().enumerate() {
            assert_eq!([file["positions"][i].as_f64(), file["rms"][i].as_f64()], [Some(part), Some(error)]);
        }
    }

    #[test]
    fn the_sum_of_the_rates_is_that_of_each() {
        for (all, stable) in [(20, 8), (20, 0), (7, 6), (9, 9)] {
            let steps = Steps { all, stable };
            let mut sum = 0.0;
            for step in 1..=all {
                sum += if step > stable { steps.rate(step) } else { 1.0 };
                approx::assert_relative_eq!(steps.moved(step), sum, max_relative = 1e-12);
            }
        }
    }

    #[test]
    fn what_is_compared_is_there_or_nothing_is_said() {
        let (mut course, steps, all) = run("6x256 steps=1000 batch=32 t=512 clean vocab=10000 lr=1.0 decay=0.6");
        let mut curve = Curve::default();
        assert_eq!(expected(&course, steps, &curve, all[11]), None);
        for (i, found) in [(1, false), (3, false), (4, true), (8, true), (9, false), (10, false)] {
            let mut curve = Curve::default();
            curve.add(all[i].step, all[i].bits);
            assert_eq!(expected(&course, steps, &curve, all[11]).is_some(), found, "step {}", all[i].step);
        }
        all[..11].iter().for_each(|now| curve.add(now.step, now.bits));
        assert_eq!(curve.before(600), Some((350, all[6].bits)));
        assert!(expected(&course, steps, &curve, all[11]).is_some());
        course.unique = course.tokens / 4.1;
        assert_eq!(expected(&course, steps, &curve, all[11]), None, "so many passes");
    }

    #[test]
    fn of_many_evaluations_enough_are_kept() {
        let mut curve = Curve::default();
        for step in 1..=100_000u64 {
            (0..2).for_each(|_| curve.add(step, 1.0 / step as f64));
            if step > 10 {
                let (before, bits) = curve.before(step).unwrap();
                assert_eq!(bits, 1.0 / before as f64);
                let off = before as f64 / step as f64 / BEFORE - 1.0;
                assert!(off.abs() < 0.02 + 1.0 / step as f64, "{before} of {step}");
            }
        }
    }
}
