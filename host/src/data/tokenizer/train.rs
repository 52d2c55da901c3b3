//! Trains byte-level BPE: the most frequent pair of neighbours becomes a token, again and again (Sennrich, Haddow and
//! Birch, 2016). Pairs of equal frequency go by their ids, so the same documents always give the same merges.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::build::Documents;
use super::pieces::pieces;
use super::{TokenizerError, byte};

/// Bytes of text that training looks at, from the first document on. Bounds its memory: some multiple of this.
pub const SAMPLE_BYTES: usize = 32 << 20;

/// The most bytes a token stands for.
pub const LONGEST_TOKEN: usize = 256;

/// A pair that occurs less often is not worth a token.
const LEAST_COUNT: i64 = 2;

/// The pieces of the first `sample_bytes` of the documents, with how often they occur, in the order of their bytes.
///
/// # Errors
/// [`TokenizerError::Document`].
pub fn count_pieces(documents: &mut Documents<'_>, sample_bytes: usize) -> Result<Vec<(Vec<u8>, u64)>, TokenizerError> {
    let mut counts: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut left = sample_bytes;
    while left > 0
        && let Some(document) = documents.next()
    {
        let document = document.map_err(TokenizerError::Document)?;
        let text = &document[..document.floor_char_boundary(left)];
        left = if text.len() < document.len() { 0 } else { left - text.len() };
        for piece in pieces(text) {
            match counts.get_mut(piece.as_bytes()) {
                Some(count) => *count += 1,
                None => _ = counts.insert(piece.as_bytes().to_vec(), 1),
            }
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable();
    Ok(counts)
}

/// The merges, as pairs of ids in the order of their ranks, that bring the vocabulary to at most `cap` ids. A merge
/// whose bytes are a token already gets that token's id and no new one; every other the next id after the bytes'.
pub fn train(pieces: &[(Vec<u8>, u64)], cap: u32) -> Vec<[u32; 2]> {
    Trainer::new(pieces).run(cap)
}

type Pair = (u32, u32);

#[derive(Default)]
struct Seen {
    count: i64,
    /// Words that held the pair at some time, perhaps more than once in the list.
    words: Vec<u32>,
    listed: bool,
}

struct Trainer {
    words: Vec<(Vec<u32>, i64)>,
    pairs: HashMap<Pair, Seen>,
    /// Most frequent first, then lowest ids. Counts may be too high: they are corrected when they come up.
    queue: BinaryHeap<(i64, Reverse<Pair>)>,
    /// Bytes of the tokens from the first byte's id on.
    tokens: Vec<Vec<u8>>,
    ids: HashMap<Vec<u8>, u32>,
}

impl Trainer {
    fn new(pieces: &[(Vec<u8>, u64)]) -> Self {
        let id = |&b: &u8| byte::FIRST_BYTE + u32::from(b);
        let words = pieces.iter().map(|(piece, count)| (piece.iter().map(id).collect(), *count as i64)).collect();
        let tokens: Vec<Vec<u8>> = (0..=255).map(|b| vec![b]).collect();
        let ids = tokens.iter().map(|token| (token.clone(), id(&token[0]))).collect();
        let mut trainer = Self { words, pairs: HashMap::new(), queue: BinaryHeap::new(), tokens, ids };
        for (w, (word, count)) in trainer.words.iter().enumerate() {
            for pair in word.windows(2) {
                let seen = trainer.pairs.entry((pair[0], pair[1])).or_default();
                seen.count += count;
                if seen.words.last() != Some(&(w as u32)) {
                    seen.words.push(w as u32);
                }
            }
        }
        trainer.queue = trainer.pairs.iter().map(|(&pair, seen)| (seen.count, Reverse(pair))).collect();
        trainer
    }

    fn run(mut self, cap: u32) -> Vec<[u32; 2]> {
        let mut merges = Vec::new();
        while byte::FIRST_BYTE + (self.tokens.len() as u32) < cap
            && let Some((count, Reverse(pair))) = self.queue.pop()
        {
            let seen = self.pairs.entry(pair).or_default();
            if seen.count != count {
                if seen.count >= LEAST_COUNT {
                    self.queue.push((seen.count, Reverse(pair)));
                }
                continue;
            }
            if count < LEAST_COUNT {
                break;
            }
            let listed = std::mem::replace(&mut seen.listed, true);
            let words = std::mem::take(&mut seen.words);
            let bytes = [self.bytes(pair.0), self.bytes(pair.1)].concat();
            if bytes.len() > LONGEST_TOKEN {
                continue;
            }
            if !listed {
                merges.push([pair.0, pair.1]);
            }
            let next = byte::FIRST_BYTE + self.tokens.len() as u32;
            let id = *self.ids.entry(bytes.clone()).or_insert(next);
            if id == next {
                self.tokens.push(bytes);
            }
            self.merge(pair, id, &words);
        }
        merges
    }

    fn bytes(&self, id: u32) -> &[u8] {
        &self.tokens[(id - byte::FIRST_BYTE) as usize]
    }

    /// Joins `pair` in `words` and queues the pairs that this made.
    fn merge(&mut self, pair: Pair, id: u32, words: &[u32]) {
        let mut made: Vec<Pair> = Vec::new();
        for &w in words {
            let (word, count) = &mut self.words[w as usize];
            join(word, pair, id, |changed, by| {
                let seen = self.pairs.entry(changed).or_default();
                seen.count += by * *count;
                if by > 0 {
                    if seen.words.last() != Some(&w) {
                        seen.words.push(w);
                    }
                    made.push(changed);
                }
            });
        }
        made.sort_unstable();
        made.dedup();
        self.queue.extend(made.into_iter().map(|pair| (self.pairs[&pair].count, Reverse(pair))));
    }
}

/// Joins every `pair` of a word from the left, and tells how often each pair of neighbours comes (1) or goes (-1).
fn join(word: &mut Vec<u32>, pair: Pair, id: u32, mut change: impl FnMut(Pair, i64)) {
    let (mut from, mut to) = (0, 0);
    while from < word.len() {
        if from + 1 < word.len() && (word[from], word[from + 1]) == pair {
            change(pair, -1);
            if to > 0 {
                change((word[to - 1], pair.0), -1);
                change((word[to - 1], id), 1);
            }
            if let Some(&next) = word.get(from + 2) {
                change((pair.1, next), -1);
                change((id, next), 1);
            }
            word[to] = id;
            from += 2;
        } else {
            word[to] = word[from];
            from += 1;
        }
        to += 1;
    }
    word.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(texts: &[&str], sample_bytes: usize) -> Vec<(Vec<u8>, u64)> {
        count_pieces(&mut texts.iter().map(|text| Ok((*text).to_owned())), sample_bytes).unwrap()
    }

    #[test]
    fn merges_follow_frequency_then_ids() {
        let [space, a, b, c, d, e] = [b' ', b'a', b'b', b'c', b'd', b'e'].map(|b| 4 + u32::from(b));
        // By hand: "ab" 5 times, " c" 4; then " ab", "abab", " cd" and " ce" twice each, by their ids, but " ab" breaks
        // up one of the "abab". What is left occurs once.
        let expected = [[a, b], [space, c], [space, 260], [261, d], [261, e]];
        assert_eq!(train(&counted(&["abab abab cd ce cd ce ab"], 1000), 300), expected);
    }

    #[test]
    fn the_cap_counts_specials_and_bytes() {
        let pieces = counted(&["the cat sat on the mat, the cat"], 1000);
        assert_eq!(train(&pieces, 260), Vec::<[u32; 2]>::new());
        assert_eq!(train(&pieces, 263).len(), 3);
    }

    #[test]
    fn equal_neighbours_are_counted_without_overlap_when_joined() {
        let mut word = vec![7, 7, 7, 7, 7];
        let mut changes: HashMap<Pair, i64> = HashMap::new();
        join(&mut word, (7, 7), 9, |pair, by| *changes.entry(pair).or_default() += by);
        assert_eq!(word, [9, 9, 7]);
        changes.retain(|_, by| *by != 0);
        assert_eq!(changes, HashMap::from([((7, 7), -4), ((9, 9), 1), ((9, 7), 1)]));
    }

    #[test]
    fn the_sample_ends_inside_a_document_at_a_letter() {
        let pieces = counted(&["aa", "bbéé", "cc"], 5);
        assert_eq!(pieces, [(b"aa".to_vec(), 1), (b"bb".to_vec(), 1)]);
    }

    #[test]
    fn no_token_is_longer_than_the_bound() {
        let text = "x".repeat(8 * LONGEST_TOKEN);
        assert_eq!(train(&counted(&[&text], usize::MAX), 9999).len(), 8);
    }
}
