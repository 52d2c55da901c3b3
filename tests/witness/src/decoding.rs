//! The choice of the next token.

use capful_core::generate::Sampler;
use capful_core::ops::{MostLikely, Sample};
use capful_core::random::Random;

use super::{Witness, vector};

pub fn most_likely(w: &mut impl Witness) {
    // Vocabulary, limit, position, and the ids of the largest logits: of two the lower id wins, unless it is ruled out.
    for (vocabulary, limit, position, largest, value) in [
        (1, 1, 0, vec![0], 1.0),
        (61, 61, 5, vec![17, 60], 30.0),
        (3000, 2999, 7, vec![2047, 2048, 2999], 30.0),
        (50_304, 50_257, 1_000, vec![50_300, 40_000], 30.0),
        (50_304, 50_304, 3, vec![], 0.0),
        (3000, 3000, 9, vec![5], f32::INFINITY),
        (3000, 3000, 9, vec![1500], f32::NAN),
        (3000, 0, 2, vec![], 0.0),
    ] {
        w.case(|l| {
            let random = Random::new(31, 0);
            let mut logits: Vec<f32> = (0..u64::from(vocabulary)).map(|i| random.normal(i)).collect();
            largest.iter().for_each(|id| logits[*id as usize] = value);
            MostLikely {
                logits: l.values(vector(vocabulary), logits),
                limit: l.ids(vec![limit]),
                id: l.ids(vec![9]),
                cursor: l.ids(vec![position]),
                chosen: l.ids(vec![7; 16]),
            }
        });
    }
}

pub fn drawn_tokens_are_those_of_the_sampler(w: &mut impl Witness) {
    // Vocabulary, limit, temperature, top k, top p, and the spread of the logits: 0 for equal logits.
    for (vocabulary, limit, temperature, top_k, top_p, spread) in [
        (1, 1, 1.0, 0, 1.0, 1.0),
        (61, 60, 0.8, 0, 0.95, 2.0),
        (61, 61, 0.8, 5, 1.0, 2.0),
        (3000, 2999, 0.8, 50, 0.9, 3.0),
        (3000, 2999, 1.0, 5000, 0.5, 3.0),
        (3000, 3000, 0.0, 0, 1.0, 3.0),
        (3000, 3000, 1.5, 0, 0.0, 3.0),
        (3000, 3000, 1e-3, 0, 1.0, 3.0),
        // Several windows.
        (10_000, 10_000, 1.0, 0, 1.0, 0.0),
        (10_000, 9_000, 2.0, 700, 0.99, 0.5),
        (10_000, 10_000, 1.0, 0, 0.999, 0.1),
        // Some threads have more candidates than their memory holds.
        (40_000, 40_000, 1.0, 900, 0.7, -1.0),
        (50_304, 50_257, 0.8, 50, 0.95, 4.0),
        (50_304, 50_257, 0.8, 0, 0.95, 4.0),
        (3000, 3000, 1.0, 0, 1.0, f32::INFINITY),
        (3000, 3000, 1.0, 20, 1.0, f32::NAN),
        (3000, 3000, 1.0, 0, 1.0, -f32::NAN),
        (3000, 3000, 1.0, 20, 1.0, -f32::NAN),
        (3000, 0, 1.0, 0, 1.0, 1.0),
    ] {
        for drawn in 0..4 {
            w.case(|l| {
                let random = Random::new(u64::from(vocabulary) << 32 | drawn, 3 << 33 | 1);
                let logit = |i: u64| match spread {
                    -1.0 => -((i % 1024) as f32) - (i / 1024) as f32 * 1e-3,
                    spread if spread.is_finite() => spread * random.normal(i),
                    _ => random.normal(i),
                };
                let mut logits: Vec<f32> = (0..u64::from(vocabulary)).map(logit).collect();
                if !spread.is_finite() {
                    logits[1700] = spread;
                }
                let sampler = Sampler { temperature, top_k, top_p, repetition_penalty: 1.0 };
                Sample {
                    logits: l.values(vector(vocabulary), logits),
                    limit: l.ids(vec![limit]),
                    settings: l.ids(Sample::settings(&sampler, &random).unwrap().to_vec()),
                    drawn: l.ids(vec![u32::MAX - 2 + drawn as u32 % 3, 4]),
                    id: l.ids(vec![9]),
                    cursor: l.ids(vec![drawn as u32]),
                    chosen: l.ids(vec![7; 16]),
                }
            });
        }
    }
}
