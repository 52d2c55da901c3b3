//! Temperature, top-k, top-p and repetition penalty, in storage that the caller owns.

use crate::random::Random;

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Logits are divided by this; 0 takes the most likely token.
    pub temperature: f32,
    /// Only this many of the most likely tokens; 0 for all.
    pub top_k: u32,
    /// Only the most likely tokens that together reach this probability; 1 for all.
    pub top_p: f32,
    /// Tokens of the history have their logit divided by this where positive, multiplied where negative
    /// (Keskar et al. 2019); 1 for none.
    pub repetition_penalty: f32,
}

impl Sampler {
    /// Whether it takes the largest logit and nothing else counts.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 && self.repetition_penalty == 1.0
    }

    /// Chooses a token. `logits` `[vocabulary]` are changed; `order` `[vocabulary]` is scratch; `history` are the ids
    /// to penalise; number `index` of `random` decides. Ties go to the lower id. None where the largest logit is not
    /// finite or one that is kept is not a number: what a diverged model gives.
    pub fn sample(
        &self,
        logits: &mut [f32],
        order: &mut [u32],
        history: &[u32],
        random: &Random,
        index: u64,
    ) -> Option<u32> {
        self.penalise(logits, history);
        let order = &mut order[..logits.len()];
        let more_likely = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then_with(|| a.cmp(b));
        if self.temperature <= 0.0 {
            return most_likely(logits);
        }
        let mut kept = if self.top_k == 0 { order.len() } else { order.len().min(self.top_k as usize) };
        if kept < order.len() {
            select(logits, order, kept);
        } else {
            order.iter_mut().enumerate().for_each(|(i, o)| *o = i as u32);
        }
        let order = &mut order[..kept];
        order.sort_unstable_by(more_likely);
        let best = *order.first()?;
        let largest = logits[best as usize];
        let weight = |id: u32| f64::from(libm::expf((logits[id as usize] - largest) / self.temperature));
        let mut total: f64 = order.iter().map(|&id| weight(id)).sum();
        if !largest.is_finite() || total.is_nan() {
            return None;
        }
        if self.top_p < 1.0 {
            let limit = total * f64::from(self.top_p);
            let mut reached = 0.0;
            kept = 0;
            while kept < order.len() && reached < limit {
                reached += weight(order[kept]);
                kept += 1;
            }
            (kept, total) = if kept == 0 { (1, weight(best)) } else { (kept, reached) };
        }
        let mut left = random.uniform(index) * total;
        for &id in &order[..kept] {
            left -= weight(id);
            if left < 0.0 {
                return Some(id);
            }
        }
        // Rounding can leave a crumb: it belongs to the last token kept.
        order[..kept].last().copied()
    }

    fn penalise(&self, logits: &mut [f32], history: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        for (i, &id) in history.iter().enumerate() {
            // Once an id, however often it occurred.
            if history[..i].contains(&id) {
                continue;
            }
            if let Some(z) = logits.get_mut(id as usize) {
                *z = if *z > 0.0 { *z / self.repetition_penalty } else { *z * self.repetition_penalty };
            }
        }
    }
}

/// A number that orders as [`f32::total_cmp`] does.
const fn key(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// Logits that are looked at together: most have none that matters.
const TOGETHER: usize = 64;

/// Calls `visit(id, key)` for logits above a bound that it gives anew each time, the lower ids first.
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

/// The id of the largest logit, the lower of two; 0 of none.
fn largest(logits: &[f32]) -> u32 {
    let mut best = 0;
    above(logits, None, &mut |id, key| {
        best = id;
        Some(key)
    });
    best
}

/// The token that a temperature of 0 takes: the id of the largest logit, the lower of two; None where that is not finite.
/// A program that samples in no other way leaves the rest of the sampler, most of it sorting, out of its flash.
pub fn most_likely(logits: &[f32]) -> Option<u32> {
    Some(largest(logits)).filter(|&best| logits.get(best as usize).is_some_and(|x| x.is_finite()))
}

/// Puts the ids of the `kept` largest logits first in `order`, in any order.
fn select(logits: &[f32], order: &mut [u32], kept: usize) {
    let room = (2 * kept).max(256).min(order.len());
    let (mut count, mut bound) = (0, None);
    let more_likely = |a: &u32, b: &u32| key(logits[*b as usize]).cmp(&key(logits[*a as usize])).then_with(|| a.cmp(b));
    above(logits, None, &mut |id, _| {
        order[count] = id;
        count += 1;
        if count == room && kept < room {
            // Only what is larger than the least of these can still be among them: of equals the lower id wins.
            order[..room].select_nth_unstable_by(kept - 1, more_likely);
            bound = Some(key(logits[order[kept - 1] as usize]));
            count = kept;
        }
        bound
    });
    if kept < count {
        order[..count].select_nth_unstable_by(kept, more_likely);
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
        // The first has .53, the first two .73, the first three .85.
        assert_close(shares(Sampler { top_p: 0.8, ..PLAIN }, &[]), softmax([0.5, 2.0, NONE, 1.0, NONE]));
        assert_close(shares(Sampler { top_p: 0.0, ..PLAIN }, &[]), [0.0, 1.0, 0.0, 0.0, 0.0]);
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
                select(logits, &mut found[..count], kept);
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
            // Ids that are ruled out are no damage.
            let ruled_out = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
            assert_eq!(sampler.sample(&mut ruled_out.clone(), &mut [0; 3], &[], &random, 0), Some(1));
            assert_eq!(sampler.sample(&mut [], &mut [], &[], &random, 0), None);
        }
    }
}
