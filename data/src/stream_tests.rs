use std::fs;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::files::Files;
use super::super::fixtures::{Bytes, Numbered, bytes, feed};
use super::super::source::{Document, Documents, SourceOptions, TokenKind};
use super::super::split::{Part, Split};
use super::super::token_file::TokenFileWriter;
use super::*;

fn read(stream: &mut TokenStream, n: usize) -> Vec<Token> {
    (0..n).map_while(|_| stream.next_token().unwrap()).collect()
}

/// The stream of `Numbered` documents, computed from its definition.
fn expected(count: u64) -> Vec<Token> {
    let marked = |i| [vec![256], Numbered::text(i).bytes().map(u32::from).collect(), vec![257]].concat();
    let document = |i| marked(i).into_iter().enumerate().map(|(at, id)| Token { id, offset: at as u32 });
    (0..count).flat_map(document).collect()
}

#[test]
fn the_stream_is_the_documents_between_their_marks_again_and_again() {
    let once = expected(5);
    let mut stream = TokenStream::new(feed(Numbered::finite(5))).unwrap();
    assert_eq!(read(&mut stream, once.len() * 3), [once.clone(), once.clone(), once.clone()].concat());
    assert_eq!(stream.epoch_length(), Some(once.len() as u64));
    let Position { epoch, epoch_tokens, tokens, .. } = stream.position();
    assert_eq!((epoch, epoch_tokens, tokens), (2, once.len() as u64, 3 * once.len() as u64));

    let mut stream = TokenStream::new(feed(Numbered::finite(5))).unwrap();
    stream.limit_epochs(2);
    assert_eq!(read(&mut stream, 10_000), [once.clone(), once].concat());
    assert_eq!(stream.next_token().unwrap(), None);
}

#[test]
fn an_endless_source_is_one_epoch() {
    let mut stream = TokenStream::new(feed(Numbered::endless())).unwrap();
    assert_eq!(read(&mut stream, 5000), expected(1000)[..5000]);
    assert_eq!((stream.position().epoch, stream.epoch_length()), (0, None));
}

#[test]
fn a_tokenizer_without_marks_adds_none() {
    let mut feed = feed(Numbered::finite(2));
    feed.tokenizer = Some(Arc::new(Bytes { bos: false, eos: false }));
    let mut stream = TokenStream::new(feed).unwrap();
    stream.limit_epochs(1);
    let ids: Vec<u32> = read(&mut stream, 100).iter().map(|t| t.id).collect();
    assert_eq!(ids, (Numbered::text(0) + &Numbered::text(1)).bytes().map(u32::from).collect::<Vec<_>>());
}

/// One directory with a file of every kind, and documents longer than a piece.
fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    let testdata = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let at = |name: &str| directory.path().join(name);
    fs::write(at("a.txt"), "Some paragraphs of text.\nTwo lines.\n\n".repeat(500)).unwrap();
    let line = |i: usize| format!("{{\"text\":\"{}\"}}\n", format!("word{i} é ").repeat(1 + i * 9000));
    fs::write(at("b.jsonl"), (0..4).map(line).collect::<String>()).unwrap();
    fs::copy(testdata.join("lines.jsonl.zst"), at("c.jsonl.zst")).unwrap();
    fs::copy(testdata.join("zstd.parquet"), at("d.parquet")).unwrap();
    let kind = TokenKind { vocab: 258, bos: Some(256), eos: Some(257), fingerprint: 0 };
    let mut writer = TokenFileWriter::create(&at("e.tokens"), kind).unwrap();
    (1..40).for_each(|n| writer.document(&vec![n; n as usize * 5]).unwrap());
    writer.finish().unwrap();
    directory
}

fn stream_of(directory: &TempDir, part: Part) -> TokenStream {
    let documents = Box::new(Files::open(directory.path(), &SourceOptions::default()).unwrap());
    let split = Split::new(11, 0.3).unwrap();
    TokenStream::new(Feed { documents, tokenizer: bytes(), split, part }).unwrap()
}

#[test]
fn resuming_anywhere_goes_on_with_the_same_tokens_and_positions() {
    let directory = directory();
    for part in [Part::All, Part::Training, Part::Validation] {
        let mut stream = stream_of(&directory, part);
        let (mut tokens, mut positions) = (Vec::new(), vec![stream.position()]);
        while stream.position().epoch < 1 || stream.position().epoch_tokens < 2000 {
            tokens.extend(stream.next_token().unwrap());
            positions.push(stream.position());
        }
        // Some positions spread over the epoch, and every position around its end.
        let end = stream.epoch_length().unwrap() as usize;
        let places = (0..end).step_by(end / 97).chain(end - 20..end + 20);
        for at in places {
            let written = serde_json::to_string(&positions[at]).unwrap();
            let mut resumed = stream_of(&directory, part);
            resumed.seek(serde_json::from_str(&written).unwrap()).unwrap();
            for i in at..(at + 1500).min(tokens.len()) {
                assert_eq!(resumed.position(), positions[i]);
                assert_eq!(resumed.next_token().unwrap(), Some(tokens[i]), "{part:?}: {at} + {}", i - at);
            }
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_tokens_and_positions() {
    let directory = directory();
    let with = |threads| {
        let documents = Box::new(Files::open(directory.path(), &SourceOptions::default()).unwrap());
        let split = Split::new(11, 0.3).unwrap();
        TokenStream::with_threads(Feed { documents, tokenizer: bytes(), split, part: Part::Training }, threads).unwrap()
    };
    let mut alone = with(0);
    alone.limit_epochs(1);
    let expected = read(&mut alone, usize::MAX);
    for threads in [1, 2, 7] {
        let mut stream = with(threads);
        assert_eq!(read(&mut stream, expected.len()), expected, "{threads} threads");
        read(&mut stream, 100);
        let position = stream.position();
        assert_eq!((position.epoch, position.epoch_tokens), (1, 100));
        let after = read(&mut stream, 30_000);
        stream.seek(position).unwrap();
        assert_eq!(read(&mut stream, 30_000), after);
        assert_eq!(after, expected[100..30_100]);
        stream.require(expected.len() as u64).unwrap();
        assert!(stream.require(expected.len() as u64 + 1).is_err());
    }
}

#[test]
fn a_long_document_has_the_same_ids_as_if_it_were_encoded_whole() {
    let directory = directory();
    let mut stream = stream_of(&directory, Part::All);
    let mut files = Files::open(directory.path(), &SourceOptions::default()).unwrap();
    let mut document = Document::default();
    let mut longest = 0;
    while files.next(&mut document).unwrap() {
        longest = longest.max(document.text.len());
        let inner = match document.ids.is_empty() {
            true => document.text.bytes().map(u32::from).collect(),
            false => document.ids.clone(),
        };
        let expected = [vec![256], inner, vec![257]].concat();
        let ids: Vec<u32> = read(&mut stream, expected.len()).iter().map(|t| t.id).collect();
        assert!(ids == expected);
    }
    assert!(longest > 200_000);
}

#[test]
fn training_and_validation_share_no_document_and_leave_none_out() {
    let directory = directory();
    let documents = |part| {
        let mut stream = stream_of(&directory, part);
        stream.limit_epochs(1);
        let tokens = read(&mut stream, usize::MAX);
        let mut all: Vec<Vec<u32>> = Vec::new();
        for token in tokens {
            if token.offset == 0 {
                all.push(Vec::new());
            }
            all.last_mut().unwrap().push(token.id);
        }
        all
    };
    let [mut all, training, validation] = [Part::All, Part::Training, Part::Validation].map(documents);
    assert!(training.len() > validation.len() && validation.len() > all.len() / 5);
    // Copies are on one side too: the text file is one paragraph again and again.
    assert!(validation.iter().all(|document| !training.contains(document)));
    let mut joined = [training, validation].concat();
    joined.sort();
    all.sort();
    assert!(joined == all);
}

#[test]
fn a_corpus_shorter_than_a_batch_is_noticed_and_the_stream_stays_where_it_was() {
    let has = expected(5).len() as u64;
    let mut stream = TokenStream::new(feed(Numbered::finite(5))).unwrap();
    read(&mut stream, 7);
    let position = stream.position();
    stream.require(has).unwrap();
    let message = stream.require(has + 1).unwrap_err().to_string();
    let lines = "give more data, or lower the batch size or the sequence length";
    assert_eq!(message, format!("numbered: an epoch has {has} tokens and one batch needs {}; {lines}", has + 1));
    assert_eq!(stream.position(), position);
    assert_eq!(read(&mut stream, 20), expected(5)[7..27]);
    TokenStream::new(feed(Numbered::endless())).unwrap().require(100_000).unwrap();
}

#[test]
fn nothing_to_read_is_an_error_and_not_an_endless_loop() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.txt");
    fs::write(&path, "\n  \n\n").unwrap();
    let files = Files::open(&path, &SourceOptions::default()).unwrap();
    let message = TokenStream::new(feed(files)).unwrap().next_token().unwrap_err().to_string();
    assert_eq!(
        message,
        format!("{}: holds no document, only blank text; name a source that holds text", path.display())
    );

    let mut feed = feed(Numbered::finite(5));
    feed.part = Part::Validation;
    let message = TokenStream::new(feed).unwrap().next_token().unwrap_err().to_string();
    assert!(message.starts_with("numbered: none of its documents falls to validation under this seed"), "{message}");
}

#[test]
fn token_files_of_another_tokenizer_and_text_without_one_are_refused() {
    let directory = directory();
    let open = |name: &str| Files::open(&directory.path().join(name), &SourceOptions::default()).unwrap();
    let message = |feed| TokenStream::new(feed).err().unwrap().to_string();
    let mut other = feed(open("e.tokens"));
    other.tokenizer = Some(Arc::new(Bytes { bos: true, eos: false }));
    assert!(message(other).contains("made with another tokenizer (end mark 257 there, none here)"));
    let mut none = feed(open("a.txt"));
    none.tokenizer = None;
    assert!(message(none).ends_with("a.txt: holds text, and no tokenizer was given to read it with"));

    // Token files need no tokenizer, and give the same tokens with one.
    let mut alone = feed(open("e.tokens"));
    alone.tokenizer = None;
    let alone = read(&mut TokenStream::new(alone).unwrap(), 1000);
    assert_eq!(alone, read(&mut TokenStream::new(feed(open("e.tokens"))).unwrap(), 1000));
    let begin: Vec<(u32, u32)> = alone[..4].iter().map(|t| (t.id, t.offset)).collect();
    assert_eq!(begin, [(256, 0), (1, 1), (1, 2), (1, 3)]);
}

#[test]
fn a_position_of_other_data_is_refused() {
    let position = Position {
        place: SourcePosition { offset: 3, document: 3, ..SourcePosition::default() },
        token: 999,
        ..Position::default()
    };
    let mut stream = TokenStream::new(feed(Numbered::finite(5))).unwrap();
    let message = stream.seek(position).unwrap_err().to_string();
    assert!(message.starts_with("numbered: cannot go on from document 3 of file 0; the data is not what"), "{message}");
    let directory = directory();
    let place = SourcePosition { file: 9, ..SourcePosition::default() };
    let mut stream = stream_of(&directory, Part::All);
    assert!(stream.seek(Position { place, ..Position::default() }).unwrap_err().to_string().contains("of file 9;"));
}

proptest! {
    #[test]
    fn any_walk_of_reads_and_resumes_reads_every_token_once(steps in proptest::collection::vec(0usize..60, 1..20)) {
        let once = expected(7);
        let mut position = Position::default();
        let mut seen = Vec::new();
        for n in steps {
            let mut stream = TokenStream::new(feed(Numbered::finite(7))).unwrap();
            stream.seek(position).unwrap();
            seen.extend(read(&mut stream, n));
            position = stream.position();
        }
        prop_assert_eq!(position.tokens, seen.len() as u64);
        prop_assert!(seen.iter().zip(once.iter().cycle()).all(|(a, b)| a == b));
    }
}
