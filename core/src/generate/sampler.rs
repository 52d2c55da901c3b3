//! Temperature, top-k, top-p and repetition penalty, in storage that the caller owns.

use core::cmp::Ordering;

use crate::random::Random;

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Logits are divided by this; 0 takes the most likely token.
    pub temperature: f32,
    /// Sample only from this many of the most likely tokens; 0 for all.
    pub top_k: u32,
    /// Sample only from the most likely tokens that together reach this probability; 1 for all.
    pub top_p: f32,
    /// Tokens of the history have their logit divided by this where positive, multiplied where negative
    /// (Keskar et al. 2019); 1 for none.
    pub repetition_penalty: f32,
}

impl Sampler {
    /// Whether it takes the largest logit, and nothing else has an effect.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 && self.repetition_penalty == 1.0
    }

    /// Chooses a token. Changes `logits` `[vocabulary]`; `order` `[vocabulary]` is scratch; `history` has the ids to
    /// penalise; number `index` of `random` decides. Ties go to the lower id. `None` where the largest logit is not
    /// finite or a candidate's logit is NaN, as in a diverged model.
    ///
    /// Weights are integers, so the choice does not depend on the order in which they are added, nor on the machine.
    pub fn sample(
        &self,
        logits: &mut [f32],
        order: &mut [u32],
        history: &[u32],
        random: &Random,
        index: u64,
    ) -> Option<u32> {
        self.penalise(logits, history);
        self.draw(logits, order, random, index)
    }

    /// As [`Sampler::sample`] without a penalty. `order` is scratch of at least two words; if it is as long as
    /// `logits`, nothing is sorted twice.
    pub fn draw(&self, logits: &[f32], order: &mut [u32], random: &Random, index: u64) -> Option<u32> {
        if self.temperature <= 0.0 {
            return most_likely(logits);
        }
        let kept = if self.top_k == 0 { logits.len() } else { logits.len().min(self.top_k as usize) };
        let mut sorted = Sorted { logits, order, forgotten: 0, count: 0, window: kept.min(FIRST) };
        let largest = logits[sorted.at(0)? as usize];
        if !largest.is_finite() {
            return None;
        }
        let inverse = 1.0 / self.temperature.max(COLDEST);
        let weigh = |logit: f32| weight((logit - largest) * inverse);
        let (mut total, mut numbers) = (0, true);
        let mut add = |logit: f32| {
            total += weigh(logit);
            numbers &= !logit.is_nan();
        };
        if kept == logits.len() {
            logits.iter().for_each(|logit| add(*logit));
        } else {
            (0..kept).filter_map(|i| sorted.at(i)).for_each(|id| add(logits[id as usize]));
        }
        if !numbers {
            return None;
        }
        if self.top_p < 1.0 {
            let limit = (total as f64 * f64::from(self.top_p)) as u64;
            let mut reached = 0;
            for i in 0..kept {
                reached += weigh(logits[sorted.at(i)? as usize]);
                if reached >= limit {
                    break;
                }
            }
            total = reached;
        }
        let mut left = random.below(index, total);
        for i in 0.. {
            let id = sorted.at(i)?;
            let weight = weigh(logits[id as usize]);
            if left < weight {
                return Some(id);
            }
            left -= weight;
        }
        None
    }

    fn penalise(&self, logits: &mut [f32], history: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        for (i, &id) in history.iter().enumerate() {
            // Each id is penalised once, however often it occurred.
            if history[..i].contains(&id) {
                continue;
            }
            if let Some(z) = logits.get_mut(id as usize) {
                *z = if *z > 0.0 { *z / self.repetition_penalty } else { *z * self.repetition_penalty };
            }
        }
    }
}

/// An integer that orders as [`f32::total_cmp`] does.
const fn key(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// The number of logits that are compared with a bound together: in most groups none is above it.
const TOGETHER: usize = 64;

/// Calls `visit(id, key)` for the logits above a bound, which each call returns anew, in the order of ids.
fn above(logits: &[f32], mut bound: Option<i32>, visit: &mut dyn FnMut(u32, i32) -> Option<i32>) {
    for (at, piece) in logits.chunks(TOGETHER).enumerate() {
        if bound.is_some_and(|b| !piece.iter().fold(false, |any, x| any | (key(*x) > b))) {
            continue;
        }
        for (i, x) in piece.iter().enumerate() {
            if bound.is_none_or(|b| key(*x) > b) {
                bound = visit((at * TOGETHER + i) as u32, key(*x));
            }
        }
    }
}

/// The id of the largest logit, the lower id of a tie; 0 for an empty slice.
fn largest(logits: &[f32]) -> u32 {
    let mut best = 0;
    above(logits, None, &mut |id, key| {
        best = id;
        Some(key)
    });
    best
}

/// The token for a temperature of 0: the id of the largest logit, the lower id of a tie; `None` where that logit is not
/// finite. A program with greedy decoding only does not link the rest of the sampler, most of it sorting, into its
/// flash.
pub fn most_likely(logits: &[f32]) -> Option<u32> {
    Some(largest(logits)).filter(|&best| logits.get(best as usize).is_some_and(|x| x.is_finite()))
}

/// e^x for x ≤ 0 in units of 2^-36, rounded down: 0 below -25 and for NaN. The relative error is at most 1.3e-7, or one
/// unit. Each operation rounds once, as in the GPU's kernel, which has the same operations.
fn weight(x: f32) -> u64 {
    const LOG2_E: f32 = core::f32::consts::LOG2_E;
    // The logarithm of 2 as a number of nine bits, whose multiples are exact, and the rest.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    if x.is_nan() || x < LEAST {
        return 0;
    }
    let twos = (x * LOG2_E - 0.5) as i32;
    let power = twos as f32;
    let r = (x - power * LN_2[0]) - power * LN_2[1];
    // The series of e^r, |r| at most 0.35: the next term is below 5e-9.
    let mut sum = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * r + factor;
    }
    // 24 bits, all of them integer bits.
    (((sum * (1 << 24) as f32) as u64) << 12) >> -twos
}

/// [`weight`] is 0 below this; the unit is 2^-36.
const LEAST: f32 = -25.0;

/// Below this temperature the most likely token has all the weight, and the inverse would be infinite.
const COLDEST: f32 = 1e-30;

/// The number of ids that are sorted at first: most choices need fewer.
const FIRST: usize = 64;

/// Ids by descending logits, ties by ascending id, sorted as far as they are read.
struct Sorted<'a> {
    logits: &'a [f32],
    /// Sorted ids: the last ones, as many as there is room for, which is at least two.
    order: &'a mut [u32],
    /// The number of earlier ids that were dropped for lack of room.
    forgotten: usize,
    /// The number of sorted ids in `order`.
    count: usize,
    /// The number of ids to sort next.
    window: usize,
}

impl Sorted<'_> {
    fn at(&mut self, i: usize) -> Option<u32> {
        if i >= self.logits.len() {
            return None;
        }
        if i < self.forgotten {
            (self.forgotten, self.count) = (0, 0);
        }
        while i - self.forgotten >= self.count {
            let last = self.count.checked_sub(1).and_then(|at| self.order.get(at).copied());
            let left = self.logits.len() - self.forgotten - self.count;
            if self.order.len() - self.count < left.min(2 * self.window) {
                (self.forgotten, self.count) = (self.forgotten + self.count, 0);
            }
            let end = self.order.len().min(self.count + left);
            let room = &mut self.order[self.count..end];
            let kept =
                if room.len() == left { self.window.clamp(1, left) } else { self.window.min(room.len() / 2).max(1) };
            select(self.logits, room, kept, last.map(|id| (key(self.logits[id as usize]), id)));
            room[..kept].sort_unstable_by(more_likely(self.logits));
            self.count += kept;
            self.window = 4 * kept;
        }
        self.order.get(i - self.forgotten).copied()
    }
}

/// Orders ids by descending logits, ties by ascending id.
fn more_likely(logits: &[f32]) -> impl Fn(&u32, &u32) -> Ordering {
    |a, b| key(logits[*b as usize]).cmp(&key(logits[*a as usize])).then_with(|| a.cmp(b))
}

/// Moves the ids of the `kept` largest logits that come after `last`, a key and an id, to the front of `order`, in any
/// order.
fn select(logits: &[f32], order: &mut [u32], kept: usize, last: Option<(i32, u32)>) {
    let room = (2 * kept).max(256).min(order.len());
    let (mut count, mut bound) = (0, None);
    above(logits, None, &mut |id, found| {
        if last.is_some_and(|(key, last)| found > key || found == key && id <= last) {
            return bound;
        }
        order[count] = id;
        count += 1;
        if count == room && kept < room {
            // Only logits larger than the smallest of these can still be among them: the lower id wins a tie.
            order[..room].select_nth_unstable_by(kept - 1, more_likely(logits));
            bound = Some(key(logits[order[kept - 1] as usize]));
            count = kept;
        }
        bound
    });
    if kept < count {
        order[..count].select_nth_unstable_by(kept, more_likely(logits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sampler = Sampler { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };
    const LOGITS: [f32; 5] = [0.5, 2.0, -1.0, 1.0, 0.0];

    fn shares(sampler: Sampler, history: &[u32]) -> [f64; 5] {
        let mut counts = [0.0; 5];
        let random = Random::new(5, 0);
        for i in 0..40_000 {
            let id = sampler.sample(&mut LOGITS.clone(), &mut [0; 5], history, &random, i).unwrap();
            counts[id as usize] += 1.0 / 40_000.0;
        }
        counts
    }

    fn softmax(logits: [f64; 5]) -> [f64; 5] {
        let total: f64 = logits.iter().map(|z| libm::exp(*z)).sum();
        logits.map(|z| libm::exp(z) / total)
    }

    fn assert_close(found: [f64; 5], expected: [f64; 5]) {
        for (f, e) in found.iter().zip(expected) {
            // Four standard errors of a share.
            assert!((f - e).abs() <= 4.0 * libm::sqrt(0.25 / 40_000.0), "{found:?} against {expected:?}");
        }
    }

    #[test]
    fn shares_follow_the_softmax_at_its_temperature() {
        assert_close(shares(PLAIN, &[]), softmax(LOGITS.map(f64::from)));
        assert_close(shares(Sampler { temperature: 0.5, ..PLAIN }, &[]), softmax(LOGITS.map(|z| f64::from(z) / 0.5)));
    }

    #[test]
    fn top_k_and_top_p_keep_the_most_likely() {
        const NONE: f64 = f64::NEG_INFINITY;
        assert_close(shares(Sampler { top_k: 2, ..PLAIN }, &[]), softmax([NONE, 2.0, NONE, 1.0, NONE]));
        // The most likely token has 0.53, the first two 0.73, the first three 0.85.
        assert_close(shares(Sampler { top_p: 0.8, ..PLAIN }, &[]), softmax([0.5, 2.0, NONE, 1.0, NONE]));
        assert_close(shares(Sampler { top_p: 0.0, ..PLAIN }, &[]), [0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn weights_are_powers_of_e() {
        let unit = libm::exp2(-36.0);
        assert_eq!((weight(0.0), weight(-0.0)), (1 << 36, 1 << 36));
        for i in 1..200_000 {
            let x = -25.0 * i as f32 / 200_000.0;
            let (found, exact) = (weight(x) as f64 * unit, libm::exp(f64::from(x)));
            // One rounding of f32 and one of the unit.
            assert!((found - exact).abs() <= exact * 1.3e-7 + unit, "{x}: {found} against {exact}");
        }
        for x in [-25.1, f32::MIN, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(weight(x), 0);
        }
    }

    #[test]
    fn choices_are_those_of_all_ids_sorted() {
        let random = Random::new(11, 0);
        let mut near = 0;
        for trial in 0..1500 {
            let draw = |i: u64| random.uniform(10_000 * trial + i);
            let count = 1 + random.below(10_000 * trial, 3000) as usize;
            let top_k = if trial % 3 == 0 { 0 } else { 1 + random.below(10_000 * trial + 1, 400) as u32 };
            let top_p = if trial % 2 == 0 { 1.0 } else { draw(2) as f32 };
            let sampler = Sampler { temperature: 0.2 + 3.0 * draw(3) as f32, top_k, top_p, ..PLAIN };
            // Some logits are equal.
            let logits: [f32; 3000] = core::array::from_fn(|i| (40.0 * draw(10 + i as u64)) as i32 as f32 * 0.25);
            let found = sampler.draw(&logits[..count], &mut [0; 3000], &random, trial).unwrap();
            for room in [2, 300] {
                let mut order = [0; 300];
                assert_eq!(sampler.draw(&logits[..count], &mut order[..room], &random, trial), Some(found), "{room}");
            }

            let mut order: [u32; 3000] = core::array::from_fn(|i| i as u32);
            let order = &mut order[..count];
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
            let kept = if top_k == 0 { count } else { count.min(top_k as usize) };
            let largest = f64::from(logits[order[0] as usize]);
            let exact =
                |id: &u32| libm::exp((f64::from(logits[*id as usize]) - largest) / f64::from(sampler.temperature));
            let limit = order[..kept].iter().map(exact).sum::<f64>() * f64::from(top_p);
            let mut total = 0.0;
            for id in &order[..kept] {
                total += exact(id);
                if total >= limit {
                    break;
                }
            }
            let target = random.uniform(trial) * total;
            let mut below = 0.0;
            let expected = order.iter().find(|id| {
                below += exact(id);
                below > target
            });
            // Where rounding may decide, the next token is correct as well.
            let off = [below - target, below - exact(expected.unwrap()) - target].map(|x| x.abs() / total);
            if off[0].min(off[1]) < 1e-5 || top_p < 1.0 && total - limit < 1e-5 * total {
                near += 1;
            } else {
                assert_eq!(found, *expected.unwrap(), "{sampler:?}, trial {trial}");
            }
        }
        assert!(near < 20, "{near}");
    }

    #[test]
    fn the_selected_are_the_first_of_all_sorted() {
        let random = Random::new(3, 0);
        for (count, kept) in [(1000, 1), (1000, 50), (3000, 200), (5000, 2000), (300, 299), (257, 128)] {
            for levels in [7, 1 << 20] {
                let draw = |i: u64| random.below(i, levels) as f32 - 3.0;
                let logits: [f32; 5000] =
                    core::array::from_fn(|i| if i % 997 == 5 { f32::NEG_INFINITY } else { draw(i as u64) });
                let logits = &logits[..count];
                let (mut all, mut found): ([u32; 5000], _) = (core::array::from_fn(|i| i as u32), [0; 5000]);
                all[..count].sort_unstable_by(|a, b| {
                    logits[*b as usize].total_cmp(&logits[*a as usize]).then_with(|| a.cmp(b))
                });
                select(logits, &mut found[..count], kept, None);
                found[..kept].sort_unstable();
                all[..kept].sort_unstable();
                assert_eq!(found[..kept], all[..kept]);
                assert_eq!(
                    largest(logits),
                    (0..count as u32)
                        .max_by(|a, b| logits[*a as usize].total_cmp(&logits[*b as usize]).then_with(|| b.cmp(a)))
                        .unwrap()
                );
            }
        }
    }

    #[test]
    fn the_penalty_falls_once_on_each_id_of_the_history() {
        let expected = softmax([0.5, 2.0 / 1.5, -1.5, 1.0, 0.0]);
        assert_close(shares(Sampler { repetition_penalty: 1.5, ..PLAIN }, &[1, 2, 1]), expected);
    }

    #[test]
    fn a_temperature_of_zero_takes_the_most_likely_and_the_lower_of_two() {
        let greedy = Sampler { temperature: 0.0, ..PLAIN };
        let random = Random::new(0, 0);
        assert_eq!(greedy.sample(&mut LOGITS.clone(), &mut [0; 5], &[], &random, 0), Some(1));
        assert_eq!(greedy.sample(&mut [1.0, 3.0, 3.0], &mut [0; 3], &[], &random, 0), Some(1));
    }

    #[test]
    fn what_is_no_number_is_no_token() {
        let random = Random::new(0, 0);
        for sampler in [PLAIN, Sampler { temperature: 0.0, ..PLAIN }, Sampler { top_k: 2, top_p: 0.9, ..PLAIN }] {
            for logits in
                [[f32::NAN; 3], [-f32::NAN; 3], [f32::NEG_INFINITY; 3], [1.0, f32::NAN, 2.0], [0.0, f32::INFINITY, 1.0]]
            {
                assert_eq!(sampler.sample(&mut logits.clone(), &mut [0; 3], &[], &random, 0), None, "{logits:?}");
            }
            // Ids with a logit of minus infinity are excluded, which is no error.
            let ruled_out = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
            assert_eq!(sampler.sample(&mut ruled_out.clone(), &mut [0; 3], &[], &random, 0), Some(1));
            assert_eq!(sampler.sample(&mut [], &mut [], &[], &random, 0), None);
        }
    }
}
