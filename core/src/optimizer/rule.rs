//! What a rule of update says of itself, and what a list of rules makes.

use super::Group;
use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Region, Role, Slot};
use crate::model::Parameter;
use crate::ops::Moved;

/// The most tables that a rule keeps of a parameter.
pub const STATES: usize = 2;

/// The constants that rules take; each takes its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// β₁, of the first moment or of Lion's blend.
    pub beta1: f32,
    /// β₂, of the second moment or of what Lion keeps.
    pub beta2: f32,
    /// What AdamW adds to its denominator.
    pub eps: f32,
    /// SGD's μ.
    pub momentum: f32,
    /// Muon's μ.
    pub muon_momentum: f32,
    /// Whether Muon's decay falls only on weights that move towards 0.
    pub cautious: bool,
    /// Whether Muon normalises the rows of an update.
    pub row_norm: bool,
}

/// A table that a rule keeps of a parameter, by what its names in files begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A number an element, of either sign.
    Moments(&'static str),
    /// A number an element, never negative.
    Squares(&'static str),
    /// A number a row.
    Rows(&'static str),
    /// A number a row, then a number a column.
    #[cfg(feature = "compressed")]
    Sides(&'static str),
}

/// How tables of a number an element are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum States {
    /// In f32.
    #[default]
    F32,
    /// In blocks of 8 bits: see [`crate::compressed`].
    EightBits,
}

impl State {
    /// The type of its table.
    pub(super) const fn dtype(self, states: States) -> Dtype {
        match (self, states) {
            (Self::Moments(_), States::EightBits) => Dtype::Moment8,
            (Self::Squares(_), States::EightBits) => Dtype::Square8,
            _ => Dtype::F32,
        }
    }

    /// The table of `p`.
    pub(super) fn slot(self, p: &Parameter, states: States) -> Slot {
        let slot = |prefix| p.slot(prefix, Role::Moment, self.dtype(states));
        match self {
            Self::Moments(prefix) | Self::Squares(prefix) => slot(prefix),
            Self::Rows(prefix) => Slot { shape: self.shape(p.shape), ..slot(prefix) },
            // They belong to all parts.
            #[cfg(feature = "compressed")]
            Self::Sides(prefix) => Slot { shape: self.shape(p.shape), parts: [0; 3], ..slot(prefix) },
        }
    }

    /// The shape of what it is of a matrix of these rows and columns.
    pub(super) const fn shape(self, [rows, columns]: [u32; 2]) -> [u32; 4] {
        match self {
            Self::Moments(_) | Self::Squares(_) => [1, 1, rows, columns],
            Self::Rows(_) => [1, 1, rows, 1],
            #[cfg(feature = "compressed")]
            Self::Sides(_) => [1, 1, 1, rows.saturating_add(columns)],
        }
    }
}

/// A rule. Unless it is [whole](Update::WHOLE) it moves each element by itself: any rows of a parameter can be moved apart from
/// the others, by any rank.
pub(super) trait Update: Copy {
    /// Its name in settings.
    const NAME: &'static str;

    /// The names of the [`Constants`] that it takes.
    const TAKES: &'static [&'static str];

    /// The groups whose matrices it moves as a whole, which are all that it moves: see [`super::matrices`]. None where it moves each
    /// element by itself.
    const WHOLE: &'static [Group] = &[];

    /// The factor of the learning rate where nothing else is said.
    const RATE: f32 = 1.0;

    /// With these constants.
    fn of(constants: &Constants) -> Self;

    /// The tables that it keeps of a parameter, [`STATES`] at the most; of rows or sides only one that moves [whole](Update::WHOLE) ones.
    fn states(&self) -> &'static [State];

    /// Its numbers of the update after `step` others: two of [`Settings::corrections`].
    ///
    /// [`Settings::corrections`]: crate::train::Settings::corrections
    fn corrections(&self, _step: u64) -> [f32; 2] {
        [1.0; 2]
    }

    /// Moves rows of parameters; `states` are the same rows of what it keeps, as many as it has.
    ///
    /// # Errors
    /// What the device could not do.
    fn emit(&self, _: &mut dyn Device, _: Moved, _: [Region; STATES]) -> Result<(), OperationError> {
        Err(OperationError::Unsupported("the rule moves whole matrices"))
    }

    /// Moves one matrix of these rows and columns, with the padding behind it, by a rule that moves whole ones each by itself.
    ///
    /// # Errors
    /// As [`Update::emit`].
    #[cfg(feature = "compressed")]
    fn emit_matrix(
        &self,
        _: &mut dyn Device,
        _: Moved,
        _: [Region; STATES],
        _: [u32; 2],
    ) -> Result<(), OperationError> {
        Err(OperationError::Unsupported("the rule moves no matrix by itself"))
    }
}

/// Declares the enum of all rules and what is asked of whichever one it is.
macro_rules! rules {
    ($($(#[$if:meta])* $name:ident,)*) => {
        /// How a parameter is moved by its gradient.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[allow(missing_docs, reason = "each is documented where it is defined")]
        pub enum Rule {
            $($(#[$if])* $name($name),)*
            /// Not at all: neither gradient nor state is kept.
            Frozen,
        }

        impl Rule {
            /// The name of [`Rule::Frozen`].
            pub const FROZEN: &str = "frozen";

            /// Whether parameters have a gradient, which counts in the global norm.
            pub const fn learns(&self) -> bool {
                !matches!(self, Rule::Frozen)
            }

            /// The names of all in settings.
            pub const NAMES: &[&str] = &[$($(#[$if])* <$name as Update>::NAME,)* Self::FROZEN];

            /// The rule of this name, with those of the constants that it takes.
            pub fn named(name: &str, constants: &Constants) -> Option<Rule> {
                match name {
                    $($(#[$if])* <$name as Update>::NAME => Some(Rule::$name(<$name as Update>::of(constants))),)*
                    Self::FROZEN => Some(Rule::Frozen),
                    _ => None,
                }
            }

            /// Whether it moves whole matrices, and nothing else.
            pub const fn is_whole(&self) -> bool {
                match self {
                    $($(#[$if])* Rule::$name(_) => !<$name as Update>::WHOLE.is_empty(),)*
                    Rule::Frozen => false,
                }
            }

            /// Whether it can move parameters of `group`.
            pub fn moves(&self, group: Group) -> bool {
                let whole = match self {
                    $($(#[$if])* Rule::$name(_) => <$name as Update>::WHOLE,)*
                    Rule::Frozen => &[],
                };
                whole.is_empty() || whole.contains(&group)
            }

            /// The factor of the learning rate where nothing else is said.
            pub const fn rate(&self) -> f32 {
                match self {
                    $($(#[$if])* Rule::$name(_) => <$name as Update>::RATE,)*
                    Rule::Frozen => 1.0,
                }
            }

            /// The names of the constants that it takes.
            pub const fn takes(&self) -> &'static [&'static str] {
                match self {
                    $($(#[$if])* Rule::$name(_) => <$name as Update>::TAKES,)*
                    Rule::Frozen => &[],
                }
            }

            /// Its name in settings.
            pub const fn name(&self) -> &'static str {
                match self {
                    $($(#[$if])* Rule::$name(_) => <$name as Update>::NAME,)*
                    Rule::Frozen => Self::FROZEN,
                }
            }

            /// The tables that it keeps of a parameter.
            pub fn states(&self) -> &'static [State] {
                match self {
                    $($(#[$if])* Rule::$name(rule) => rule.states(),)*
                    Rule::Frozen => &[],
                }
            }

            /// Two of [`Settings::corrections`], at the update after `step` others.
            ///
            /// [`Settings::corrections`]: crate::train::Settings::corrections
            pub fn corrections(&self, step: u64) -> [f32; 2] {
                match self {
                    $($(#[$if])* Rule::$name(rule) => rule.corrections(step),)*
                    Rule::Frozen => [1.0; 2],
                }
            }

            /// Moves rows of parameters.
            fn emit(
                &self,
                device: &mut dyn Device,
                moved: Moved,
                states: [Region; STATES],
            ) -> Result<(), OperationError> {
                match self {
                    $($(#[$if])* Rule::$name(rule) => rule.emit(device, moved, states),)*
                    Rule::Frozen => Ok(()),
                }
            }

            /// Moves one matrix.
            #[cfg(feature = "compressed")]
            fn emit_matrix(
                &self,
                device: &mut dyn Device,
                moved: Moved,
                states: [Region; STATES],
                shape: [u32; 2],
            ) -> Result<(), OperationError> {
                match self {
                    $($(#[$if])* Rule::$name(rule) => rule.emit_matrix(device, moved, states, shape),)*
                    Rule::Frozen => Ok(()),
                }
            }
        }
    };
}

pub(super) use rules;
