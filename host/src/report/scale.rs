//! Axes: the position of a value, and the values that are labelled.

/// Maps values to positions in a drawing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    values: [f64; 2],
    places: [f64; 2],
    /// Whether the scale is logarithmic.
    pub log: bool,
}

/// A labelled value of an axis.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Tick {
    /// Its position.
    pub at: f64,
    /// Its label.
    pub label: String,
}

/// Distances between ticks, times a power of ten.
const NICE: [f64; 3] = [1.0, 2.0, 5.0];

impl Scale {
    /// A scale from `values` to `places`; logarithmic only if all values are above 0. If all values are equal, they lie
    /// in the middle.
    pub fn new(values: [f64; 2], places: [f64; 2], log: bool) -> Scale {
        let log = log && values[0] > 0.0;
        let [low, high] = values;
        let room = if log { low * 0.1 } else { (0.1 * low.abs()).max(1e-9) };
        let values = if high > low { values } else { [low - room, low + room] };
        Scale { values, places, log }
    }

    /// The position of a value, rounded to two decimals.
    pub fn at(&self, value: f64) -> f64 {
        let along = |value: f64| if self.log { value.max(f64::MIN_POSITIVE).ln() } else { value };
        let [low, high] = self.values.map(along);
        let part = (along(value) - low) / (high - low);
        rounded(self.places[0] + part * (self.places[1] - self.places[0]))
    }

    /// About `most` labelled values at most: multiples of 1, 2 or 5 times a power of ten. A logarithmic axis has powers
    /// of ten, and their multiples if there are few powers.
    pub fn ticks(&self, most: usize) -> Vec<Tick> {
        let [low, high] = self.values;
        let inside = |value: &f64| *value >= low - 1e-9 * low.abs() && *value <= high + 1e-9 * high.abs();
        if self.log {
            let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
            let of = |multiples: &[f64]| -> Vec<f64> {
                let all = decades.clone().flat_map(|k| multiples.iter().map(move |m| m * 10f64.powi(k)));
                all.filter(inside).collect()
            };
            let sets: [&[f64]; 4] =
                [&[1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0], &[1.0, 2.0, 3.0, 5.0], &[1.0, 3.0], &[1.0]];
            let fitting = sets.iter().map(|set| of(set)).find(|values| values.len() <= most);
            let mut values = fitting.unwrap_or_else(|| {
                let powers = of(&[1.0]);
                let every = powers.len().div_ceil(most.max(1));
                powers.into_iter().step_by(every).collect()
            });
            if values.len() < 2 {
                values = linear(low, high, most);
            }
            return values.iter().map(|value| Tick { at: self.at(*value), label: short(*value) }).collect();
        }
        let values = linear(low, high, most);
        let step = values.get(1).zip(values.first()).map_or(high - low, |(b, a)| b - a);
        values.iter().map(|value| Tick { at: self.at(*value), label: of_step(*value, step) }).collect()
    }
}

/// A position with two decimals, as a drawing has it.
pub fn rounded(place: f64) -> f64 {
    let place = (place * 100.0).round() / 100.0;
    // Avoids a minus sign before zero.
    if place == 0.0 { 0.0 } else { place }
}

/// Multiples of a suitable step between two values.
fn linear(low: f64, high: f64, most: usize) -> Vec<f64> {
    let least = (high - low) / most.max(1) as f64;
    if !(least > 0.0 && least.is_finite()) {
        return Vec::new();
    }
    let power = least.log10().floor() as i32;
    let steps = (power..=power + 1).flat_map(|k| NICE.iter().map(move |m| (*m, k)));
    let (multiple, k) =
        steps.into_iter().find(|(m, k)| m * 10f64.powi(*k) >= least * (1.0 - 1e-9)).unwrap_or((1.0, power + 2));
    // Divides if the power is negative: 3 / 10 is 0.3, 3 * 0.1 is not.
    let times = |n: f64| if k < 0 { n * multiple / 10f64.powi(-k) } else { n * multiple * 10f64.powi(k) };
    let step = times(1.0);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    (0..=(last - first).clamp(-1.0, 1000.0) as i64).map(|n| times(first + n as f64)).filter(|_| last >= first).collect()
}

/// A value with as many decimals as ticks at distance `step` need.
fn of_step(value: f64, step: f64) -> String {
    let largest = value.abs().max(step.abs());
    if largest >= 10_000.0 || step.abs() < 0.001 {
        return short(value);
    }
    let decimals = (-step.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.decimals$}")
}

/// A value in few characters: 12 k, 3.5 M, 6e-5.
pub fn short(value: f64) -> String {
    let size = value.abs();
    let trimmed = |value: f64, decimals: usize| {
        let text = format!("{value:.decimals$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    };
    match size {
        0.0 => "0".to_owned(),
        s if s < 0.001 => {
            let text = format!("{value:.1e}");
            text.replace(".0e", "e")
        }
        s if s < 1.0 => trimmed(value, 4),
        s if s < 10_000.0 => trimmed(value, 2),
        s if s < 1e6 => trimmed(value / 1e3, 1) + " k",
        s if s < 1e9 => trimmed(value / 1e6, 2) + " M",
        s if s < 1e12 => trimmed(value / 1e9, 2) + " G",
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: [f64; 2], log: bool, most: usize) -> Vec<String> {
        Scale::new(values, [0.0, 100.0], log).ticks(most).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_and_named_no_longer_than_they_need() {
        assert_eq!(labels([0.0, 1.0], false, 5), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels([0.0, 1000.0], false, 5), ["0", "200", "400", "600", "800", "1000"]);
        assert_eq!(labels([0.0, 100_000.0], false, 5), ["0", "20 k", "40 k", "60 k", "80 k", "100 k"]);
        assert_eq!(labels([1.013, 1.049], false, 4), ["1.02", "1.03", "1.04"]);
        assert_eq!(labels([0.0, 3e-4], false, 3), ["0", "1e-4", "2e-4", "3e-4"]);
        assert_eq!(labels([-1.5, 2.0], false, 4), ["-1", "0", "1", "2"]);
        assert_eq!(labels([1.0, 1000.0], true, 5), ["1", "10", "100", "1000"]);
        assert_eq!(labels([0.9, 6.4], true, 6), ["1", "2", "3", "5"]);
        assert_eq!(labels([4.1, 4.9], true, 4), ["4.2", "4.4", "4.6", "4.8"]);
    }

    #[test]
    fn any_two_values_have_a_few_ticks_inside() {
        let values = [0.0, 1e-12, 3e-5, 0.017, 0.3, 1.0, 1.0000001, 7.5, 9999.0, 123_456.0, 5e9, 1e15];
        for low in values {
            for high in values.into_iter().filter(|high| *high >= low) {
                for log in [false, true] {
                    for most in [2, 5, 9] {
                        let scale = Scale::new([low, high], [300.0, 10.0], log);
                        let ticks = scale.ticks(most);
                        assert!(ticks.len() <= most + 2, "{low} {high} {log}: {ticks:?}");
                        assert!(
                            ticks.iter().all(|tick| (9.9..=300.1).contains(&tick.at)),
                            "{low} {high} {log}: {ticks:?}"
                        );
                        let mut places: Vec<_> = ticks.iter().map(|tick| tick.at).collect();
                        places.dedup();
                        assert_eq!(places.len(), ticks.len(), "{low} {high} {log}");
                    }
                }
            }
        }
    }

    #[test]
    fn places_follow_their_values() {
        let linear = Scale::new([0.0, 10.0], [100.0, 0.0], false);
        assert_eq!([0.0, 2.5, 10.0].map(|value| linear.at(value)), [100.0, 75.0, 0.0]);
        let log = Scale::new([1.0, 100.0], [0.0, 100.0], true);
        assert_eq!([1.0, 10.0, 100.0].map(|value| log.at(value)), [0.0, 50.0, 100.0]);
        assert!(!Scale::new([0.0, 1.0], [0.0, 1.0], true).log, "0 has no logarithm");
        assert_eq!(Scale::new([3.0, 3.0], [0.0, 10.0], false).at(3.0), 5.0);
    }
}
