//! The Newton–Schulz iteration: three launches an iteration for all matrices.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::Orthogonalise;

use crate::OnCuda;
use crate::arguments::OrthogonaliseArgs;
use crate::device::Cuda;
use crate::room::optimizer::NORM_PIECES;

/// Constants of orthogonalise.cu and of orthogonalise_tensor.cu: the side of a tile.
const SIDE: u32 = 64;
const TENSOR_SIDE: u32 = 128;
/// Threads of a block of orthogonalise_tensor.cu.
const TENSOR_THREADS: u32 = 128;
/// Shared memory of a block of orthogonalise_tensor.cu.
const SHARED: u32 = 4 * 2 * 2 * 128 * 40;
/// The sides of matrices in orthogonalise_tensor.cu are multiples of this.
const GRAIN: u32 = 8;

impl OnCuda for Orthogonalise {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let [matrices, m, n] = self.sides();
        let dtype = cuda.dtype("orthogonalise", [self.x, self.out, self.gram, self.polynomial])?;
        let [x, out, gram, polynomial] =
            [cuda.address(self.x)?, cuda.address(self.out)?, cuda.address(self.gram)?, cuda.address(self.polynomial)?];
        let aligned = [x, out, gram, polynomial].iter().all(|at| at.is_multiple_of(16));
        let sides = m.is_multiple_of(GRAIN) && n.is_multiple_of(GRAIN);
        let tensor = cuda.hardware.tensor_cores && dtype == Dtype::Bf16 && aligned && sides;
        let partial = cuda.scratch_at(0, 4 * u64::from(NORM_PIECES) * u64::from(matrices))?;
        let base = OrthogonaliseArgs { x, p: 0, out: partial, partial: 0, m, n, add: 0.0, factor: 1.0, eps: Self::EPS };
        let kernel = format!("orthogonalise_norms_{}", dtype.name());
        cuda.launch("orthogonalise", &kernel, [NORM_PIECES, matrices, 1], 256, &base)?;
        let [a, b, c] = Self::COEFFICIENTS;
        let (mut from, mut to) = (x, out);
        for iteration in 0..Self::ITERATIONS {
            let first = if iteration == 0 { partial } else { 0 };
            let side = if tensor { TENSOR_SIDE } else { SIDE };
            let (down, across) = (m.div_ceil(side), n.div_ceil(side));
            let symmetric = down * (down + 1) / 2;
            let launches = [
                ("gram", symmetric, OrthogonaliseArgs { x: from, out: gram, partial: first, ..base }),
                (
                    "polynomial",
                    symmetric,
                    OrthogonaliseArgs { x: gram, out: polynomial, n: m, add: b, factor: c, ..base },
                ),
                (
                    "apply",
                    down * across,
                    OrthogonaliseArgs { x: from, p: polynomial, out: to, partial: first, add: a, ..base },
                ),
            ];
            for (name, tiles, arguments) in launches {
                let grid = [tiles, matrices, 1];
                if tensor {
                    let kernel = format!("orthogonalise_tensor_{name}");
                    cuda.launch_with("orthogonalise_tensor", &kernel, grid, TENSOR_THREADS, SHARED, &arguments)?;
                } else {
                    let kernel = format!("orthogonalise_{name}_{}", dtype.name());
                    cuda.launch("orthogonalise", &kernel, grid, 256, &arguments)?;
                }
            }
            std::mem::swap(&mut from, &mut to);
        }
        Ok(())
    }
}
