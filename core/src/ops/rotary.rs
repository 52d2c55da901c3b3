//! Rotary position embedding (Su et al. 2021), half-split pairs (j, j + dims / 2), on the first dims of each head.

use super::Heads;
use crate::memory::Region;

/// A rotation of queries and keys, fused into the operation that writes or reads their rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// [positions, dims / 2, 2]: cosine and sine, f32.
    pub table: Region,
    /// The heads of a row.
    pub heads: Heads,
    /// Row r is at position r mod `positions`.
    pub positions: u32,
}

impl Rotary {
    /// Rotated dims of a head.
    pub const fn dims(&self) -> u32 {
        self.table.shape[2] * 2
    }

    /// Whether the table has every position and the heads are wide enough.
    pub const fn fits(&self) -> bool {
        self.table.shape[3] == 2
            && self.positions > 0
            && self.positions <= self.table.shape[1]
            && self.dims() <= self.heads.size
    }

    /// Rotates the queries and keys of `row` by `table`'s angles at `position`; backwards where `inverse`.
    pub fn rotate(heads: &Heads, table: &[f32], dims: usize, position: usize, row: &mut [f32], inverse: bool) {
        let (angles, _) = table[position * dims..(position + 1) * dims].as_chunks::<2>();
        let turn = |head: &mut [f32]| {
            let (low, high) = head.split_at_mut(dims / 2);
            for ((a, b), &[cos, sin]) in low.iter_mut().zip(high).zip(angles) {
                let sin = if inverse { -sin } else { sin };
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        };
        for h in 0..heads.queries {
            turn(&mut row[heads.query(h)..][..dims]);
        }
        for h in 0..heads.keys {
            turn(&mut row[heads.key(h)..][..dims]);
        }
    }

    /// Entry (cosine, sine) of pair `pair` of `dims / 2` at `position`, in f64 and rounded once.
    pub fn angle(base: f32, dims: u32, position: u32, pair: u32) -> [f32; 2] {
        let exponent = -2.0 * f64::from(pair) / f64::from(dims);
        let angle = f64::from(position) * libm::pow(f64::from(base), exponent);
        [libm::cos(angle) as f32, libm::sin(angle) as f32]
    }
}
