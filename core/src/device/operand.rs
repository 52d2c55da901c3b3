//! What an operation works on: a region with its name, its use and its elements.

use super::{Profile, count};
use crate::memory::{Dtype, Region};

/// How an operation uses an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Written whole, whatever was there before.
    Write,
    /// Read and written.
    Update,
}

/// What an operand's elements are. Two operands of a kind may still be of two types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// What the device computes in: f32, or bf16 too.
    Float,
    /// f32 on every device.
    Exact,
    /// What bf16 lack of f32, or the upper half of it.
    Remainders,
    /// An optimizer's state, or what is kept of activations: f32, or blocks of 8 bits.
    State,
    /// u32: ids, offsets, a wiring.
    Ids,
    /// Floats of 8 bits.
    Codes,
    /// Integers of 8 or 4 bits, on a device that multiplies them.
    Integers,
    /// f16, of such a device.
    Half,
    /// bf16, integers of 8 bits and their scales of f16, on every device: they are only widened.
    Reduced,
    /// Whatever they are: they are copied as bytes.
    Any,
}

impl Element {
    /// Whether elements of this type are of this kind.
    pub fn admits(self, dtype: Dtype, profile: &dyn Profile) -> bool {
        match self {
            Element::Float => profile.computes(dtype),
            Element::Exact => dtype == Dtype::F32,
            Element::Remainders => {
                dtype == Dtype::Remainder || cfg!(feature = "compressed") && dtype == Dtype::Remainder8
            }
            Element::State => dtype == Dtype::F32 || dtype.is_coded(),
            Element::Ids => dtype == Dtype::U32,
            Element::Codes => matches!(dtype, Dtype::E4m3 | Dtype::E5m2),
            Element::Integers => matches!(dtype, Dtype::I8 | Dtype::I4) && profile.multiplies_integers(),
            Element::Half => dtype == Dtype::F16 && profile.multiplies_integers(),
            Element::Reduced => matches!(dtype, Dtype::Bf16 | Dtype::I8 | Dtype::F16),
            Element::Any => true,
        }
    }
}

/// An operand of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// The operation's field; no other operand of it has this name.
    pub name: &'static str,
    /// Where it lies.
    pub region: Region,
    /// How it is used.
    pub access: Access,
    /// What it consists of.
    pub element: Element,
    /// Bytes of it that are used, where that is not all of it.
    pub part: Option<u64>,
}

impl Operand {
    /// Floats that are read.
    pub const fn read(name: &'static str, region: Region) -> Operand {
        Operand { name, region, access: Access::Read, element: Element::Float, part: None }
    }

    /// Floats that are written whole.
    pub const fn write(name: &'static str, region: Region) -> Operand {
        Operand { access: Access::Write, ..Operand::read(name, region) }
    }

    /// Floats that are read and written.
    pub const fn update(name: &'static str, region: Region) -> Operand {
        Operand { access: Access::Update, ..Operand::read(name, region) }
    }

    /// Floats that are added to where `adds`, else written whole.
    pub const fn sum(name: &'static str, region: Region, adds: bool) -> Operand {
        if adds { Operand::update(name, region) } else { Operand::write(name, region) }
    }

    /// The same of f32 on every device.
    pub const fn exact(self) -> Operand {
        Operand { element: Element::Exact, ..self }
    }

    /// The same of what bf16 lack.
    pub const fn remainders(self) -> Operand {
        Operand { element: Element::Remainders, ..self }
    }

    /// The same of an optimizer's state, or of what is kept in blocks of 8 bits.
    pub const fn state(self) -> Operand {
        Operand { element: Element::State, ..self }
    }

    /// The same of u32.
    pub const fn ids(self) -> Operand {
        Operand { element: Element::Ids, ..self }
    }

    /// The same of floats of 8 bits.
    pub const fn codes(self) -> Operand {
        Operand { element: Element::Codes, ..self }
    }

    /// The same of integers.
    pub const fn integers(self) -> Operand {
        Operand { element: Element::Integers, ..self }
    }

    /// The same of f16.
    pub const fn half(self) -> Operand {
        Operand { element: Element::Half, ..self }
    }

    /// The same of what is only widened.
    pub const fn reduced(self) -> Operand {
        Operand { element: Element::Reduced, ..self }
    }

    /// The same of any type.
    pub const fn any(self) -> Operand {
        Operand { element: Element::Any, ..self }
    }

    /// The same, of which only `bytes` are used.
    pub const fn only(self, bytes: u64) -> Operand {
        Operand { part: Some(bytes), ..self }
    }

    /// Whether it is written, read or not.
    pub fn is_written(&self) -> bool {
        self.access != Access::Read
    }

    /// Bytes read and written: those of the region that are used, twice where it is updated.
    pub fn traffic(&self) -> u64 {
        let bytes = self.part.unwrap_or_else(|| self.region.bytes());
        count(&[bytes, if self.access == Access::Update { 2 } else { 1 }])
    }
}
