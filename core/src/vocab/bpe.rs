//! The byte-level BPE encoder (Sennrich, Haddow and Birch, "Neural machine translation of rare words with subword
//! units", 2016; on bytes as in GPT-2): a piece of text starts as its bytes, and the adjacent pair that is first in the
//! list of merges is joined, the leftmost of equal pairs first, until no pair is in the list.
//!
//! Pairs wait in a heap in the caller's scratch, one slot for each byte, so a piece of n bytes costs O(n log n) time
//! and exactly n [`Node`]s, whatever the text.

use core::fmt;

use bytemuck::{Pod, Zeroable};

use super::{EMPTY, fold, index_len};

/// One merge: the ids of two neighbours and the id that replaces them. Its rank is its index in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Merge {
    /// Id of the left neighbour.
    pub left: u32,
    /// Id of the right neighbour.
    pub right: u32,
    /// Id of the joined pair.
    pub id: u32,
}

/// Why an encoder cannot be made or a piece cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BpeError {
    /// The caller's index is not a power of two, or is shorter than this.
    IndexStorage(usize),
    /// The caller's scratch has fewer nodes than this.
    Scratch(usize),
    /// The merge of this rank joins the same pair as an earlier one.
    Duplicate(u32),
    /// More merges or bytes than 32 bits count.
    TooLong,
    /// The scratch's links are out of range, which no text and no merges can cause.
    Links,
}

impl fmt::Display for BpeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndexStorage(needed) => write!(f, "the index of the merges needs {needed} places, a power of two"),
            Self::Scratch(needed) => write!(f, "encoding this piece of text needs {needed} nodes"),
            Self::Duplicate(rank) => write!(f, "merge {rank} joins the same pair as an earlier one"),
            Self::TooLong => write!(f, "more merges or bytes than 32 bits count"),
            Self::Links => write!(f, "the encoder lost a token; this is a fault of the program"),
        }
    }
}

impl core::error::Error for BpeError {}

/// Scratch for one byte of a piece: a link of the chain of tokens and a slot of the heap.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    id: u32,
    prev: u32,
    next: u32,
    /// Rank of the pair of this token and the next, [`EMPTY`] if they do not merge.
    rank: u32,
    /// The slot of this token in the heap, [`EMPTY`] if it is not in the heap.
    at: u32,
    /// Slot k of the heap: the index of a node.
    heap: u32,
}

impl Node {
    /// An unused node, to fill scratch with.
    pub const EMPTY: Self = Self { id: 0, prev: EMPTY, next: EMPTY, rank: EMPTY, at: EMPTY, heap: EMPTY };
}

/// An encoder: a view of the ids of the 256 bytes, the merges, and a hash index of the merges.
#[derive(Debug, Clone, Copy)]
pub struct Encoder<'a> {
    bytes: &'a [u32; 256],
    merges: &'a [Merge],
    /// Open addressing with linear probing: ranks, or [`EMPTY`]. `[index_len(merges)]`
    index: &'a [u32],
}

impl<'a> Encoder<'a> {
    /// An encoder over `merges` in the order of their ranks; fills the first [`index_len`] slots of `index`.
    ///
    /// # Errors
    /// [`BpeError::IndexStorage`], [`BpeError::Duplicate`], [`BpeError::TooLong`].
    pub fn new(bytes: &'a [u32; 256], merges: &'a [Merge], index: &'a mut [u32]) -> Result<Self, BpeError> {
        if merges.len() >= EMPTY as usize {
            return Err(BpeError::TooLong);
        }
        let places = index_len(merges.len());
        let index = index.get_mut(..places).ok_or(BpeError::IndexStorage(places))?;
        index.fill(EMPTY);
        for (rank, merge) in merges.iter().enumerate() {
            let so_far = Encoder { bytes, merges, index };
            let (place, found) = so_far.find(merge.left, merge.right);
            if found.is_some() {
                return Err(BpeError::Duplicate(rank as u32));
            }
            index[place] = rank as u32;
        }
        Ok(Self { bytes, merges, index })
    }

    /// The encoder over parts that [`Encoder::new`] filled before, wherever they are stored. Constant time: an index of
    /// other merges may be accepted; it then misses merges, but never panics.
    ///
    /// # Errors
    /// [`BpeError::IndexStorage`] unless the index has exactly [`index_len`] slots.
    pub fn from_parts(bytes: &'a [u32; 256], merges: &'a [Merge], index: &'a [u32]) -> Result<Self, BpeError> {
        let places = index_len(merges.len());
        if index.len() != places {
            return Err(BpeError::IndexStorage(places));
        }
        Ok(Self { bytes, merges, index })
    }

    /// The ids of `piece`, in order. `scratch` needs a node for every byte.
    ///
    /// # Errors
    /// [`BpeError::Scratch`], [`BpeError::TooLong`]; never [`BpeError::Links`], which replaces a panic.
    ///
    /// ```
    /// use capful_core::vocab::{bpe::*, index_len};
    /// let bytes = core::array::from_fn(|b| b as u32);
    /// let merges = [Merge { left: 98, right: 99, id: 256 }, Merge { left: 97, right: 98, id: 257 }];
    /// let mut index = [0; index_len(2)];
    /// let encoder = Encoder::new(&bytes, &merges, &mut index)?;
    /// assert!(encoder.encode(b"abcab", &mut [Node::EMPTY; 5])?.eq([97, 256, 257]));
    /// # Ok::<(), BpeError>(())
    /// ```
    pub fn encode<'s>(
        &self,
        piece: &[u8],
        scratch: &'s mut [Node],
    ) -> Result<impl Iterator<Item = u32> + use<'s>, BpeError> {
        if piece.len() >= EMPTY as usize {
            return Err(BpeError::TooLong);
        }
        let nodes = scratch.get_mut(..piece.len()).ok_or(BpeError::Scratch(piece.len()))?;
        for (i, (node, &byte)) in nodes.iter_mut().zip(piece).enumerate() {
            let i = i as u32;
            let next = if i as usize + 1 < piece.len() { i + 1 } else { EMPTY };
            let prev = i.wrapping_sub(1); // Before the first: EMPTY.
            *node = Node { id: self.bytes[byte as usize], prev, next, ..Node::EMPTY };
        }
        let mut chain = Chain { encoder: self, nodes, waiting: 0 };
        chain.join_all(piece.len() as u32).ok_or(BpeError::Links)?;
        let nodes: &'s [Node] = chain.nodes;
        let mut at = if nodes.is_empty() { EMPTY } else { 0 };
        Ok(core::iter::from_fn(move || {
            let node = nodes.get(at as usize)?;
            at = node.next;
            Some(node.id)
        }))
    }

    /// The slot of the index where the pair is or would be, and its rank.
    fn find(&self, left: u32, right: u32) -> (usize, Option<u32>) {
        let mask = self.index.len() - 1;
        // The odd factor distinguishes (a, b) from (b, a); the fold spreads the bits.
        let hash = fold((u64::from(left) << 32 | u64::from(right)).wrapping_mul(0xff51_afd7_ed55_8ccd));
        let mut place = hash as usize & mask;
        // Bounded, so that even a foreign index without a free slot cannot cause an endless loop.
        for _ in 0..self.index.len() {
            let Some(&rank) = self.index.get(place) else { break };
            let Some(merge) = self.merges.get(rank as usize) else { break };
            if merge.left == left && merge.right == right {
                return (place, Some(rank));
            }
            place = (place + 1) & mask;
        }
        (place, None)
    }
}

/// The chain of tokens of one piece, and the heap of its pairs: lowest (rank, position) first. Its methods return
/// `None` where a link leads to no node.
struct Chain<'e, 's> {
    encoder: &'e Encoder<'e>,
    nodes: &'s mut [Node],
    /// Nodes in the heap.
    waiting: u32,
}

impl Chain<'_, '_> {
    fn node(&mut self, i: u32) -> Option<&mut Node> {
        self.nodes.get_mut(i as usize)
    }

    /// Joins pairs of `tokens` tokens until no pair is left.
    fn join_all(&mut self, tokens: u32) -> Option<()> {
        (0..tokens).try_for_each(|i| self.rate(i))?;
        while self.waiting > 0 {
            let left = self.node(0)?.heap;
            self.join(left)?;
        }
        Some(())
    }

    fn join(&mut self, left: u32) -> Option<()> {
        let Node { next: right, rank, prev, .. } = *self.node(left)?;
        let Node { next, .. } = *self.node(right)?;
        self.leave(right)?;
        let id = self.encoder.merges.get(rank as usize)?.id;
        let node = self.node(left)?;
        (node.id, node.next) = (id, next);
        if next != EMPTY {
            self.node(next)?.prev = left;
        }
        self.rate(left)?;
        if prev == EMPTY { Some(()) } else { self.rate(prev) }
    }

    /// Looks up the pair that starts at node `i`, and inserts it into the heap, moves it there or removes it.
    fn rate(&mut self, i: u32) -> Option<()> {
        let Node { id, next, at, rank: old, .. } = *self.node(i)?;
        let rank = match self.nodes.get(next as usize) {
            Some(right) => self.encoder.find(id, right.id).1.unwrap_or(EMPTY),
            None => EMPTY,
        };
        if rank == EMPTY {
            return self.leave(i);
        }
        self.node(i)?.rank = rank;
        if at == EMPTY {
            self.waiting += 1;
            self.up(self.waiting - 1, i)
        } else if rank < old {
            self.up(at, i)
        } else {
            self.down(at, i)
        }
    }

    /// Removes node `i` from the heap, if it is there.
    fn leave(&mut self, i: u32) -> Option<()> {
        let at = core::mem::replace(&mut self.node(i)?.at, EMPTY);
        if at == EMPTY {
            return Some(());
        }
        self.waiting -= 1;
        let last = self.node(self.waiting)?.heap;
        if last == i {
            return Some(());
        }
        // The last node fills the gap; it may belong above or below it.
        self.up(at, last)?;
        let at = self.node(last)?.at;
        self.down(at, last)
    }

    /// The node in slot `at` of the heap, and its key.
    fn waits(&self, at: u32) -> Option<(u32, (u32, u32))> {
        let i = self.nodes.get(at as usize)?.heap;
        Some((i, self.key(i)?))
    }

    fn key(&self, i: u32) -> Option<(u32, u32)> {
        Some((self.nodes.get(i as usize)?.rank, i))
    }

    fn place(&mut self, at: u32, i: u32) -> Option<()> {
        self.node(at)?.heap = i;
        self.node(i)?.at = at;
        Some(())
    }

    /// Puts node `i` into slot `at` or above.
    fn up(&mut self, mut at: u32, i: u32) -> Option<()> {
        let key = self.key(i)?;
        while at > 0 {
            let parent = (at - 1) / 2;
            let (other, above) = self.waits(parent)?;
            if above <= key {
                break;
            }
            self.place(at, other)?;
            at = parent;
        }
        self.place(at, i)
    }

    /// Puts node `i` into slot `at` or below.
    fn down(&mut self, mut at: u32, i: u32) -> Option<()> {
        let key = self.key(i)?;
        while at < self.waiting / 2 {
            let mut child = 2 * at + 1;
            let (mut other, mut below) = self.waits(child)?;
            if child + 1 < self.waiting {
                let (right, key) = self.waits(child + 1)?;
                if key < below {
                    (child, other, below) = (child + 1, right, key);
                }
            }
            if key <= below {
                break;
            }
            self.place(at, other)?;
            at = child;
        }
        self.place(at, i)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::collections::HashSet;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const BYTES: [u32; 256] = {
        let mut ids = [0; 256];
        let mut b = 0;
        while b < 256 {
            ids[b] = b as u32;
            b += 1;
        }
        ids
    };

    fn encode(merges: &[Merge], piece: &[u8]) -> Vec<u32> {
        let mut index = vec![0; index_len(merges.len())];
        let encoder = Encoder::new(&BYTES, merges, &mut index).unwrap();
        encoder.encode(piece, &mut vec![Node::EMPTY; piece.len()]).unwrap().collect()
    }

    /// The definition, literally: find the best pair, leftmost first, join it, start again.
    fn by_definition(merges: &[Merge], piece: &[u8]) -> Vec<u32> {
        let mut ids: Vec<u32> = piece.iter().map(|&b| u32::from(b)).collect();
        loop {
            let best = (1..ids.len())
                .filter_map(|i| {
                    merges.iter().position(|m| m.left == ids[i - 1] && m.right == ids[i]).map(|rank| (rank, i))
                })
                .min();
            let Some((rank, i)) = best else { return ids };
            ids[i - 1] = merges[rank].id;
            ids.remove(i);
        }
    }

    /// Merges over the letters a to c and over each other, from random pairs of ids.
    fn merges() -> impl Strategy<Value = Vec<Merge>> {
        prop::collection::vec((0u32..1000, 0u32..1000), 0..40).prop_map(|pairs| {
            let mut seen = HashSet::new();
            let mut merges: Vec<Merge> = Vec::new();
            for (l, r) in pairs {
                let known = 3 + merges.len() as u32;
                let id = |i: u32| if i % known < 3 { 97 + i % known } else { 256 + i % known - 3 };
                if seen.insert((id(l), id(r))) {
                    merges.push(Merge { left: id(l), right: id(r), id: 253 + known });
                }
            }
            merges
        })
    }

    proptest! {
        #[test]
        fn it_is_the_definition(merges in merges(), piece in "[abc]{0,400}") {
            prop_assert_eq!(encode(&merges, piece.as_bytes()), by_definition(&merges, piece.as_bytes()));
        }

        #[test]
        fn a_merge_may_stand_before_those_it_needs(mut merges in merges(), piece in "[abc]{0,40}", turn in 0usize..40) {
            // Not a result of training, but possible in a file.
            if !merges.is_empty() {
                let turn = turn % merges.len();
                merges.rotate_left(turn);
            }
            prop_assert_eq!(encode(&merges, piece.as_bytes()), by_definition(&merges, piece.as_bytes()));
        }
    }

    #[test]
    fn without_merges_there_are_bytes() {
        assert_eq!(encode(&[], b"\xff\0a"), [255, 0, 97]);
        assert_eq!(encode(&[], b""), []);
    }

    #[test]
    fn a_pair_given_twice_is_refused() {
        let merges = [Merge { left: 1, right: 2, id: 256 }, Merge { left: 1, right: 2, id: 257 }];
        assert_eq!(Encoder::new(&BYTES, &merges, &mut [0; 4]).unwrap_err(), BpeError::Duplicate(1));
        assert_eq!(Encoder::new(&BYTES, &merges, &mut [0; 3]).unwrap_err(), BpeError::IndexStorage(4));
    }

    #[test]
    fn too_little_scratch_is_an_error() {
        let encoder = Encoder::from_parts(&BYTES, &[], &[EMPTY; 2]).unwrap();
        assert_eq!(encoder.encode(b"abc", &mut [Node::EMPTY; 2]).err(), Some(BpeError::Scratch(3)));
    }

    /// A million equal bytes: quadratic work would take 10^12 steps, so the test would not end.
    #[test]
    fn a_long_piece_is_not_quadratic() {
        let merges: Vec<Merge> = (0..12)
            .map(|k| {
                let half = if k == 0 { 97 } else { 255 + k };
                Merge { left: half, right: half, id: 256 + k }
            })
            .collect();
        let ids = encode(&merges, &vec![b'a'; 1 << 20]);
        assert_eq!(ids, vec![267; 1 << 8]);
    }
}
