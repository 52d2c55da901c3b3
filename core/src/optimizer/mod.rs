//! Optimizers: how a parameter learns, what that keeps in memory, and the operations that move it.
//!
//! A family lists its parameters, each with its [`Group`] and with how it [`Learns`]. An [`Optimizer`] has a [`Rule`] and
//! settings for each group. A rule is a file here, which says what it keeps of a parameter and which operation moves it,
//! and a word in the list of rules below: families, plans, checkpoints and ranks know none. Where it
//! [averages](Optimizer::averages), an update ends with the averages of what it moved.

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
    /// By no optimizer: neither gradient nor state is kept. A forward pass may still change it.
    Never,
}

/// Parameters that have settings of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Matrices of linear layers.
    Matrix,
    /// The table that ids are looked up in, which makes the logits too where the head is tied to it.
    Embedding,
    /// The table that makes the logits, where it is another.
    Head,
    /// Biases and gains.
    Vector,
    /// The synapses of spiking neurons.
    Synapse,
}

impl Group {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// All of them, in the order of their indices.
    pub const ALL: [Group; Self::COUNT] = [Group::Matrix, Group::Embedding, Group::Head, Group::Vector, Group::Synapse];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Group> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }

    /// Its place in [`Group::ALL`].
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

    /// Whether weight decay falls on it where nothing else is said: on matrices and tables.
    pub const fn decays(self) -> bool {
        match self {
            Group::Matrix | Group::Embedding | Group::Head => true,
            Group::Vector | Group::Synapse => false,
        }
    }
}

/// How a group's parameters are moved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe {
    /// The rule.
    pub rule: Rule,
    /// Factor of the learning rate.
    pub rate: f32,
    /// Weight decay.
    pub decay: f32,
}

/// The same rows of every table that an update reads or writes.
#[derive(Clone, Copy)]
struct Rows {
    weight: Region,
    /// What weights in bf16 lack of their masters.
    remainder: Option<Region>,
    gradient: Region,
    /// As many as the rule keeps.
    states: [Region; STATES],
}

impl Rows {
    /// What an operation is told of them, with these factor of the learning rate and decay.
    #[inline(always)]
    const fn moved(&self, control: &Control, group: Group, [rate, decay]: [f32; 2]) -> Moved {
        let Rows { weight, remainder, gradient, .. } = *self;
        let Control { settings, results, .. } = *control;
        Moved { weight, remainder, gradient, settings, results, group, rate, decay }
    }
}

/// The same rows of parameters and of their averages.
#[derive(Clone, Copy)]
struct Averaged {
    weight: Region,
    /// What weights in bf16 lack of their masters.
    remainder: Option<Region>,
    average: Region,
}

impl Averaged {
    /// Averages them.
    #[inline(never)]
    fn average(self, device: &mut dyn Device, control: &Control) -> Result<(), OperationError> {
        let Averaged { weight, remainder, average } = self;
        let Control { settings, results, .. } = *control;
        device.emit(Average { weight, remainder, average, settings, results })
    }

    /// Exchanges both.
    #[inline(never)]
    fn exchange(self, device: &mut dyn Device) -> Result<(), OperationError> {
        let Averaged { weight, remainder, average } = self;
        device.emit(Exchange { weight, remainder, average })
    }
}

/// A recipe for every group, how what they keep is stored, whether the parameters that they move are averaged, and whether gradients are
/// released.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimizer {
    recipes: [Recipe; Group::COUNT],
    averages: bool,
    states: States,
    remainder: Option<Dtype>,
    releases: bool,
}

impl Optimizer {
    /// Whether a parameter is moved as whole matrices.
    pub fn moves_whole(&self, p: &Parameter) -> bool {
        self.learns(p) && self.of(p.group).rule.is_whole()
    }

    /// One rule for all, with `decay` for the groups on which it falls.
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

    /// AdamW for all.
    pub const fn adamw([beta1, beta2]: [f32; 2], eps: f32, decay: f32) -> Optimizer {
        Self::new(Rule::AdamW(AdamW { beta1, beta2, eps }), decay)
    }

    /// The same with another recipe for `group`.
    #[must_use]
    pub const fn with(mut self, group: Group, recipe: Recipe) -> Optimizer {
        self.recipes[group.index()] = recipe;
        self
    }

    /// The same, which keeps an average of every parameter that learns where it `averages`.
    #[must_use]
    pub const fn averaging(self, averages: bool) -> Optimizer {
        Optimizer { averages, ..self }
    }

    /// The same, whose rules keep their states so, and which keeps so much of what weights in bf16 lack of their masters:
    /// [`Dtype::Remainder`] or [`Dtype::Remainder8`]. Without it weights in bf16 are rounded by chance, in one process.
    #[must_use]
    pub const fn keeping(self, states: States, remainder: Option<Dtype>) -> Optimizer {
        Optimizer { states, remainder, ..self }
    }

    /// How states are kept.
    pub const fn states(&self) -> States {
        self.states
    }

    /// The type of table `i` of those that the rule of `group` keeps; f32 where it keeps fewer.
    fn state_dtype(&self, group: Group, i: usize) -> Dtype {
        self.of(group).rule.states().get(i).map_or(Dtype::F32, |state| state.dtype(self.states))
    }

    /// The type of a row of table `i` of all states: in 8 bits where some rule has it so.
    fn table_dtype(&self, i: usize) -> Dtype {
        let mut dtypes = Group::ALL.into_iter().map(|group| self.state_dtype(group, i));
        dtypes.find(|dtype| *dtype != Dtype::F32).unwrap_or(Dtype::F32)
    }

    /// Whether it keeps averages.
    pub const fn averages(&self) -> bool {
        self.averages
    }

    /// The same, which where it `releases` gradients moves each layer's parameters as soon as their gradients are formed:
    /// those take one place in turn. A step is one micro-batch then, and its clip sees the norm of a layer alone.
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

    /// Whether a parameter has a gradient, by which its rule moves it at the end of a step.
    pub fn learns(&self, p: &Parameter) -> bool {
        p.learns == Learns::FromGradient && self.of(p.group).rule.learns()
    }

    /// Moves rows of parameters of `group`.
    ///
    /// # Errors
    /// What the device could not do.
    fn emit(&self, device: &mut dyn Device, control: &Control, group: Group, rows: Rows) -> Result<(), OperationError> {
        let Recipe { rule, rate, decay } = *self.of(group);
        rule.emit(device, rows.moved(control, group, [rate, decay]), rows.states)
    }
}
