//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use std::ops::RangeInclusive;

use capful_core::memory::Dtype;
use capful_core::ops::{Attention, AttentionGrad, CachedAttention, Rotate};

use crate::profile::CudaProfile;
use crate::room::{CudaScratch, without_scratch};

without_scratch!(Attention, Rotate);

impl CudaScratch for AttentionGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        AttentionGradRoom::of(self).bytes()
    }
}

impl CudaScratch for CachedAttention {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        TokenRoom::of(self).bytes()
    }
}

/// Lengths of sequences of two tiles, which fit in shared memory.
pub const SHORT: RangeInclusive<u32> = 65..=128;

/// The length from which on a block of 128 keys has enough queries to iterate over: measured.
pub const LONG: u32 = 512;

/// The scratch of attention's gradient: the means of rows, then column sums of the gradient.
pub struct AttentionGradRoom {
    /// Bytes of the means, and of the counter of work items that follows them.
    pub means: u64,
    /// Bytes of the sums.
    pub sums: u64,
}

impl AttentionGradRoom {
    /// The scratch of this operation.
    pub fn of(o: &AttentionGrad) -> AttentionGradRoom {
        let [_, batch, seq_len, columns] = o.qkv_grad.shape;
        // The kernels for short and for long sequences make column sums, those for short sequences at most two pieces
        // for each sequence.
        let pieces = match seq_len {
            _ if o.qkv_grad.dtype != Dtype::Bf16 => 0,
            _ if SHORT.contains(&seq_len) => 2,
            LONG.. if o.pattern.dense() => seq_len.div_ceil(64),
            _ => 0,
        };
        let sums = 4 * u64::from(batch) * u64::from(pieces) * u64::from(columns);
        AttentionGradRoom { means: (o.log_sum.bytes() + 4).next_multiple_of(256), sums }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.means + self.sums
    }
}

/// The scratch of a token's attention: counters, then the partial sums of each piece of the positions for each head.
pub struct TokenRoom {
    /// Words that must be 0 at the start: how many blocks wait, the best logits of tokens, and for each head how many
    /// pieces are done.
    pub counters: u64,
    /// Bytes of the pieces' sums.
    pub partial: u64,
}

impl TokenRoom {
    /// Positions of a piece: PIECE of cached_attention.cuh.
    const PIECE: u32 = 128;
    /// The most tokens that one launch generates.
    pub const TOKENS: usize = 16;
    /// The first byte of the tokens' words, of 8 bytes each, and the first byte of the heads' counters.
    pub const BEST: u64 = 8;
    pub const DONE: u64 = TokenRoom::BEST + 8 * TokenRoom::TOKENS as u64;

    /// The scratch of this operation.
    pub fn of(o: &CachedAttention) -> TokenRoom {
        let heads = &o.rotary.heads;
        let pieces = u64::from(o.cache.shape[2].div_ceil(TokenRoom::PIECE));
        let partial = 4 * u64::from(heads.queries) * pieces * (2 + u64::from(heads.size));
        TokenRoom { counters: TokenRoom::DONE / 4 + u64::from(heads.queries), partial }
    }

    /// Bytes before the sums.
    pub fn before(&self) -> u64 {
        (4 * self.counters).next_multiple_of(256)
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.before() + self.partial
    }
}
