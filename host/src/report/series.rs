//! Bounded storage for a quantity over the steps of a run, however long the run is.

use std::collections::BTreeMap;

/// The values of adjacent steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// The first and the last step.
    pub steps: [u64; 2],
    /// The lowest value and its step.
    pub low: (u64, f64),
    /// The highest value and its step.
    pub high: (u64, f64),
    /// The sum of the values.
    pub sum: f64,
    /// The number of values.
    pub count: u64,
}

impl Bucket {
    fn of(step: u64, value: f64) -> Bucket {
        Bucket { steps: [step; 2], low: (step, value), high: (step, value), sum: value, count: 1 }
    }

    /// Merges both buckets.
    fn and(self, other: Bucket) -> Bucket {
        let low = if other.low.1 < self.low.1 { other.low } else { self.low };
        let high = if other.high.1 > self.high.1 { other.high } else { self.high };
        let steps = [self.steps[0].min(other.steps[0]), self.steps[1].max(other.steps[1])];
        Bucket { steps, low, high, sum: self.sum + other.sum, count: self.count + other.count }
    }

    /// The middle of the bucket's steps.
    fn middle(&self) -> f64 {
        (self.steps[0] as f64 + self.steps[1] as f64) / 2.0
    }
}

/// Values by step, in a bounded number of buckets as wide as the run requires. Each bucket has its lowest and highest
/// value, so that no spike is lost.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    most: usize,
    width: u64,
    buckets: BTreeMap<u64, Bucket>,
    /// The last value and its step.
    pub last: Option<(u64, f64)>,
    /// Number of values that were no finite numbers.
    pub lost: u64,
}

impl Series {
    /// An empty series of at most `most` buckets.
    pub fn new(most: usize) -> Series {
        Series { most: most.max(2), width: 1, buckets: BTreeMap::new(), last: None, lost: 0 }
    }

    /// Adds the value of a step; one that is no finite number is only counted.
    pub fn add(&mut self, step: u64, value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else {
            self.lost += 1;
            return;
        };
        self.last = Some((step, value));
        self.put(Bucket::of(step, value));
        self.fit();
    }

    fn put(&mut self, bucket: Bucket) {
        let place = self.buckets.entry(bucket.steps[0] / self.width).or_insert(Bucket { count: 0, ..bucket });
        *place = if place.count == 0 { bucket } else { place.and(bucket) };
    }

    /// Widens the buckets until there are at most `most`.
    fn fit(&mut self) {
        while self.buckets.len() > self.most {
            self.width = self.width.saturating_mul(2);
            std::mem::take(&mut self.buckets).into_values().for_each(|bucket| self.put(bucket));
        }
    }

    /// The same values in at most `most` buckets.
    pub fn within(&self, most: usize) -> Series {
        let mut series = Series { most: most.max(2), ..self.clone() };
        series.fit();
        series
    }

    /// The buckets, by step.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.values()
    }

    /// Whether it has no value.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// How many values it has.
    pub fn count(&self) -> u64 {
        self.buckets().map(|bucket| bucket.count).sum()
    }

    /// The lowest and the highest value.
    pub fn range(&self) -> Option<[f64; 2]> {
        let all = self.buckets().copied().reduce(Bucket::and)?;
        Some([all.low.1, all.high.1])
    }

    /// The lowest and the highest value of each bucket, by step.
    pub fn points(&self) -> Vec<(f64, f64)> {
        let mut points = Vec::with_capacity(2 * self.buckets.len());
        for bucket in self.buckets() {
            let [first, second] =
                if bucket.low.0 <= bucket.high.0 { [bucket.low, bucket.high] } else { [bucket.high, bucket.low] };
            points.push((first.0 as f64, first.1));
            if second != first {
                points.push((second.0 as f64, second.1));
            }
        }
        points
    }

    /// The mean of each bucket.
    pub fn means(&self) -> Vec<(f64, f64)> {
        self.buckets().map(|bucket| (bucket.middle(), bucket.sum / bucket.count as f64)).collect()
    }

    /// The mean of each bucket and its neighbours, a hundredth of all buckets on either side, weighted by the number of
    /// values.
    pub fn smoothed(&self) -> Vec<(f64, f64)> {
        let buckets: Vec<&Bucket> = self.buckets().collect();
        let reach = buckets.len() / 100;
        let mean = |i: usize| {
            // Near an end the same smaller number of neighbours on either side: otherwise a falling line would end too
            // high.
            let reach = reach.min(i).min(buckets.len() - 1 - i);
            let near = &buckets[i - reach..=i + reach];
            let (sum, count) = near.iter().fold((0.0, 0), |(sum, count), b| (sum + b.sum, count + b.count));
            (buckets[i].middle(), sum / count as f64)
        };
        (0..buckets.len()).map(mean).collect()
    }
}

/// The lowest item of each of a bounded number of stretches of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Lowest<T> {
    most: usize,
    width: u64,
    kept: BTreeMap<u64, (u64, f64, T)>,
}

impl<T: Copy> Lowest<T> {
    /// An empty collection of at most `most` stretches.
    pub fn new(most: usize) -> Self {
        Lowest { most: most.max(2), width: 1, kept: BTreeMap::new() }
    }

    /// Adds the item `of` of a step, ranked by `value`.
    pub fn add(&mut self, step: u64, value: f64, of: T) {
        self.put((step, value, of));
        self.fit();
    }

    fn put(&mut self, one: (u64, f64, T)) {
        let place = self.kept.entry(one.0 / self.width).or_insert(one);
        if one.1 < place.1 {
            *place = one;
        }
    }

    fn fit(&mut self) {
        while self.kept.len() > self.most {
            self.width = self.width.saturating_mul(2);
            std::mem::take(&mut self.kept).into_values().for_each(|one| self.put(one));
        }
    }

    /// The same items in at most `most` stretches.
    pub fn within(&self, most: usize) -> Self {
        let mut lowest = Lowest { most: most.max(2), ..self.clone() };
        lowest.fit();
        lowest
    }

    /// The stored items, by step.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.kept.values().map(|(_, _, of)| of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pseudo-random value.
    fn noise(step: u64) -> f64 {
        (step.wrapping_mul(6_364_136_223_846_793_005) >> 40) as f64 / (1 << 24) as f64
    }

    #[test]
    fn no_spike_is_lost_and_no_value_counts_twice() {
        let (mut series, mut sum) = (Series::new(400), 0.0);
        for step in 1..=100_000 {
            let value = match step {
                77_777 => 900.0,
                77_778 => -900.0,
                step => noise(step),
            };
            sum += value;
            series.add(step, Some(value));
        }
        let buckets = series.buckets().count();
        assert!((200..=400).contains(&buckets), "{buckets}");
        let points = series.points();
        assert!(points.len() <= 800 && points.is_sorted_by(|a, b| a.0 < b.0));
        assert!(points.contains(&(77_777.0, 900.0)) && points.contains(&(77_778.0, -900.0)));
        assert_eq!((series.range(), series.count(), series.last.unwrap().0), (Some([-900.0, 900.0]), 100_000, 100_000));
        let total: f64 = series.buckets().map(|bucket| bucket.sum).sum();
        approx::assert_relative_eq!(total, sum, max_relative = 1e-9);
        let coarse = series.within(30);
        assert!(coarse.buckets().count() <= 30 && coarse.points().contains(&(77_777.0, 900.0)));
        assert_eq!((coarse.count(), coarse.range()), (series.count(), series.range()));
    }

    #[test]
    fn few_values_stay_as_they_are() {
        let mut series = Series::new(400);
        for step in (10..=1000).step_by(10) {
            series.add(step, Some(noise(step)));
        }
        let expected: Vec<_> = (10..=1000).step_by(10).map(|step| (step as f64, noise(step))).collect();
        assert_eq!(series.points(), expected);
        series.add(1010, None);
        series.add(1020, Some(f64::NAN));
        assert_eq!((series.lost, series.count()), (2, 100));
        // Steps of any size, in any order.
        for step in [u64::MAX, 0, u64::MAX / 2, 3] {
            series.add(step, Some(1.0));
        }
        assert_eq!(series.within(2).count(), 104);
    }

    #[test]
    fn smoothing_keeps_a_straight_line_to_its_ends() {
        let mut series = Series::new(400);
        (1..=300).for_each(|step| series.add(step, Some(5.0 - 0.01 * step as f64)));
        let smoothed = series.smoothed();
        assert_eq!(smoothed.len(), 300);
        assert!(smoothed.iter().all(|(step, value)| (value - (5.0 - 0.01 * step)).abs() < 1e-9));
        assert!(Series::new(4).smoothed().is_empty());
    }

    #[test]
    fn the_lowest_evaluations_stay() {
        let mut lowest = Lowest::new(50);
        for step in 1..=10_000u64 {
            let value = if step == 6_001 { -1.0 } else { noise(step) };
            lowest.add(step, value, step);
        }
        assert!(lowest.iter().count() <= 50 && lowest.iter().any(|step| *step == 6_001));
        assert!(lowest.within(5).iter().any(|step| *step == 6_001));
    }
}
