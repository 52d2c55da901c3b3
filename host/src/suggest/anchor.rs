//! What a text adds to the scaling law, estimated from short runs on it; and how short runs share the time. See
//! docs/scaling.md.

use super::law::{Course, Text};

/// The law's error for a run, in ln bits a byte; the standard deviation of the prior of `less`, whose mean is 0; and
/// the mean and standard deviation of the prior of ln `scale`.
const NOISE: f64 = 0.025;
const LESS: f64 = 0.2;
const SCALE: [f64; 2] = [-0.4, 0.6];
/// The fraction of the log ratio between a candidate's own short run and the law that is assumed to persist.
const OWN: f64 = 0.5;

/// The most probable text, from runs and the bits a byte that they ended at.
pub fn anchor(runs: &[(Course, f64)]) -> Text {
    let (mut ln_scale, mut less) = (SCALE[0], 0.0);
    let text = |ln_scale: f64, less: f64| Text { scale: ln_scale.exp(), less };
    // Gauss-Newton: the residuals are nearly linear in both parameters.
    for _ in 0..50 {
        let now = text(ln_scale, less);
        let mut normal = [[SCALE[1].powi(-2), 0.0], [0.0, LESS.powi(-2)]];
        let mut right = [-(ln_scale - SCALE[0]) / SCALE[1].powi(2), -less / LESS.powi(2)];
        for (course, bits) in runs {
            let off = (course.bits(now) / bits).ln();
            let by = [1.0, (course.bits(text(ln_scale, less + 1e-6)) / course.bits(now)).ln() / 1e-6];
            for row in 0..2 {
                right[row] -= by[row] * off / NOISE.powi(2);
                (0..2).for_each(|column| normal[row][column] += by[row] * by[column] / NOISE.powi(2));
            }
        }
        let [[a, b], [c, d]] = normal;
        let determinant = a * d - b * c;
        let step = [(d * right[0] - b * right[1]) / determinant, (a * right[1] - c * right[0]) / determinant];
        ln_scale += step[0].clamp(-0.3, 0.3);
        less += step[1].clamp(-0.1, 0.1);
        if step.iter().all(|by| by.abs() < 1e-9) {
            break;
        }
    }
    text(ln_scale, less)
}

/// The factor by which a candidate is expected to end above the law on a text, from the candidate's own run, which
/// ended at `bits`.
pub fn own(text: Text, course: &Course, bits: f64) -> f64 {
    (bits / course.bits(text)).powf(OWN)
}

/// A rung of successive halving: `runs` runs of `seconds` each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rung {
    /// The number of runs.
    pub runs: usize,
    /// Seconds of each.
    pub seconds: f64,
}

/// Divides `seconds` into rungs: the first has as many runs as there are candidates, up to eight; each next rung has
/// half as many, twice as long, down to two runs. A run of the first `n` candidates needs `least(n)` seconds; `None` if
/// there is no time for two runs.
pub fn rungs(seconds: f64, candidates: usize, least: impl Fn(usize) -> f64) -> Option<Vec<Rung>> {
    [8, 4, 2].into_iter().filter(|runs| *runs <= candidates.max(2)).find_map(|first| {
        let counts: Vec<usize> = (0..).map(|rung| first >> rung).take_while(|runs| *runs >= 2).collect();
        let each = seconds / counts.len() as f64;
        let all: Vec<Rung> =
            counts.into_iter().map(|runs| Rung { runs, seconds: each / runs.min(candidates) as f64 }).collect();
        (all[0].seconds >= least(first.min(candidates))).then_some(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suggest::law::PROSE;

    fn course(matrices: f64, tokens: f64) -> Course {
        Course {
            matrices,
            tokens,
            unique: 6e6,
            bytes_a_token: 3.2,
            vocabulary: 10_000.0,
            step: 16_384.0,
            length: 512.0,
            rate: 4.0,
        }
    }

    #[test]
    fn a_text_is_found_by_runs_that_lie_apart() {
        let courses = [course(1.2e6, 1e6), course(1.2e6, 4.1e6), course(10.8e6, 4.1e6), course(19e6, 16e6)];
        for text in [Text { scale: 0.7, less: 0.0 }, Text { scale: 0.9, less: 0.25 }, PROSE] {
            let runs: Vec<_> = courses.iter().map(|course| (*course, course.bits(text))).collect();
            let found = anchor(&runs);
            for course in [course(4.8e6, 20e6), courses[0]] {
                approx::assert_relative_eq!(course.bits(found), course.bits(text), max_relative = 0.015);
            }
        }
        // Without a run the text is the mean of the prior.
        assert_eq!(anchor(&[]), Text { scale: (-0.4f64).exp(), less: 0.0 });
    }

    /// The expected values come from `tests/scaling/law.py`, for the Go text of docs/scaling.md.
    #[test]
    fn a_text_is_what_the_script_makes_of_it() {
        let go = |matrices, tokens, step, length, rate| Course {
            matrices,
            tokens,
            unique: GO.0,
            bytes_a_token: GO.1 / GO.0,
            step,
            length,
            rate,
            ..course(0.0, 0.0)
        };
        let runs = [
            (go(1_204_224.0, 4_096_000.0, 16_384.0, 512.0, 4.0), 1.271_238),
            (go(10_838_016.0, 4_096_000.0, 16_384.0, 512.0, 4.0), 1.129_232),
            (go(1_204_224.0, 1_024_000.0, 2048.0, 256.0, 2.0), 1.763_363),
        ];
        let found = anchor(&runs);
        approx::assert_relative_eq!(found.scale, 0.8916, max_relative = 1e-3);
        approx::assert_relative_eq!(found.less, 0.2364, max_relative = 1e-3);
    }

    /// Tokens and bytes of the Go text.
    const GO: (f64, f64) = (7_536_738.0, 19_374_179.0);

    #[test]
    fn half_of_the_runs_go_on_for_twice_as_long() {
        let rung = |runs, seconds| Rung { runs, seconds };
        assert_eq!(rungs(240.0, 17, |_| 10.0), Some(vec![rung(8, 10.0), rung(4, 20.0), rung(2, 40.0)]));
        assert_eq!(rungs(240.0, 17, |_| 11.0), Some(vec![rung(4, 30.0), rung(2, 60.0)]));
        assert_eq!(rungs(240.0, 3, |_| 10.0), Some(vec![rung(2, 120.0)]));
        assert_eq!(rungs(240.0, 17, |_| 130.0), None);
        // More runs include larger candidates, which need more time.
        assert_eq!(rungs(240.0, 8, |n| n as f64 * 5.0), Some(vec![rung(4, 30.0), rung(2, 60.0)]));
    }
}
