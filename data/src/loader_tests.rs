use super::super::error::SourceError;
use super::super::files::Files;
use super::super::fixtures::{Numbered, feed};
use super::super::sequences::consecutive::Consecutive;
use super::super::shuffle::Shuffled;
use super::super::source::{Document, Documents, SourceOptions, SourcePosition};
use super::super::stream::TokenStream;
use super::super::tokenizer::{EncodeError, Tokenizer};
use super::*;

fn stream(documents: impl Documents + 'static) -> TokenStream {
    TokenStream::new(feed(documents)).expect("a stream")
}

fn sequences(documents: impl Documents + 'static) -> Box<dyn Sequences> {
    Box::new(Consecutive::new(stream(documents)))
}

fn shape(number: u64) -> Shape {
    // The shape grows every third batch.
    Shape { rows: 1 + (number as usize / 3) % 3, length: 4 + number as usize / 3 }
}

type Seen = (u64, Shape, Vec<u32>, Vec<u32>, Vec<u32>, Position);

fn seen(batch: &Batch<'_>) -> Seen {
    let [tokens, targets, offsets] = [batch.tokens(), batch.targets(), batch.offsets()].map(<[u32]>::to_vec);
    (batch.number(), batch.shape(), tokens, targets, offsets, batch.position())
}

fn take(loader: &Loader, n: usize) -> Vec<Seen> {
    (0..n).map(|_| seen(&loader.take().unwrap().unwrap())).collect()
}

const SLOTS: Slots = Slots { count: 3, capacity: 64, block: 0 };

#[test]
fn the_batches_are_those_of_the_stream_read_directly() {
    let mut direct = stream(Numbered::finite(9));
    let mut token = direct.next_token().unwrap().unwrap();
    let loader = Loader::start(sequences(Numbered::finite(9)), Box::new(shape), None, 0, Turn::ALONE, SLOTS).unwrap();
    let mut positions = Vec::new();
    for (number, seen) in take(&loader, 20).into_iter().enumerate() {
        let (n, s, x, y, o, position) = seen;
        assert_eq!((n, s), (number as u64, shape(number as u64)));
        assert_eq!(x.len(), s.rows * s.length);
        for i in 0..x.len() {
            positions.push(direct.position());
            let following = direct.next_token().unwrap().unwrap();
            assert_eq!((x[i], y[i], o[i]), (token.id, following.id, token.offset));
            token = following;
        }
        // The cursor is before the last target: it has passed all inputs so far.
        assert_eq!(position, positions[positions.len() - 1]);
        assert_eq!(position.tokens, positions.len() as u64);
    }
}

#[test]
fn a_loader_that_starts_at_a_batch_s_position_goes_on_the_same() {
    let loader = Loader::start(sequences(Numbered::finite(9)), Box::new(shape), None, 0, Turn::ALONE, SLOTS).unwrap();
    let whole = take(&loader, 20);
    for stop in 1..12 {
        let mut resumed = sequences(Numbered::finite(9));
        resumed.seek(whole[stop - 1].5).unwrap();
        let loader = Loader::start(resumed, Box::new(shape), None, stop as u64, Turn::ALONE, SLOTS).unwrap();
        assert_eq!(take(&loader, 8), whole[stop..stop + 8]);
    }
}

#[test]
fn the_number_of_slots_changes_nothing_and_slots_come_round() {
    let batches = |count| {
        let slots = Slots { count, capacity: 64, block: 0 };
        let loader =
            Loader::start(sequences(Numbered::endless()), Box::new(shape), None, 0, Turn::ALONE, slots).unwrap();
        let mut storage = Vec::new();
        let mut all = Vec::new();
        for _ in 0..20 {
            let batch = loader.take().unwrap().unwrap();
            storage.push(batch.tokens().as_ptr());
            all.push(seen(&batch));
        }
        storage.sort();
        storage.dedup();
        assert!(storage.len() <= count, "{} slots in use", storage.len());
        all
    };
    let one = batches(1);
    assert_eq!(one, batches(2));
    assert_eq!(one, batches(5));
    assert_eq!(SLOTS.bytes(), 3 * 64 * (4 + 4 + 4));
}

#[test]
fn several_batches_can_be_held_at_once() {
    let loader = Loader::start(sequences(Numbered::endless()), Box::new(shape), None, 0, Turn::ALONE, SLOTS).unwrap();
    let held: Vec<Batch<'_>> = (0..3).map(|_| loader.take().unwrap().unwrap()).collect();
    assert_eq!(held.iter().map(Batch::number).collect::<Vec<_>>(), [0, 1, 2]);
    drop(held);
    assert_eq!(loader.take().unwrap().unwrap().number(), 3);
}

#[test]
fn a_stream_that_ends_gives_its_whole_batches_and_then_none() {
    let mut limited = stream(Numbered::finite(9));
    limited.limit_epochs(2);
    let total = {
        let mut counted = stream(Numbered::finite(9));
        counted.limit_epochs(2);
        std::iter::from_fn(|| counted.next_token().unwrap()).count()
    };
    let loader = Loader::start(
        Box::new(Consecutive::new(limited)),
        Box::new(|_| Shape { rows: 2, length: 5 }),
        None,
        0,
        Turn::ALONE,
        SLOTS,
    )
    .unwrap();
    let mut batches = 0;
    while let Some(batch) = loader.take().unwrap() {
        batches += 1;
        drop(batch);
    }
    assert_eq!(batches, (total - 1) / 10);
    assert!(loader.take().unwrap().is_none());
}

/// Gives some documents and then fails, or panics.
struct Failing {
    left: u32,
    panics: bool,
}

impl Documents for Failing {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        document.clear();
        document.text.push_str("ten bytes.");
        if self.left == 0 {
            assert!(!self.panics, "a fault in a reader, on purpose");
            return Err(SourceError::Empty { path: "lost.txt".into() });
        }
        self.left -= 1;
        Ok(true)
    }
    fn place(&self) -> SourcePosition {
        SourcePosition::default()
    }
    fn seek(&mut self, _: SourcePosition) -> Result<(), SourceError> {
        Ok(())
    }
    fn name(&self) -> &str {
        "failing"
    }
    fn fingerprint(&self) -> u64 {
        0
    }
}

#[test]
fn an_error_comes_after_the_batches_before_it_and_a_lost_reader_is_an_error_too() {
    for panics in [false, true] {
        // 4 documents of 12 tokens: 4 batches of 11 inputs.
        let schedule = Box::new(|_| Shape { rows: 1, length: 11 });
        let loader =
            Loader::start(sequences(Failing { left: 4, panics }), schedule, None, 0, Turn::ALONE, SLOTS).unwrap();
        take(&loader, 4);
        let message = loader.take().err().unwrap().to_string();
        match panics {
            false => assert_eq!(message, "lost.txt: the file is empty; name one that holds text"),
            true => assert!(message.starts_with("the reader thread ended unexpectedly"), "{message}"),
        }
        let again = loader.take().err().unwrap();
        assert!(matches!(again, SourceError::ReaderLost));
    }
}

#[test]
fn a_batch_that_no_slot_holds_is_refused() {
    for (rows, length) in [(5, 13), (0, 4), (usize::MAX, 2)] {
        let schedule = Box::new(move |_| Shape { rows, length });
        let loader = Loader::start(sequences(Numbered::endless()), schedule, None, 0, Turn::ALONE, SLOTS).unwrap();
        let message = loader.take().err().unwrap().to_string();
        assert!(message.contains("the loader's slots hold 1 to 64 tokens"), "{message}");
    }
}

#[test]
fn dropping_ends_the_thread_whatever_it_waits_for() {
    // Once with all slots full and a batch in use, and once before the first batch is made.
    for wait in [0, 20] {
        let loader =
            Loader::start(sequences(Numbered::endless()), Box::new(shape), None, 0, Turn::ALONE, SLOTS).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait));
        let shared = Arc::clone(&loader.shared);
        drop(loader);
        // The thread has dropped its reference: it has been joined.
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}

const BLOCK: Slots = Slots { count: 3, capacity: 64, block: 3 * 5 * 4 };
const ROWS: usize = 3;
const LENGTH: usize = 5;

/// Three rows of five tokens.
fn rows() -> Shapes {
    Box::new(|_| Shape { rows: ROWS, length: LENGTH })
}

/// Blocks of four batches; the last block ends with batch `end`.
fn four(end: u64) -> Option<Blocks> {
    Some(Box::new(move |number| {
        let index = number % 4;
        let left = end.saturating_sub(number - index);
        InBlock { index: index as usize, batches: if left > index { left.min(4) as usize } else { 4 } }
    }))
}

fn blocks(end: u64) -> Loader {
    Loader::start(sequences(Numbered::endless()), rows(), four(end), 0, Turn::ALONE, BLOCK).unwrap()
}

/// The first tokens of the stream.
fn direct(count: usize) -> Vec<capful_core::data::Token> {
    let mut stream = stream(Numbered::endless());
    (0..count).map(|_| stream.next_token().unwrap().unwrap()).collect()
}

#[test]
fn the_batches_of_a_block_are_its_columns_one_after_the_other() {
    // Two blocks of four batches and one of two.
    let (all, tokens) = (take(&blocks(10), 10), direct(151));
    let mut begins = 0;
    for (first, batches) in [(0, 4), (4, 4), (8, 2)] {
        let row = batches * LENGTH;
        for (index, batch) in all[first..first + batches].iter().enumerate() {
            let (number, shape, x, y, offsets, _) = batch;
            assert_eq!((*number, *shape), ((first + index) as u64, Shape { rows: ROWS, length: LENGTH }));
            for i in 0..ROWS * LENGTH {
                let column = index * LENGTH + i % LENGTH;
                let at = begins + i / LENGTH * row + column;
                assert_eq!((x[i], y[i]), (tokens[at].id, tokens[at + 1].id));
                // A row has no context from before its block, and within the block none from before its document's
                // start.
                assert_eq!(offsets[i], tokens[at].offset.min(column as u32));
                assert_eq!(offsets[i] == 0, column == 0 || tokens[at].offset == 0);
            }
        }
        begins += ROWS * row;
    }
    assert!(all.iter().any(|b| b.4.iter().any(|o| *o >= LENGTH as u32)), "no document goes on from batch to batch");
}

#[test]
fn the_rows_of_a_block_go_on_where_they_ended() {
    for pair in take(&blocks(u64::MAX), 12).windows(2) {
        let ([(_, _, _, targets, before, _), (number, _, inputs, _, offsets, _)], last) =
            ([&pair[0], &pair[1]], LENGTH - 1);
        for row in 0..ROWS {
            let (ended, begins) = (row * LENGTH + last, row * LENGTH);
            if number % 4 != 0 {
                assert_eq!(targets[ended], inputs[begins]);
                assert!(offsets[begins] == 0 || offsets[begins] == before[ended] + 1);
            } else {
                assert_eq!(offsets[begins], 0, "another block begins elsewhere");
            }
        }
    }
}

#[test]
fn every_token_of_whole_blocks_is_an_input_once() {
    // The last block is shorter.
    let (all, tokens) = (take(&blocks(11), 11), direct(166));
    let mut inputs: Vec<u32> = all.iter().flat_map(|b| b.2.clone()).collect();
    let mut targets: Vec<u32> = all.iter().flat_map(|b| b.3.clone()).collect();
    let sorted = |range: std::ops::Range<usize>| {
        let mut ids: Vec<u32> = tokens[range].iter().map(|t| t.id).collect();
        ids.sort_unstable();
        ids
    };
    inputs.sort_unstable();
    targets.sort_unstable();
    assert_eq!((inputs, targets), (sorted(0..165), sorted(1..166)));
    assert_eq!(all[10].5.tokens, 165);
}

#[test]
fn a_loader_goes_on_in_the_middle_of_a_block() {
    let whole = take(&blocks(19), 19);
    for stop in 1..16 {
        let position = whole[stop - 1].5;
        // Within a block the position is where the block begins.
        assert_eq!(position.tokens, (stop / 4 * 4 * ROWS * LENGTH) as u64);
        let mut resumed = sequences(Numbered::endless());
        resumed.seek(position).unwrap();
        let loader = Loader::start(resumed, rows(), four(19), stop as u64, Turn::ALONE, BLOCK).unwrap();
        assert!(take(&loader, 19 - stop) == whole[stop..], "after {stop}");
    }
}

#[test]
fn rows_of_one_batch_a_block_begin_anew_and_are_the_stream() {
    let single: Blocks = Box::new(|_| InBlock { index: 0, batches: 1 });
    let loader = Loader::start(sequences(Numbered::endless()), rows(), Some(single), 0, Turn::ALONE, BLOCK).unwrap();
    let plain = Loader::start(sequences(Numbered::endless()), rows(), None, 0, Turn::ALONE, BLOCK).unwrap();
    for (one, other) in take(&loader, 9).into_iter().zip(take(&plain, 9)) {
        assert_eq!((one.2, one.3, one.5), (other.2, other.3, other.5));
        let clipped = other.4.iter().enumerate().map(|(i, o)| (*o).min((i % LENGTH) as u32));
        assert_eq!(one.4, clipped.collect::<Vec<_>>());
    }
}

#[test]
fn a_block_that_the_storage_does_not_hold_is_refused() {
    let five: Blocks = Box::new(|number| InBlock { index: (number % 5) as usize, batches: 5 });
    let loader = Loader::start(sequences(Numbered::endless()), rows(), Some(five), 0, Turn::ALONE, BLOCK).unwrap();
    let message = loader.take().err().unwrap().to_string();
    assert!(message.contains("the loader's slots hold 1 to 12 tokens"), "{message}");
}

/// Characters as ids far beyond 65,535, and an end mark.
struct Wide;

impl Tokenizer for Wide {
    fn vocab_size(&self) -> u32 {
        200_005
    }
    fn bos(&self) -> Option<u32> {
        None
    }
    fn eos(&self) -> Option<u32> {
        Some(200_004)
    }
    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        ids.extend(text.chars().map(|c| 65_536 + c as u32));
        Ok(())
    }
    fn decode(&self, _: &[u32]) -> String {
        String::new()
    }
}

#[test]
fn every_token_of_a_pass_is_a_target_once_whatever_its_id_and_its_document_s_length() {
    let directory = tempfile::tempdir().unwrap();
    // Documents of one character up to some longer than a batch and than a piece; none occurs twice.
    let document = |i: usize| format!("{i}:{}", "abcdefg ".repeat(if i == 17 { 12_000 } else { i * i % 90 }));
    let line = |i: usize| serde_json::json!({ "text": document(i) }).to_string() + "\n";
    for (file, documents) in [("a.jsonl", 0..30), ("b.jsonl", 30..60)] {
        std::fs::write(directory.path().join(file), documents.map(line).collect::<String>()).unwrap();
    }
    let open = || {
        let files = Files::open(directory.path(), &SourceOptions::default()).unwrap().shuffled(3);
        let mut feed = feed(Shuffled::new(Box::new(files), 16, 3));
        feed.tokenizer = Some(Arc::new(Wide));
        TokenStream::with_threads(feed, 2).unwrap()
    };
    let marked = |i| {
        let mut ids = Vec::new();
        Wide.encode(&document(i), &mut ids).unwrap();
        ids.push(200_004);
        ids
    };
    let mut expected: Vec<Vec<u32>> = (0..60).map(marked).collect();
    let total: usize = expected.iter().map(Vec::len).sum();

    let loader = Loader::start(
        Box::new(Consecutive::new(open())),
        Box::new(|_| Shape { rows: 3, length: 7 }),
        None,
        0,
        Turn::ALONE,
        SLOTS,
    )
    .unwrap();
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    while targets.len() < total {
        let batch = loader.take().unwrap().unwrap();
        inputs.extend_from_slice(batch.tokens());
        targets.extend_from_slice(batch.targets());
    }
    // A target is the very next input: neither the same token nor the one after the next.
    assert!(targets[..targets.len() - 1] == inputs[1..]);
    let mut found: Vec<Vec<u32>> = inputs[..total].split_inclusive(|&id| id == 200_004).map(<[u32]>::to_vec).collect();
    expected.sort();
    found.sort();
    assert!(found == expected);
}
