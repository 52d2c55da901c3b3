//! An operand of an operation: a region with its name, its access and its kind of elements.

use super::{Profile, count};
use crate::memory::{Dtype, Region};

/// How an operation uses an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Overwritten completely, whatever its previous content.
    Write,
    /// Read and written.
    Update,
}

/// The kind of an operand's elements. Two operands of one kind may still have different types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// A float type that the device computes in: f32, and on some devices bf16.
    Float,
    /// f32 on every device.
    Exact,
    /// The remainders of bf16, 16 or 8 bits.
    Remainders,
    /// An optimizer's state, or a saved activation: f32, or blocks of 8 bits.
    State,
    /// u32: ids, offsets, a wiring.
    Ids,
    /// Floats of 8 bits.
    Codes,
    /// Integers of 8 or 4 bits, on a device that multiplies them.
    Integers,
    /// f16, on a device that multiplies integers.
    Half,
    /// bf16, or integers of 8 bits and their f16 scales, on every device: they are only widened.
    Reduced,
    /// Any type: the bytes are copied.
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
    /// The name of the operation's field, unique within the operation.
    pub name: &'static str,
    /// The region.
    pub region: Region,
    /// How the operation uses it.
    pub access: Access,
    /// The kind of its elements.
    pub element: Element,
    /// The number of bytes that are used, if not all of them.
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

    /// Floats that are added to if `adds`, otherwise overwritten.
    pub const fn sum(name: &'static str, region: Region, adds: bool) -> Operand {
        if adds { Operand::update(name, region) } else { Operand::write(name, region) }
    }

    /// This operand as f32 on every device.
    pub const fn exact(self) -> Operand {
        Operand { element: Element::Exact, ..self }
    }

    /// This operand as remainders of bf16.
    pub const fn remainders(self) -> Operand {
        Operand { element: Element::Remainders, ..self }
    }

    /// This operand as an optimizer's state or as blocks of 8 bits.
    pub const fn state(self) -> Operand {
        Operand { element: Element::State, ..self }
    }

    /// This operand as u32.
    pub const fn ids(self) -> Operand {
        Operand { element: Element::Ids, ..self }
    }

    /// This operand as 8-bit floats.
    pub const fn codes(self) -> Operand {
        Operand { element: Element::Codes, ..self }
    }

    /// This operand as integers.
    pub const fn integers(self) -> Operand {
        Operand { element: Element::Integers, ..self }
    }

    /// This operand as f16.
    pub const fn half(self) -> Operand {
        Operand { element: Element::Half, ..self }
    }

    /// This operand in a reduced type that is only widened.
    pub const fn reduced(self) -> Operand {
        Operand { element: Element::Reduced, ..self }
    }

    /// This operand with elements of any type.
    pub const fn any(self) -> Operand {
        Operand { element: Element::Any, ..self }
    }

    /// This operand, of which only `bytes` bytes are used.
    pub const fn only(self, bytes: u64) -> Operand {
        Operand { part: Some(bytes), ..self }
    }

    /// Whether it is written, whether or not it is also read.
    pub fn is_written(&self) -> bool {
        self.access != Access::Read
    }

    /// Bytes read and written: the used bytes of the region, twice where it is updated.
    pub fn traffic(&self) -> u64 {
        let bytes = self.part.unwrap_or_else(|| self.region.bytes());
        count(&[bytes, if self.access == Access::Update { 2 } else { 1 }])
    }
}
