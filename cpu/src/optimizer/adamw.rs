//! AdamW.

use capful_core::device::OperationError;
use capful_core::ops::AdamW;

use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

impl OnCpu for AdamW {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        cpu.move_pieces(&self, |f, weight, gradient, [first, second]| {
            let n = weight.len();
            let (gradient, first, second) = (&gradient[..n], &mut first[..n], &mut second[..n]);
            vectorise!({
                for i in 0..n {
                    // The steps of `AdamW::element`, with a square root that becomes a vector instruction. Both square
                    // roots are correctly rounded, so the bits are the same.
                    let g = gradient[i] * f.gradient;
                    let m = self.beta1 * first[i] + (1.0 - self.beta1) * g;
                    let v = self.beta2 * second[i] + (1.0 - self.beta2) * (g * g);
                    weight[i] = weight[i] * f.keep - f.step * m / (v.sqrt() * f.root + self.eps);
                    (first[i], second[i]) = (m, v);
                }
            },);
        })
    }
}
