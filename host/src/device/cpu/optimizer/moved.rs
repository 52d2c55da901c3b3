//! What every rule of update does on the CPU: pieces of parameters, gradients and state, one after the other through the
//! caches. Bound by memory.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{ByElement, Lion, Sgd};
use capful_core::optimizer::STATES;
use capful_core::train::{Results, Settings};

use crate::device::cpu::simd::vectorise;
use crate::device::cpu::{Cpu, OnCpu};

/// Elements of a task.
const PIECE: usize = 16_384;

impl Cpu {
    /// Moves all parameters by `op`: `piece` is given those of a piece, their gradients, and their state, empty where there is
    /// less of it.
    pub(super) fn move_pieces<O: ByElement<Factors: Sync>>(
        &mut self,
        op: &O,
        piece: impl Fn(&O::Factors, &mut [f32], &[f32], [&mut [f32]; STATES]) + Sync,
    ) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let moved = op.moved();
        if moved.remainder.is_some() {
            // No precision of this device keeps masters.
            return op.reference(&mut arena);
        }
        let [first, second] = op.states().map(|state| state.map(|(_, region)| region));
        let [mut weight, gradient, mut first, mut second, settings, results] = arena.views([
            Some(moved.weight),
            Some(moved.gradient),
            first,
            second,
            Some(moved.settings),
            Some(moved.results),
        ])?;
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = moved.factors(settings, results) else { return Ok(()) };
        let (factors, gradient) = (op.factors(&factors), gradient.f32()?);
        let bands = [(weight.f32_mut()?, PIECE), (first.f32_mut()?, PIECE), (second.f32_mut()?, PIECE)];
        self.pool.bands(bands, |_, number, [weight, first, second]| {
            let gradient = &gradient[number * PIECE..][..weight.len()];
            piece(&factors, weight, gradient, [first, second]);
        });
        Ok(())
    }
}

/// Updates by element.
macro_rules! by_element {
    ($($name:ident),*) => {
        $(impl OnCpu for $name {
            #[inline(never)]
            fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
                cpu.move_pieces(&self, |f, weight, gradient, [state, _]| {
                    vectorise!({
                        if state.is_empty() {
                            for (w, g) in weight.iter_mut().zip(gradient) {
                                (*w, _) = self.element(f, *w, *g, [0.0; STATES]);
                            }
                        } else {
                            for ((w, s), g) in weight.iter_mut().zip(&mut *state).zip(gradient) {
                                (*w, [*s, _]) = self.element(f, *w, *g, [*s, 0.0]);
                            }
                        }
                    },);
                })
            }
        })*
    };
}

by_element!(Lion, Sgd);
