use std::path::Path;

use capful_core::random::Random;

use super::super::fixtures::{Bytes, Texts, bytes, text_document};
use super::super::shards::Origin;
use super::super::shards::build::open_or_build;
use super::super::split::{Part, Split};
use super::super::tokenizer::Tokenizer as _;
use super::*;

/// The first half is of one kind, the second of another, as files of two collections follow each other.
fn texts() -> Vec<String> {
    let random = Random::new(1, 0);
    let text = |i: u64| {
        format!("{} {i} {}", if i < 500 { "old" } else { "new" }, "word ".repeat(random.below(i, 30) as usize))
    };
    (0..1000).map(text).collect()
}

fn feed(texts: &[String], part: Part) -> Feed {
    let split = Split::new(7, 0.25).unwrap();
    Feed { documents: Box::new(Texts::new(texts.to_vec())), tokenizer: bytes(), split, part }
}

/// The expected choice, computed with all documents in memory.
fn expected(texts: &[String], part: Part, max_tokens: usize) -> (Vec<Vec<u32>>, u64) {
    let split = Split::new(7, 0.25).unwrap();
    let mut side: Vec<(u64, &String)> = texts
        .iter()
        .filter(|text| split.holds(part, &text_document(text)))
        .map(|text| (split.rank(text_document(text).known().hash), text))
        .collect();
    let among = side.len() as u64;
    side.sort();
    side.dedup();
    let (mut chosen, mut room) = (Vec::new(), max_tokens);
    for (_, text) in side {
        let mut ids = vec![256];
        Bytes { bos: true, eos: true }.encode(text, &mut ids).unwrap();
        ids.push(257);
        ids.truncate(max_tokens / 8);
        if ids.len() > room {
            break;
        }
        room -= ids.len();
        chosen.push(ids);
    }
    (chosen, among)
}

fn documents(validation: &Validation) -> Vec<Vec<u32>> {
    validation.set.iter().map(<[u32]>::to_vec).collect()
}

fn shards(texts: &[String], dir: &Path) -> Arc<Shards> {
    let origin = Origin { source: 1, tokenizer: 2 };
    let built = open_or_build(dir, origin, || Ok(None), || Ok(feed(texts, Part::All)), 0, &mut |_| ());
    Arc::new(built.unwrap())
}

#[test]
fn the_documents_of_smallest_rank_are_chosen_in_any_order_from_text_and_from_shards() {
    let mut texts = texts();
    texts.push(texts[3].clone());
    let dir = tempfile::tempdir().unwrap();
    for (max_tokens, part) in
        [(1000, Part::Validation), (4000, Part::Validation), (700, Part::Training), (900, Part::All)]
    {
        let (expected, among) = expected(&texts, part, max_tokens);
        assert!(expected.len() > 5, "{}", expected.len());
        let chosen = of_source(feed(&texts, part), max_tokens, &BTreeSet::new()).unwrap();
        assert_eq!((documents(&chosen), chosen.among, chosen.whole), (expected.clone(), Some(among), true));

        let mut turned = texts.clone();
        turned.reverse();
        turned.rotate_left(123);
        assert_eq!(documents(&of_source(feed(&turned, part), max_tokens, &BTreeSet::new()).unwrap()), expected);

        let of = shards(&turned, &dir.path().join(format!("{max_tokens}")));
        let from_shards = of_shards(&of, feed(&turned, part), max_tokens, &BTreeSet::new()).unwrap();
        assert_eq!((documents(&from_shards), from_shards.among), (expected, Some(among)));
        assert_eq!(from_shards.set.bytes(), chosen.set.bytes());
    }
}

#[test]
fn both_halves_of_a_source_are_scored() {
    let chosen = of_source(feed(&texts(), Part::Validation), 4000, &BTreeSet::new()).unwrap();
    let old = chosen.set.iter().filter(|ids| ids[1] == u32::from(b'o')).count();
    let (all, old) = (chosen.set.documents() as f64, old as f64);
    // Four standard deviations of a fair coin.
    assert!((old - all / 2.0).abs() < 2.0 * all.sqrt(), "{old} of {all}");
}

#[test]
fn a_document_with_nothing_but_marks_is_passed_over() {
    let texts = ["".to_owned(), "a".to_owned(), "bc".to_owned()];
    let all = |texts: &[String]| of_source(feed(texts, Part::All), 100, &BTreeSet::new()).unwrap();
    assert_eq!(all(&texts).set.documents(), 2);
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        of_shards(&shards(&texts, dir.path()), feed(&texts, Part::All), 100, &BTreeSet::new()).unwrap().set.documents(),
        2
    );
    let error = of_source(feed(&texts[..0], Part::All), 100, &BTreeSet::new()).err().unwrap();
    assert!(matches!(error, SourceError::NoDocuments { .. }), "{error}");
}

#[test]
fn no_more_documents_are_chosen_than_a_set_has_room_for() {
    let texts: Vec<String> = (0..500).map(|i| format!("{i}")).collect();
    let chosen = of_source(feed(&texts, Part::All), 1600, &BTreeSet::new()).unwrap();
    assert_eq!(chosen.set.documents(), 1600 / 16 + 64);
}
