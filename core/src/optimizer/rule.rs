//! The trait that an update rule implements, and the macro that lists the rules.

use super::Group;
use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Region, Role, Slot};
use crate::model::Parameter;
use crate::ops::Moved;

/// The largest number of state tables that a rule has for a parameter.
pub const STATES: usize = 2;

/// The constants of all rules; each rule takes the ones that it uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// β₁, of the first moment or of Lion's blend.
    pub beta1: f32,
    /// β₂, of the second moment or of Lion's momentum.
    pub beta2: f32,
    /// Added to AdamW's denominator.
    pub eps: f32,
    /// SGD's μ.
    pub momentum: f32,
    /// Muon's μ.
    pub muon_momentum: f32,
    /// Whether Muon's decay applies only to weights that the update moves towards 0.
    pub cautious: bool,
    /// Whether Muon normalises the rows of an update.
    pub row_norm: bool,
}

/// A state table that a rule has for a parameter, with the prefix of its names in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A number of either sign for each element.
    Moments(&'static str),
    /// A number that is never negative for each element.
    Squares(&'static str),
    /// A number for each row.
    Rows(&'static str),
    /// A number for each row, followed by a number for each column.
    #[cfg(feature = "compressed")]
    Sides(&'static str),
}

/// The storage of state tables with a number for each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum States {
    /// In f32.
    #[default]
    F32,
    /// In blocks of 8 bits: see [`crate::compressed`].
    EightBits,
}

impl State {
    /// The element type of its table.
    pub(super) const fn dtype(self, states: States) -> Dtype {
        match (self, states) {
            (Self::Moments(_), States::EightBits) => Dtype::Moment8,
            (Self::Squares(_), States::EightBits) => Dtype::Square8,
            _ => Dtype::F32,
        }
    }

    /// The slot of the table for `p`.
    pub(super) fn slot(self, p: &Parameter, states: States) -> Slot {
        let slot = |prefix| p.slot(prefix, Role::Moment, self.dtype(states));
        match self {
            Self::Moments(prefix) | Self::Squares(prefix) => slot(prefix),
            Self::Rows(prefix) => Slot { shape: self.shape(p.shape), ..slot(prefix) },
            // The numbers belong to all parts of the tensor together.
            #[cfg(feature = "compressed")]
            Self::Sides(prefix) => Slot { shape: self.shape(p.shape), parts: [0; 3], ..slot(prefix) },
        }
    }

    /// The shape of its table for a matrix of these rows and columns.
    pub(super) const fn shape(self, [rows, columns]: [u32; 2]) -> [u32; 4] {
        match self {
            Self::Moments(_) | Self::Squares(_) => [1, 1, rows, columns],
            Self::Rows(_) => [1, 1, rows, 1],
            #[cfg(feature = "compressed")]
            Self::Sides(_) => [1, 1, 1, rows.saturating_add(columns)],
        }
    }
}

/// An update rule. Unless it is [whole](Update::WHOLE) it updates each element independently, so that any rank can
/// update any rows of a parameter separately.
pub(super) trait Update: Copy {
    /// Its name in settings.
    const NAME: &'static str;

    /// The names of the [`Constants`] that it takes.
    const TAKES: &'static [&'static str];

    /// The groups whose matrices it updates as a whole; it updates no other group: see [`super::matrices`]. Empty where
    /// it updates each element independently.
    const WHOLE: &'static [Group] = &[];

    /// The default factor of the learning rate.
    const RATE: f32 = 1.0;

    /// The rule with these constants.
    fn of(constants: &Constants) -> Self;

    /// The state tables that it has for a parameter, at most [`STATES`]; only a [whole](Update::WHOLE) rule may have
    /// tables of rows or sides.
    fn states(&self) -> &'static [State];

    /// Two of [`Settings::corrections`], for the update after `step` others.
    ///
    /// [`Settings::corrections`]: crate::train::Settings::corrections
    fn corrections(&self, _step: u64) -> [f32; 2] {
        [1.0; 2]
    }

    /// Updates rows of parameters; `states` are the same rows of the rule's state tables, as many as it has.
    ///
    /// # Errors
    /// An error of the device.
    fn emit(&self, _: &mut dyn Device, _: Moved, _: [Region; STATES]) -> Result<(), OperationError> {
        Err(OperationError::Unsupported("the rule moves whole matrices"))
    }

    /// Updates one matrix of these rows and columns, and the padding after it; for rules that update each matrix
    /// separately.
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

/// Declares the enum of all rules and the methods that dispatch to the rule at hand.
macro_rules! rules {
    ($($(#[$if:meta])* $name:ident,)*) => {
        /// How a parameter is updated by its gradient.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[allow(missing_docs, reason = "each is documented where it is defined")]
        pub enum Rule {
            $($(#[$if])* $name($name),)*
            /// No update: there is neither gradient nor state.
            Frozen,
        }

        impl Rule {
            /// The name of [`Rule::Frozen`].
            pub const FROZEN: &str = "frozen";

            /// Whether parameters have a gradient, which counts in the global norm.
            pub const fn learns(&self) -> bool {
                !matches!(self, Rule::Frozen)
            }

            /// The names of all rules in settings.
            pub const NAMES: &[&str] = &[$($(#[$if])* <$name as Update>::NAME,)* Self::FROZEN];

            /// The rule of this name, with those of the constants that it takes.
            pub fn named(name: &str, constants: &Constants) -> Option<Rule> {
                match name {
                    $($(#[$if])* <$name as Update>::NAME => Some(Rule::$name(<$name as Update>::of(constants))),)*
                    Self::FROZEN => Some(Rule::Frozen),
                    _ => None,
                }
            }

            /// Whether it updates whole matrices and nothing else.
            pub const fn is_whole(&self) -> bool {
                match self {
                    $($(#[$if])* Rule::$name(_) => !<$name as Update>::WHOLE.is_empty(),)*
                    Rule::Frozen => false,
                }
            }

            /// Whether it can update parameters of `group`.
            pub fn moves(&self, group: Group) -> bool {
                let whole = match self {
                    $($(#[$if])* Rule::$name(_) => <$name as Update>::WHOLE,)*
                    Rule::Frozen => &[],
                };
                whole.is_empty() || whole.contains(&group)
            }

            /// The default factor of the learning rate.
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

            /// The state tables that it has for a parameter.
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

            /// Updates rows of parameters.
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

            /// Updates one matrix.
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
