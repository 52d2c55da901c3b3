use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::super::files::Files;
use super::super::fixtures::{Numbered, feed};
use super::super::source::SourceOptions;
use super::super::split::{Part, Split};
use super::super::stream::TokenStream;
use super::*;

fn texts(source: &mut dyn Documents, epoch: u32) -> Vec<String> {
    source.epoch(epoch);
    source.seek(SourcePosition::default()).unwrap();
    let mut document = Document::default();
    std::iter::from_fn(|| source.next(&mut document).unwrap().then(|| document.text.clone())).collect()
}

fn numbered(count: u64, most: u32, seed: u64) -> Shuffled {
    Shuffled::new(Box::new(Numbered::finite(count)), most, seed)
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

#[test]
fn every_document_comes_once_in_another_order_each_time() {
    let plain = texts(&mut Numbered::finite(1000), 0);
    let first = texts(&mut numbered(1000, 64, 7), 0);
    assert_ne!(first, plain);
    assert_eq!(first, texts(&mut numbered(1000, 64, 7), 0));
    for other in [texts(&mut numbered(1000, 64, 7), 1), texts(&mut numbered(1000, 64, 8), 0)] {
        assert_ne!(first, other);
        assert_eq!(sorted(first.clone()), sorted(other));
    }
    assert_eq!(sorted(first.clone()), sorted(plain.clone()));
    // A block's documents stay in the block, and two blocks have different orders.
    let places = |block: usize| -> Vec<usize> {
        let position = |text: &String| plain.iter().position(|p| p == text).unwrap();
        first[block * 64..(block + 1) * 64].iter().map(|text| position(text) - block * 64).collect()
    };
    assert!(places(0).iter().chain(&places(3)).all(|&at| at < 64));
    assert_ne!(places(0), places(3));
    assert_eq!(texts(&mut numbered(1000, 1, 7), 5), plain);
}

#[test]
fn each_place_in_a_block_is_as_likely_as_any_other() {
    // The final index of the first of eight documents, over seeds: 8000 draws of eight indices, five standard
    // deviations.
    let mut counts = [0; 8];
    for seed in 0..8000 {
        let first = Numbered::text(0);
        counts[texts(&mut numbered(8, 8, seed), 0).iter().position(|text| *text == first).unwrap()] += 1;
    }
    assert!(counts.iter().all(|&n: &i32| (n - 1000).abs() < 150), "{counts:?}");
}

#[test]
fn a_block_ends_when_it_is_full_of_text() {
    let mut shuffled = numbered(1000, u32::MAX, 3);
    shuffled.limit = 2000;
    let mut document = Document::default();
    let mut most = 0;
    while shuffled.next(&mut document).unwrap() {
        most = most.max(shuffled.block.text.len());
        assert!(shuffled.block.text.capacity() <= 4100);
    }
    assert!((2000..2060).contains(&most), "{most}");
    assert_eq!(sorted(texts(&mut shuffled, 0)), sorted(texts(&mut Numbered::finite(1000), 0)));
    assert!(bytes(10_000) > BYTES + (16 << 20));
}

/// Five files of 40 lines, each longer than the one before; one of them is a file of ids.
fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    for file in 0..5 {
        let line = |i: usize| format!("{{\"text\":\"{file}.{i} {}\"}}\n", "word ".repeat(i * 7 % (3 + file * 20)));
        let path = directory.path().join(format!("{file}.jsonl"));
        fs::write(path, (0..40).map(line).collect::<String>()).unwrap();
    }
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    fs::copy(testdata.join("zstd.parquet"), directory.path().join("5.parquet")).unwrap();
    directory
}

fn files(directory: &TempDir) -> Files {
    Files::open(directory.path(), &SourceOptions::default()).unwrap()
}

#[test]
fn files_change_places_in_each_reading() {
    let directory = directory();
    let begins = |texts: &[String]| {
        let mut begins: Vec<char> = texts.iter().map(|text| text.chars().next().unwrap()).collect();
        begins.dedup();
        begins
    };
    let plain = texts(&mut files(&directory), 3);
    assert_eq!(begins(&plain), ['0', '1', '2', '3', '4', 'R']);
    let orders: Vec<_> = (0..6).map(|epoch| texts(&mut files(&directory).shuffled(1), epoch)).collect();
    for (epoch, order) in orders.iter().enumerate() {
        assert_eq!(begins(order).len(), 6);
        assert_eq!(sorted(order.clone()), sorted(plain.clone()));
        assert_eq!(*order, texts(&mut files(&directory).shuffled(1), epoch as u32));
    }
    assert!(orders.windows(2).all(|pair| begins(&pair[0]) != begins(&pair[1])));
}

fn stream(directory: &TempDir, part: Part, threads: u32) -> TokenStream {
    let documents = Shuffled::new(Box::new(files(directory).shuffled(5)), 32, 5);
    let mut feed = feed(documents);
    (feed.split, feed.part) = (Split::new(11, 0.3).unwrap(), part);
    TokenStream::with_threads(feed, threads).unwrap()
}

#[test]
fn a_shuffled_stream_goes_on_from_any_position_and_shares_nothing_with_validation() {
    let directory = directory();
    let mut documents = Vec::new();
    for part in [Part::All, Part::Training, Part::Validation] {
        let mut whole = stream(&directory, part, 0);
        let (mut tokens, mut positions) = (Vec::new(), vec![whole.position()]);
        while whole.position().epoch < 1 || whole.position().epoch_tokens < 900 {
            tokens.push(whole.next_token().unwrap().unwrap());
            positions.push(whole.position());
        }
        let end = whole.epoch_length().unwrap() as usize;
        for at in (0..end).step_by(end / 61).chain(end - 9..end + 9) {
            let written = serde_json::to_string(&positions[at]).unwrap();
            let mut resumed = stream(&directory, part, at as u32 % 3);
            resumed.seek(serde_json::from_str(&written).unwrap()).unwrap();
            for i in at..(at + 800).min(tokens.len()) {
                assert_eq!(resumed.position(), positions[i]);
                assert_eq!(resumed.next_token().unwrap(), Some(tokens[i]), "{part:?}: {at} + {}", i - at);
            }
        }
        let mut all: Vec<Vec<u32>> = Vec::new();
        for token in &tokens[..end] {
            if token.offset == 0 {
                all.push(Vec::new());
            }
            all.last_mut().unwrap().push(token.id);
        }
        all.sort();
        documents.push(all);
    }
    let [all, training, validation] = documents.try_into().unwrap();
    assert!(validation.iter().all(|document| !training.contains(document)));
    let mut joined = [training, validation].concat();
    joined.sort();
    assert!(joined == all);
}

#[test]
fn a_place_of_other_data_is_refused() {
    let place = SourcePosition { offset: 8, document: 8, given: 3, ..SourcePosition::default() };
    let message = numbered(10, 8, 0).seek(place).unwrap_err().to_string();
    assert!(message.contains("cannot go on from document 8 of file 0"), "{message}");
    numbered(12, 8, 0).seek(place).unwrap();
    // Places of a source that is not shuffled are written as before.
    let written = serde_json::to_string(&SourcePosition { given: 0, ..place }).unwrap();
    assert_eq!(written, r#"{"file":0,"offset":8,"document":8}"#);
}
