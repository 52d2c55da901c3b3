//! Compares the models with a direct, slow evaluation of the definition.

use super::*;
use capful_core::random::Random;

fn model(order: usize, vocab_size: u32, documents: &[Vec<u32>]) -> Ngram {
    let mut model = Ngram::new(order, vocab_size, usize::MAX).unwrap();
    for document in documents {
        model.count(document).unwrap();
    }
    model.finish();
    model
}

/// Documents in which a token tends to depend on the two tokens before it.
fn documents(count: u64, vocab_size: u32) -> Vec<Vec<u32>> {
    (0..count)
        .map(|d| {
            let random = Random::new(3, d);
            let mut document = Vec::new();
            for i in 0..random.below(1 << 20, 12) {
                let token = match document[..] {
                    [.., a, b] if random.uniform(i) < 0.7 => (a * 5 + b * 3 + 1) % vocab_size,
                    _ => random.below(i + 1000, u64::from(vocab_size)) as u32,
                };
                document.push(token);
            }
            document
        })
        .collect()
}

/// The definition, word for word: each call counts n-grams by a pass over all documents.
fn definition(order: usize, vocab_size: u32, documents: &[Vec<u32>], history: &[u32], token: u32) -> f64 {
    const MARK: u32 = 999;
    let marked: Vec<Vec<u32>> = documents.iter().map(|d| [&[MARK], &d[..]].concat()).collect();
    let mut before = [&[MARK], history].concat();
    before.drain(..before.len().saturating_sub(order - 1));
    let occurrences = |gram: &[u32]| marked.iter().map(|d| d.windows(gram.len()).filter(|w| *w == gram).count()).sum();
    let count = |gram: &[u32]| -> usize {
        if gram.len() == order || gram[0] == MARK {
            return occurrences(gram);
        }
        (0..vocab_size).chain([MARK]).filter(|&v| occurrences(&[&[v], gram].concat()) > 0).count()
    };
    let mut p = 1.0 / f64::from(vocab_size);
    for n in 1..=before.len() + 1 {
        let context = &before[before.len() + 1 - n..];
        let mut grams: Vec<&[u32]> = marked.iter().flat_map(|d| d.windows(n)).collect();
        grams.sort();
        grams.dedup();
        grams.retain(|g| *g != [MARK]);
        let with = |k: usize| grams.iter().filter(|g| count(g) == k).count() as f64;
        let y = with(1) / (with(1) + 2.0 * with(2));
        let mut d: Vec<f64> = (1..=3).map(|k| k as f64 - (k + 1) as f64 * y * with(k + 1) / with(k)).collect();
        if !(1..=3).all(|k| d[k - 1] > 0.0 && d[k - 1] < k as f64) {
            d = vec![if y > 0.0 && y < 1.0 { y } else { 0.5 }; 3];
        }
        let discount = |c: usize| if c == 0 { 0.0 } else { d[c.min(3) - 1] };
        let all: Vec<usize> = (0..vocab_size).map(|v| count(&[context, &[v]].concat())).collect();
        let total: usize = all.iter().sum();
        if total == 0 {
            break;
        }
        let c = all[token as usize];
        let freed: f64 = all.iter().map(|&c| discount(c)).sum();
        p = (c as f64 - discount(c) + freed * p) / total as f64;
    }
    p
}

#[test]
fn two_documents_give_what_paper_and_pencil_give() {
    // ^ 0 1 and ^ 0 2. The counts 2, 1, 1 leave Ney's discount, 2 / (2 + 2); three tokens with one predecessor
    // each leave none, so 1/2.
    let model = model(2, 3, &[vec![0, 1], vec![0, 2]]);
    let p = |order, history: &[u32], token| model.probability(order, history, token).unwrap();
    approx::assert_relative_eq!(p(1, &[], 0), 0.5, max_relative = 1e-12);
    approx::assert_relative_eq!(p(1, &[0], 1), 0.25, max_relative = 1e-12);
    approx::assert_relative_eq!(p(2, &[], 0), 5.0 / 6.0, max_relative = 1e-12);
    approx::assert_relative_eq!(p(2, &[], 1), 1.0 / 12.0, max_relative = 1e-12);
    approx::assert_relative_eq!(p(2, &[0], 1), 5.0 / 12.0, max_relative = 1e-12);
    approx::assert_relative_eq!(p(2, &[0], 0), 1.0 / 6.0, max_relative = 1e-12);
    approx::assert_relative_eq!(p(2, &[0, 1], 2), 1.0 / 3.0, max_relative = 1e-12);
    let (nats, tokens) = model.score(2, &[0, 1]).unwrap();
    approx::assert_relative_eq!(nats, -(5.0f64 / 6.0 * 5.0 / 12.0).ln(), max_relative = 1e-12);
    assert_eq!(tokens, 2);
}

#[test]
fn every_order_agrees_with_the_definition() {
    let documents = documents(60, 7);
    let model = model(4, 7, &documents);
    let histories: [&[u32]; 7] = [&[], &[3], &[2, 6], &[1, 4, 5], &documents[1], &documents[2], &[6, 6, 6, 6, 6]];
    for order in 1..=4 {
        for history in histories {
            for token in 0..7 {
                let p = model.probability(order, history, token).unwrap();
                let expected = definition(order, 7, &documents, history, token);
                approx::assert_relative_eq!(p, expected, max_relative = 1e-12);
            }
        }
    }
}

#[test]
fn probabilities_are_positive_and_sum_to_one_after_histories_seen_and_unseen() {
    for (count, vocab_size) in [(0, 5), (1, 11), (40, 11), (3000, 23)] {
        let documents = documents(count, vocab_size);
        let model = model(4, vocab_size, &documents);
        let seen = documents.iter().take(30).flat_map(|d| (0..=d.len()).map(|n| d[..n].to_vec()));
        let unseen = [vec![4, 4, 4], vec![1, 2, 3, 4, 0, 1, 2], vec![4000]];
        for history in seen.chain(unseen) {
            for order in 1..=4 {
                let p = |token| model.probability(order, &history, token).unwrap();
                assert!((0..vocab_size).all(|token| p(token) > 0.0));
                approx::assert_relative_eq!((0..vocab_size).map(p).sum::<f64>(), 1.0, max_relative = 1e-12);
            }
        }
    }
}

#[test]
fn a_score_is_the_sum_over_the_tokens_and_longer_histories_help() {
    let all = documents(4000, 23);
    let (training, held_out) = all.split_at(3500);
    let model = model(4, 23, training);
    let mut losses = Vec::new();
    for order in 1..=4 {
        let (mut nats, mut tokens) = (0.0, 0);
        for document in held_out {
            let sum: f64 =
                (0..document.len()).map(|i| -model.probability(order, &document[..i], document[i]).unwrap().ln()).sum();
            let score = model.score(order, document).unwrap();
            approx::assert_relative_eq!(score.0, sum, max_relative = 1e-9, epsilon = 1e-12);
            nats += score.0;
            tokens += score.1;
        }
        losses.push(nats / tokens as f64);
    }
    assert!(losses[2] < 0.9 * losses[1] && losses[2] < 0.9 * losses[0], "{losses:?}");
    let baselines = Baselines::measure(23, training, u64::MAX, held_out).unwrap();
    assert_eq!([baselines.unigram, baselines.bigram, baselines.trigram, baselines.fourgram], losses[..]);
}

#[test]
fn what_goes_beyond_the_bound_is_not_counted() {
    let mut bounded = Ngram::new(3, 9, 5).unwrap();
    assert_eq!(bounded.count(&[1, 2, 3]), Ok(3));
    assert_eq!(bounded.count(&[4, 5, 6]), Ok(2));
    assert_eq!(bounded.count(&[7]), Ok(0));
    bounded.finish();
    let cut = model(3, 9, &[vec![1, 2, 3], vec![4, 5]]);
    for token in 0..9 {
        assert_eq!(bounded.probability(3, &[4], token), cut.probability(3, &[4], token));
    }
}

#[test]
fn what_the_memory_does_not_hold_is_not_counted() {
    // The mark and 3 n-grams of a first token leave room for the n-grams of two more tokens, but not of a third.
    let bytes = NGRAM_BYTES * 11;
    let mut bounded = Ngram::new(4, 9, usize::MAX).unwrap().within(bytes);
    let counted = bounded.count(&[1, 2, 3, 4, 5, 6]).unwrap();
    assert!((2..6).contains(&counted), "{counted}");
    let ngrams: u64 = bounded.levels[1..].iter().map(|level| level.counts.len() as u64).sum();
    assert!(ngrams * NGRAM_BYTES <= bytes, "{ngrams}");
    assert_eq!((bounded.count(&[7]), bounded.tokens()), (Ok(0), counted));
    let documents = documents(4000, 23);
    let counted = |bytes| Baselines::measure(23, &documents, bytes, &documents[..9]).unwrap().tokens;
    assert!(0 < counted(90_000) && counted(90_000) < counted(900_000));
}

#[test]
fn tokens_and_orders_out_of_range_are_refused() {
    assert_eq!(Ngram::new(5, 3, 9).err(), Some(NgramError::Order { asked: 5 }));
    let mut model = Ngram::new(2, 3, 9).unwrap();
    assert_eq!(model.count(&[0, 3]), Err(NgramError::Token { token: 3, vocab_size: 3 }));
    assert_eq!(model.tokens(), 0);
    assert_eq!(model.score(3, &[0]), Err(NgramError::Order { asked: 3 }));
    assert_eq!(model.score(2, &[7]), Err(NgramError::Token { token: 7, vocab_size: 3 }));
    assert_eq!(model.probability(2, &[], 3), Ok(0.0));
}
