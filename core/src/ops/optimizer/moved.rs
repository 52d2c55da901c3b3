//! The operands that every update rule has in addition to its own state, with the global clip and the masters of bf16.

use super::masters::{Dither, Masters};
use crate::compressed::BLOCK;
#[cfg(feature = "compressed")]
use crate::compressed::{Block, Code};
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Dtype, Region, View};
use crate::optimizer::{Group, STATES};
use crate::train::{Results, Settings};
use crate::views;

/// The parameters of an update, and the operands common to all rules. A gradient norm or a loss that is not finite
/// changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moved {
    /// `[n]`: the parameters.
    pub weight: Region,
    /// `[n]`: the remainders of bf16 weights, if there are masters. The update applies to the master, which is then
    /// split again. Without masters bf16 weights are rounded stochastically: on average they change as masters do.
    pub remainder: Option<Region>,
    /// `[n]`.
    pub gradient: Region,
    /// The settings: learning rate, corrections, clip.
    pub settings: Region,
    /// The results; reads the loss and the squared norm.
    pub results: Region,
    /// The group whose corrections in the settings are read.
    pub group: Group,
    /// Factor of the learning rate.
    pub rate: f32,
    /// Weight decay, multiplied by that of the settings.
    pub decay: f32,
}

/// The factors of a step for some parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    /// The gradient's factor: min(1, clip / norm).
    pub gradient: f32,
    /// The learning rate times the parameters' own factor.
    pub rate: f32,
    /// The parameters' corrections.
    pub corrections: [f32; 2],
    /// The factor of the parameters' weight decay.
    pub decay: f32,
}

/// An update that computes each element from a parameter, its gradient and its numbers of state.
pub trait ByElement: Operation {
    /// The factors of the update, computed once for all elements.
    type Factors;

    /// The parameters.
    fn moved(&self) -> &Moved;

    /// `[n]` each: its state, with the operands' names; `None` where it has less state.
    fn states(&self) -> [Option<(&'static str, Region)>; STATES];

    /// The factors of this update.
    fn factors(&self, of: &Factors) -> Self::Factors;

    /// The new parameter and the new state of one element.
    fn element(&self, f: &Self::Factors, weight: f32, gradient: f32, state: [f32; STATES]) -> (f32, [f32; STATES]);

    /// Calls `visit` with the operands.
    fn shown(&self, visit: &mut dyn FnMut(Operand)) {
        let moved = self.moved();
        visit(Operand::update("weight", moved.weight));
        moved.remainder.into_iter().for_each(|r| visit(Operand::update("remainder", r).remainders()));
        visit(Operand::read("gradient", moved.gradient));
        self.states().into_iter().flatten().for_each(|(name, state)| visit(Operand::update(name, state).state()));
        visit(Operand::read("settings", moved.settings).exact());
        visit(Operand::read("results", moved.results).exact());
    }

    /// Whether the shapes of its operands match.
    ///
    /// # Errors
    /// [`OperationError::Shape`].
    fn fits(&self) -> Result<(), OperationError> {
        let moved = self.moved();
        let n = moved.weight.elements();
        let bf16 = moved.weight.dtype == Dtype::Bf16;
        self.expect(moved.remainder.is_none_or(|r| r.elements() == n && bf16), "remainder")?;
        self.expect(moved.gradient.elements() == n, "gradient")?;
        let mut states = self.states().into_iter().flatten();
        // Either all states are in blocks, which must be whole, or none is.
        let coded = self.states().into_iter().flatten().any(|(_, state)| state.dtype.is_coded());
        states.try_for_each(|(name, state)| {
            let alike = state.dtype.is_coded() == coded;
            self.expect(state.elements() == n && alike && (!coded || n.is_multiple_of(BLOCK as u64)), name)
        })?;
        self.expect(moved.settings.elements() == Settings::LEN, "settings")?;
        self.expect(moved.results.elements() == Results::LEN, "results")
    }

    /// Updates every element, as [`Operation::reference`] does.
    ///
    /// # Errors
    /// An operand that cannot be carved.
    fn each(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let (moved, [first, second]) = (self.moved(), self.states());
        views!(arena;
            mut weight = Some(moved.weight),
            mut remainder = moved.remainder,
            gradient = Some(moved.gradient),
            mut first = first.map(|(_, region)| region),
            mut second = second.map(|(_, region)| region),
            settings = Some(moved.settings),
            results = Some(moved.results),
        );
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = moved.factors(settings, results) else { return Ok(()) };
        let (factors, gradient) = (self.factors(&factors), gradient.f32()?);
        let masters = Masters::of(&mut weight, &mut remainder, Dither::of(results, moved.group))?;
        each_element(masters, gradient, [&mut first, &mut second], self.misfit("weight"), |_, w, g, state| {
            self.element(&factors, w, g, state)
        })
    }
}

/// Replaces every parameter and its state with the result of `element(i, w, g, state)`. A state that the rule does not
/// have is a view without a region.
///
/// # Errors
/// The error for states of other types; `short` where there are fewer parameters than gradients.
#[inline(always)]
pub(super) fn each_element(
    mut masters: Masters<'_>,
    gradient: &[f32],
    [first, second]: [&mut View<'_>; STATES],
    #[cfg_attr(not(feature = "compressed"), allow(unused_variables))] short: OperationError,
    element: impl Fn(usize, f32, f32, [f32; STATES]) -> (f32, [f32; STATES]),
) -> Result<(), OperationError> {
    #[cfg(feature = "compressed")]
    if let Some(coded) = first.coded_mut()? {
        return each_block(masters, gradient, [Some(coded), second.coded_mut()?], short, element);
    }
    let (first, second) = (first.f32_mut()?, second.f32_mut()?);
    masters.each(|i, w| {
        // A missing state is an empty slice, and a gradient is as long as its weights.
        let state = [&*first, &*second].map(|state| state.get(i).copied().unwrap_or(0.0));
        let (new, state) = element(i, w, gradient.get(i).copied().unwrap_or(0.0), state);
        for (kept, new) in [&mut *first, &mut *second].into_iter().zip(state) {
            if let Some(kept) = kept.get_mut(i) {
                *kept = new;
            }
        }
        new
    });
    Ok(())
}

/// [`each_element`] for states in blocks of 8 bits.
#[cfg(feature = "compressed")]
#[inline(never)]
fn each_block(
    mut masters: Masters<'_>,
    gradient: &[f32],
    mut states: [Option<(Code, &mut [Block])>; STATES],
    short: OperationError,
    element: impl Fn(usize, f32, f32, [f32; STATES]) -> (f32, [f32; STATES]),
) -> Result<(), OperationError> {
    for (b, gradient) in gradient.chunks_exact(BLOCK).enumerate() {
        let mut masters = masters.part(b * BLOCK..(b + 1) * BLOCK).ok_or(short)?;
        let mut numbers = [[0.0; BLOCK]; STATES];
        for (numbers, (code, blocks)) in numbers.iter_mut().zip(states.iter().flatten()) {
            code.unpack(&blocks[b], numbers);
        }
        let [first, second] = &mut numbers;
        masters.each(|i, w| {
            let (new, [m, v]) = element(b * BLOCK + i, w, gradient[i], [first[i], second[i]]);
            (first[i], second[i]) = (m, v);
            new
        });
        for (numbers, (code, blocks)) in numbers.iter().zip(states.iter_mut().flatten()) {
            code.pack(numbers, &mut blocks[b]);
        }
    }
    Ok(())
}

impl Factors {
    /// The factors of an update of parameters of `group`, at `rate` times the learning rate, or `None` where the norm
    /// or the loss is not finite and the update is skipped.
    pub fn of(settings: &Settings, results: &Results, group: Group, rate: f32) -> Option<Factors> {
        if !results.are_finite() {
            return None;
        }
        let gradient = settings.clip / (libm::sqrtf(results.squared_norm) + 1e-6);
        Some(Factors {
            gradient: if gradient < 1.0 { gradient } else { 1.0 },
            rate: settings.learning_rate * rate,
            corrections: settings.corrections[group.index()],
            decay: settings.decay,
        })
    }
}

impl Moved {
    /// The factors of this update, or `None` where the norm or the loss is not finite and the update is skipped.
    pub fn factors(&self, settings: &Settings, results: &Results) -> Option<Factors> {
        Factors::of(settings, results, self.group, self.rate)
    }
}
