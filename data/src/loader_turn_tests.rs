//! Compares the loaders of several ranks with the loader of a single rank.

use super::super::fixtures::{Numbered, consecutive, course, feed, permuted, pool, shards};
use super::super::sequences::consecutive::Consecutive;
use super::super::sequences::pool::Pool;
use super::super::stream::TokenStream;
use super::*;

type Seen = (u64, Shape, [Vec<u32>; 3], Position);

fn seen(batch: &Batch<'_>) -> Seen {
    let contents = [batch.tokens(), batch.targets(), batch.offsets()].map(<[u32]>::to_vec);
    (batch.number(), batch.shape(), contents, batch.position())
}

/// The remaining batches of a loader, at most `most` of them.
fn take(loader: &Loader, most: usize) -> Vec<Seen> {
    std::iter::from_fn(|| loader.take().unwrap().map(|batch| seen(&batch))).take(most).collect()
}

/// Two batches of 4 · 5 tokens, two of 2 · 9, …: the shapes differ within a round of three, and the sizes are no whole
/// grains.
fn shape(number: u64) -> Shape {
    let (rows, length) = [(4, 5), (2, 9), (1, 7), (3, 11)][number as usize / 2 % 4];
    Shape { rows, length }
}

const SLOTS: Slots = Slots { count: 3, capacity: 64, block: 0 };
const BYTES: u64 = 700;
/// A number of batches that makes whole rounds for one, two, three, four and six ranks.
const BATCHES: usize = 60;

/// Opens a run's sequences.
type Open<'a> = dyn Fn() -> Box<dyn Sequences> + 'a;

/// Runs a check on each order of sequences.
fn each_order(mut check: impl FnMut(&str, &Open<'_>)) {
    let (_dir, shards) = shards(40);
    let (stretches, _) = course(&[(6, 1, 5), (1, 1, 16)]);
    check("random", &|| Box::new(permuted(&shards, 5, &stretches)));
    check("pool", &|| Box::new(pool(40, 5, &stretches, BYTES)));
    check("consecutive", &|| Box::new(consecutive(40)));
}

/// The batches of `ranks` loaders, merged in turn, from batch `first` at `position`; at most `most` of each rank.
fn together(open: &Open<'_>, ranks: u32, first: u64, position: Option<Position>, most: usize) -> Vec<Seen> {
    let mut of_ranks = Vec::new();
    for rank in 0..ranks {
        let mut sequences = open();
        if let Some(position) = position {
            sequences.seek(position).unwrap();
        }
        let loader = Loader::start(sequences, Box::new(shape), None, first, Turn { rank, ranks }, SLOTS).unwrap();
        of_ranks.push(take(&loader, most));
    }
    let rounds = of_ranks[0].len();
    assert!(of_ranks.iter().all(|batches| batches.len() == rounds), "ranks that end apart");
    (0..rounds).flat_map(|round| of_ranks.iter().map(move |batches| batches[round].clone())).collect()
}

/// Checks the merged batches of `ranks` ranks against those of a single loader that starts at the same position.
fn assert_same(found: &[Seen], alone: &[Seen], ranks: usize, what: &str) {
    assert_eq!(found.len(), alone.len() / ranks * ranks, "{what}");
    for (round, one) in found.chunks(ranks).zip(alone.chunks(ranks)) {
        for (batch, one) in round.iter().zip(one) {
            assert_eq!(batch.0, one.0, "{what}");
            assert!((&batch.1, &batch.2) == (&one.1, &one.2), "{what}: batch {} is another", one.0);
        }
        // Every rank reports the position after the last batch of the round.
        assert!(round.iter().all(|batch| batch.3 == one[ranks - 1].3), "{what}: positions after batch {}", one[0].0);
    }
}

#[test]
fn the_batches_of_several_ranks_taken_in_turn_are_those_of_one() {
    each_order(|name, open| {
        let alone = together(open, 1, 0, None, BATCHES);
        assert!(alone[BATCHES - 1].3.epoch >= 1, "{name}: an epoch is not through");
        // A loader of one rank returns the batches of the sequences.
        let mut direct = open();
        for (number, batch) in alone.iter().enumerate() {
            let Shape { rows, length } = shape(number as u64);
            let mut contents = [(); 3].map(|()| vec![7; rows * length]);
            let [x, y, o] = &mut contents;
            assert!(direct.fill(&mut BatchMut::new(rows, length, x, y, o).unwrap()).unwrap());
            assert!(*batch == (number as u64, shape(number as u64), contents, direct.position()), "{name} {number}");
        }
        for ranks in [1, 2, 3, 4, 6] {
            let found = together(open, ranks, 0, None, BATCHES / ranks as usize);
            assert_same(&found, &alone, ranks as usize, &format!("{name}, {ranks} ranks"));
        }
    });
}

#[test]
fn another_number_of_ranks_goes_on_from_a_round_s_end_the_same() {
    each_order(|name, open| {
        let alone = together(open, 1, 0, None, BATCHES);
        for (ranks, others) in [(1, 2), (1, 3), (1, 6), (2, 1), (2, 3), (3, 1), (3, 2), (3, 3), (6, 2), (6, 3)] {
            let before = together(open, ranks, 0, None, 24 / ranks as usize);
            for stop in [6, 12, 18, 24] {
                let (position, most) = (before[stop - 1].3, (BATCHES - stop) / others as usize);
                assert!(before[stop - ranks as usize..stop].iter().all(|batch| batch.3 == position));
                let found = together(open, others, stop as u64, Some(position), most);
                let what = format!("{name}, {ranks} ranks, then {others} after batch {stop}");
                assert_same(&found, &alone[stop..], others as usize, &what);
            }
        }
    });
}

#[test]
fn all_ranks_end_with_the_last_whole_round() {
    let (stretches, _) = course(&[(1, 1, 6)]);
    let stream = |documents| {
        let mut stream = TokenStream::new(feed(Numbered::finite(documents))).unwrap();
        stream.limit_epochs(1);
        stream
    };
    // The data ends at every point of a round: after its last batch, and after each batch before the last.
    let mut left = [[0; 3]; 2];
    for documents in 12..40 {
        let orders: [&Open<'_>; 2] = [&|| Box::new(Consecutive::new(stream(documents))), &|| {
            Box::new(Pool::new(stream(documents), 5, stretches.clone(), BYTES, 258))
        }];
        for (order, open) in orders.into_iter().enumerate() {
            let alone = together(open, 1, 0, None, usize::MAX);
            for ranks in [2, 3, 4] {
                let found = together(open, ranks as u32, 0, None, usize::MAX);
                assert_same(&found, &alone, ranks, &format!("{documents} documents, {ranks} ranks"));
            }
            left[order][alone.len() % 3] += 1;
        }
    }
    assert!(left.as_flattened().iter().all(|&count| count > 0), "{left:?}");
}

fn refusal(turn: Turn, first: u64, blocks: Option<Blocks>) -> String {
    let slots = Slots { block: 64, ..SLOTS };
    let started = Loader::start(Box::new(consecutive(9)), Box::new(shape), blocks, first, turn, slots);
    started.err().expect("a refusal").to_string()
}

#[test]
fn a_turn_that_is_none_is_refused() {
    for (rank, ranks) in [(0, 0), (2, 2), (7, 3)] {
        let message = refusal(Turn { rank, ranks }, 0, None);
        assert!(message.starts_with(&format!("rank {rank} of {ranks} ranks was given")), "{message}");
    }
    let message = refusal(Turn { rank: 1, ranks: 3 }, 4, None);
    assert!(message.starts_with("micro-batch 4 comes next and 3 ranks take 3 at a time"), "{message}");
    let blocks = || -> Option<Blocks> { Some(Box::new(|_| InBlock { index: 0, batches: 1 })) };
    let message = refusal(Turn { rank: 0, ranks: 2 }, 0, blocks());
    assert!(message.contains("streams that keep their state, which 2 ranks cannot share"), "{message}");
    let slots = Slots { block: 64, ..SLOTS };
    assert!(Loader::start(Box::new(consecutive(9)), Box::new(shape), blocks(), 5, Turn::ALONE, slots).is_ok());
}

#[test]
fn a_batch_that_no_slot_holds_is_refused_by_every_rank() {
    // The third rank's batch of the second round.
    let schedule = |number| Shape { rows: if number == 5 { 65 } else { 1 }, length: 1 };
    for rank in 0..3 {
        let turn = Turn { rank, ranks: 3 };
        let loader = Loader::start(Box::new(consecutive(9)), Box::new(schedule), None, 0, turn, SLOTS).unwrap();
        assert_eq!(loader.take().unwrap().unwrap().number(), u64::from(rank));
        let message = loader.take().err().unwrap().to_string();
        assert!(message.contains("a batch of 65 rows of 1 tokens was scheduled"), "{message}");
    }
}
