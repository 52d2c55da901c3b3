//! AdamW: pieces of all four ranges, one after the other through the caches. Bound by memory.

use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::AdamW;
use capful_core::train::{Results, Settings};

use crate::device::cpu::simd::vectorise;
use crate::device::cpu::{Cpu, OnCpu};

/// Elements of a task.
const PIECE: usize = 16_384;

impl OnCpu for AdamW {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        if self.remainder.is_some() {
            // No precision of this device keeps masters.
            return self.reference(&mut arena);
        }
        let [mut weight, gradient, mut first, mut second, settings, results] = arena.views([
            Some(self.weight),
            Some(self.gradient),
            Some(self.first),
            Some(self.second),
            Some(self.settings),
            Some(self.results),
        ])?;
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(f) = self.factors(settings, results) else { return Ok(()) };
        let gradient = gradient.f32()?;
        let bands = [(weight.f32_mut()?, PIECE), (first.f32_mut()?, PIECE), (second.f32_mut()?, PIECE)];
        cpu.pool.bands(bands, |_, piece, [weight, first, second]| {
            let n = weight.len();
            let (gradient, first, second) = (&gradient[piece * PIECE..][..n], &mut first[..n], &mut second[..n]);
            vectorise!({
                for i in 0..n {
                    // The steps of `AdamW::element`, with a square root that becomes a vector instruction. It is
                    // correctly rounded as that one is, so the bits are the same.
                    let g = gradient[i] * f.gradient;
                    let m = self.beta1 * first[i] + (1.0 - self.beta1) * g;
                    let v = self.beta2 * second[i] + (1.0 - self.beta2) * (g * g);
                    weight[i] = weight[i] * f.keep - f.step * m / (v.sqrt() * f.root + self.eps);
                    (first[i], second[i]) = (m, v);
                }
            },);
        });
        Ok(())
    }
}
