use std::collections::HashSet;
use std::sync::Arc;

use capful_core::random::Random;

use super::super::fixtures::{Numbered, Texts, feed};
use super::super::shards::Origin;
use super::super::shards::build::open_or_build;
use super::super::split::Split;
use super::*;

fn text(seed: u64, len: usize, ids: u64) -> Vec<u32> {
    let random = Random::new(seed, 0);
    (0..len as u64).map(|i| random.below(i, ids) as u32).collect()
}

#[test]
fn a_rolled_hash_is_that_of_the_gram_alone() {
    let text = text(1, 300, 50_000);
    let mut count = 0;
    each_gram(&text, |begin, hash| {
        each_gram(&text[begin..begin + GRAM], |_, alone| assert_eq!(hash, alone, "{begin}"));
        count += 1;
    });
    assert_eq!(count, 300 - GRAM + 1);
    each_gram(&text[..GRAM - 1], |_, _| panic!("shorter than a gram"));
}

/// The marked tokens, computed by comparing all pairs of windows.
fn by_hand(set: &ValidationSet, training: &[u32]) -> Vec<bool> {
    let windows: HashSet<&[u32]> = training.windows(GRAM).collect();
    let mut found = vec![false; set.tokens().len()];
    for place in set.places() {
        for begin in place.start..(place.end + 1).saturating_sub(GRAM).max(place.start) {
            if windows.contains(&set.tokens()[begin..begin + GRAM]) {
                found[begin..begin + GRAM].fill(true);
            }
        }
    }
    found
}

#[test]
fn parts_of_long_documents_are_found_where_they_are() {
    let long = |i: u64| (0..700).map(|j| char::from(b'a' + Random::new(4, i).below(j, 26) as u8)).collect::<String>();
    let set = ValidationSet::first(feed(Texts::new((0..8).map(long).collect())), 5000).unwrap();
    let mut training = text(3, 9000, 26);
    let tokens = set.tokens().to_vec();
    // 63 tokens are no gram, 64 are one gram, 200 are many; the same passage twice; the end of a document with its
    // mark.
    for (at, from, len) in [(10, 5, 63), (500, 1000, 64), (1500, 2000, 200), (4000, 2000, 200), (7000, 702 - 70, 70)] {
        training.splice(at..at, tokens[from..from + len].iter().copied());
    }
    let expected = by_hand(&set, &training);
    assert_eq!(expected.iter().filter(|found| **found).count(), 64 + 200 + 70);
    let mut grams = Grams::new(&set);
    // In pieces, as the tokens are read.
    let (mut at, mut kept) = (0, 0);
    while at < training.len() {
        let end = training.len().min(at + 333);
        grams.look_through(&training[at - kept..end]);
        (at, kept) = (end, GRAM - 1);
    }
    assert_eq!(grams.found, expected);
}

#[test]
fn the_storage_is_what_was_said() {
    let source = feed(Numbered::endless());
    let set = ValidationSet::first(source, 5000).unwrap();
    let grams = Grams::new(&set);
    let bytes = grams.grams.capacity() * size_of::<(u64, u32)>() + grams.filter.capacity() * 8 + grams.found.capacity();
    assert!(bytes as u64 <= storage(5000), "{bytes}");
}

#[test]
fn nothing_is_said_of_documents_that_are_too_short_to_tell() {
    let dir = tempfile::TempDir::new().unwrap();
    let origin = Origin { source: 1, tokenizer: 2 };
    let documents = || Texts::new((0..40).map(|i| format!("document {i} ").repeat(20)).collect());
    let shards = open_or_build(dir.path(), origin, || Ok(None), || Ok(feed(documents())), 0, &mut |_| {}).unwrap();
    let mut training = TrainingTokens::new(Arc::new(shards), &Split::new(0, 0.0).unwrap(), "texts").unwrap();
    let mut share = |tokens| {
        let set = ValidationSet::first(feed(documents()), tokens).unwrap();
        look_for(&set, std::slice::from_mut(&mut training)).unwrap().map(|overlap| overlap.share)
    };
    assert_eq!((share(GRAM - 1), share(1000)), (None, Some(1.0)));
}
