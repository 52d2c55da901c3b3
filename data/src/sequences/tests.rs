use std::collections::BTreeMap;
use std::sync::Arc;

use capful_core::data::BatchMut;
use proptest::prelude::*;
use tempfile::TempDir;

use super::super::fixtures::{Numbered, ORIGIN, VOCAB, consecutive, course, feed, permuted, pool, shards};
use super::super::shards::build::open_or_build;
use super::super::shards::training::TrainingTokens;
use super::super::split::{Part, Split};
use super::super::stream::{Position, TokenStream};
use super::pool::{Pool, half, memory};
use super::*;

/// The tokens of one pass over the source.
fn tokens(documents: u64) -> Vec<u32> {
    let mut stream = TokenStream::new(feed(Numbered::finite(documents))).unwrap();
    stream.limit_epochs(1);
    std::iter::from_fn(|| stream.next_token().unwrap()).map(|t| t.id).collect()
}

/// Batches of a run, as (inputs, targets, offsets), each with the position after it.
type Batches = Vec<([Vec<u32>; 3], Position)>;

fn take(sequences: &mut dyn Sequences, shapes: &[(usize, usize)]) -> Batches {
    let one = |&(rows, length): &(usize, usize)| {
        let mut storage = [vec![7; rows * length], vec![7; rows * length], vec![7; rows * length]];
        let [x, y, o] = &mut storage;
        assert!(sequences.fill(&mut BatchMut::new(rows, length, x, y, o).unwrap()).unwrap());
        (storage, sequences.position())
    };
    shapes.iter().map(one).collect()
}

/// Takes the batches for which `taken` is true and skips the others; each with the position after it.
fn take_some(sequences: &mut dyn Sequences, shapes: &[(usize, usize)], taken: impl Fn(usize) -> bool) -> Batches {
    let mut some = Vec::new();
    for (i, &(rows, length)) in shapes.iter().enumerate() {
        if taken(i) {
            some.extend(take(sequences, &shapes[i..=i]));
        } else {
            assert!(sequences.skip(rows, length).unwrap());
            some.push(([Vec::new(), Vec::new(), Vec::new()], sequences.position()));
        }
    }
    some
}

/// How often each token is followed by each other token.
fn pairs<'a>(pairs: impl Iterator<Item = (&'a u32, &'a u32)>) -> BTreeMap<(u32, u32), usize> {
    let mut counts = BTreeMap::new();
    pairs.for_each(|(&x, &y)| *counts.entry((x, y)).or_default() += 1);
    counts
}

fn seen(batches: &Batches) -> BTreeMap<(u32, u32), usize> {
    pairs(batches.iter().flat_map(|([x, y, _], _)| x.iter().zip(y)))
}

/// The pairs in `epochs` passes over a ring of tokens.
fn expected(tokens: &[u32], epochs: usize) -> BTreeMap<(u32, u32), usize> {
    let mut once = pairs(tokens.iter().zip(tokens[1..].iter().chain(&tokens[..1])));
    once.values_mut().for_each(|n| *n *= epochs);
    once
}

#[test]
fn each_token_is_a_target_once_an_epoch_in_a_random_order() {
    let (_dir, shards) = shards(30);
    let tokens = tokens(30);
    // The epoch is no multiple of 3 · 8 tokens; three epochs end with whole batches only together with their
    // remainders.
    assert!(!tokens.len().is_multiple_of(24));
    let epochs = 24;
    let (stretches, shapes) = course(&[(tokens.len(), 3, 8)]);
    let batches = take(&mut permuted(&shards, 1, &stretches), &shapes);
    assert_eq!(seen(&batches), expected(&tokens, epochs));
    // In each row a target is the next input, except for the last target.
    for ([x, y, _], _) in &batches {
        x.chunks(8).zip(y.chunks(8)).for_each(|(x, y)| assert_eq!(x[1..], y[..7]));
    }
}

/// Adds a last stage to a course so that its tokens make whole epochs.
fn whole(parts: &mut Vec<(usize, usize, usize)>, tokens: usize) -> usize {
    let taken: usize = parts.iter().map(|(n, b, t)| n * b * t).sum();
    let epochs = taken / tokens + 2;
    parts.push((epochs * tokens - taken, 1, 1));
    epochs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_token_is_left_out_or_comes_twice_when_shapes_change(
        seed in any::<u64>(), documents in 3u64..20,
        parts in proptest::collection::vec((1usize..5, 1usize..5, 1usize..20), 1..4),
        bytes in 50u64..3000,
    ) {
        let (_dir, shards) = shards(documents);
        let tokens = tokens(documents);
        let mut parts = parts;
        let epochs = whole(&mut parts, tokens.len());
        let (stretches, shapes) = course(&parts);
        // Tokens after the last whole grain of those epochs are read later, and some tokens of later epochs instead of
        // them.
        let mut random = permuted(&shards, seed, &stretches);
        let mut pooled = pool(documents, seed, &stretches, bytes);
        let [random, pooled] =
            [&mut random as &mut dyn Sequences, &mut pooled].map(|s| seen(&take(s, &shapes)));
        let most = stretches.iter().map(|s| s.length).max().unwrap();
        let total: usize = expected(&tokens, epochs).values().sum();
        for (name, found) in [("random", random), ("pool", pooled)] {
            let same: usize =
                expected(&tokens, epochs).iter().map(|(pair, n)| found.get(pair).copied().unwrap_or(0).min(*n)).sum();
            prop_assert_eq!(found.values().sum::<usize>(), total);
            // A pool may end in the middle of a half.
            let behind = if name == "pool" { half(bytes, VOCAB, most) as usize + most as usize } else { most as usize };
            prop_assert!(total - same <= behind.min(tokens.len()), "{}: {} of {}", name, total - same, total);
        }
    }

    #[test]
    fn a_run_goes_on_anywhere_with_the_same_tokens(
        seed in any::<u64>(), documents in 5u64..20,
        parts in proptest::collection::vec((1usize..6, 1usize..4, 1usize..16), 1..4),
        bytes in 60u64..2000,
    ) {
        let (_dir, shards) = shards(documents);
        let (stretches, shapes) = course(&parts);
        for order in ["random", "pool", "consecutive"] {
            let open = || -> Box<dyn Sequences> {
                match order {
                    "random" => Box::new(permuted(&shards, seed, &stretches)),
                    "pool" => Box::new(pool(documents, seed, &stretches, bytes)),
                    _ => Box::new(consecutive(documents)),
                }
            };
            let whole = take(open().as_mut(), &shapes);
            for ranks in 2..4 {
                for rank in 0..ranks {
                    let some = take_some(open().as_mut(), &shapes, |i| i % ranks == rank);
                    for (i, (some, whole)) in some.iter().zip(&whole).enumerate() {
                        prop_assert_eq!(some.1, whole.1, "{} skipped to {}", order, i);
                        prop_assert!(i % ranks != rank || some.0 == whole.0, "{} skipped to {}", order, i);
                    }
                }
            }
            for stop in 1..shapes.len() {
                let mut resumed = open();
                resumed.seek(whole[stop - 1].1).unwrap();
                prop_assert_eq!(resumed.position(), whole[stop - 1].1);
                prop_assert!(take(resumed.as_mut(), &shapes[stop..]) == whole[stop..], "{} after {}", order, stop);
            }
        }
    }
}

#[test]
fn a_pool_gives_each_epoch_whole_before_the_next() {
    // The documents of one epoch fill several halves, and the last half ends with the epoch.
    let tokens = tokens(40);
    let (stretches, _) = course(&[(1, 1, 8)]);
    let mut pooled = pool(40, 3, &stretches, 700);
    assert_eq!(half(700, VOCAB, 8), 144);
    assert!(tokens.len() > 3 * 144);
    let grains = tokens.len() / 8 * 8;
    let batches = take(&mut pooled, &vec![(1, 8); grains / 8]);
    let mut inputs: Vec<u32> = batches.iter().flat_map(|([x, _, _], _)| x.clone()).collect();
    let mut first = tokens[..grains].to_vec();
    inputs.sort_unstable();
    first.sort_unstable();
    assert_eq!(inputs, first);
    // The sequences are not in the order of the stream.
    let stream: Vec<&[u32]> = tokens.chunks_exact(8).collect();
    let moved = batches.iter().zip(&stream).filter(|(([x, _, _], _), y)| x != *y).count();
    assert!(moved > stream.len() * 3 / 4, "{moved} of {}", stream.len());
}

#[test]
fn sequences_of_a_batch_come_from_everywhere() {
    let source = || feed(Numbered::finite(400).of_letters());
    let dir = TempDir::new().unwrap();
    let shards = open_or_build(dir.path(), ORIGIN, || Ok(None), || Ok(source()), 0, &mut |_| {}).unwrap();
    let mut stream = TokenStream::new(source()).unwrap();
    stream.limit_epochs(1);
    let tokens: Vec<u32> = std::iter::from_fn(|| stream.next_token().unwrap()).map(|t| t.id).collect();
    let (stretches, _) = course(&[(1, 1, 16)]);
    let place = |x: &[u32]| tokens.windows(16).position(|w| w == x).unwrap();
    let stream = TokenStream::new(source()).unwrap();
    for sequences in [
        &mut permuted(&Arc::new(shards), 4, &stretches) as &mut dyn Sequences,
        &mut Pool::new(stream, 4, stretches.clone(), 1 << 18, VOCAB),
    ] {
        let [x, _, _] = take(sequences, &[(32, 16)]).remove(0).0;
        let places: Vec<usize> = x.chunks(16).map(place).collect();
        let neighbours = places.windows(2).filter(|p| p[1] == p[0] + 16).count();
        assert!(neighbours <= 1, "{places:?}");
        // The median of 32 is within five deviations of the middle.
        let mut sorted = places.clone();
        sorted.sort_unstable();
        assert!((sorted[16] as f64 / tokens.len() as f64 - 0.5).abs() < 5.0 * 0.5 / 32f64.sqrt(), "{sorted:?}");
    }
}

#[test]
fn a_pool_takes_no_more_than_is_said() {
    for (bytes, vocab, grain) in [(128 << 20, 10_000, 512), (1000, VOCAB, 16), (4096, 200_005, 8), (10, VOCAB, 64)] {
        let room = half(bytes, vocab, grain) + grain + 1;
        let taken = 2 * (room * if vocab > 1 << 16 { 4 } else { 2 } + room.div_ceil(64) * 8);
        let said = memory(bytes, vocab, grain);
        assert!(taken <= said && said >= bytes, "{taken}, {said}");
        // A pool takes more than the requested bytes only where these cannot hold a grain.
        assert!(said == bytes || half(bytes, vocab, grain) == grain, "{said} for {bytes}");
    }
}

#[test]
fn offsets_count_from_the_document_s_beginning_or_the_row_s() {
    let (_dir, shards) = shards(50);
    let (stretches, _) = course(&[(1, 1, 12)]);
    for sequences in [&mut permuted(&shards, 4, &stretches) as &mut dyn Sequences, &mut pool(50, 4, &stretches, 4096)] {
        for ([x, _, o], _) in take(sequences, &[(4, 12); 20]) {
            for (x, o) in x.chunks(12).zip(o.chunks(12)) {
                let mut offset = 0;
                for (i, id) in x.iter().enumerate() {
                    // 256 begins a document.
                    offset = if i == 0 || *id == 256 { 0 } else { offset + 1 };
                    assert_eq!(o[i], offset, "{x:?} {o:?}");
                }
            }
        }
    }
}

#[test]
fn what_is_held_out_is_not_among_them() {
    let (_dir, shards) = shards(300);
    let split = Split::new(7, 0.2).unwrap();
    let line = TrainingTokens::new(Arc::clone(&shards), &split, "numbered").unwrap();
    let mut stream = {
        let mut feed = feed(Numbered::finite(300));
        (feed.split, feed.part) = (split, Part::Training);
        TokenStream::new(feed).unwrap()
    };
    stream.limit_epochs(1);
    let direct: Vec<u32> = std::iter::from_fn(|| stream.next_token().unwrap()).map(|t| t.id).collect();
    assert_eq!(line.tokens(), direct.len() as u64);
    assert!(line.tokens() < shards.manifest().tokens * 9 / 10);
    let mut line = line;
    for (at, count) in [(0, direct.len()), (5, 1), (direct.len() - 3, 3), (direct.len() / 2, 400)] {
        let mut ids = vec![0; count];
        line.read(at as u64, &mut ids).unwrap();
        assert_eq!(ids, direct[at..at + count]);
    }
    // Around the end of the tokens.
    let mut ids = vec![0; 10];
    line.read(direct.len() as u64 - 4, &mut ids).unwrap();
    assert_eq!(ids, [&direct[direct.len() - 4..], &direct[..6]].concat());
}

#[test]
fn a_source_shorter_than_a_batch_is_refused() {
    let (_dir, shards) = shards(2);
    let (stretches, _) = course(&[(1, 1, 8)]);
    let has = tokens(2).len() as u64;
    for sequences in [&mut permuted(&shards, 4, &stretches) as &mut dyn Sequences, &mut pool(2, 4, &stretches, 4096)] {
        sequences.require(has).unwrap();
        let message = sequences.require(has + 1).unwrap_err().to_string();
        assert!(message.contains(&format!("an epoch has {has} tokens and one batch needs {}", has + 1)), "{message}");
    }
}

/// Takes batches of these shapes, or skips them where `skips` says so. Returns the batches taken, and the position
/// after each.
fn take_or_skip(
    sequences: &mut dyn Sequences,
    shapes: &[(usize, usize)],
    skips: &[bool],
) -> (Batches, Vec<Option<Position>>) {
    let (mut taken, mut positions) = (Vec::new(), Vec::new());
    for (&(rows, length), skip) in shapes.iter().zip(skips.iter().cycle()) {
        let mut storage = [vec![7; rows * length], vec![7; rows * length], vec![7; rows * length]];
        let [x, y, o] = &mut storage;
        let whole = match skip {
            true => sequences.skip(rows, length).unwrap(),
            false => sequences.fill(&mut BatchMut::new(rows, length, x, y, o).unwrap()).unwrap(),
        };
        positions.push(whole.then(|| sequences.position()));
        if !whole {
            break;
        }
        if !skip {
            taken.push((storage, sequences.position()));
        }
    }
    (taken, positions)
}

/// Whether skipping a batch has the effect of filling it: the same positions, the same later batches, the same end.
fn skipping_is_filling(
    mut open: impl FnMut() -> Box<dyn Sequences>,
    shapes: &[(usize, usize)],
    skips: &[bool],
) -> Vec<Option<Position>> {
    let (mut all, positions) = take_or_skip(open().as_mut(), shapes, &[false]);
    let (found, after) = take_or_skip(open().as_mut(), shapes, skips);
    assert_eq!(after, positions);
    let mut skips = skips.iter().cycle();
    all.retain(|_| !skips.next().unwrap());
    assert!(found == all, "another batch after a skipped one");
    positions
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_skipped_batch_is_as_if_it_had_been_filled(
        seed in any::<u64>(), documents in 3u64..20,
        parts in proptest::collection::vec((1usize..5, 1usize..5, 1usize..20), 1..4),
        shapes in proptest::collection::vec((1usize..5, 1usize..40), 1..8),
        skips in proptest::collection::vec(any::<bool>(), 1..12),
        bytes in 50u64..3000,
    ) {
        let (_dir, shards) = shards(documents);
        // Shapes that the stretches' grain does not divide, through three epochs.
        let (stretches, _) = course(&parts);
        let (mut shapes, mut size, round) = (shapes.clone(), 0, shapes);
        while size < 3 * tokens(documents).len() {
            shapes.extend(&round);
            size += round.iter().map(|(rows, length)| rows * length).sum::<usize>();
        }
        for name in ["random", "pool", "consecutive"] {
            let open = || -> Box<dyn Sequences> {
                match name {
                    "random" => Box::new(permuted(&shards, seed, &stretches)),
                    "pool" => Box::new(pool(documents, seed, &stretches, bytes)),
                    _ => Box::new(consecutive(documents)),
                }
            };
            let positions = skipping_is_filling(open, &shapes, &skips);
            prop_assert!(positions.last().unwrap().unwrap().epoch >= 1, "{}: one epoch", name);
        }
    }

    #[test]
    fn a_stream_that_ends_does_so_at_the_same_batch_whether_it_was_skipped(
        seed in any::<u64>(), documents in 3u64..12, epochs in 1u32..3,
        shapes in proptest::collection::vec((1usize..4, 1usize..12), 1..8),
        skips in proptest::collection::vec(any::<bool>(), 1..12),
        bytes in 50u64..800,
    ) {
        let stream = || {
            let mut stream = TokenStream::new(feed(Numbered::finite(documents))).unwrap();
            stream.limit_epochs(epochs);
            stream
        };
        let has = tokens(documents).len() * epochs as usize;
        let shapes: Vec<_> = shapes.into_iter().cycle().take(has + 1).collect();
        let (stretches, _) = course(&[(1, 1, 6)]);
        let open = || -> Box<dyn Sequences> { Box::new(consecutive::Consecutive::new(stream())) };
        let positions = skipping_is_filling(open, &shapes, &skips);
        prop_assert_eq!(positions.last(), Some(&None));
        let open = || -> Box<dyn Sequences> { Box::new(Pool::new(stream(), seed, stretches.clone(), bytes, VOCAB)) };
        let positions = skipping_is_filling(open, &shapes, &skips);
        prop_assert_eq!(positions.last(), Some(&None));
    }
}

#[test]
fn a_skipped_batch_may_be_longer_than_a_half_of_a_pool_and_than_an_epoch() {
    let (stretches, _) = course(&[(1, 1, 8)]);
    let epoch = tokens(40).len();
    assert!(epoch > 3 * half(700, VOCAB, 8) as usize);
    let shapes = [(1, 5), (3, epoch), (2, 8), (5, 61), (1, 3)];
    for skips in [&[true][..], &[true, false], &[false, true], &[false, true, true]] {
        let positions = skipping_is_filling(|| Box::new(pool(40, 3, &stretches, 700)), &shapes, skips);
        assert_eq!(positions.last().unwrap().map(|p| p.epoch), Some(3));
    }
}
