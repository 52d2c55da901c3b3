//! Matrix multiplication in bf16 by warpgroups, with a bias and a GELU or a rotation in its epilogue, or the
//! exponentials of a softmax.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::{Heads, Rotary};

use super::columns::Pieces;
use super::product::{Case, Product};
use crate::arguments::{SumsArgs, WarpgroupProductArgs};
use crate::device::Cuda;

const NAME: &str = "warpgroup_product";

/// Constants of warpgroup_product.cu: columns of a tile of C, the same with a rotation, rows of a tile of A, the
/// divisor of k, the least k, the most columns that have a bias, and threads.
pub(crate) const COLUMNS: u32 = 256;
const TURNED_COLUMNS: u32 = 192;
const ROWS: u32 = 128;
const DEEP: u32 = 64;
const LEAST_K: u32 = 512;
const MOST_BIAS: u32 = 4096;
const THREADS: u32 = 384;

/// The divisor of n with exponentials, where the last tile may be narrow.
const POWERS_APART: u32 = 8;

/// The size of the heads that are rotated, and the number of their rotated dims.
const HEAD: u32 = 64;
const DIMS: u32 = 16;

/// Rows of a piece of column sums; a piece of row sums has the columns of a tile.
const PIECE: u32 = 64;

/// Columns of a tile, and the shared memory of a block for it: stages, the tile, the bias, two barriers for each stage.
fn tile(p: &Product) -> (u32, u32) {
    let (columns, stages) = if p.turned.is_some() { (TURNED_COLUMNS, 4) } else { (COLUMNS, 3) };
    let stage = 2 * DEEP * (ROWS + columns);
    (columns, stages * (stage + 16) + 2 * ROWS * columns + 4 * MOST_BIAS)
}

/// Bytes of scratch for the pieces of the sums that are computed with a multiplication.
fn partial_bytes(p: &Product) -> u64 {
    let [m, n, _] = p.sizes().map(u64::from);
    match (p.summed, p.powers) {
        (Some(_), _) => 4 * (m / u64::from(PIECE)) * n,
        (None, Some(_)) => 4 * m * n.div_ceil(COLUMNS.into()),
        (None, None) => 0,
    }
}

/// The number of heads after which the roles of heads repeat, and how many of these, the first, are queries or keys.
fn roles(heads: &Heads) -> [u32; 2] {
    let interleaved = heads.query(1) != heads.size as usize;
    if interleaved { [3, 2] } else { [heads.normed() + heads.keys, heads.normed()] }
}

impl Cuda {
    /// Whether this GPU's warpgroup kernel supports a multiplication with everything that belongs to it.
    pub(crate) fn multiplies(&mut self, p: &Product) -> Result<bool, OperationError> {
        let [m, n, k] = p.sizes();
        let apart = if p.powers.is_some() { POWERS_APART } else { tile(p).0 };
        let sizes = m.is_multiple_of(64) && n.is_multiple_of(apart) && k.is_multiple_of(DEEP) && k >= LEAST_K;
        let operands = [Some(p.a), Some(p.b), Some(p.c), p.bias, p.before_gelu, p.activated];
        let room = partial_bytes(p) <= self.scratch().bytes();
        if let Some(rotary) = p.turned {
            let alone = p.case == Case::Nt && p.activated.is_none() && p.powers.is_none();
            let heads = [rotary.heads.size, rotary.heads.width(), rotary.dims()] == [HEAD, n, DIMS];
            if !(alone && heads && self.address(rotary.table)? % 16 == 0) {
                return Ok(false);
            }
        }
        let folded = match p.case {
            Case::Nt => p.before_gelu.is_none() && p.summed.is_none() && (n <= MOST_BIAS || p.powers.is_some()),
            // A multiplication without any additions has room for a bias in every case.
            Case::Nn if p.before_gelu.is_none() && n > MOST_BIAS => false,
            Case::Nn => p.bias.is_none() && p.activated.is_none() && p.before_gelu.is_some() == p.summed.is_some(),
            Case::Tn => false,
        };
        if !(self.hardware.warpgroups && self.hardware.tensor_maps && sizes && folded && room)
            || p.residual.is_some()
            || p.accumulate
        {
            return Ok(false);
        }
        for region in operands.into_iter().flatten().chain(p.summed.and_then(|s| s.activated)) {
            if region.dtype != Dtype::Bf16 || self.address(region)? % 16 != 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Queues such a multiplication. With exponentials, the pieces of their row sums are at the beginning of scratch.
    pub(crate) fn product_by_warpgroups(&mut self, p: &Product) -> Result<(), OperationError> {
        let ([m, n, k], (columns, shared)) = (p.sizes(), tile(p));
        let nt = p.case == Case::Nt;
        let left = self.matrix_map(p.a, ROWS)?;
        let right = self.matrix_map(p.b, if nt { columns } else { DEEP })?;
        let again = p.summed.and_then(|s| s.activated);
        let partial = match partial_bytes(p) {
            0 => Pieces { at: 0, wait: false },
            // The head reads the row sums of the exponentials.
            bytes if p.summed.is_none() => Pieces { at: self.scratch_at(0, bytes)?, wait: false },
            bytes => self.pieces_at(0, bytes)?,
        };
        let (table, positions, [parts, turned]) = match p.turned {
            Some(Rotary { table, heads, positions }) => (self.address(table)?, positions, roles(&heads)),
            None => (0, 1, [1, 0]),
        };
        let arguments = WarpgroupProductArgs {
            left,
            right,
            out: self.address(p.c)?,
            bias: self.address_or_null(p.bias)?,
            before_gelu: self.address_or_null(p.before_gelu)?,
            activated: self.address_or_null(p.activated.or(again))?,
            partial: partial.at,
            at_targets: self.address_or_null(p.powers.map(|powers| powers.at_targets))?,
            table,
            m,
            n,
            k,
            ids: p.powers.map_or(n, |powers| powers.ids),
            positions,
            parts,
            turned,
            softcap: p.powers.map_or(0.0, |powers| powers.softcap),
            unused: [0; 10],
        };
        let kernel = match (nt, p.activated, p.summed, again) {
            _ if p.powers.is_some_and(|powers| powers.softcap > 0.0) => "warpgroup_product_nt_capped",
            _ if p.powers.is_some() => "warpgroup_product_nt_powers",
            (true, None, ..) if p.turned.is_some() => "warpgroup_product_nt_turned",
            (true, None, ..) => "warpgroup_product_nt",
            (true, Some(_), ..) => "warpgroup_product_nt_gelu",
            (false, _, None, _) => "warpgroup_product_nn",
            (false, _, Some(_), None) => "warpgroup_product_nn_gelu_grad",
            (false, _, Some(_), Some(_)) => "warpgroup_product_nn_gelu_grad_again",
        };
        let grid = [self.hardware.multiprocessors, 1, 1];
        self.launch_with(NAME, kernel, grid, THREADS, shared, &arguments)?;
        let Some(summed) = p.summed else { return Ok(()) };
        let sums = SumsArgs::of(partial.at, [m / PIECE, n], self.places(summed)?);
        self.finish_columns(sums, partial.wait)
    }
}
