use std::sync::Arc;

use capful_core::data::IGNORE;
use proptest::prelude::*;
use tempfile::TempDir;

use super::super::super::conversation;
use super::super::super::fixtures::{ORIGIN, course, feed};
use super::super::super::shards::Shards;
use super::super::super::shards::build::open_or_build;
use super::super::super::shards::training::TrainingTokens;
use super::super::super::source::{Document, Documents, SourcePosition};
use super::super::super::split::Split;
use super::super::packed::Table;
use super::*;
use capful_config::Overflow;

/// Number of letters of a source; the documents of different sources have different letters.
const LETTERS: u64 = 8;

/// Documents of the letters of source `number`; each is a conversation where they are `chats`.
struct Lettered {
    number: u64,
    documents: u64,
    chats: bool,
    next: u64,
}

impl Documents for Lettered {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        document.clear();
        if self.next == self.documents {
            return Ok(false);
        }
        let length = 5 + self.next * 7 % 11;
        let letter = |i: u64| char::from((48 + self.number * LETTERS + (self.next * 5 + i * i) % LETTERS) as u8);
        document.text.extend((0..length).map(letter));
        if self.chats {
            let prompt = 2 + (self.next % 3) as usize;
            document.parts.push(conversation::Part { end: prompt, answer: false });
            document.parts.push(conversation::Part { end: length as usize, answer: true });
        }
        self.next += 1;
        Ok(true)
    }
    fn place(&self) -> SourcePosition {
        SourcePosition { offset: self.next, document: self.next, ..SourcePosition::default() }
    }
    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError> {
        self.next = place.offset;
        Ok(())
    }
    fn name(&self) -> &str {
        "lettered"
    }
    fn fingerprint(&self) -> u64 {
        self.number
    }
    fn template(&self) -> Option<u64> {
        self.chats.then_some(99)
    }
}

/// For each source its weight, its number of documents and whether they are conversations.
type About<'a> = &'a [(f64, u64, bool)];

/// Sources on disk.
struct Made {
    _dirs: Vec<TempDir>,
    shards: Vec<Arc<Shards>>,
}

fn made(about: About<'_>) -> Made {
    let one = |(number, &(_, documents, chats)): (usize, &(f64, u64, bool))| {
        let dir = TempDir::new().unwrap();
        let source = || Ok(feed(Lettered { number: number as u64, documents, chats, next: 0 }));
        let made = open_or_build(dir.path(), ORIGIN, || Ok(None), source, 0, &mut |_| {}).unwrap();
        (dir, Arc::new(made))
    };
    let (dirs, shards) = about.iter().enumerate().map(one).unzip();
    Made { _dirs: dirs, shards }
}

impl Made {
    fn text(&self, number: usize, seed: u64, stretches: Vec<Stretch>) -> Permuted {
        let split = Split::new(0, 0.0).unwrap();
        let tokens = TrainingTokens::new(Arc::clone(&self.shards[number]), &split, "lettered").unwrap();
        Permuted::new(tokens, seed + number as u64, stretches, number as u64)
    }

    fn mixture(&self, about: About<'_>, seed: u64, stretches: &[Stretch], rows: Option<Rows>) -> Mixture {
        let weights: Vec<f64> = about.iter().map(|(weight, ..)| *weight).collect();
        let shares = Shares::new(seed, &weights, stretches.to_vec());
        let part = |(number, &(_, _, chats)): (usize, &(f64, u64, bool))| match rows.filter(|_| chats) {
            None => Part::Text(self.text(number, seed, shares.of_source(number))),
            Some(rows) => {
                let (split, rows) = (Split::new(0, 0.0).unwrap(), Rows { step: 0, ..rows });
                let mut tokens = TrainingTokens::new(Arc::clone(&self.shards[number]), &split, "lettered").unwrap();
                let table = Table::of(&mut tokens, &split, rows.length, Overflow::Cut).unwrap();
                Part::Conversations(Packed::new(tokens, table, number as u64, seed, rows))
            }
        };
        Mixture::new(about.iter().enumerate().map(part).collect(), shares, rows)
    }
}

type Batch = ([Vec<u32>; 3], Position, Option<u64>);

fn take(sequences: &mut dyn Sequences, (rows, length): (usize, usize)) -> Batch {
    let mut storage = [(); 3].map(|()| vec![7; rows * length]);
    let [x, y, o] = &mut storage;
    assert!(sequences.fill(&mut BatchMut::new(rows, length, x, y, o).unwrap()).unwrap());
    (storage, sequences.position(), sequences.targets_of_step())
}

/// The source of a token, where the token is a letter.
fn source(id: u32) -> Option<usize> {
    (48..256).contains(&id).then(|| (u64::from(id - 48) / LETTERS) as usize)
}

/// Takes batches of `shapes`, resumes after each of them and takes turns with other ranks: the batches must be the
/// same.
fn assert_goes_on(open: &dyn Fn() -> Mixture, shapes: &[(usize, usize)], step: usize) -> Vec<Batch> {
    let mut whole = open();
    let all: Vec<_> = shapes.iter().map(|shape| take(&mut whole, *shape)).collect();
    for stop in (step..shapes.len()).step_by(step) {
        let mut resumed = open();
        resumed.seek(all[stop - 1].1).unwrap();
        assert_eq!(resumed.position(), all[stop - 1].1);
        let rest: Vec<_> = shapes[stop..].iter().map(|shape| take(&mut resumed, *shape)).collect();
        assert!(rest == all[stop..], "after {stop}");
    }
    for ranks in 2..4 {
        for rank in 0..ranks {
            let mut turns = open();
            for (i, &(rows, length)) in shapes.iter().enumerate() {
                if i % ranks == rank {
                    assert!(take(&mut turns, (rows, length)) == all[i], "rank {rank} of {ranks} at {i}");
                } else {
                    assert!(turns.skip(rows, length).unwrap());
                    assert_eq!((turns.position(), turns.targets_of_step()), (all[i].1, all[i].2));
                }
            }
        }
    }
    all
}

#[test]
fn of_ten_million_tokens_each_source_has_its_share() {
    let about = [(0.7, 90, false), (0.2, 40, false), (0.1, 400, false), (0.0, 9, false)];
    let (made, length) = (made(&about), 1024);
    let stretches = [Stretch { from: 0, length: length as u64 }];
    let mut mixture = made.mixture(&about, 5, &stretches, None);
    let (mut counts, mut read) = ([0u64; 4], 0u64);
    while read < 10_000_000 {
        let ([x, ..], ..) = take(&mut mixture, (16, length));
        for row in x.chunks(length) {
            let of: Vec<usize> = row.iter().filter_map(|id| source(*id)).collect();
            assert!(of.iter().all(|one| *one == of[0]), "a sequence is of one source");
            counts[of[0]] += length as u64;
        }
        read += x.len() as u64;
        assert_eq!(mixture.shares.tokens(read)[..4], counts, "after {read}");
    }
    for (count, (share, ..)) in counts.iter().zip(about) {
        let drawn = *count as f64 / read as f64;
        assert!((drawn - share).abs() < 0.001, "{drawn} and not {share}");
    }
    assert_eq!(counts[3], 0);
    let drawn = mixture.shares.drawn(read);
    assert_eq!(drawn.len(), 4);
    assert!((drawn.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    mixture.shares.of_all().iter().zip(about).for_each(|(said, (share, ..))| assert!((said - share).abs() < 1e-9));
}

#[test]
fn each_source_passes_over_itself_in_its_own_order() {
    let about = [(3.0, 20, false), (1.0, 11, false)];
    let (made, length) = (made(&about), 16);
    let stretches = [Stretch { from: 0, length: length as u64 }];
    let mut mixture = made.mixture(&about, 2, &stretches, None);
    let mut alone: Vec<_> = (0..2).map(|number| made.text(number, 2, stretches.to_vec())).collect();
    for _ in 0..400 {
        let (row, ..) = take(&mut mixture, (1, length));
        let of = row[0].iter().find_map(|id| source(*id)).unwrap();
        assert!(take(&mut alone[of], (1, length)).0 == row);
    }
    assert!(alone.iter().all(|one| one.position().epoch > 2), "several passes");
}

#[test]
fn another_source_share_or_seed_is_another_run() {
    let about = [(3.0, 20, false), (1.0, 11, false)];
    let made = made(&about);
    let stretches = [Stretch { from: 0, length: 8 }];
    let of = |about: About<'_>| made.mixture(about, 2, &stretches, None).fingerprint();
    assert_eq!(of(&about), of(&[(6.0, 20, false), (2.0, 11, false)]));
    assert_ne!(of(&about), of(&[(3.0, 20, false), (2.0, 11, false)]));
    let mut short = made.mixture(&about, 2, &[Stretch { from: 0, length: 400 }], None);
    assert!(matches!(short.require(1), Err(SourceError::TooShort { needed: 401, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn a_mixture_goes_on_anywhere_and_ranks_take_turns(
        seed in any::<u64>(),
        about in proptest::collection::vec((0.01f64..4.0, 3u64..20, Just(false)), 1..5),
        parts in proptest::collection::vec((1usize..8, 1usize..4, 1usize..16), 1..4),
        cut in 0usize..12,
    ) {
        let made = made(&about);
        let (mut stretches, mut shapes) = course(&parts);
        // With streams a stage may end within a sequence: its last batch is a shorter one.
        let last = stretches.len() - 1;
        if last > 0 && cut > 0 {
            let at = parts[0].0;
            shapes.insert(at, (1, cut));
            stretches[1..].iter_mut().for_each(|stretch| stretch.from += cut as u64);
        }
        let open = || made.mixture(&about, seed, &stretches, None);
        let all = assert_goes_on(&open, &shapes, 1);
        let read: usize = shapes.iter().map(|(rows, length)| rows * length).sum();
        prop_assert_eq!(all.last().unwrap().1.tokens, read as u64);
        prop_assert_eq!(open().shares.tokens(read as u64).iter().sum::<u64>(), read as u64);
    }

    #[test]
    fn conversations_beside_text_have_the_targets_of_a_step(
        seed in any::<u64>(), micro in 1u64..4,
        about in proptest::collection::vec((0.1f64..4.0, 3u64..30, any::<bool>()), 1..4),
    ) {
        let made = made(&about);
        let rows = Rows { length: 24, step: 2 * micro };
        let stretches = [Stretch { from: 0, length: 24 }];
        let shapes = vec![(2, 24); 12 * micro as usize];
        let all = assert_goes_on(&|| made.mixture(&about, seed, &stretches, Some(rows)), &shapes, micro as usize);
        let chats = about.iter().any(|(.., chats)| *chats);
        for step in all.chunks(micro as usize) {
            let real = step.iter().flat_map(|(batch, ..)| &batch[1]).filter(|target| **target != IGNORE).count() as u64;
            for (.., said) in step {
                prop_assert_eq!(*said, chats.then_some(real));
            }
        }
    }
}
