//! Causal attention with online softmax.

use std::ops::Range;

use capful_core::device::OperationError;
use capful_core::ops::Attention;

use super::heads::{GROUP_TILE, TENSOR_TILE, for_documents, local, offsets_of, packed_tile, sequences, span, stripes};
use crate::OnCuda;
use crate::arguments::{AttentionArgs, AttentionTilesArgs, HeadsArgs, OrderArgs, PatternArgs};
use crate::device::{Cuda, blocks, width};
use crate::room::attention::SHORT;

/// Shared memory of the kernel of one warpgroup: two tiles of keys and of values, one of queries, and five barriers;
/// and how many of its blocks run on a multiprocessor.
const WARPGROUP_ROOM: u32 = 5 * GROUP_TILE + 5 * 8;
const WARPGROUP_BLOCKS: u32 = 4;

/// Shared memory of the kernel by stripes: three tiles of keys and values, two of queries, and rows of 72 elements that
/// four warps write; and how many of its blocks run on a multiprocessor.
const LOCAL_ROOM: u32 = (2 * 3 + 2) * GROUP_TILE + 64 * 72 * 2;
const LOCAL_BLOCKS: u32 = 3;

/// Shared memory of the kernel for short sequences: two tiles of keys, of values and of queries, and rows of 72
/// elements that the warps write.
const SHORT_ROOM: u32 = 6 * GROUP_TILE + 64 * 72 * 2;

impl OnCuda for Attention {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let batch = self.qkv.shape[1];
        let of = |part: &Range<u32>| Attention {
            qkv: sequences(self.qkv, batch, part),
            out: sequences(self.out, batch, part),
            log_sum: sequences(self.log_sum, batch, part),
            offsets: offsets_of(self.offsets, batch, part),
            ..self
        };
        cuda.parts(batch).try_for_each(|part| cuda.attention_of_a_part(of(&part)))
    }
}

impl Cuda {
    /// Whether a block keeps a head's keys and values in shared memory for all its queries: measured to be faster where
    /// several query heads share a key head and the blocks are enough to fill the GPU.
    fn keeps_keys(&self, o: &Attention) -> bool {
        let [_, batch, seq_len, _] = o.qkv.shape;
        let many = u64::from(batch) * u64::from(o.heads.keys) > 2 * u64::from(self.hardware.multiprocessors);
        let grouped = o.heads.size == 64 && o.heads.queries / o.heads.keys >= 4;
        o.offsets.is_none() && o.pattern.dense() && SHORT.contains(&seq_len) && grouped && many
    }

    fn attention_of_a_part(&mut self, o: Attention) -> Result<(), OperationError> {
        let dtype = self.dtype("attention", [o.qkv, o.out])?;
        let [_, batch, seq_len, _] = o.qkv.shape;
        let arguments = AttentionArgs {
            qkv: self.address(o.qkv)?,
            out: self.address(o.out)?,
            log_sum: self.address(o.log_sum)?,
            offsets: o.offsets.map_or(Ok(0), |offsets| self.address(offsets))?,
            seq_len,
            scale: o.heads.scale(),
            heads: HeadsArgs::new(&o.heads),
            pattern: PatternArgs::new(&o.pattern),
            rows: o.qkv.rows(),
            order: OrderArgs::TOGETHER,
        };
        if let Some(padded) = self.tensors(dtype, o.heads.size, &o.pattern) {
            if let Some(span) = span(seq_len, &o.pattern, o.offsets) {
                let tiles = blocks(o.qkv.rows().into(), packed_tile(padded));
                let kernel = format!("attention_packed_{padded}_{span}");
                let threads = 2 * packed_tile(padded);
                return self.launch("attention_tensor", &kernel, [tiles * o.heads.queries, 1, 1], threads, &arguments);
            }
            let tiles = blocks(u64::from(seq_len), TENSOR_TILE);
            let whole = width(dtype, 64, &[arguments.qkv, arguments.out]) > 1;
            if self.by_warpgroup(padded) && self.keeps_keys(&o) && whole {
                let (module, grid) = ("attention_short", [o.heads.keys, batch, 1]);
                return self.launch_with(module, module, grid, 128, SHORT_ROOM, &arguments);
            }
            if self.by_warpgroup(padded) && local(&o.heads, &o.pattern, o.offsets) && whole {
                let most = LOCAL_BLOCKS * self.hardware.multiprocessors;
                let stripes = stripes(u64::from(batch) * u64::from(o.heads.queries), tiles, most);
                let (module, grid) = ("attention_local", [o.heads.queries, batch, stripes]);
                return self.launch_with(module, module, grid, 128, LOCAL_ROOM, &arguments);
            }
            if self.by_warpgroup(padded) && self.maps_heads(&o.heads, &[o.qkv])? {
                let (module, grid) = ("attention_warpgroup", [o.heads.queries, batch, tiles]);
                let order = OrderArgs::of(grid, WARPGROUP_BLOCKS * self.hardware.multiprocessors);
                let attention = AttentionArgs { order, ..arguments };
                let qkv = self.head_map(o.qkv, o.heads.size)?;
                let arguments = AttentionTilesArgs { qkv, attention, unused: [0; 6] };
                let kernel = for_documents(module, o.offsets);
                return self.launch_with(module, &kernel, grid, 128, WARPGROUP_ROOM, &arguments);
            }
            let grid = [tiles, o.heads.queries, batch];
            let kernel = for_documents(&format!("attention_tensor_{padded}"), o.offsets);
            return self.launch("attention_tensor", &kernel, grid, 128, &arguments);
        }
        let (padded, tile, _) = self.padded("attention", o.heads.size)?;
        let grid = [blocks(u64::from(seq_len), tile), o.heads.queries, batch];
        self.launch("attention", &format!("attention_{padded}_{}", dtype.name()), grid, 128, &arguments)
    }
}
