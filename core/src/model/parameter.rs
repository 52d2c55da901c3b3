//! A parameter as data, and a model's list of them.

use crate::integer::{Integer, ParameterKind};
use crate::memory::{Dtype, Init, Role, Slot, Stacked};
use crate::optimizer::{Group, Learns};

/// A parameter: its names in files, its initialisation and its training. Layout, initialiser, optimizer, checkpoint,
/// import and export all use this description.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// The name in files, as [`Slot::name`]. It seeds the initial values, so it must never change.
    pub name: &'static str,
    /// Rows of each tensor that the parameter becomes in files, as [`Slot::parts`].
    pub parts: [u32; 3],
    /// Where the rows of three matrices alternate, as GPT-NeoX's queries, keys and values do head by head: the number
    /// of consecutive rows of each. Otherwise 0.
    pub turns: u32,
    /// Rows and columns of one layer's matrix.
    pub shape: [u32; 2],
    /// The number of layers that have this parameter.
    pub layers: u32,
    /// The rule of its initial values.
    pub init: Init,
    /// When it learns.
    pub learns: Learns,
    /// The group whose optimizer settings apply.
    pub group: Group,
    /// Its part in matrix multiplications.
    pub kind: ParameterKind,
}

impl Parameter {
    /// A matrix of a linear layer: [rows, columns].
    pub const fn matrix(name: &'static str, layers: u32, shape: [u32; 2], init: Init) -> Parameter {
        let (learns, group, kind) = (Learns::FromGradient, Group::Matrix, ParameterKind::Matrix);
        Parameter { name, parts: [0; 3], turns: 0, shape, layers, init, learns, group, kind }
    }

    /// A bias or a gain: `[len]`.
    pub const fn vector(name: &'static str, layers: u32, len: u32, init: Init) -> Parameter {
        Parameter { group: Group::Vector, kind: ParameterKind::Vector, ..Self::matrix(name, layers, [1, len], init) }
    }

    /// The slot of the parameter, of its master, or of other state that belongs to it; other state is initialised with
    /// zeros.
    pub fn slot(&self, prefix: &'static str, role: Role, dtype: Dtype) -> Slot {
        let Parameter { name, parts, shape: [rows, columns], layers, .. } = *self;
        let init = if matches!(role, Role::Weight | Role::Master) { self.init } else { Init::Zero };
        Slot { prefix, layers, init, parts, ..Slot::new(name, role, dtype, [1, 1, rows, columns]) }
    }

    /// Whether each layer has one such parameter. Several tables of one name belong to no layer.
    pub fn is_layered(&self) -> bool {
        self.kind != ParameterKind::Table && self.name.contains('*')
    }

    /// Whether a model in integers stores this parameter in integers.
    pub fn in_integers(&self) -> bool {
        self.kind != ParameterKind::Vector
    }

    /// The slot of its scales where it is stored as `integer`: [rows, groups], as [`WeightScales`] says.
    ///
    /// [`WeightScales`]: crate::ops::WeightScales
    pub fn scale_slot(&self, integer: Integer) -> Slot {
        let Parameter { name, parts, shape: [rows, columns], layers, kind, .. } = *self;
        // A group has at least a pair of columns; a matrix without columns has no groups.
        let shape = [1, 1, rows, columns.div_ceil(integer.group(kind, columns).max(2))];
        Slot { prefix: "scale.", layers, parts, ..Slot::new(name, Role::Scale, Dtype::F16, shape) }
    }
}

/// A model whose parameters can be listed.
pub trait Parameters {
    /// The regions of all parameters, or of state that belongs to each of them.
    type Table: Copy;

    /// Shows every parameter to `place`, in the order in which they are laid and saved, and returns a table of the
    /// places that it returns. Adjacent parameters with the same settings share an operation, so all matrices come
    /// first.
    fn parameters(&self, place: &mut dyn FnMut(&Parameter) -> Stacked) -> Self::Table;

    /// Whether the gradients of the parameters before the first layer and those after the last layer can share one
    /// region: the backward pass is finished with the latter before it begins the former, and the first tensors of both
    /// are of one size.
    fn ends_take_turns(&self) -> bool {
        false
    }
}
