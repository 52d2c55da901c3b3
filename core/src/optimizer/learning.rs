//! The training state of a model's parameters: their gradients, and the update at the end of a step.

#[cfg(feature = "compressed")]
use super::released::{self, Released};
use super::shared::{self, Shared};
use super::weights::{self, Whole};
use super::{Group, Optimizer, Room};
use crate::device::{Device, OperationError, Profile};
use crate::memory::{Dtype, Ledger, Section};
use crate::model::{Control, Parameter, Parameters};
use crate::train::Ranks;

/// The largest number of ranges of a model's parameters. Smaller on a chip, which has the ranges on its stack and no
/// tables of whole matrices.
pub(super) const RANGES: usize = if cfg!(feature = "compressed") { 12 } else { 8 };
/// The reason why a model with more ranges is not updated.
pub(super) const TOO_MANY: &str = "an update moves at most 12 ranges of parameters, on a chip 8; lay those of one type and one group behind \
                                   each other";

/// The training state of a model's parameters; `T` is the model's table of regions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Learning<T> {
    /// The gradients. A parameter without a gradient has a region without elements.
    pub gradients: T,
    /// The update of the parameters.
    pub updater: Updater,
}

/// The update of a model's parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Updater {
    pub(super) optimizer: Optimizer,
    pub(super) kept: Kept,
}

/// The persistent state of an optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kept {
    /// All of the state, in one process.
    Whole(Whole),
    /// The share of one of several ranks.
    Shared(Shared),
    /// All of the state except gradients, which are released layer by layer.
    #[cfg(feature = "compressed")]
    Released(Released),
}

/// Lays the weights of `model` in the types that `weight` gives. In training also lays what the optimizer needs on this
/// rank: masters, gradients and state.
pub fn lay<M: Parameters>(
    model: &M,
    training: Option<(Ranks, Optimizer)>,
    profile: &dyn Profile,
    weight: &dyn Fn(&Parameter) -> Dtype,
    ledger: &mut dyn Ledger,
) -> (M::Table, Option<Learning<M::Table>>) {
    // Each of these functions writes its result in place: a chip's stack has no room for another copy.
    match &training {
        None => weights::lay_alone(model, weight, ledger),
        Some((ranks, optimizer)) if ranks.shares() => shared::lay(model, (*ranks, optimizer), profile, weight, ledger),
        #[cfg(feature = "compressed")]
        Some((_, optimizer)) if optimizer.releases() => released::lay(model, optimizer, profile, weight, ledger),
        Some((_, optimizer)) => weights::lay(model, optimizer, profile, weight, ledger),
    }
}

impl Updater {
    /// Whether the parameters of `group` are frozen.
    pub fn freezes(&self, group: Group) -> bool {
        !self.optimizer.of(group).rule.learns()
    }

    /// Whether it maintains averages of the parameters that it updates.
    pub const fn averages(&self) -> bool {
        self.optimizer.averages()
    }

    /// Whether it updates parameters as soon as their gradients are formed.
    pub const fn releases(&self) -> bool {
        self.optimizer.releases()
    }

    /// Whether a micro-batch adds its gradients to those of the micro-batches before it. The first of a step does not.
    pub fn accumulates(&self, first: bool) -> bool {
        !first && !matches!(&self.kept, Kept::Shared(shared) if shared.ranks().each())
    }

    /// Processes the gradients of `section`, which a micro-batch has formed: where ranks share gradients, adds them to
    /// the step's sum; where gradients are released, updates the section. `first` marks the step's first micro-batch.
    /// The rest of the micro-batch reads no parameter of the section.
    ///
    /// # Errors
    /// An error of the device; a later micro-batch where gradients are released.
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

    /// Ends a micro-batch: where each micro-batch forms its gradients separately, adds them to the step's sum. `first`
    /// marks the step's first micro-batch.
    ///
    /// # Errors
    /// An error of the device.
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

    /// Clips by the global norm, updates every range (whole matrices in the scratch `room`), and averages the updated
    /// parameters. A rank first sums the gradients of all ranks, unless that is done, then updates its share and sends
    /// it to the other ranks. Where gradients are released, everything is already updated, and is only averaged.
    ///
    /// # Errors
    /// An error of the device; a model of too many ranges; `room` missing where it is needed.
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

    /// Swaps the parameters with their averages, if there are any; a second call swaps them back. A rank swaps its
    /// share and sends it to the other ranks.
    ///
    /// # Errors
    /// An error of the device.
    pub fn exchange(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        match &self.kept {
            Kept::Whole(whole) => whole.exchange(device, &self.optimizer),
            Kept::Shared(shared) => shared.exchange_averages(device, &self.optimizer),
            #[cfg(feature = "compressed")]
            Kept::Released(released) => released.exchange(device, &self.optimizer),
        }
    }
}
