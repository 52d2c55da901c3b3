use std::sync::Arc;

use capful_core::data::{BatchMut, IGNORE};

use super::super::fixtures::{Bytes, Numbered, feed};
use super::super::source::{Documents as _, SourcePosition};
use super::super::split::{Part, Split};
use super::*;

fn tokens(i: u64) -> Vec<u32> {
    [vec![256], Numbered::text(i).bytes().map(u32::from).collect(), vec![257]].concat()
}

fn read(feed: Feed, max_tokens: usize) -> ValidationSet {
    ValidationSet::first(feed, max_tokens).unwrap()
}

fn rows(set: &ValidationSet, b: usize, t: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
    let (mut all, mut rows) = (Vec::new(), set.rows());
    let (mut x, mut y, mut o) = (vec![0; b * t], vec![0; b * t], vec![0; b * t]);
    while rows.fill(&mut BatchMut::new(b, t, &mut x, &mut y, &mut o).unwrap()).is_some() {
        all.extend(x.chunks(t).map(<[u32]>::to_vec).zip(y.chunks(t).map(<[u32]>::to_vec)));
    }
    all
}

#[test]
fn whole_documents_are_kept_up_to_the_limit() {
    // Documents 0 to 3 have 3, 31, 59 and 11 - see Numbered::text - tokens; the next one does not fit.
    let lengths: Vec<usize> = (0..5).map(|i| tokens(i).len()).collect();
    let limit = lengths[..4].iter().sum::<usize>() + lengths[4] - 1;
    let set = read(feed(Numbered::endless()), limit);
    assert_eq!(set.iter().map(<[u32]>::to_vec).collect::<Vec<_>>(), (0..4).map(tokens).collect::<Vec<_>>());
    assert_eq!(set.documents(), 4);
    assert_eq!(set.targets(), lengths[..4].iter().sum::<usize>() - 4);
    assert_eq!(set.bytes(), (0..4).map(|i| Numbered::text(i).len() as u64).sum::<u64>());
    assert_eq!(set.log_probability(), Some(-6.0));

    for (b, t) in [(1, 1), (2, 7), (3, 200)] {
        let rows = rows(&set, b, t);
        let scored: Vec<u32> = rows.iter().flat_map(|(_, y)| y).copied().filter(|&y| y != IGNORE).collect();
        assert_eq!(scored, (0..4).flat_map(|i| tokens(i)[1..].to_vec()).collect::<Vec<_>>());
        if t == 200 {
            // One document in each row, from its beginning mark.
            let first: Vec<u32> = rows.iter().map(|(x, _)| x[0]).collect();
            assert_eq!(first, [256, 256, 256, 256, 0, 0]);
        }
    }
}

#[test]
fn a_first_document_that_does_not_fit_is_cut() {
    let mut documents = Numbered::endless();
    documents.seek(SourcePosition { offset: 1, ..SourcePosition::default() }).unwrap();
    // The source begins with document 0: two tokens of it.
    let set = read(feed(documents), 2);
    assert_eq!(set.iter().collect::<Vec<_>>(), [&tokens(0)[..2]]);
    // 2 of its 3 tokens, marks included, count for that share of its single byte.
    assert_eq!((set.bytes(), set.log_probability()), (0, None));
}

#[test]
fn without_marks_a_document_is_scored_from_its_second_token() {
    let mut feed = feed(Numbered::finite(12));
    feed.tokenizer = Some(Arc::new(Bytes { bos: false, eos: false }));
    let set = read(feed, 1000);
    // Documents 0, 5 and 10 are "0", "5" and "10": the first two have no token to score.
    let text = |ids: &[u32]| ids.iter().map(|&id| id as u8 as char).collect::<String>();
    let expected: Vec<String> = (0..12).map(Numbered::text).filter(|t| t.len() > 1).collect();
    assert_eq!(set.iter().map(text).collect::<Vec<_>>(), expected);
    assert_eq!(set.documents(), 10);
    assert_eq!(set.targets(), expected.iter().map(|t| t.len() - 1).sum::<usize>());
}

#[test]
fn only_the_validation_side_is_scored_and_an_empty_one_is_an_error() {
    let with = |fraction| {
        let mut feed = feed(Numbered::finite(100));
        (feed.split, feed.part) = (Split::new(5, fraction).unwrap(), Part::Validation);
        ValidationSet::first(feed, 100_000).map(|set| set.documents())
    };
    assert!((5..50).contains(&with(0.25).unwrap()));
    let message = with(0.0).unwrap_err().to_string();
    assert!(message.starts_with("numbered: none of its documents falls to validation"), "{message}");
}

#[test]
fn the_storage_is_what_was_said() {
    let set = ValidationSet::new(1001);
    let bytes = set.tokens.capacity() * 4 + set.ends.capacity() * 4;
    assert_eq!(bytes as u64, ValidationSet::storage(1001));
}
