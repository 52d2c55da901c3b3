//! The interface between a step and the device that runs it.
//!
//! A step is ordinary code over a [`Device`]: it emits operations one after the other. [`Reference`] computes them in
//! plain f32 loops, [`Meter`] only counts them, and a host's devices run them fast.

mod check;
mod meter;
mod op;
mod operand;
mod reference;

pub use check::check;
pub use meter::{Meter, Rates};
pub use op::Op;
pub use operand::{Access, Element, Operand};
pub use reference::Reference;

use crate::integer::Integer;
use crate::memory::{ArenaError, Dtype, Role};

/// The memory requirements of a device and a precision. Plain data: a plan needs no device and no driver.
pub trait Profile {
    /// The element type of regions of this role. It is never called for masters, which are [`Dtype::Remainder`]
    /// everywhere.
    fn dtype(&self, role: Role) -> Dtype;

    /// Whether the device computes in floats of this type, as operands of [`Element::Float`].
    fn computes(&self, dtype: Dtype) -> bool {
        dtype == Dtype::F32
    }

    /// The scratch in bytes that the device needs while it runs `op`. One region serves the largest.
    fn scratch(&self, _op: &Op) -> u64 {
        0
    }

    /// Whether a family's matrix multiplications may read 8-bit copies of their operands.
    fn quantises(&self) -> bool {
        false
    }

    /// Whether the device multiplies integers, as operands of [`Element::Integers`].
    fn multiplies_integers(&self) -> bool {
        false
    }

    /// The integer type of a model's matrices, if any. Such a model is not trained.
    fn weights(&self) -> Option<Integer> {
        None
    }
}

/// Wraps a profile, with the matrices of a model in integers.
#[derive(Clone, Copy)]
pub struct InIntegers<'p> {
    /// The profile.
    pub profile: &'p dyn Profile,
    /// The integers, if any.
    pub weights: Option<Integer>,
}

impl Profile for InIntegers<'_> {
    fn dtype(&self, role: Role) -> Dtype {
        self.profile.dtype(role)
    }

    fn computes(&self, dtype: Dtype) -> bool {
        self.profile.computes(dtype)
    }

    fn scratch(&self, op: &Op) -> u64 {
        self.profile.scratch(op)
    }

    fn quantises(&self) -> bool {
        self.profile.quantises()
    }

    fn multiplies_integers(&self) -> bool {
        self.profile.multiplies_integers()
    }

    fn weights(&self) -> Option<Integer> {
        self.weights
    }
}

/// Single precision everywhere, no scratch: the profile of [`Reference`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Single;

impl Profile for Single {
    fn dtype(&self, role: Role) -> Dtype {
        match role {
            Role::Batch => Dtype::U32,
            _ => Dtype::F32,
        }
    }

    fn multiplies_integers(&self) -> bool {
        true
    }
}

/// Why an operation could not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationError {
    /// An operand could not be carved.
    Arena(ArenaError),
    /// The operands' shapes do not match.
    Shape {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
    },
    /// The device does not support the type of an operand's elements.
    Type {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
    },
    /// An operand begins within an element.
    Misaligned {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
    },
    /// Two operands share bytes and one of them is written.
    Overlap {
        /// The operation.
        operation: &'static str,
        /// Both operands.
        operands: [&'static str; 2],
    },
    /// An operand is written and lies in the image.
    ReadOnly {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
    },
    /// A training step of a model whose weights are in integers.
    Untrainable,
    /// More floating-point operations or bytes than 64 bits count.
    TooLarge {
        /// The operation.
        operation: &'static str,
    },
    /// An operation that is not possible; a clause says what and why.
    Unsupported(&'static str),
    /// The device failed; it keeps the details.
    Device,
}

impl core::fmt::Display for OperationError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            OperationError::Arena(e) => e.fmt(f),
            OperationError::Shape { operation, operand } => {
                write!(f, "{operation}: the shape of {operand} does not fit the other operands")
            }
            OperationError::Type { operation, operand } => {
                write!(f, "{operation}: the device does not take elements of the type of {operand}")
            }
            OperationError::Misaligned { operation, operand } => {
                write!(f, "{operation}: {operand} begins within an element")
            }
            OperationError::Overlap { operation, operands: [a, b] } => {
                write!(f, "{operation}: {a} and {b} share bytes, and one of them is written")
            }
            OperationError::ReadOnly { operation, operand } => {
                write!(f, "{operation}: {operand} is written and lies in the read-only image")
            }
            OperationError::Untrainable => {
                f.write_str("weights in integers are not trained; train in floats and turn the result into integers")
            }
            OperationError::TooLarge { operation } => {
                write!(f, "{operation} is too large: its floating-point operations, or a step's up to it, pass 64 bits")
            }
            OperationError::Unsupported(what) => f.write_str(what),
            OperationError::Device => f.write_str("the device failed"),
        }
    }
}

impl core::error::Error for OperationError {}

impl From<ArenaError> for OperationError {
    fn from(error: ArenaError) -> Self {
        OperationError::Arena(error)
    }
}

/// The product of all factors, saturated at the largest 64-bit number, which no real count reaches.
pub const fn count(factors: &[u64]) -> u64 {
    let (mut product, mut i) = (1u64, 0);
    while i < factors.len() {
        product = product.saturating_mul(factors[i]);
        i += 1;
    }
    product
}

/// One operation of a step: its operands and shapes, never values that change from step to step.
pub trait Operation: Copy + Into<Op> {
    /// The name, as in the file of `ops` that defines it.
    const NAME: &'static str;

    /// Whether every device computes the same bits as [`reference`](Operation::reference), rounded to the device's
    /// type: the operation only moves numbers, or adds them in a fixed order.
    const EXACT: bool = false;

    /// Calls `visit` with every operand. Two operands are either disjoint or both only read.
    fn operands(&self, visit: &mut dyn FnMut(Operand));

    /// Whether the operands' shapes match; checked once, when the step is planned.
    ///
    /// # Errors
    /// [`OperationError::Shape`] with the operand that does not fit.
    fn validate(&self) -> Result<(), OperationError>;

    /// Floating-point operations of matrix multiplications, a multiply-add counted as two; element-wise work is not
    /// counted. See [`count`].
    fn flops(&self) -> u64;

    /// The part of [`Operation::flops`] with 8-bit operands.
    fn flops_8bit(&self) -> u64 {
        0
    }

    /// The bytes that it sends to other ranks, and the number of messages.
    fn sent(&self) -> [u64; 2] {
        [0; 2]
    }

    /// The definition, in f32 and in a fixed order of summation.
    ///
    /// # Errors
    /// An operand that cannot be carved.
    fn reference(&self, arena: &mut crate::memory::Arena<'_>) -> Result<(), OperationError>;

    /// `Ok` if `fits`, else the error that names `operand`.
    ///
    /// # Errors
    /// [`OperationError::Shape`].
    fn expect(&self, fits: bool, operand: &'static str) -> Result<(), OperationError> {
        if fits { Ok(()) } else { Err(self.misfit(operand)) }
    }

    /// The error that names `operand`, for `ok_or` where a part of the operand is taken.
    fn misfit(&self, operand: &'static str) -> OperationError {
        OperationError::Shape { operation: Self::NAME, operand }
    }
}

/// A device that runs operations.
pub trait Device {
    /// Runs `op`, or queues it after the operations before it.
    ///
    /// # Errors
    /// An error of the device.
    fn run(&mut self, op: &Op) -> Result<(), OperationError>;
}

impl dyn Device + '_ {
    /// Runs the next operation of a step.
    ///
    /// # Errors
    /// As [`Device::run`].
    pub fn emit(&mut self, operation: impl Into<Op>) -> Result<(), OperationError> {
        self.run(&operation.into())
    }
}
