//! A parameter as data, and a model's list of them.

use crate::integer::{Integer, Kind};
use crate::memory::{Dtype, Init, Role, Slot, Stacked};
use crate::optimizer::{Group, Learns};

/// A parameter: how it is named and saved, initialised and trained. The one description that layout, initialiser,
/// optimizer, checkpoint, import and export share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// Its name in files, as [`Slot::name`]. It seeds the first values, so it never changes.
    pub name: &'static str,
    /// Rows of each tensor that it is in files, as [`Slot::parts`].
    pub parts: [u32; 3],
    /// Where the rows of three matrices lie in turn, as GPT-NeoX's queries, keys and values do head by head: how many of one
    /// follow each other. Else 0.
    pub turns: u32,
    /// Rows and columns of one layer's.
    pub shape: [u32; 2],
    /// How many layers have one.
    pub layers: u32,
    /// How the first values are made.
    pub init: Init,
    /// When it learns.
    pub learns: Learns,
    /// Whose settings it learns by.
    pub group: Group,
    /// What it is to the products.
    pub kind: Kind,
}

impl Parameter {
    /// A matrix of a linear layer: [rows, columns].
    pub const fn matrix(name: &'static str, layers: u32, shape: [u32; 2], init: Init) -> Parameter {
        let (learns, group, kind) = (Learns::FromGradient, Group::Matrix, Kind::Matrix);
        Parameter { name, parts: [0; 3], turns: 0, shape, layers, init, learns, group, kind }
    }

    /// A bias or a gain: `[len]`.
    pub const fn vector(name: &'static str, layers: u32, len: u32, init: Init) -> Parameter {
        Parameter { group: Group::Vector, kind: Kind::Vector, ..Self::matrix(name, layers, [1, len], init) }
    }

    /// The slot of the parameter itself, of its master, or of what else belongs to it; that begins as zeros.
    pub fn slot(&self, prefix: &'static str, role: Role, dtype: Dtype) -> Slot {
        let Parameter { name, parts, shape: [rows, columns], layers, .. } = *self;
        let init = if matches!(role, Role::Weight | Role::Master) { self.init } else { Init::Zero };
        Slot { prefix, layers, init, parts, ..Slot::new(name, role, dtype, [1, 1, rows, columns]) }
    }

    /// Whether each layer has one. Several tables of one name belong to no layer.
    pub fn is_layered(&self) -> bool {
        self.kind != Kind::Table && self.name.contains('*')
    }

    /// Whether a model in integers keeps it in them.
    pub fn in_integers(&self) -> bool {
        self.kind != Kind::Vector
    }

    /// The slot of its scales, where it is kept in `integer`: [rows, groups], as [`WeightScales`] says.
    ///
    /// [`WeightScales`]: crate::ops::WeightScales
    pub fn scale_slot(&self, integer: Integer) -> Slot {
        let Parameter { name, parts, shape: [rows, columns], layers, kind, .. } = *self;
        // A group has a pair of columns at least; no columns have none.
        let shape = [1, 1, rows, columns.div_ceil(integer.group(kind, columns).max(2))];
        Slot { prefix: "scale.", layers, parts, ..Slot::new(name, Role::Scale, Dtype::F16, shape) }
    }
}

/// A model whose parameters can be listed.
pub trait Parameters {
    /// Where each of them, or what belongs to it, lies.
    type Table: Copy;

    /// Shows every parameter to `place` in the order in which they are laid and saved, and keeps the places that it
    /// gives. Neighbours that learn alike share an operation, so all matrices come first.
    fn parameters(&self, place: &mut dyn FnMut(&Parameter) -> Stacked) -> Self::Table;

    /// Whether the gradients before the layers are begun when those behind them are no longer needed, and the tensors before
    /// the layers are as large as the first ones behind them: then both can be formed in one place.
    fn ends_take_turns(&self) -> bool {
        false
    }
}
