//! What every rule of update reads and writes besides its own state, with the global clip and the masters of bf16.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Dtype, Region};
use crate::optimizer::Group;
use crate::remainder;
use crate::train::{Results, Settings};

/// The parameters that an update moves, and what it moves them by. A gradient norm or a loss that is not finite changes
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moved {
    /// `[n]`: the parameters.
    pub weight: Region,
    /// `[n]`: what they lack of their f32 masters, where they are kept in bf16. A master moves, and is split again.
    pub remainder: Option<Region>,
    /// `[n]`.
    pub gradient: Region,
    /// The settings: learning rate, corrections, clip.
    pub settings: Region,
    /// The results: the loss and the squared norm are read.
    pub results: Region,
    /// Whose corrections of the settings are read.
    pub group: Group,
    /// Factor of the learning rate.
    pub rate: f32,
    /// Weight decay, times that of the settings.
    pub decay: f32,
}

/// What the numbers of a step come to for some parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    /// The gradient's factor: min(1, clip / norm).
    pub gradient: f32,
    /// The learning rate times that of the parameters.
    pub rate: f32,
    /// Their corrections.
    pub corrections: [f32; 2],
    /// Factor of their weight decay.
    pub decay: f32,
}

/// An update of which each element is one of a parameter, its gradient and one number of state at the most.
pub trait ByElement: Operation {
    /// The parameters.
    fn moved(&self) -> &Moved;

    /// `[n]`: its state, if it keeps any.
    fn state(&self) -> Option<Region>;

    /// The new parameter and the new state of one element.
    fn element(&self, factors: &Factors, weight: f32, gradient: f32, state: f32) -> (f32, f32);

    /// Moves every element, as [`Operation::reference`] does.
    ///
    /// # Errors
    /// An operand that cannot be carved.
    fn each(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let moved = self.moved();
        let [mut weight, mut remainder, gradient, mut state, settings, results] = arena.views([
            Some(moved.weight),
            moved.remainder,
            Some(moved.gradient),
            self.state(),
            Some(moved.settings),
            Some(moved.results),
        ])?;
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = moved.factors(settings, results) else { return Ok(()) };
        let state = state.f32_mut()?;
        let mut element = |i: usize, w: f32, g: f32| {
            // Empty where nothing is kept.
            let mut nothing = 0.0;
            let state = state.get_mut(i).unwrap_or(&mut nothing);
            let moved;
            (moved, *state) = self.element(&factors, w, g, *state);
            moved
        };
        let gradient = gradient.f32()?.iter().enumerate();
        if moved.remainder.is_some() {
            let masters = weight.bf16_mut()?.iter_mut().zip(remainder.remainders_mut()?);
            for ((w, r), (i, g)) in masters.zip(gradient) {
                (*w, *r) = remainder::split(element(i, remainder::join(*w, *r), *g));
            }
        } else {
            weight.f32_mut()?.iter_mut().zip(gradient).for_each(|(w, (i, g))| *w = element(i, *w, *g));
        }
        Ok(())
    }
}

impl Factors {
    /// Those of an update of parameters of `group`, at `rate` times the learning rate, or `None` where the norm or the loss is not
    /// finite and the update is skipped.
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

    /// Shows the operands of an update, which keeps `states`.
    pub fn operands(&self, states: &[(&'static str, Region)], visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("weight", self.weight));
        self.remainder.into_iter().for_each(|r| visit(Operand::update("remainder", r).remainders()));
        visit(Operand::read("gradient", self.gradient));
        states.iter().for_each(|(name, state)| visit(Operand::update(name, *state).exact()));
        visit(Operand::read("settings", self.settings).exact());
        visit(Operand::read("results", self.results).exact());
    }

    /// Whether the shapes of `op`, which moves this and keeps `states`, belong together.
    ///
    /// # Errors
    /// [`OperationError::Shape`].
    pub fn validate(&self, op: &impl Operation, states: &[(&'static str, Region)]) -> Result<(), OperationError> {
        let n = self.weight.elements();
        let bf16 = self.weight.dtype == Dtype::Bf16;
        op.expect(self.remainder.is_none_or(|r| r.elements() == n && bf16), "remainder")?;
        op.expect(self.gradient.elements() == n, "gradient")?;
        states.iter().try_for_each(|(name, state)| op.expect(state.elements() == n, name))?;
        op.expect(self.settings.elements() == Settings::LEN, "settings")?;
        op.expect(self.results.elements() == Results::LEN, "results")
    }
}
