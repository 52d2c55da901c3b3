//! Stochastic gradient descent with momentum.

use capful_core::device::OperationError;
use capful_core::ops::Sgd;

use crate::device::cpu::simd::vectorise;
use crate::device::cpu::{Cpu, OnCpu};

impl OnCpu for Sgd {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        cpu.move_pieces(&self, &self.moved, [self.buffer, None], |f, weight, gradient, [buffer, _]| {
            vectorise!({
                if buffer.is_empty() {
                    for (w, g) in weight.iter_mut().zip(gradient) {
                        (*w, _) = self.element(f, *w, *g, 0.0);
                    }
                } else {
                    for ((w, b), g) in weight.iter_mut().zip(&mut *buffer).zip(gradient) {
                        (*w, *b) = self.element(f, *w, *g, *b);
                    }
                }
            },);
        })
    }
}
