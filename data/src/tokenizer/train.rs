//! Trains byte-level BPE: the most frequent pair of neighbours becomes a token, again and again (Sennrich, Haddow and
//! Birch, 2016). Pairs of equal frequency go by their ids, so the same documents always give the same merges.
//!
//! The trainer of the `tokenizers` library gives the same merges, but takes twice the time and four times the memory: on
//! 20 MB of documentation, for 30,000 ids, 6.8 s and 48 MB, where this takes 3.0 s and 11 MB. Its memory has no bound, and
//! its order of two merges that make one token is not defined.
//!
//! The places of each pair are kept in a list, so that a merge costs time by the number of its places, however long the
//! words around them are. All storage is bounded: [`training_bytes`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::byte;
use super::sample::{MOST_PIECES, MOST_TEXT, Sample};

/// The most bytes a token stands for.
pub const LONGEST_TOKEN: usize = 256;

/// A pair that occurs less often is not worth a token.
const LEAST_COUNT: u32 = 2;

/// The most different pairs that are kept from merge to merge. Beyond it the rarest are forgotten.
const MOST_PAIRS: usize = 400_000;

/// No token: what belongs to no piece. No place: the end of a list.
const NONE: u32 = u32::MAX;

/// A place that is in no list.
const UNLISTED: Neighbours = Neighbours { before: NONE - 1, after: NONE };

/// Bytes that training needs at most, whatever it is trained on, for a vocabulary of `cap` ids. The document that is
/// being read comes on top.
pub fn training_bytes(cap: u32) -> u64 {
    let sample = MOST_TEXT + MOST_PIECES * (2 * 8 + 3 * 4);
    let places = MOST_TEXT * (size_of::<u32>() + size_of::<Neighbours>());
    // The places of one merge.
    let sorted = MOST_TEXT * size_of::<u32>();
    // A table is at most half empty, and for a time stands beside the one that it grew out of.
    let table = |entries: usize, entry: usize| 3 * (entries * 8 / 7).next_power_of_two() * (entry + 1) / 2;
    // What is kept, and what one merge makes: at most two pairs with each token.
    let pairs = table(MOST_PAIRS + 2 * cap as usize, size_of::<(Pair, Seen)>());
    let made = table(2 * cap as usize, size_of::<Pair>());
    let queue = 3 * MOST_QUEUED * size_of::<Queued>();
    // Of each token its bytes, beside those of the tokenizer that is made of it, and its merge.
    let token = 2 * LONGEST_TOKEN + 160;
    (sample + places + sorted + pairs + made + queue) as u64 + u64::from(cap) * token as u64
}

/// The merges, as pairs of ids in the order of their ranks, that bring the vocabulary to at most `cap` ids. A merge
/// whose bytes are a token already gets that token's id and no new one; every other the next id after the bytes'.
pub fn train(sample: &Sample, cap: u32) -> Vec<[u32; 2]> {
    Trainer::new(sample).run(cap)
}

type Pair = (u32, u32);

/// A pair that waits, with its count at that time: the most frequent first, then the lowest ids.
type Queued = (u32, Reverse<Pair>);

/// The most pairs that wait before the queue is made anew: twice those that are kept, and what a merge makes.
const MOST_QUEUED: usize = 2 * MOST_PAIRS + (1 << 17);

/// What is known of a pair that occurs.
struct Seen {
    count: u32,
    /// The first place of its list.
    first: u32,
}

/// The neighbours of a place in the list of a pair.
#[derive(Clone, Copy, PartialEq)]
struct Neighbours {
    before: u32,
    after: u32,
}

struct Trainer<'s> {
    sample: &'s Sample,
    /// The token of each place, at its first and at its last byte; [`NONE`] behind each piece. `[text]`
    ids: Vec<u32>,
    /// Of each place that begins a pair, its neighbours in that pair's list. `[text]`
    lists: Vec<Neighbours>,
    pairs: HashMap<Pair, Seen>,
    /// Counts may be too high: they are corrected when they come up.
    queue: BinaryHeap<Queued>,
    /// Pairs that occur less often are forgotten.
    least: u32,
    /// Bytes of each token from the first byte's id on.
    lengths: Vec<u32>,
    known: HashMap<Box<[u8]>, u32>,
}

impl<'s> Trainer<'s> {
    fn new(sample: &'s Sample) -> Self {
        let id = |byte: u8| byte::FIRST_BYTE + u32::from(byte);
        let mut trainer = Self {
            sample,
            ids: sample.text().iter().map(|&byte| id(byte)).collect(),
            lists: vec![UNLISTED; sample.text().len()],
            pairs: HashMap::new(),
            queue: BinaryHeap::new(),
            least: LEAST_COUNT,
            lengths: vec![1; 256],
            known: (0..=255).map(|byte| (Box::from([byte]), id(byte))).collect(),
        };
        for (range, count) in sample.pieces() {
            trainer.ids[range.end] = NONE;
            for at in range.start..range.end - 1 {
                trainer.list(at, (trainer.ids[at], trainer.ids[at + 1]), count);
            }
        }
        trainer.queue_all();
        trainer
    }

    fn run(mut self, cap: u32) -> Vec<[u32; 2]> {
        let mut merges = Vec::new();
        let mut merged = HashSet::new();
        while byte::FIRST_BYTE + (self.lengths.len() as u32) < cap
            && let Some((count, Reverse(pair))) = self.queue.pop()
        {
            let Some(seen) = self.pairs.get(&pair) else { continue };
            if seen.count != count {
                if seen.count >= self.least {
                    self.queue.push((seen.count, Reverse(pair)));
                }
                continue;
            }
            let len = self.len(pair.0) + self.len(pair.1);
            if len > LONGEST_TOKEN {
                continue;
            }
            if merged.insert(pair) {
                merges.push([pair.0, pair.1]);
            }
            let first = seen.first as usize;
            let id = self.id(&self.sample.text()[first..first + len]);
            self.merge(pair, id);
        }
        merges
    }

    /// The id of the token of these bytes: the next one if there is none.
    fn id(&mut self, bytes: &[u8]) -> u32 {
        if let Some(&id) = self.known.get(bytes) {
            return id;
        }
        let id = byte::FIRST_BYTE + self.lengths.len() as u32;
        self.lengths.push(bytes.len() as u32);
        self.known.insert(bytes.into(), id);
        id
    }

    fn len(&self, id: u32) -> usize {
        self.lengths[(id - byte::FIRST_BYTE) as usize] as usize
    }

    /// Joins `pair` wherever it occurs, from the left, and queues the pairs that this made.
    fn merge(&mut self, pair: Pair, id: u32) {
        let mut made: HashSet<Pair> = HashSet::new();
        for at in self.places(pair) {
            let at = at as usize;
            // A place before it may have taken what begins here.
            if self.lists[at] == UNLISTED {
                continue;
            }
            let right = at + self.len(pair.0);
            let end = right + self.len(pair.1);
            let count = self.sample.count_at(at);
            self.unlist(at, pair, count);
            let before = at.checked_sub(1).map(|last| self.ids[last]).filter(|&before| before != NONE);
            if let Some(before) = before {
                let from = at - self.len(before);
                self.unlist(from, (before, pair.0), count);
                self.list(from, (before, id), count);
                made.insert((before, id));
            }
            let after = self.ids[end];
            if after != NONE {
                self.unlist(right, (pair.1, after), count);
                self.list(at, (id, after), count);
                made.insert((id, after));
            }
            (self.ids[at], self.ids[end - 1]) = (id, id);
        }
        self.forget();
        let made = made.into_iter().filter_map(|pair| Some((self.pairs.get(&pair)?.count, Reverse(pair))));
        self.queue.extend(made.filter(|(count, _)| *count >= self.least));
        if self.queue.len() > 2 * self.pairs.len() + (1 << 16) {
            self.queue_all();
        }
    }

    /// Queues every pair that is frequent enough, once.
    fn queue_all(&mut self) {
        let mut queue = std::mem::take(&mut self.queue).into_vec();
        queue.clear();
        let pairs = self.pairs.iter().map(|(&pair, seen)| (seen.count, Reverse(pair)));
        queue.extend(pairs.filter(|(count, _)| *count >= self.least));
        self.queue = queue.into();
    }

    /// Forgets the rarest pairs if there are too many.
    fn forget(&mut self) {
        if self.pairs.len() <= MOST_PAIRS {
            return;
        }
        while self.pairs.len() > MOST_PAIRS / 2 {
            self.least += 1;
            let least = self.least;
            for (_, seen) in self.pairs.extract_if(|_, seen| seen.count < least) {
                let mut at = seen.first;
                while at != NONE {
                    at = std::mem::replace(&mut self.lists[at as usize], UNLISTED).after;
                }
            }
        }
    }

    /// The places of a pair, from the left.
    fn places(&self, pair: Pair) -> Vec<u32> {
        let first = self.pairs[&pair].first;
        let list = || {
            let after = |&at: &u32| Some(self.lists[at as usize].after).filter(|&at| at != NONE);
            std::iter::successors(Some(first), after)
        };
        // A vector that grows would for a time stand beside the one that it grew out of.
        let mut places = Vec::with_capacity(list().count());
        places.extend(list());
        places.sort_unstable();
        places
    }

    /// Puts a place, whose piece occurs `count` times, at the head of a pair's list.
    fn list(&mut self, at: usize, pair: Pair, count: u32) {
        let seen = self.pairs.entry(pair).or_insert(Seen { count: 0, first: NONE });
        self.lists[at] = Neighbours { before: NONE, after: seen.first };
        if seen.first != NONE {
            self.lists[seen.first as usize].before = at as u32;
        }
        seen.first = at as u32;
        seen.count += count;
    }

    /// Takes a place out of its pair's list, if the pair was not forgotten.
    fn unlist(&mut self, at: usize, pair: Pair, count: u32) {
        let Neighbours { before, after } = std::mem::replace(&mut self.lists[at], UNLISTED);
        if (Neighbours { before, after }) == UNLISTED {
            return;
        }
        if after != NONE {
            self.lists[after as usize].before = before;
        }
        if before != NONE {
            self.lists[before as usize].after = after;
        }
        let seen = self.pairs.get_mut(&pair).expect("a listed place's pair is kept");
        seen.count -= count;
        if before == NONE {
            seen.first = after;
        }
        if seen.count == 0 {
            self.pairs.remove(&pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use capful_core::random::{Random, stream};
    use proptest::prelude::*;

    use super::super::sample::tests::sample;
    use super::*;

    /// The definition, counted anew for every merge.
    fn by_definition(sample: &Sample, cap: u32) -> Vec<[u32; 2]> {
        let id = |byte: &u8| 4 + u32::from(*byte);
        let mut words: Vec<(Vec<u32>, u32)> =
            sample.pieces().map(|(range, count)| (sample.text()[range].iter().map(id).collect(), count)).collect();
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let mut merges: Vec<[u32; 2]> = vec![];
        while 4 + (tokens.len() as u32) < cap {
            let mut counts: HashMap<[u32; 2], u32> = HashMap::new();
            for (word, count) in &words {
                word.windows(2).for_each(|pair| *counts.entry([pair[0], pair[1]]).or_default() += count);
            }
            let bytes = |pair: &[u32; 2]| pair.map(|id| tokens[id as usize - 4].as_slice()).concat();
            counts.retain(|pair, count| *count >= 2 && bytes(pair).len() <= LONGEST_TOKEN);
            let Some((&pair, _)) = counts.iter().max_by_key(|&(pair, count)| (count, Reverse(pair))) else { break };
            let joined = bytes(&pair);
            if !merges.contains(&pair) {
                merges.push(pair);
            }
            let at = tokens.iter().position(|token| *token == joined).unwrap_or(tokens.len());
            if at == tokens.len() {
                tokens.push(joined);
            }
            for (word, _) in &mut words {
                let mut from = 0;
                while from + 1 < word.len() {
                    if word[from..from + 2] == pair {
                        word.splice(from..from + 2, [4 + at as u32]);
                    }
                    from += 1;
                }
            }
        }
        merges
    }

    proptest! {
        #[test]
        fn merges_are_those_of_the_definition(texts in prop::collection::vec("([ab]{1,40}|[a-e ]{1,60}|(ab|aba){1,20})", 1..6)) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let sample = sample(&texts, usize::MAX);
            prop_assert_eq!(train(&sample, 330), by_definition(&sample, 330));
        }
    }

    #[test]
    fn merges_follow_frequency_then_ids() {
        let [space, a, b, c, d, e] = [b' ', b'a', b'b', b'c', b'd', b'e'].map(|b| 4 + u32::from(b));
        // By hand: "ab" 5 times, " c" 4; then " ab", "abab", " cd" and " ce" twice each, by their ids, but " ab" breaks
        // up one of the "abab". What is left occurs once.
        let expected = [[a, b], [space, c], [space, 260], [261, d], [261, e]];
        assert_eq!(train(&sample(&["abab abab cd ce cd ce ab"], 1000), 300), expected);
    }

    #[test]
    fn the_cap_counts_specials_and_bytes() {
        let sample = sample(&["the cat sat on the mat, the cat"], 1000);
        assert_eq!(train(&sample, 260), Vec::<[u32; 2]>::new());
        assert_eq!(train(&sample, 263).len(), 3);
    }

    #[test]
    fn no_token_is_longer_than_the_bound() {
        let text = "x".repeat(8 * LONGEST_TOKEN);
        assert_eq!(train(&sample(&[&text], usize::MAX), 9999).len(), 8);
    }

    /// Words of 64 KiB of many different letters: each merge has few places, in nearly every word. Walking the words for
    /// each merge takes many times as long.
    #[test]
    fn long_words_take_no_longer() {
        let random = Random::new(3, stream("letters"));
        let letter = |i| char::from_u32(0x4e00 + random.below(i, 20_000) as u32).unwrap();
        let text: String = (0..1_390_000).map(letter).collect();
        let begin = std::time::Instant::now();
        assert_eq!(train(&sample(&[&text], usize::MAX), 16_000).len(), 15_740);
        let seconds = begin.elapsed().as_secs_f64();
        assert!(seconds < 20.0, "{seconds} s");
    }
}
