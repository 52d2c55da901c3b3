//! The Newton–Schulz iteration, in both precisions.

use super::bench::Bench;
use crate::Precision;
use capful_witness::Lay;
use capful_witness::optimizer::{SIDES, orthogonalise};

/// In bf16 the iteration rounds S, its polynomial and X after each product, while singular values grow 3.4 times a round.
#[test]
fn matrices_are_orthogonalised() {
    let mut bench = Bench::new();
    for sides in SIDES {
        let build = |l: &mut Lay| orthogonalise(l, sides);
        bench.agree_in(Precision::F32, 3e-5, &build);
        bench.agree_in(Precision::Bf16, 3e-2, &build);
    }
}
