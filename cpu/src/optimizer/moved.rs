//! The common code of all update rules on the CPU: parameters, gradients and states are processed piece by piece,
//! limited by memory bandwidth.

use capful_core::compressed::{BLOCK, Block, Code};
use capful_core::device::OperationError;
use capful_core::memory::{Arena, View};
use capful_core::ops::{ByElement, Lion, Sgd};
use capful_core::optimizer::STATES;
use capful_core::train::{Results, Settings};
use capful_core::views;

use crate::pool::{Parts, Pool};
use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

/// Elements of a task.
const PIECE: usize = 16_384;

impl Cpu {
    /// Updates all parameters by `op`: `piece` receives the parameters of a piece, their gradients, and their states,
    /// empty slices for states that the rule lacks.
    pub(super) fn move_pieces<O: ByElement<Factors: Sync>>(
        &mut self,
        op: &O,
        piece: impl Fn(&O::Factors, &mut [f32], &[f32], [&mut [f32]; STATES]) + Sync,
    ) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let moved = op.moved();
        if moved.remainder.is_some() {
            // No precision of this device has master weights.
            return op.reference(&mut arena);
        }
        let [first, second] = op.states().map(|state| state.map(|(_, region)| region));
        views!(arena;
            mut weight = Some(moved.weight),
            gradient = Some(moved.gradient),
            mut first = first,
            mut second = second,
            settings = Some(moved.settings),
            results = Some(moved.results),
        );
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = moved.factors(settings, results) else { return Ok(()) };
        let (factors, gradient, states) = (op.factors(&factors), gradient.f32()?, [&mut first, &mut second]);
        move_views(&mut self.pool, &mut weight, gradient, states, |_, weight, gradient, states| {
            piece(&factors, weight, gradient, states);
        })
    }
}

/// Updates all of `weight`: `piece(begin, …)` receives the parameters from element `begin` on, their gradients, and
/// their states, as in [`Cpu::move_pieces`].
pub(super) fn move_views(
    pool: &mut Pool,
    weight: &mut View<'_>,
    gradient: &[f32],
    [first, second]: [&mut View<'_>; STATES],
    piece: impl Fn(usize, &mut [f32], &[f32], [&mut [f32]; STATES]) + Sync,
) -> Result<(), OperationError> {
    if let Some(first) = first.coded_mut()? {
        move_blocks(pool, weight.f32_mut()?, gradient, [Some(first), second.coded_mut()?], piece);
        return Ok(());
    }
    let bands = [(weight.f32_mut()?, PIECE), (first.f32_mut()?, PIECE), (second.f32_mut()?, PIECE)];
    pool.bands(bands, |_, number, [weight, first, second]| {
        let begin = number * PIECE;
        let gradient = &gradient[begin..][..weight.len()];
        piece(begin, weight, gradient, [first, second]);
    });
    Ok(())
}

/// Updates parameters whose states are stored in blocks of 8 bits; a block's states are f32 only while `piece` updates
/// them.
fn move_blocks(
    pool: &mut Pool,
    weight: &mut [f32],
    gradient: &[f32],
    states: [Option<(Code, &mut [Block])>; STATES],
    piece: impl Fn(usize, &mut [f32], &[f32], [&mut [f32]; STATES]) + Sync,
) {
    const BLOCKS: usize = PIECE / BLOCK;
    let codes = [0, 1].map(|i| states[i].as_ref().map(|(code, _)| *code));
    let [first, second] = states.map(|state| state.map_or(&mut [][..], |(_, blocks)| blocks));
    let bands = [(first, BLOCKS), (second, BLOCKS)];
    let weight = Parts::new(weight);
    pool.bands(bands, |_, number, mut states| {
        let (begin, count) = (number * PIECE, states[0].len() * BLOCK);
        // SAFETY: a piece belongs to one task.
        let weight = unsafe { weight.range(begin..begin + count) };
        let rows = weight.chunks_exact_mut(BLOCK).zip(gradient[begin..][..count].chunks_exact(BLOCK));
        for (b, (weight, gradient)) in rows.enumerate() {
            let mut numbers = [[0.0; BLOCK]; STATES];
            for (i, numbers) in numbers.iter_mut().enumerate() {
                codes[i].iter().for_each(|code| vectorise!(code.unpack(&states[i][b], numbers)));
            }
            let [first, second] = &mut numbers;
            let second = if codes[1].is_some() { &mut second[..] } else { &mut [] };
            piece(begin + b * BLOCK, weight, gradient, [first, second]);
            for (i, numbers) in numbers.iter().enumerate() {
                codes[i].iter().for_each(|code| vectorise!(code.pack_by(f32::sqrt, numbers, &mut states[i][b])));
            }
        }
    });
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
