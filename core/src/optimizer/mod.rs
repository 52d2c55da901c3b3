//! Optimizers: how a parameter learns, the state that learning needs in memory, and the operations of the update.
//!
//! A family lists its parameters, each with its [`Group`] and with when it [`Learns`]. An [`Optimizer`] has a [`Rule`]
//! and settings for each group. A rule is one file in this folder, which defines its state and its operation, and one
//! word in the list of rules below: families, plans, checkpoints and ranks know no individual rule. An optimizer that
//! [averages](Optimizer::averages) ends an update by averaging the updated parameters.

mod adamw;
#[cfg(feature = "compressed")]
mod adamw_factored;
mod factored;
mod in_place;
mod learning;
mod lion;
mod matrices;
mod muon;
#[cfg(feature = "compressed")]
mod released;
mod rule;
mod sgd;
mod shared;
mod weights;

pub use adamw::AdamW;
#[cfg(feature = "compressed")]
pub use adamw_factored::AdamWFactored;
pub use factored::Factored;
pub use in_place::InPlace;
pub use learning::{Learning, Updater, lay};
pub use lion::Lion;
pub use matrices::Room;
pub use muon::Muon;
pub use rule::{Constants, STATES, State, States};
pub use sgd::Sgd;

use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Region};
use crate::model::{Control, Parameter};
use crate::ops::{Average, Exchange, Moved};
use rule::{Update, rules};

rules! {
    AdamW,
    Sgd,
    Lion,
    Muon,
    #[cfg(feature = "compressed")]
    AdamWFactored,
}

/// When a parameter learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learns {
    /// At the end of a step, from a gradient of its own, by the [`Rule`] of its group.
    FromGradient,
    /// During the backward pass, without a gradient of its own: see [`Factored`] and [`InPlace`].
    InBackward,
    /// Through no optimizer: it has neither gradient nor state. A forward pass may still change it.
    Never,
}

/// A group of parameters with common settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Matrices of linear layers.
    Matrix,
    /// The table that ids are looked up in, which also computes the logits where the head is tied to it.
    Embedding,
    /// The table that computes the logits, where it is separate.
    Head,
    /// Biases and gains.
    Vector,
    /// The synapses of spiking neurons.
    Synapse,
}

impl Group {
    /// The number of groups.
    pub const COUNT: usize = 5;
    /// All groups, in the order of their indices.
    pub const ALL: [Group; Self::COUNT] = [Group::Matrix, Group::Embedding, Group::Head, Group::Vector, Group::Synapse];

    /// The group of this name.
    pub fn named(name: &str) -> Option<Group> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    /// Its index in [`Group::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Matrix => "matrix",
            Group::Embedding => "embedding",
            Group::Head => "head",
            Group::Vector => "vector",
            Group::Synapse => "synapse",
        }
    }

    /// Whether weight decay applies to it by default: to matrices and tables.
    pub const fn decays(self) -> bool {
        match self {
            Group::Matrix | Group::Embedding | Group::Head => true,
            Group::Vector | Group::Synapse => false,
        }
    }
}

/// The update settings of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe {
    /// The rule.
    pub rule: Rule,
    /// Factor of the learning rate.
    pub rate: f32,
    /// Weight decay.
    pub decay: f32,
}

/// The same rows in every table that an update reads or writes.
#[derive(Clone, Copy)]
struct Rows {
    weight: Region,
    /// The part of the masters that bf16 weights lack.
    remainder: Option<Region>,
    gradient: Region,
    /// As many as the rule has.
    states: [Region; STATES],
}

impl Rows {
    /// The operands of an update operation, with this factor of the learning rate and this decay.
    #[inline(always)]
    const fn moved(&self, control: &Control, group: Group, [rate, decay]: [f32; 2]) -> Moved {
        let Rows { weight, remainder, gradient, .. } = *self;
        let Control { settings, results, .. } = *control;
        Moved { weight, remainder, gradient, settings, results, group, rate, decay }
    }
}

/// The same rows of parameters and their averages.
#[derive(Clone, Copy)]
struct Averaged {
    weight: Region,
    /// The part of the masters that bf16 weights lack.
    remainder: Option<Region>,
    average: Region,
}

impl Averaged {
    /// Updates the averages.
    #[inline(never)]
    fn average(self, device: &mut dyn Device, control: &Control) -> Result<(), OperationError> {
        let Averaged { weight, remainder, average } = self;
        let Control { settings, results, .. } = *control;
        device.emit(Average { weight, remainder, average, settings, results })
    }

    /// Swaps the parameters with their averages.
    #[inline(never)]
    fn exchange(self, device: &mut dyn Device) -> Result<(), OperationError> {
        let Averaged { weight, remainder, average } = self;
        device.emit(Exchange { weight, remainder, average })
    }
}

/// A recipe for every group, the storage of states, whether the updated parameters are averaged, and whether gradients
/// are released.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimizer {
    recipes: [Recipe; Group::COUNT],
    averages: bool,
    states: States,
    remainder: Option<Dtype>,
    releases: bool,
}

impl Optimizer {
    /// Whether the parameter is updated as whole matrices.
    pub fn moves_whole(&self, p: &Parameter) -> bool {
        self.learns(p) && self.of(p.group).rule.is_whole()
    }

    /// One rule for all groups, with `decay` for the groups that decay by default.
    pub const fn new(rule: Rule, decay: f32) -> Optimizer {
        let mut recipes = [Recipe { rule, rate: 1.0, decay: 0.0 }; Group::COUNT];
        let mut i = 0;
        while i < Group::COUNT {
            if Group::ALL[i].decays() {
                recipes[i].decay = decay;
            }
            i += 1;
        }
        Optimizer { recipes, averages: false, states: States::F32, remainder: Some(Dtype::Remainder), releases: false }
    }

    /// AdamW for all groups.
    pub const fn adamw([beta1, beta2]: [f32; 2], eps: f32, decay: f32) -> Optimizer {
        Self::new(Rule::AdamW(AdamW { beta1, beta2, eps }), decay)
    }

    /// This optimizer with another recipe for `group`.
    #[must_use]
    pub const fn with(mut self, group: Group, recipe: Recipe) -> Optimizer {
        self.recipes[group.index()] = recipe;
        self
    }

    /// This optimizer, with an average of every learning parameter if `averages`.
    #[must_use]
    pub const fn averaging(self, averages: bool) -> Optimizer {
        Optimizer { averages, ..self }
    }

    /// This optimizer, which stores its states as `states`, and of each bf16 weight's missing part the type
    /// `remainder`: [`Dtype::Remainder`] or [`Dtype::Remainder8`]. Without a remainder bf16 weights are rounded
    /// stochastically, in one process only.
    #[must_use]
    pub const fn keeping(self, states: States, remainder: Option<Dtype>) -> Optimizer {
        Optimizer { states, remainder, ..self }
    }

    /// How states are stored.
    pub const fn states(&self) -> States {
        self.states
    }

    /// The type of state table `i` of the rule of `group`; f32 where the rule has fewer tables.
    fn state_dtype(&self, group: Group, i: usize) -> Dtype {
        self.of(group).rule.states().get(i).map_or(Dtype::F32, |state| state.dtype(self.states))
    }

    /// The type of a row of state table `i` over all groups: blocks of 8 bits where any rule uses them.
    fn table_dtype(&self, i: usize) -> Dtype {
        let mut dtypes = Group::ALL.into_iter().map(|group| self.state_dtype(group, i));
        dtypes.find(|dtype| *dtype != Dtype::F32).unwrap_or(Dtype::F32)
    }

    /// Whether it maintains averages.
    pub const fn averages(&self) -> bool {
        self.averages
    }

    /// This optimizer, which if `releases` updates each layer's parameters as soon as their gradients are formed, so
    /// that all layers' gradients use one region in turn. A step is then one micro-batch, and the clip sees only the
    /// norm of a layer.
    #[must_use]
    pub const fn releasing(self, releases: bool) -> Optimizer {
        Optimizer { releases, ..self }
    }

    /// Whether it releases gradients.
    pub const fn releases(&self) -> bool {
        self.releases
    }

    /// The recipe of `group`.
    pub const fn of(&self, group: Group) -> &Recipe {
        &self.recipes[group.index()]
    }

    /// Whether the parameter has a gradient, with which its rule updates it at the end of a step.
    pub fn learns(&self, p: &Parameter) -> bool {
        p.learns == Learns::FromGradient && self.of(p.group).rule.learns()
    }

    /// Updates rows of parameters of `group`.
    ///
    /// # Errors
    /// An error of the device.
    fn emit(&self, device: &mut dyn Device, control: &Control, group: Group, rows: Rows) -> Result<(), OperationError> {
        let Recipe { rule, rate, decay } = *self.of(group);
        rule.emit(device, rows.moved(control, group, [rate, decay]), rows.states)
    }
}
