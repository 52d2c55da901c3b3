//! What training keeps of a model's parameters: their gradients, and what moves them at the end of a step.

#[cfg(feature = "compressed")]
use super::released::{self, Released};
use super::shared::{self, Shared};
use super::weights::{self, Whole};
use super::{Group, Optimizer, Room};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Ledger, Section};
use crate::model::{Control, Parameter, Parameters};
use crate::train::Ranks;

/// The most ranges of a model's parameters. Few on a chip, which has them on its stack and no tables of whole matrices.
pub(super) const RANGES: usize = if cfg!(feature = "compressed") { 12 } else { 8 };
/// Why a model with more is not updated.
pub(super) const TOO_MANY: &str = "an update moves at most 12 ranges of parameters, on a chip 8; lay those of one type and one group behind \
                                   each other";

/// What training keeps of a model's parameters; `T` is its table of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Learning<T> {
    /// The gradients of those that have one. Others have a place without elements.
    pub gradients: T,
    /// What moves them.
    pub updater: Updater,
}

/// What moves a model's parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Updater {
    pub(super) optimizer: Optimizer,
    pub(super) kept: Kept,
}

/// What an optimizer keeps from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kept {
    /// All of it.
    Whole(Whole),
    /// What one of several ranks keeps.
    Shared(Shared),
    /// All of it but gradients.
    #[cfg(feature = "compressed")]
    Released(Released),
}

/// Lays the weights of `model` in the types that `weight` says and, for one of the ranks in training, what its optimizer
/// needs: masters, gradients and state.
pub fn lay<M: Parameters>(
    model: &M,
    training: Option<(Ranks, Optimizer)>,
    profile: &dyn Profile,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, Option<Learning<M::Table>>) {
    // Each makes the result in its place: a chip has no room for another copy on its stack.
    match &training {
        None => weights::lay_alone(model, weight, ledger),
        Some((ranks, optimizer)) if ranks.shares() => shared::lay(model, (*ranks, optimizer), profile, weight, ledger),
        #[cfg(feature = "compressed")]
        Some((_, optimizer)) if optimizer.releases() => released::lay(model, optimizer, profile, weight, ledger),
        Some((_, optimizer)) => weights::lay(model, optimizer, profile, weight, ledger),
    }
}

impl Updater {
    /// Whether the parameters of `group` do not learn.
    pub fn freezes(&self, group: Group) -> bool {
        !self.optimizer.of(group).rule.learns()
    }

    /// Whether it keeps averages of what it moves.
    pub const fn averages(&self) -> bool {
        self.optimizer.averages()
    }

    /// Whether it moves parameters as their gradients are formed.
    pub const fn releases(&self) -> bool {
        self.optimizer.releases()
    }

    /// Whether the gradients of a micro-batch are added to those before it, which is not the step's first unless `first`.
    pub fn accumulates(&self, first: bool) -> bool {
        !first && !matches!(&self.kept, Kept::Shared(shared) if shared.ranks().each())
    }

    /// Goes on from the gradients of `section`, which a micro-batch has formed, the step's first or a later one: where ranks
    /// share gradients they are added to the step's, and where gradients are released the section is moved. The rest of the
    /// micro-batch reads no parameter of it.
    ///
    /// # Errors
    /// What the device could not do; gradients that are released in a later micro-batch.
    pub fn formed(
        &self,
        device: &mut dyn Device,
        #[cfg_attr(not(feature = "compressed"), allow(unused_variables))] control: &Control,
        section: Section,
        first: bool,
    ) -> Result<(), OperationError> {
        match &self.kept {
            Kept::Shared(shared) if shared.ranks().gradients => shared.exchange(device, section, !first),
            #[cfg(feature = "compressed")]
            Kept::Released(released) => released.formed(device, control, &self.optimizer, (section, first)),
            _ => Ok(()),
        }
    }

    /// Ends a micro-batch, the step's first or a later one: where every one forms its gradient by itself, it is added to the
    /// step's.
    ///
    /// # Errors
    /// What the device could not do.
    pub fn end_micro_batch(
        &self,
        device: &mut dyn Device,
        control: &Control,
        first: bool,
    ) -> Result<(), OperationError> {
        match &self.kept {
            Kept::Shared(shared) if shared.ranks().each() => shared.reduce(device, control, !first),
            _ => Ok(()),
        }
    }

    /// Clips by the global norm, then moves every range, those of whole matrices in `room`, and averages what it moved. A rank
    /// adds up the gradients of all before, unless that is done, and moves its part, which it gives to the others. Where
    /// gradients are released all is moved, and only averaged.
    ///
    /// # Errors
    /// What the device could not do; a model of too many ranges; no room where some is needed.
    pub fn update(
        &self,
        device: &mut dyn Device,
        control: &Control,
        room: Option<&Room>,
    ) -> Result<(), OperationError> {
        match &self.kept {
            Kept::Whole(whole) => whole.update(device, control, &self.optimizer, room),
            Kept::Shared(shared) => shared.update(device, control, &self.optimizer, room),
            #[cfg(feature = "compressed")]
            Kept::Released(released) => released.update(device, control, &self.optimizer),
        }
    }

    /// Exchanges the parameters with their averages, where there are any: twice is nothing. A rank gives what it has of them
    /// to the others.
    ///
    /// # Errors
    /// What the device could not do.
    pub fn exchange(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        match &self.kept {
            Kept::Whole(whole) => whole.exchange(device, &self.optimizer),
            Kept::Shared(shared) => shared.exchange_averages(device, &self.optimizer),
            #[cfg(feature = "compressed")]
            Kept::Released(released) => released.exchange(device, &self.optimizer),
        }
    }
}
