use std::fs;
use std::sync::Arc;

use tempfile::TempDir;

use super::super::fixtures::{Numbered, feed};
use super::super::source::{Document, Documents};
use super::super::split::{Part, Split};
use super::super::stream::{Feed, TokenStream};
use super::build::{Event, estimate, open_or_build};
use super::documents::ShardDocuments;
use super::*;

const ORIGIN: Origin = Origin { source: 11, tokenizer: 22 };

fn made(dir: &Path, documents: u64, threads: u32) -> Result<Shards, SourceError> {
    open_or_build(dir, ORIGIN, || Ok(None), || Ok(feed(Numbered::finite(documents))), threads, &mut |_| {})
}

fn stream(feed: Feed) -> Vec<(u32, u32)> {
    let mut stream = TokenStream::new(feed).unwrap();
    stream.limit_epochs(1);
    std::iter::from_fn(|| stream.next_token().unwrap()).map(|t| (t.id, t.offset)).collect()
}

fn again(shards: &Arc<Shards>, split: Split, part: Part) -> Feed {
    let documents = Box::new(ShardDocuments::new(Arc::clone(shards)));
    Feed { documents, split, part, ..feed(Numbered::finite(1)) }
}

#[test]
fn the_documents_of_a_set_are_those_of_its_source_on_the_same_sides() {
    for threads in [0, 2] {
        let dir = TempDir::new().unwrap();
        let shards = Arc::new(made(dir.path(), 200, threads).unwrap().verified().unwrap());
        let split = Split::new(3, 0.1).unwrap();
        for part in [Part::All, Part::Training, Part::Validation] {
            let direct = Feed { split, part, ..feed(Numbered::finite(200)) };
            assert_eq!(stream(again(&shards, split, part)), stream(direct), "{part:?}");
        }
        let bytes: u64 = (0..200).map(|i| Numbered::text(i).len() as u64).sum();
        let Manifest { documents, tokens, bytes: found, .. } = *shards.manifest();
        assert_eq!((documents, tokens, found), (200, bytes + 400, bytes));
    }
}

#[test]
fn a_set_without_one_of_its_shards_says_what_to_remove() {
    let dir = TempDir::new().unwrap();
    made(dir.path(), 20, 0).unwrap();
    fs::remove_file(dir.path().join("00000.shard")).unwrap();
    let error = Shards::open(dir.path(), None).unwrap_err().to_string();
    let says =
        "00000.shard: damaged token shard (it is missing); remove its directory, and the source is encoded again";
    assert!(error.ends_with(says), "{error}");
}

#[test]
fn places_between_documents_can_be_gone_to() {
    let dir = TempDir::new().unwrap();
    let mut documents = ShardDocuments::new(Arc::new(made(dir.path(), 20, 0).unwrap()));
    let mut document = Document::default();
    let mut all = Vec::new();
    loop {
        let place = documents.place();
        if !documents.next(&mut document).unwrap() {
            break;
        }
        all.push((place, document.ids.clone(), document.content));
    }
    assert_eq!(all.len(), 20);
    for (place, ids, content) in all.iter().rev() {
        documents.seek(*place).unwrap();
        assert!(documents.next(&mut document).unwrap());
        assert_eq!((&document.ids, &document.content), (ids, content));
    }
}

#[test]
fn a_pass_that_was_stopped_goes_on_behind_its_last_complete_shard() {
    let (whole, stopped) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    // Two full shards of 1,048,576 documents and one with the rest.
    let documents = (2 << 20) + 77;
    made(whole.path(), documents, 2).unwrap();
    let broken = || Ok(feed(Numbered::finite(documents).failing_at((1 << 20) + 5)));
    let error = open_or_build(stopped.path(), ORIGIN, || Ok(None), broken, 0, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("lost"), "{error}");
    assert!(!stopped.path().join(MANIFEST).exists());
    // The partial file that a killed build leaves is no shard.
    let mut found = 0;
    let source = || Ok(feed(Numbered::finite(documents)));
    let mut say = |event| {
        if let Event::Begun { found: tokens, .. } = event {
            found = tokens;
        }
    };
    open_or_build(stopped.path(), ORIGIN, || Ok(None), source, 2, &mut say).unwrap();
    assert!(found > 1 << 20, "{found}");
    for number in 0..3 {
        let [a, b] = [&whole, &stopped].map(|dir| fs::read(shard_path(dir.path(), number)).unwrap());
        assert!(a == b, "shard {number}");
    }
    assert!(!shard_path(whole.path(), 3).exists());
}

/// The build is killed between the last shard and the manifest.
#[test]
fn a_set_that_lacks_only_its_manifest_is_not_encoded_again() {
    // One full shard, and another with 77 documents.
    for documents in [113, (1 << 20) + 77] {
        let dir = TempDir::new().unwrap();
        let whole = made(dir.path(), documents, 2).unwrap().manifest().clone();
        let manifest = dir.path().join(MANIFEST);
        let said = fs::read(&manifest).unwrap();
        fs::remove_file(&manifest).unwrap();
        let again = made(dir.path(), documents, 2).unwrap();
        assert_eq!((again.manifest(), again.manifest().documents), (&whole, documents));
        assert!(fs::read(&manifest).unwrap() == said);
        assert!(!shard_path(dir.path(), whole.shards as usize).exists());
    }
}

#[test]
fn what_is_damaged_or_of_something_else_is_refused_in_one_line() {
    let dir = TempDir::new().unwrap();
    made(dir.path(), 50, 0).unwrap();
    let (shard, manifest) = (shard_path(dir.path(), 0), dir.path().join(MANIFEST));
    let (good, whole) = (fs::read(&shard).unwrap(), fs::read_to_string(&manifest).unwrap());
    // In the form of earlier versions: without the digest of the other fields.
    let said = format!("{}\n}}", &whole[..whole.find(",\n  \"digest\"").unwrap()]);
    let refused = |expected: &str| {
        let opened = Shards::open(dir.path(), Some(ORIGIN)).and_then(|shards| shards.unwrap().verified());
        let message = opened.unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    };
    for at in [70, 75, 130, good.len() - 1, good.len() / 2] {
        let mut bad = good.clone();
        bad[at] ^= 4;
        fs::write(&shard, bad).unwrap();
        refused("damaged token shard (its content is not what was written)");
    }
    for (bad, expected) in [
        (&good[..good.len() - 8], "its length is not what its header says"),
        (&good[..60], "shorter than a header"),
        (b"text", "shorter than a header"),
        (&[7; 200], "it is no token shard"),
    ] {
        fs::write(&shard, bad).unwrap();
        refused(expected);
    }
    let mut other = good.clone();
    other[8] = 9;
    fs::write(&shard, other).unwrap();
    refused("of version 9; this program reads version 1");
    let mut other = good.clone();
    other[100] = 1;
    fs::write(&shard, other).unwrap();
    refused("its header is not what was written");
    fs::remove_file(&shard).unwrap();
    refused("it is missing");
    fs::write(&shard, &good).unwrap();
    for (at, byte) in whole.bytes().enumerate() {
        let mut bad = whole.clone().into_bytes();
        bad[at] = byte ^ 1;
        fs::write(&manifest, bad).unwrap();
        assert!(Shards::open(dir.path(), Some(ORIGIN)).is_err(), "byte {at}");
    }
    for (bad, expected) in [
        (said.replace("\"documents\": 50", "\"documents\": 51"), "not those that it was written with"),
        (said.replace("\"version\": 1", "\"version\": 3"), "of version 3"),
        (said.replace("\"source\": 11", "\"source\": 12"), "of another source than this run's (numbered)"),
        (said.replace("\"tokenizer\": 22", "\"tokenizer\": 23"), "of another tokenizer than this run's (numbered)"),
        (said[..40].to_owned(), "damaged token shard"),
    ] {
        assert_ne!(bad, said);
        fs::write(&manifest, bad).unwrap();
        refused(expected);
    }
    // An incomplete set does not count as a set, and is built again.
    fs::remove_file(&manifest).unwrap();
    assert!(Shards::open(dir.path(), Some(ORIGIN)).unwrap().is_none());
    fs::write(&shard, &good[..100]).unwrap();
    made(dir.path(), 50, 0).unwrap().verified().unwrap();
    assert!(fs::read(&shard).unwrap() == good);
}

#[test]
fn two_that_make_the_same_set_make_it_once() {
    let dir = TempDir::new().unwrap();
    let made: Vec<u64> = std::thread::scope(|scope| {
        let threads = (0..4).map(|_| scope.spawn(|| made(dir.path(), 3000, 0).unwrap().manifest().tokens));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().all(|&tokens| tokens == made[0]), "{made:?}");
    Shards::open(dir.path(), Some(ORIGIN)).unwrap().unwrap().verified().unwrap();
}

#[test]
fn the_size_is_told_beforehand_and_a_disk_too_small_is_refused() {
    let bytes: u64 = (0..1000).map(|i| Numbered::text(i).len() as u64).sum();
    let sized = |bytes| feed(Numbered::finite(1000).sized(bytes));
    let about = estimate(sized(bytes)).unwrap().unwrap();
    let dir = TempDir::new().unwrap();
    made(dir.path(), 1000, 0).unwrap();
    let taken = fs::metadata(shard_path(dir.path(), 0)).unwrap().len() - 128;
    assert!(about.abs_diff(taken) < 32, "{about} for {taken}");
    assert_eq!(estimate(feed(Numbered::finite(3))).unwrap(), None);

    let missing = dir.path().join("a/b");
    let huge = || estimate(sized(1 << 60));
    let error = open_or_build(&missing, ORIGIN, huge, || Ok(sized(1 << 60)), 0, &mut |_| {}).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("are free; name another place with --cache DIR"), "{message}");
    assert!(!missing.exists());
}
