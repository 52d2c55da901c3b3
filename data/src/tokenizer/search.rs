//! Encodes byte-level BPE by search instead of merging: from the left, it always takes the longest token that may
//! follow the token before it, and goes a step back where none may.
//!
//! That gives the ids of [`capful_core::vocab::bpe`], because of two facts. First, merging the bytes of two adjacent
//! tokens either joins something across their border or gives these two tokens; if all adjacent tokens of a sequence
//! are of the second kind, the sequence is the result of merging the whole, because one side of a border that is never
//! crossed does not affect the other side. Second, a text has one encoding, so the tokens up to an offset are either
//! right, or wrong for every continuation: an offset that the search has left is never tried again, and the work grows
//! in proportion to the text's length. (The method is that of GitHub's crate `bpe`.)
//!
//! The method requires that each merge comes after the merges that make its parts, which training ensures;
//! [`Search::new`] checks it.

use std::collections::HashMap;

use capful_core::vocab::bpe::Merge;

use super::prefixes::Prefixes;

/// No token.
const NONE: u32 = u32::MAX;

/// The single bytes are the first tokens; the others follow in the order of the merges that make them, so that of two
/// tokens the one with the larger number was made later.
const BYTES: u32 = 256;

#[derive(Debug, Clone, Copy)]
struct Token {
    /// The caller's id of the token.
    id: u32,
    /// The number of its bytes.
    len: u32,
    /// The two tokens that its last merge joined; for a byte never read.
    left: u32,
    right: u32,
    /// The longest token that is a proper prefix of it, or [`NONE`].
    shorter: u32,
}

/// An encoder, shared by threads.
#[derive(Debug, Clone)]
pub(super) struct Search {
    tokens: Vec<Token>,
    pairs: Pairs,
    prefixes: Prefixes,
}

/// Buffers for encoding a piece, reused for the next piece.
#[derive(Default)]
pub(super) struct Scratch {
    /// The tokens so far.
    path: Vec<u32>,
    /// A bit for each offset between bytes: whether the search has left it.
    left: Vec<u64>,
}

impl Scratch {
    fn begin(&mut self, bytes: usize) {
        self.path.clear();
        self.left.clear();
        self.left.resize(bytes / 64 + 1, 0);
    }

    fn leave(&mut self, at: usize) {
        self.left[at / 64] |= 1 << (at % 64);
    }

    fn was_left(&self, at: usize) -> bool {
        self.left[at / 64] >> (at % 64) & 1 != 0
    }
}

impl Search {
    /// The encoder of `merges` in the order of their ranks, with the ids `bytes` of the single bytes. `None` if a merge
    /// comes before a merge that makes one of its parts, or if two of the ids of the bytes are equal. Merges that make
    /// the same id must make the same bytes, and no other id may have these bytes.
    pub(super) fn new(bytes: &[u32; 256], merges: &[Merge]) -> Option<Self> {
        let byte = |(b, &id): (usize, &u32)| Token { id, len: 1, left: b as u32, right: b as u32, shorter: NONE };
        let tokens: Vec<Token> = bytes.iter().enumerate().map(byte).collect();
        let mut made: HashMap<u32, u32> = bytes.iter().copied().zip(0..).collect();
        if made.len() < BYTES as usize {
            return None;
        }
        let mut search = Self { tokens, pairs: Pairs::new(merges.len()), prefixes: Prefixes::new(&[]) };
        let mut before_its_parts = Vec::new();
        for merge in merges {
            let [Some(&left), Some(&right)] = [merge.left, merge.right].map(|id| made.get(&id)) else {
                before_its_parts.push(merge);
                continue;
            };
            // Where the parts' bytes are merged differently, the two parts never become adjacent.
            if made.contains_key(&merge.id) || !search.meet(left, right) {
                continue;
            }
            let token = search.tokens.len() as u32;
            let len = search.tokens[left as usize].len.checked_add(search.tokens[right as usize].len)?;
            search.pairs.insert(left, right, token);
            search.tokens.push(Token { id: merge.id, len, left, right, shorter: NONE });
            made.insert(merge.id, token);
        }
        // A part that no merge makes never occurs; a part that a later merge makes does.
        if before_its_parts.iter().any(|merge| made.contains_key(&merge.left) && made.contains_key(&merge.right)) {
            return None;
        }
        search.find_prefixes();
        Some(search)
    }

    fn find_prefixes(&mut self) {
        let mut texts: Vec<Vec<u8>> = Vec::with_capacity(self.tokens.len());
        for (i, token) in self.tokens.iter().enumerate() {
            texts.push(match i < BYTES as usize {
                true => vec![i as u8],
                false => [token.left, token.right].map(|part| texts[part as usize].as_slice()).concat(),
            });
        }
        let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        self.prefixes = Prefixes::new(&texts);
        for (token, text) in self.tokens.iter_mut().zip(texts).skip(BYTES as usize) {
            token.shorter = self.prefixes.longest(&text[..text.len() - 1]);
        }
    }

    /// The ids that can occur: the ids that merging gives for their own bytes.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.tokens.iter().map(|token| token.id)
    }

    /// Appends the ids of `piece` to `ids`.
    pub(super) fn encode(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        if piece.is_empty() {
            return;
        }
        let mut token = self.prefixes.longest(piece);
        // Most words end here: the whole piece is a single token.
        if self.token(token).len as usize == piece.len() {
            ids.push(self.token(token).id);
            return;
        }
        scratch.begin(piece.len());
        let mut at = 0;
        while at < piece.len() {
            let end = at + self.token(token).len as usize;
            let stands = !scratch.was_left(end) && scratch.path.last().is_none_or(|&last| self.stand(last, token));
            if stands {
                scratch.path.push(token);
                at = end;
                if at < piece.len() {
                    token = self.prefixes.longest(&piece[at..]);
                }
                continue;
            }
            while self.token(token).shorter == NONE {
                scratch.leave(at);
                token = scratch.path.pop().expect("every text has an encoding, which is not left");
                at -= self.token(token).len as usize;
            }
            token = self.token(token).shorter;
        }
        ids.extend(scratch.path.iter().map(|&token| self.token(token).id));
    }

    fn token(&self, token: u32) -> &Token {
        &self.tokens[token as usize]
    }

    /// Whether merging the bytes of two tokens gives exactly these two tokens.
    fn stand(&self, left: u32, right: u32) -> bool {
        self.pairs.get(left, right).is_none() && self.meet(left, right)
    }

    /// Whether merging the bytes of two tokens reaches these two tokens, even if they are joined afterwards. Undoes
    /// their merges from the last one on, and checks at each step whether the tokens at the border would have been
    /// joined earlier.
    fn meet(&self, mut left: u32, mut right: u32) -> bool {
        loop {
            if left.max(right) < BYTES {
                return true;
            }
            // The token that was made later was joined later; of equal tokens the right one was.
            let before;
            if left > right {
                (left, before) = (self.token(left).right, left);
            } else {
                // Of equal pairs the leftmost is joined first, which is the pair across the border.
                (right, before) = (self.token(right).left, right + 1);
            }
            if self.pairs.get(left, right).is_some_and(|joined| joined < before) {
                return false;
            }
        }
    }
}

/// The token that a pair of tokens is joined to: open addressing with linear probing.
#[derive(Debug, Clone)]
struct Pairs {
    /// Left token, right token, joined token; [`NONE`] in free slots. At least half of the slots are free.
    slots: Vec<[u32; 3]>,
}

impl Pairs {
    fn new(most: usize) -> Self {
        Self { slots: vec![[NONE; 3]; (2 * most).next_power_of_two().max(2)] }
    }

    fn place(&self, left: u32, right: u32) -> usize {
        // Fibonacci hashing: the high bits of the product are the well-mixed ones.
        let hash = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> (64 - self.slots.len().trailing_zeros())) as usize
    }

    fn get(&self, left: u32, right: u32) -> Option<u32> {
        let mut place = self.place(left, right);
        loop {
            let [l, r, joined] = self.slots[place];
            if (l, r) == (left, right) {
                return Some(joined);
            }
            if l == NONE {
                return None;
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
    }

    fn insert(&mut self, left: u32, right: u32, joined: u32) {
        let mut place = self.place(left, right);
        while self.slots[place][0] != NONE {
            place = (place + 1) & (self.slots.len() - 1);
        }
        self.slots[place] = [left, right, joined];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use capful_core::vocab::bpe::{Encoder, Node};
    use capful_core::vocab::index_len;
    use proptest::prelude::*;

    use super::*;

    const BYTE_IDS: [u32; 256] = {
        let mut ids = [0; 256];
        let mut b = 0;
        while b < 256 {
            ids[b] = 1000 - b as u32;
            b += 1;
        }
        ids
    };

    fn merged(merges: &[Merge], piece: &[u8]) -> Vec<u32> {
        let mut index = vec![0; index_len(merges.len())];
        let encoder = Encoder::new(&BYTE_IDS, merges, &mut index).unwrap();
        encoder.encode(piece, &mut vec![Node::EMPTY; piece.len()]).unwrap().collect()
    }

    fn found(search: &Search, piece: &[u8]) -> Vec<u32> {
        let (mut ids, mut scratch) = (vec![], Scratch::default());
        search.encode(piece, &mut scratch, &mut ids);
        ids
    }

    /// Merges over the letters a to c and over each other, from random pairs; equal bytes have equal ids.
    fn merges() -> impl Strategy<Value = Vec<Merge>> {
        prop::collection::vec((0usize..1000, 0usize..1000), 0..60).prop_map(|pairs| {
            let mut seen = HashSet::new();
            let mut tokens: Vec<(String, u32)> = "abc".chars().map(|c| (c.to_string(), 1000 - c as u32)).collect();
            let mut merges: Vec<Merge> = Vec::new();
            for (l, r) in pairs {
                let [(l, left), (r, right)] = [l, r].map(|i| tokens[i % tokens.len()].clone());
                let text = l + &r;
                if text.len() > 12 || !seen.insert((left, right)) {
                    continue;
                }
                let next = 2000 + merges.len() as u32;
                let id = tokens.iter().find(|token| token.0 == text).map_or(next, |token| token.1);
                if id == next {
                    tokens.push((text, id));
                }
                merges.push(Merge { left, right, id });
            }
            merges
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn it_finds_what_merging_gives(merges in merges(), piece in "[abc]{0,60}") {
            if let Some(search) = Search::new(&BYTE_IDS, &merges) {
                prop_assert_eq!(found(&search, piece.as_bytes()), merged(&merges, piece.as_bytes()));
            }
        }

        #[test]
        fn it_is_there_unless_merges_stand_before_their_parts(mut merges in merges(), turn in 0usize..40,
            piece in "[abc]{0,30}") {
            let distinct: HashSet<u32> = merges.iter().map(|merge| merge.id).collect();
            if distinct.len() == merges.len() {
                prop_assert!(Search::new(&BYTE_IDS, &merges).is_some());
            }
            // In another order the encoder is either right or not built.
            if !merges.is_empty() {
                let turn = turn % merges.len();
                merges.rotate_left(turn);
            }
            if let Some(search) = Search::new(&BYTE_IDS, &merges) {
                prop_assert_eq!(found(&search, piece.as_bytes()), merged(&merges, piece.as_bytes()));
            }
        }
    }

    #[test]
    fn two_ways_to_one_token_are_one_token() {
        let [a, b, c] = b"abc".map(|byte| BYTE_IDS[usize::from(byte)]);
        let merge = |left, right, id| Merge { left, right, id };
        let merges = [merge(a, b, 1), merge(1, c, 2), merge(b, c, 3), merge(a, 3, 2)];
        let search = Search::new(&BYTE_IDS, &merges).unwrap();
        assert_eq!(found(&search, b"abcbca"), [2, 3, a]);
        assert_eq!(search.ids().skip(256).collect::<Vec<_>>(), [1, 2, 3]);
        // A merge that comes before a merge that makes its part.
        assert!(Search::new(&BYTE_IDS, &[merge(3, a, 4), merge(b, c, 3)]).is_none());
    }

    /// Quadratic work would be 10^12 steps, so the test finishes only if the work is not quadratic.
    #[test]
    fn a_long_piece_is_not_quadratic() {
        let a = BYTE_IDS[97];
        let merges: Vec<Merge> = (0..40)
            .map(|k| {
                if k == 0 {
                    Merge { left: a, right: a, id: 1 }
                } else {
                    Merge { left: k, right: if k % 3 == 0 { a } else { k }, id: k + 1 }
                }
            })
            .filter(|merge| merge.id <= 9)
            .collect();
        let search = Search::new(&BYTE_IDS, &merges).unwrap();
        let text = vec![b'a'; (1 << 20) + 3];
        assert_eq!(found(&search, &text), merged(&merges, &text));
    }
}
