use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::super::conversation::Part;
use super::super::super::fixtures::{ORIGIN, feed};
use super::super::super::shards::Shards;
use super::super::super::shards::build::open_or_build;
use super::super::super::source::{Document, Documents};
use super::*;

/// Conversations given by the lengths of their parts, prompt and answer in turn; a single part is a text.
struct Chats {
    lengths: Vec<Vec<usize>>,
    next: usize,
}

impl Documents for Chats {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        document.clear();
        let Some(lengths) = self.lengths.get(self.next) else { return Ok(false) };
        for (i, length) in lengths.iter().enumerate() {
            // Letters that differ between conversations and offsets.
            document.text.extend((0..*length).map(|at| char::from(b'a' + ((self.next * 5 + i * 3 + at) % 26) as u8)));
            let end = document.text.len();
            if lengths.len() > 1 {
                document.parts.push(Part { end, answer: i % 2 == 1 });
            }
        }
        self.next += 1;
        Ok(true)
    }
    fn place(&self) -> SourcePosition {
        SourcePosition { offset: self.next as u64, document: self.next as u64, ..SourcePosition::default() }
    }
    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError> {
        self.next = place.offset as usize;
        Ok(())
    }
    fn name(&self) -> &str {
        "chats"
    }
    fn fingerprint(&self) -> u64 {
        7
    }
    fn template(&self) -> Option<u64> {
        Some(99)
    }
}

fn shards(lengths: &[Vec<usize>]) -> (TempDir, Arc<Shards>) {
    let dir = TempDir::new().unwrap();
    let source = || Ok(feed(Chats { lengths: lengths.to_vec(), next: 0 }));
    let made = open_or_build(dir.path(), ORIGIN, || Ok(None), source, 0, &mut |_| {}).unwrap();
    assert_eq!(made.manifest().template(), Some(99));
    (dir, Arc::new(made))
}

fn packed(shards: &Arc<Shards>, rows: Rows, overflow: Overflow) -> Result<Packed, SourceError> {
    let split = Split::new(0, 0.0).unwrap();
    let mut tokens = TrainingTokens::new(Arc::clone(shards), &split, "chats")?;
    let table = Table::of(&mut tokens, &split, rows.length, overflow)?;
    Ok(Packed::new(tokens, table, 7, 3, rows))
}

type Batch = [Vec<u32>; 3];

fn take(packed: &mut Packed, rows: usize, length: usize) -> Batch {
    let mut storage = [(); 3].map(|()| vec![77; rows * length]);
    let [x, y, o] = &mut storage;
    assert!(packed.fill(&mut BatchMut::new(rows, length, x, y, o).unwrap()).unwrap());
    storage
}

/// The conversations of a row: inputs with their targets.
fn conversations(batch: &Batch, length: usize) -> Vec<Vec<(u32, u32)>> {
    let [x, y, o] = batch;
    let mut all: Vec<Vec<(u32, u32)>> = Vec::new();
    for at in 0..x.len() {
        // A row begins with a conversation, and padding has the input 0, which is no letter.
        if x[at] == 0 {
            assert_eq!((y[at], o[at]), (IGNORE, 0));
            continue;
        }
        if o[at] == 0 {
            all.push(Vec::new());
        }
        assert!(at % length != 0 || o[at] == 0);
        let last = all.last_mut().unwrap();
        assert_eq!(o[at] as usize, last.len());
        last.push((x[at], y[at]));
    }
    all
}

fn counted<T: Ord>(all: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    all.into_iter().for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

/// The expected tokens of a conversation of these lengths.
fn expected(number: usize, lengths: &[usize]) -> Vec<(u32, u32)> {
    let mut tokens = Vec::new();
    for (i, length) in lengths.iter().enumerate() {
        tokens.extend((0..*length).map(|at| (97 + ((number * 5 + i * 3 + at) % 26) as u32, i % 2 == 1)));
    }
    tokens.windows(2).map(|pair| (pair[0].0, if pair[1].1 { pair[1].0 } else { IGNORE })).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn each_conversation_comes_whole_once_an_epoch_and_a_run_goes_on_anywhere(
        lengths in proptest::collection::vec(proptest::collection::vec(1usize..7, 2..5), 3..40), micro in 1u64..4,
    ) {
        let (_dir, shards) = shards(&lengths);
        let shape = Rows { length: 24, step: 2 * micro };
        let mut run = packed(&shards, shape, Overflow::Cut).unwrap();
        let packing = run.packing();
        prop_assert_eq!((packing.conversations, packing.cut, packing.dropped), (lengths.len() as u64, 0, 0));
        let (mut batches, mut positions) = (Vec::new(), Vec::new());
        let mut targets = Vec::new();
        while batches.len() < 40 {
            batches.push(take(&mut run, 2, 24));
            positions.push(run.position());
            targets.push(run.targets_of_step().unwrap());
        }
        // The rows of the first epoch contain each conversation once.
        let rows = packing.rows as usize;
        let first: Vec<_> = batches.iter().flat_map(|batch| {
            (0..2).map(|row| [0, 1, 2].map(|i| batch[i][row * 24..(row + 1) * 24].to_vec()))
        }).take(rows).collect();
        if rows <= 80 {
            let found = counted(first.iter().flat_map(|row| conversations(row, 24)));
            let all = counted(lengths.iter().enumerate().map(|(i, lengths)| expected(i, lengths)));
            prop_assert_eq!(found, all);
        }
        for (step, batches) in batches.chunks(micro as usize).enumerate() {
            if batches.len() == micro as usize {
                let real = batches.iter().flat_map(|b| &b[1]).filter(|y| **y != IGNORE).count() as u64;
                for said in &targets[step * micro as usize..][..micro as usize] {
                    prop_assert_eq!(*said, real);
                }
            }
        }
        for stop in (micro as usize..40).step_by(micro as usize) {
            let mut resumed = packed(&shards, shape, Overflow::Cut).unwrap();
            resumed.seek(positions[stop - 1]).unwrap();
            prop_assert_eq!(resumed.position(), positions[stop - 1]);
            prop_assert!(take(&mut resumed, 2, 24) == batches[stop]);
        }
        // Ranks that take batches in turn.
        let mut turns = packed(&shards, shape, Overflow::Cut).unwrap();
        for i in 0..10 {
            turns.skip(2, 24).unwrap();
            prop_assert!(take(&mut turns, 2, 24) == batches[2 * i + 1]);
            prop_assert_eq!(turns.position(), positions[2 * i + 1]);
        }
    }
}

#[test]
fn long_conversations_are_cut_or_dropped_and_long_texts_go_on() {
    // With 8 positions, one conversation fits, one loses the end of its answer, one loses its whole answer; the last is
    // a text between marks.
    let lengths = [vec![4, 5], vec![6, 9], vec![9, 4], vec![18]];
    let (_dir, shards) = shards(&lengths);
    let shape = Rows { length: 8, step: 1 };
    for (overflow, expected) in [(Overflow::Cut, (5, 1, 1)), (Overflow::Drop, (4, 0, 2))] {
        let mut run = packed(&shards, shape, overflow).unwrap();
        let packing = run.packing();
        assert_eq!((packing.conversations, packing.cut, packing.dropped), expected);
        let rows: Vec<Batch> = (0..packing.rows).map(|_| take(&mut run, 1, 8)).collect();
        let targets = rows.iter().flat_map(|row| &row[1]).filter(|y| **y != IGNORE).count() as u64;
        assert_eq!(targets, packing.targets);
        // 20 tokens of text are 19 targets.
        assert_eq!(targets, 5 + 19 + if overflow == Overflow::Cut { 3 } else { 0 });
    }
    assert!(matches!(
        packed(&shards, Rows { length: 8, step: 1 }, Overflow::Cut).unwrap().skip(1, 9),
        Err(SourceError::PackedRows { length: 8, other: 9 })
    ));
    let (_dir, shards) = self::shards(&[vec![9, 4]]);
    assert!(matches!(packed(&shards, shape, Overflow::Cut), Err(SourceError::NothingFits { .. })));
}

#[test]
fn rows_are_nearly_full() {
    let random = Random::new(1, 0);
    let lengths: Vec<_> = (0..3000)
        .map(|i| vec![8 + random.below(2 * i, 200) as usize, 8 + random.below(2 * i + 1, 100) as usize])
        .collect();
    let (_dir, shards) = shards(&lengths);
    let packing = packed(&shards, Rows { length: 512, step: 1 }, Overflow::Cut).unwrap().packing();
    let full = packing.positions as f64 / (packing.rows * 512) as f64;
    assert!(full > 0.97, "{full}");
}
