//! Counts the words of an unbounded stream in storage of fixed size.
//!
//! While the distinct words fit the capacity m, counts are exact. Beyond that, it is the Space-Saving summary
//! (Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams", 2005): a
//! new word replaces one with the lowest count c, and starts with count c + 1 and error c. After N counted words:
//! - no estimate is below the true count, nor above it by more than the word's own error, which is at most N/m;
//! - a word that is not in a slot occurred at most [`Builder::error_bound`] ≤ N/m times;
//! - estimates sum to N, so the k words with the highest estimates include every word that occurred more than N/k times.
//!
//! A word costs constant time: words of equal count are in one list, and the lists are in the order of their counts.

use super::capped::VocabularyError;
use super::{EMPTY, SPECIALS, hash_word, index_len, special};

/// The usual bytes of text for a slot. Longer words are counted together and become `<unk>`.
pub const WORD_BYTES: usize = 64;

const NONE: u32 = u32::MAX;

/// The data of one word in a slot; the same struct also stores one of the lists of words of equal count.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    error: u64,
    first: u64,
    hash: u32,
    len: u32,
    bucket: u32,
    prev: u32,
    next: u32,
    list: Bucket,
}

/// The words of one count, in the order in which they reached it. There are never more lists than words.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    count: u64,
    head: u32,
    tail: u32,
    /// The list with the next lower count, or the next free list.
    below: u32,
    above: u32,
}

impl Slot {
    /// An unused slot, to fill storage with.
    pub const EMPTY: Self = Self {
        error: 0,
        first: 0,
        hash: 0,
        len: 0,
        bucket: NONE,
        prev: NONE,
        next: NONE,
        list: Bucket { count: 0, head: NONE, tail: NONE, below: NONE, above: NONE },
    };
}

/// The storage of a [`Builder`], for a capacity of m distinct words.
#[derive(Debug)]
pub struct Storage<'a> {
    /// `[m]`
    pub slots: &'a mut [Slot],
    /// `[m, longest word in bytes]`, see [`WORD_BYTES`]
    pub text: &'a mut [u8],
    /// `[index_len(m)]`
    pub index: &'a mut [u32],
}

/// Statistics of the words of the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// All words of the stream.
    pub total: u64,
    /// Words with the text of a special token, by its id.
    pub specials: [u64; SPECIALS.len()],
    /// Words longer than the text of a slot.
    pub overlong: u64,
    /// Words that replaced another word in its slot. 0: every count is exact.
    pub replaced: u64,
}

impl Tally {
    /// The words counted in slots: the N of the error bound N/m.
    pub fn counted(&self) -> u64 {
        self.total - self.specials.iter().sum::<u64>() - self.overlong
    }
}

/// Counts words. See the module for its guarantees.
///
/// ```
/// use capful_core::vocab::{builder::*, index_len};
/// let (mut slots, mut text, mut index) = ([Slot::EMPTY; 5], [0; 5 * WORD_BYTES], [0; index_len(5)]);
/// let mut builder = Builder::new(Storage { slots: &mut slots, text: &mut text, index: &mut index })?;
/// builder.add_text("the cat sat on the mat");
/// let counts = builder.finish();
/// assert_eq!(counts.iter().next(), Some(Count { word: "the", count: 2, error: 0 }));
/// # Ok::<(), capful_core::vocab::capped::VocabularyError>(())
/// ```
#[derive(Debug)]
pub struct Builder<'a> {
    slots: &'a mut [Slot],
    text: &'a mut [u8],
    index: &'a mut [u32],
    width: usize,
    used: u32,
    /// The list with the lowest count.
    lowest: u32,
    /// Free lists, chained by `below`.
    free: u32,
    tally: Tally,
}

impl<'a> Builder<'a> {
    /// A builder that has counted nothing yet. Its capacity is `slots.len()`.
    ///
    /// # Errors
    /// [`VocabularyError::TextStorage`] without a slot or without a byte a slot, [`VocabularyError::IndexStorage`] if
    /// the index is shorter than [`index_len`] of the capacity, [`VocabularyError::TooLong`].
    pub fn new(storage: Storage<'a>) -> Result<Self, VocabularyError> {
        let Storage { slots, text, index } = storage;
        let capacity = slots.len();
        if capacity == 0 || text.len() < capacity {
            return Err(VocabularyError::TextStorage(capacity.max(1)));
        }
        if capacity >= NONE as usize {
            return Err(VocabularyError::TooLong);
        }
        let places = index_len(capacity);
        let index = index.get_mut(..places).ok_or(VocabularyError::IndexStorage(places))?;
        index.fill(EMPTY);
        let width = text.len() / capacity;
        for (i, slot) in slots.iter_mut().enumerate() {
            *slot = Slot::EMPTY;
            slot.list.below = if i + 1 < capacity { i as u32 + 1 } else { NONE };
        }
        Ok(Self { slots, text, index, width, used: 0, lowest: NONE, free: 0, tally: Tally::default() })
    }

    /// Counts every word of `text`, split at white space.
    pub fn add_text(&mut self, text: &str) {
        text.split_whitespace().for_each(|word| self.add(word));
    }

    /// Counts one word. It holds no white space: a vocabulary would refuse it later.
    pub fn add(&mut self, word: &str) {
        self.tally.total += 1;
        if let Some(id) = special(word) {
            self.tally.specials[id as usize] += 1;
            return;
        }
        if word.len() > self.width {
            self.tally.overlong += 1;
            return;
        }
        let hash = hash_word(word.as_bytes());
        let (place, found) = self.find(hash, word.as_bytes());
        if let Some(slot) = found {
            self.raise(slot);
        } else if (self.used as usize) < self.slots.len() {
            let slot = self.used;
            self.used += 1;
            self.index[place] = slot;
            self.put(slot, hash, word.as_bytes(), 0);
            let first_list = self.lowest;
            if first_list == NONE || self.list(first_list).count > 1 {
                self.lowest = self.new_list(1, NONE, first_list);
            }
            self.append(slot, self.lowest);
        } else {
            // The word that has been at the lowest count for the longest time is replaced.
            let Bucket { count, head: slot, .. } = *self.list(self.lowest);
            self.tally.replaced += 1;
            self.remove_from_index(slot);
            let (place, _) = self.find(hash, word.as_bytes());
            self.index[place] = slot;
            self.put(slot, hash, word.as_bytes(), count);
            self.raise(slot);
        }
    }

    /// Statistics of the words so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// The largest number of occurrences of a word that is in no slot, and the largest excess of any estimate: 0 while
    /// counts are exact, the lowest count afterwards, never more than N/m.
    pub fn error_bound(&self) -> u64 {
        if self.tally.replaced == 0 { 0 } else { self.list(self.lowest).count }
    }

    /// Ranks the words: by estimate, highest first, then by first occurrence since the word got its slot.
    pub fn finish(self) -> Counts<'a> {
        let error_bound = self.error_bound();
        let Self { slots, text, index, width, used, tally, .. } = self;
        let (slots, text): (&[Slot], &[u8]) = (slots, text);
        // The index is no longer needed, and is longer than the list of slots.
        let order = &mut index[..used as usize];
        for (i, place) in order.iter_mut().enumerate() {
            *place = i as u32;
        }
        order.sort_unstable_by_key(|&slot| {
            let slot = &slots[slot as usize];
            (u64::MAX - slots[slot.bucket as usize].list.count, slot.first)
        });
        Counts { slots, text, order, width, tally, error_bound }
    }

    fn list(&self, list: u32) -> &Bucket {
        &self.slots[list as usize].list
    }

    fn list_mut(&mut self, list: u32) -> &mut Bucket {
        &mut self.slots[list as usize].list
    }

    fn put(&mut self, slot: u32, hash: u32, word: &[u8], error: u64) {
        let start = slot as usize * self.width;
        self.text[start..start + word.len()].copy_from_slice(word);
        let first = self.tally.total;
        let slot = &mut self.slots[slot as usize];
        (slot.hash, slot.len, slot.error, slot.first) = (hash, word.len() as u32, error, first);
    }

    /// Moves a word to the list of the next higher count.
    fn raise(&mut self, slot: u32) {
        let from = self.slots[slot as usize].bucket;
        let Bucket { count, head, tail, above, .. } = *self.list(from);
        let to_exists = above != NONE && self.list(above).count == count + 1;
        if head == tail && !to_exists {
            self.list_mut(from).count += 1;
            return;
        }
        self.detach(slot, from);
        let to = if to_exists { above } else { self.new_list(count + 1, from, above) };
        self.append(slot, to);
        if head == tail {
            self.free_list(from);
        }
    }

    fn new_list(&mut self, count: u64, below: u32, above: u32) -> u32 {
        let list = self.free;
        self.free = self.list(list).below;
        *self.list_mut(list) = Bucket { count, head: NONE, tail: NONE, below, above };
        if below != NONE {
            self.list_mut(below).above = list;
        }
        if above != NONE {
            self.list_mut(above).below = list;
        }
        list
    }

    fn free_list(&mut self, list: u32) {
        let Bucket { below, above, .. } = *self.list(list);
        if below != NONE {
            self.list_mut(below).above = above;
        } else {
            self.lowest = above;
        }
        if above != NONE {
            self.list_mut(above).below = below;
        }
        self.list_mut(list).below = self.free;
        self.free = list;
    }

    fn append(&mut self, slot: u32, list: u32) {
        let tail = self.list(list).tail;
        let entry = &mut self.slots[slot as usize];
        (entry.bucket, entry.prev, entry.next) = (list, tail, NONE);
        if tail == NONE {
            self.list_mut(list).head = slot;
        } else {
            self.slots[tail as usize].next = slot;
        }
        self.list_mut(list).tail = slot;
    }

    fn detach(&mut self, slot: u32, list: u32) {
        let Slot { prev, next, .. } = self.slots[slot as usize];
        if prev == NONE {
            self.list_mut(list).head = next;
        } else {
            self.slots[prev as usize].next = next;
        }
        if next == NONE {
            self.list_mut(list).tail = prev;
        } else {
            self.slots[next as usize].prev = prev;
        }
    }

    /// The slot of the index where `word` is or would be, and the word's slot.
    fn find(&self, hash: u32, word: &[u8]) -> (usize, Option<u32>) {
        let mask = self.index.len() - 1;
        let mut place = hash as usize & mask;
        // At least half of the index is empty, so this ends.
        loop {
            let slot = self.index[place];
            if slot == EMPTY {
                return (place, None);
            }
            let Slot { hash: other, len, .. } = self.slots[slot as usize];
            let start = slot as usize * self.width;
            if other == hash && &self.text[start..start + len as usize] == word {
                return (place, Some(slot));
            }
            place = (place + 1) & mask;
        }
    }

    /// Removes `slot` from the index and moves later entries of the run back over the hole.
    fn remove_from_index(&mut self, slot: u32) {
        let mask = self.index.len() - 1;
        let mut hole = self.slots[slot as usize].hash as usize & mask;
        while self.index[hole] != slot {
            hole = (hole + 1) & mask;
        }
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let other = self.index[place];
            if other == EMPTY {
                break;
            }
            let home = self.slots[other as usize].hash as usize & mask;
            let distance = |from: usize| place.wrapping_sub(from) & mask;
            if distance(home) >= distance(hole) {
                self.index[hole] = other;
                hole = place;
            }
        }
        self.index[hole] = EMPTY;
    }
}

/// A word and its number of occurrences: at most `count`, at least `count - error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count<'a> {
    /// The word.
    pub word: &'a str,
    /// The estimate; the true count where `error` is 0.
    pub count: u64,
    /// The largest possible excess of the estimate over the true count.
    pub error: u64,
}

/// The ranked words of a [`Builder`].
#[derive(Debug, Clone, Copy)]
pub struct Counts<'a> {
    slots: &'a [Slot],
    text: &'a [u8],
    order: &'a [u32],
    width: usize,
    tally: Tally,
    error_bound: u64,
}

impl<'a> Counts<'a> {
    /// The words in slots, from the highest estimate on; equal ones by first occurrence.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Count<'a>> + use<'a> {
        let Self { slots, text, order, width, .. } = *self;
        order.iter().map(move |&i| {
            let slot = &slots[i as usize];
            let start = i as usize * width;
            // Whole words were copied in, so the text is valid.
            let word = core::str::from_utf8(&text[start..start + slot.len as usize]).unwrap_or_default();
            Count { word, count: slots[slot.bucket as usize].list.count, error: slot.error }
        })
    }

    /// Only the words, as [`super::capped::write`] takes them.
    pub fn words(&self) -> impl ExactSizeIterator<Item = &'a str> + use<'a> {
        self.iter().map(|count| count.word)
    }

    /// Statistics of the words of the stream.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// See [`Builder::error_bound`].
    pub fn error_bound(&self) -> u64 {
        self.error_bound
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::HashMap;
    use std::string::String;
    use std::vec::Vec;
    use std::{format, vec};

    use proptest::prelude::*;

    use super::*;
    use crate::random::{Random, stream};

    struct Owned {
        slots: Vec<Slot>,
        text: Vec<u8>,
        index: Vec<u32>,
    }

    impl Owned {
        fn new(capacity: usize, width: usize) -> Self {
            Self {
                slots: vec![Slot::EMPTY; capacity],
                text: vec![0; capacity * width],
                index: vec![0; index_len(capacity)],
            }
        }

        fn builder(&mut self) -> Builder<'_> {
            let Self { slots, text, index } = self;
            Builder::new(Storage { slots, text, index }).unwrap()
        }
    }

    #[test]
    fn ties_go_by_first_occurrence() {
        let mut storage = Owned::new(8, WORD_BYTES);
        let mut builder = storage.builder();
        builder.add_text("d c b a\ta b c\u{a0}d e");
        assert!(builder.finish().words().eq(["d", "c", "b", "a", "e"]));
    }

    #[test]
    fn specials_and_overlong_words_take_no_slot() {
        let mut storage = Owned::new(4, 5);
        let mut builder = storage.builder();
        builder.add_text("<unk> short longer <eos> short λλλ λλ");
        let counts = builder.finish();
        assert!(counts.words().eq(["short", "λλ"]));
        assert_eq!(counts.tally(), Tally { total: 7, specials: [0, 1, 0, 1], overlong: 2, replaced: 0 });
        assert_eq!(counts.tally().counted(), 3);
    }

    #[test]
    fn a_new_word_takes_over_the_lowest_count_with_its_error() {
        let mut storage = Owned::new(2, WORD_BYTES);
        let mut builder = storage.builder();
        builder.add_text("a a a b b");
        assert_eq!(builder.error_bound(), 0);
        builder.add_text("c");
        let counts = builder.finish();
        // By hand, as in the paper: c replaces b and gets its count plus one; in the tie, a came first.
        let expected = [Count { word: "a", count: 3, error: 0 }, Count { word: "c", count: 3, error: 2 }];
        assert!(counts.iter().eq(expected));
        assert_eq!(counts.error_bound(), 3);
    }

    #[test]
    fn storage_that_cannot_serve_is_refused() {
        let mut index = [0; 4];
        let none = Storage { slots: &mut [], text: &mut [], index: &mut index };
        assert_eq!(Builder::new(none).unwrap_err(), VocabularyError::TextStorage(1));
        let no_text = Storage { slots: &mut [Slot::EMPTY; 2], text: &mut [0], index: &mut index };
        assert_eq!(Builder::new(no_text).unwrap_err(), VocabularyError::TextStorage(2));
        let short = Storage { slots: &mut [Slot::EMPTY; 3], text: &mut [0; 9], index: &mut index };
        assert_eq!(Builder::new(short).unwrap_err(), VocabularyError::IndexStorage(8));
    }

    proptest! {
        #[test]
        fn the_summary_keeps_its_promises(words in prop::collection::vec("[a-e]{1,3}", 0..600), capacity in 1usize..180) {
            let mut storage = Owned::new(capacity, 3);
            let mut builder = storage.builder();
            let mut exact: HashMap<&str, (u64, usize)> = HashMap::new();
            for (i, word) in words.iter().enumerate() {
                builder.add(word);
                exact.entry(word).or_insert((0, i)).0 += 1;
            }
            let n = words.len() as u64;
            let bound = builder.error_bound();
            let counts = builder.finish();
            prop_assert!(bound <= n / capacity as u64);
            prop_assert_eq!(counts.iter().map(|c| c.count).sum::<u64>(), n);
            prop_assert_eq!(counts.iter().len(), exact.len().min(capacity));
            let kept: HashMap<&str, Count> = counts.iter().map(|c| (c.word, c)).collect();
            prop_assert_eq!(kept.len(), counts.iter().len());
            for (word, &(count, _)) in &exact {
                match kept.get(word) {
                    Some(c) => prop_assert!(c.count >= count && c.count - c.error <= count && c.error <= bound),
                    None => prop_assert!(count <= bound, "{word} occurred {count} times"),
                }
            }
            if exact.len() <= capacity {
                let mut ranked: Vec<_> = exact.iter().collect();
                ranked.sort_by_key(|(_, (count, first))| (u64::MAX - count, *first));
                prop_assert_eq!(bound, 0);
                prop_assert!(counts.words().eq(ranked.iter().map(|(word, _)| **word)));
            }
            for k in 1..=counts.iter().len() {
                let top: Vec<&str> = counts.words().take(k).collect();
                for (word, &(count, _)) in &exact {
                    prop_assert!(count <= n / k as u64 || top.contains(word), "{word} occurred {count} times, k {k}");
                }
            }
        }
    }

    /// 100 MB with over ten times more distinct words than capacity, in storage of fixed size.
    #[test]
    fn a_long_stream_in_bounded_memory_keeps_every_frequent_word() {
        const CAPACITY: usize = 20_000;
        const WORDS: u64 = 12 * CAPACITY as u64;
        const STREAM_BYTES: u64 = 100_000_000;
        let mut storage = Owned::new(CAPACITY, WORD_BYTES);
        let bytes = size_of_val(&storage.slots[..]) + storage.text.len() + size_of_val(&storage.index[..]);
        assert!(bytes <= CAPACITY * 160, "{bytes}");

        let mut builder = storage.builder();
        let mut exact = vec![0u64; WORDS as usize + 1];
        let random = Random::new(3, stream("zipf"));
        let (mut streamed, mut n) = (0, 0);
        let mut word = String::new();
        while streamed < STREAM_BYTES {
            // P(rank r) = ln((r + 1) / r) / ln(WORDS + 1): Zipf's law with exponent 1 in closed form.
            let rank = libm::exp(random.uniform(n) * libm::log((WORDS + 1) as f64)) as u64;
            let rank = rank.clamp(1, WORDS);
            word.clear();
            // A hash of the rank, so that words are not ordered by frequency.
            let name = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
            std::fmt::Write::write_fmt(&mut word, format_args!("{name:x}")).unwrap();
            builder.add(&word);
            exact[rank as usize] += 1;
            streamed += word.len() as u64 + 1;
            n += 1;
        }
        let distinct = exact.iter().filter(|&&count| count > 0).count();
        assert!(distinct >= 10 * CAPACITY, "{distinct}");
        let counts = builder.finish();
        let bound = n / CAPACITY as u64;
        assert!(counts.error_bound() <= bound && counts.tally().total == n && counts.tally().overlong == 0);

        let kept: HashMap<&str, Count> = counts.iter().map(|c| (c.word, c)).collect();
        let mut frequent = 0;
        for (rank, &count) in exact.iter().enumerate() {
            let word = format!("{:x}", (rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24);
            match kept.get(word.as_str()) {
                Some(c) => assert!(c.count >= count && c.count - c.error <= count && c.error <= bound),
                None => assert!(count <= counts.error_bound(), "rank {rank} occurred {count} times"),
            }
            frequent += usize::from(count > bound);
        }
        // Makes sure that the test is meaningful: over a thousand words are above the bound.
        assert!(frequent > 1000, "{frequent}");
        std::println!(
            "{streamed} bytes, {n} words, {distinct} distinct, {bytes} bytes of storage, {frequent} above {bound}"
        );
    }
}
