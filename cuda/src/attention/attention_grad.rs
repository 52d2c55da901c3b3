//! The gradient of causal attention: the queries' gradient in one pass, the keys' and values' in another, then the
//! inverse rotation.

use std::ops::Range;

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::AttentionGrad;

use super::heads::{GROUP_TILE, TENSOR_TILE, for_documents, local, offsets_of, packed_tile, sequences, span, stripes};
use crate::OnCuda;
use crate::arguments::{AttentionGradArgs, AttentionGradTilesArgs, HeadsArgs, OrderArgs, PatternArgs, SumsArgs};
use crate::device::{Cuda, blocks, width};
use crate::product::product::Summed;
use crate::room::attention::{AttentionGradRoom, LONG, SHORT};

/// Shared memory of the warpgroup kernel for the queries' gradient: two tiles of keys and of values, one of queries and
/// of gradients, and three barriers; and how many of its blocks run on a multiprocessor.
const QUERIES_ROOM: u32 = 6 * GROUP_TILE + 3 * 8;
const QUERIES_BLOCKS: u32 = 4;

/// Shared memory of the warpgroup kernel for the keys' gradient: the same number of tiles, and log-sums, means and
/// offsets of two tiles of queries.
const KEYS_ROOM: u32 = 6 * GROUP_TILE + 6 * TENSOR_TILE * 4;
const KEYS_BLOCKS: u32 = 3;

/// Keys of a work item of the kernel for long sequences.
const PIPELINE_TILE: u32 = 128;
/// Shared memory of that kernel: the keys and values, four stages of queries and gradients with log-sums, means and
/// offsets, rows of 72 elements that eight warps write, their column sums for keys and values, ten barriers, and the
/// next work item's number.
const PIPELINE_ROOM: u32 = (4 + 4 * 2) * GROUP_TILE + 3 * 4 * 64 * 4 + 8 * 16 * 72 * 2 + 2 * 2 * 4 * 64 * 4 + 11 * 8;

/// Shared memory of the kernel for short sequences, with this number of stages and room for the keys and values of this
/// number of heads: two tiles of keys and two of values for each head, three times two tiles and a row of log-sums for
/// each stage, three tiles of the scores' gradients, four rows of means, rows that eight warps write, and with room for
/// several heads the column sums of these rows for queries, keys and values.
const fn short_room(stages: u32, heads: u32) -> u32 {
    let sums = if heads > 1 { 2 * 3 * 4 * 64 * 4 } else { 0 };
    (4 * heads + 6 * stages + 3) * GROUP_TILE + (stages + 4) * 128 * 4 + 8 * 16 * 72 * 2 + sums
}

/// Shared memory of the kernel by stripes: three tiles of keys and values, two of queries and gradients, one of outputs
/// and one of the scores' gradients, rows of 72 elements that four warps write, and three rows of sums; and how many of
/// its blocks run on a multiprocessor.
const LOCAL_ROOM: u32 = (2 * 3 + 2 * 2 + 2) * GROUP_TILE + 64 * 72 * 2 + 3 * 64 * 4;
const LOCAL_BLOCKS: u32 = 2;

/// Whether the kernel by stripes supports this operation.
fn by_stripes(o: &AttentionGrad, a: &AttentionGradArgs) -> bool {
    let rows = width(Dtype::Bf16, 64, &[a.qkv, a.out, a.out_grad, a.qkv_grad, a.table]) > 1;
    let turned = [16, 32, 64].contains(&a.dims) && a.period == a.seq_len;
    local(&o.heads, &o.pattern, o.offsets) && o.heads.queries == o.heads.keys && rows && turned
}

impl OnCuda for AttentionGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.attention_grad(self, None)
    }
}

impl Cuda {
    /// Computes the gradient and, where `summed` requests them, the sums of its columns.
    pub(crate) fn attention_grad(&mut self, o: AttentionGrad, summed: Option<Summed>) -> Result<(), OperationError> {
        let (batch, room) = (o.qkv.shape[1], AttentionGradRoom::of(&o));
        let of = |part: &Range<u32>| AttentionGrad {
            qkv: sequences(o.qkv, batch, part),
            out: sequences(o.out, batch, part),
            log_sum: sequences(o.log_sum, batch, part),
            out_grad: sequences(o.out_grad, batch, part),
            qkv_grad: sequences(o.qkv_grad, batch, part),
            offsets: offsets_of(o.offsets, batch, part),
            ..o
        };
        let partial = self.pieces_at(room.means, room.sums)?;
        // Number of pieces that are summed so far, where the kernels make the sums too.
        let mut made = summed.map(|_| 0);
        for part in self.parts(batch) {
            let sums = partial.at + 4 * u64::from(made.unwrap_or(0)) * u64::from(o.qkv_grad.columns());
            let pieces = self.attention_grad_of_a_part(of(&part), made.map(|_| sums))?;
            made = made.zip(pieces).map(|(before, pieces)| before + pieces);
        }
        match summed.zip(made) {
            Some((summed, pieces)) => {
                let sizes = [pieces, o.qkv_grad.columns()];
                let sums = SumsArgs::of(partial.at, sizes, self.places(summed)?);
                self.finish_columns(sums, partial.wait)
            }
            None => self.sum_written(o.qkv_grad, summed),
        }
    }

    /// Computes the gradient of some sequences; returns the number of pieces of sums that the kernel made, where sums
    /// are requested and the kernel supports them.
    fn attention_grad_of_a_part(&mut self, o: AttentionGrad, sums: Option<u64>) -> Result<Option<u32>, OperationError> {
        const NAME: &str = "attention_grad";
        let dtype = self.dtype(NAME, [o.qkv, o.out, o.out_grad, o.qkv_grad])?;
        let [_, batch, seq_len, _] = o.qkv.shape;
        let arguments = AttentionGradArgs {
            qkv: self.address(o.qkv)?,
            out: self.address(o.out)?,
            out_grad: self.address(o.out_grad)?,
            log_sum: self.address(o.log_sum)?,
            mean: self.scratch_at(0, o.log_sum.bytes())?,
            qkv_grad: self.address(o.qkv_grad)?,
            table: self.address(o.rotary.table)?,
            seq_len,
            dims: o.rotary.dims(),
            period: o.rotary.positions,
            scale: o.heads.scale(),
            heads: HeadsArgs::new(&o.heads),
            pattern: PatternArgs::new(&o.pattern),
            rows: o.qkv.rows(),
            order: OrderArgs::TOGETHER,
            sums: 0,
            taken: self.scratch_at(o.log_sum.bytes(), 4)?,
            offsets: o.offsets.map_or(Ok(0), |offsets| self.address(offsets))?,
        };
        let sides = [("queries", o.heads.queries), ("keys", o.heads.keys)];
        if let Some(padded) = self.tensors(dtype, o.heads.size, &o.pattern) {
            if let Some(span) = span(seq_len, &o.pattern, o.offsets) {
                let tiles = blocks(o.qkv.rows().into(), packed_tile(padded));
                let kernel = format!("attention_grad_packed_{padded}_{span}");
                let (grid, threads) = ([tiles * o.heads.keys, 1, 1], 2 * packed_tile(padded));
                return self.launch("attention_grad_tensor", &kernel, grid, threads, &arguments).map(|()| None);
            }
            let tiles = blocks(u64::from(seq_len), TENSOR_TILE);
            if self.by_warpgroup(padded) && o.offsets.is_none() && o.pattern.dense() && SHORT.contains(&seq_len) {
                let (module, heads) = ("attention_grad_short", o.heads.keys * batch);
                // With several heads of queries for one head of keys, a block has enough to fetch in the meantime.
                if o.heads.queries / o.heads.keys >= 4 {
                    self.launch_with(module, module, [heads, 1, 1], 384, short_room(3, 1), &arguments)?;
                    return Ok(None);
                }
                // For sums a block must always have the same head.
                let most = self.hardware.multiprocessors / o.heads.keys * o.heads.keys;
                let summing = sums.is_some() && o.heads.queries == o.heads.keys && most > 0;
                let grid = heads.min(if summing { most } else { self.hardware.multiprocessors });
                let arguments = AttentionGradArgs { sums: sums.filter(|_| summing).unwrap_or(0), ..arguments };
                let (kernel, shared) = ("attention_grad_short_stream", short_room(2, 2));
                self.launch_with(module, kernel, [grid, 1, 1], 384, shared, &arguments)?;
                return Ok(summing.then(|| grid / o.heads.keys * 2));
            }
            if self.by_warpgroup(padded) && by_stripes(&o, &arguments) {
                let most = LOCAL_BLOCKS * self.hardware.multiprocessors;
                let stripes = stripes(u64::from(batch) * u64::from(o.heads.keys), tiles, most);
                let (module, grid) = ("attention_grad_local", [o.heads.keys, batch, stripes]);
                return self.launch_with(module, module, grid, 128, LOCAL_ROOM, &arguments).map(|()| None);
            }
            if self.by_warpgroup(padded) && self.maps_heads(&o.heads, &[o.qkv, o.out_grad])? {
                // The scratch has room for its pieces only where sequences are long without a test's override.
                let sums = sums.filter(|_| self.by_pipeline(&o) && seq_len >= LONG);
                let arguments = AttentionGradArgs { sums: sums.unwrap_or(0), ..arguments };
                self.attention_grad_by_warpgroups(&o, arguments)?;
                return Ok(sums.map(|_| batch * tiles));
            }
            for (side, heads) in sides {
                let kernel = for_documents(&format!("attention_grad_{side}_tensor_{padded}"), o.offsets);
                self.launch("attention_grad_tensor", &kernel, [tiles, heads, batch], 128, &arguments)?;
            }
            return Ok(None);
        }
        let (dtype, (padded, _, tile)) = (dtype.name(), self.padded(NAME, o.heads.size)?);
        let grid = [seq_len, batch, 1];
        self.launch(NAME, &format!("attention_grad_mean_{dtype}"), grid, 128, &arguments)?;
        let tiles = blocks(u64::from(seq_len), tile);
        for (side, heads) in sides {
            let kernel = format!("attention_grad_{side}_{padded}_{dtype}");
            self.launch(NAME, &kernel, [tiles, heads, batch], 128, &arguments)?;
        }
        self.rotate(o.qkv_grad, &o.rotary, true).map(|()| None)
    }

    /// Whether the kernel for long sequences computes the keys' part; that kernel also makes sums of columns.
    fn by_pipeline(&self, o: &AttentionGrad) -> bool {
        o.pattern.dense() && o.qkv.shape[2] >= self.limits.long_sequence
    }

    /// Computes the gradient by warpgroups: the queries' part, then the keys' part.
    fn attention_grad_by_warpgroups(
        &mut self,
        o: &AttentionGrad,
        grad: AttentionGradArgs,
    ) -> Result<(), OperationError> {
        let (batch, length, multiprocessors) = (o.qkv.shape[1], u64::from(grad.seq_len), self.hardware.multiprocessors);
        let ordered =
            |grid, resident| AttentionGradArgs { order: OrderArgs::of(grid, resident * multiprocessors), ..grad };
        let (qkv, out_grad) = (self.head_map(o.qkv, o.heads.size)?, self.head_map(o.out_grad, o.heads.size)?);
        let by_tiles = |grad| AttentionGradTilesArgs { qkv, out_grad, grad, unused: [0; 8] };
        let grid = [o.heads.queries, batch, blocks(length, TENSOR_TILE)];
        let arguments = by_tiles(ordered(grid, QUERIES_BLOCKS));
        let (module, kernel) =
            ("attention_grad_warpgroup", for_documents("attention_grad_queries_warpgroup", o.offsets));
        self.launch_with(module, &kernel, grid, 128, QUERIES_ROOM, &arguments)?;
        if self.by_pipeline(o) {
            let works = [o.heads.keys, batch, blocks(length, PIPELINE_TILE)];
            let arguments = by_tiles(ordered(works, 1));
            let grid = [multiprocessors.clamp(1, works.iter().product()), 1, 1];
            let (module, kernel) =
                ("attention_grad_pipeline", for_documents("attention_grad_keys_pipeline", o.offsets));
            return self.launch_with(module, &kernel, grid, 384, PIPELINE_ROOM, &arguments);
        }
        let grid = [o.heads.keys, batch, blocks(length, TENSOR_TILE)];
        let kernel = for_documents("attention_grad_keys_warpgroup", o.offsets);
        self.launch_with(module, &kernel, grid, 128, KEYS_ROOM, &ordered(grid, KEYS_BLOCKS))
    }
}
