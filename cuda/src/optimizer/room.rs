//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use capful_core::ops::{
    AdamW, AdamWFactored, Average, BlendMomentum, EmbedUpdate, Exchange, FactoredUpdate, Lion, MatrixMomentum,
    MatrixMove, Orthogonalise, PieceNorms, RowFactors, Sgd, SquaredNorm, SumNorms,
};

use crate::profile::{CudaProfile, Precision, WORKSPACE, piece_bytes};
use crate::room::embedding::SortRoom;
use crate::room::{CudaScratch, without_scratch};

without_scratch!(
    AdamW,
    Average,
    BlendMomentum,
    Exchange,
    Lion,
    MatrixMomentum,
    MatrixMove,
    PieceNorms,
    RowFactors,
    Sgd,
    SumNorms
);

/// Constant of orthogonalise.cuh: pieces of a matrix whose squares are summed separately.
pub const NORM_PIECES: u32 = 64;

impl CudaScratch for Orthogonalise {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        4 * u64::from(NORM_PIECES) * u64::from(self.x.shape[1])
    }
}

impl CudaScratch for FactoredUpdate {
    fn scratch(&self, profile: &CudaProfile) -> u64 {
        FactoredRoom::of(self, profile.precision != Precision::F32).bytes()
    }
}

impl CudaScratch for EmbedUpdate {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        SortRoom::of(self.x_grad.rows()).bytes()
    }
}

impl CudaScratch for SquaredNorm {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        4 * self.gradient.elements().div_ceil(SquaredNorm::PIECE as u64)
    }
}

impl CudaScratch for AdamWFactored {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        SidesRoom::of(self.shape).bytes()
    }
}

/// The scratch of AdamW with a factored moment: sums of squares, then one number.
#[derive(Clone, Copy)]
pub struct SidesRoom {
    /// Rows of a band; the columns' sums exist for each band.
    pub band: u32,
    /// Number of pieces of a row; their sums follow those of all bands.
    pub pieces: u32,
    shape: [u32; 2],
}

impl SidesRoom {
    /// Columns of a piece, in adamw_factored.cu.
    const PIECE: u32 = 512;
    /// The most bands, and the fewest rows of a band: enough blocks to fill a large GPU, and little memory compared
    /// with a matrix.
    const BANDS: u32 = 256;
    const ROWS: u32 = 16;

    /// The scratch for a matrix with these rows and columns.
    pub fn of(shape: [u32; 2]) -> SidesRoom {
        let [rows, columns] = shape;
        let band = rows.div_ceil(Self::BANDS).max(Self::ROWS);
        SidesRoom { band, pieces: columns.div_ceil(Self::PIECE), shape }
    }

    /// Number of bands.
    pub const fn bands(&self) -> u32 {
        self.shape[0].div_ceil(self.band)
    }

    /// Offsets in bytes of the rows' sums, and of the single number after them.
    pub const fn behind(&self) -> [u64; 2] {
        let [rows, columns] = self.shape;
        let of_rows = 4 * self.bands() as u64 * columns as u64;
        [of_rows, of_rows + 4 * self.pieces as u64 * rows as u64]
    }

    /// Bytes in all.
    pub const fn bytes(&self) -> u64 {
        self.behind()[1] + 4
    }
}

/// The scratch of a factored update, in this order after the scratch of its matrix multiplications; then one number.
pub struct FactoredRoom {
    /// Bytes of the tile's columns of the logits' gradient.
    pub slab: u64,
    /// Bytes of the inputs in bf16.
    pub x: u64,
    /// Bytes of the biases' gradient.
    pub bias_grad: u64,
    /// Bytes of the pieces of sums.
    pub partial: u64,
}

impl FactoredRoom {
    /// The scratch of this update; `half` is whether its matrix multiplication may read bf16.
    pub fn of(o: &FactoredUpdate, half: bool) -> FactoredRoom {
        let (rows, vocabulary) = (o.x.rows(), o.weight.rows());
        let tile = o.tile.rows().min(vocabulary);
        let halves = |columns: u32| if half { 2 * u64::from(rows) * u64::from(columns) } else { 0 };
        let copied = if tile < vocabulary { 4 * u64::from(rows) * u64::from(tile) } else { halves(tile) };
        FactoredRoom {
            slab: copied.next_multiple_of(256),
            x: halves(o.x.columns()).next_multiple_of(256),
            bias_grad: (4 * u64::from(vocabulary)).next_multiple_of(256),
            partial: piece_bytes(rows, 1, vocabulary),
        }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        WORKSPACE + self.slab + self.x + self.bias_grad + self.partial + 4
    }
}
