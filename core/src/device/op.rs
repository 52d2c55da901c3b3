//! Every operation as one type, so that a step is data: operations can be run, counted, stored and compared.

use super::{Operand, Operation, OperationError};
use crate::memory::Arena;

/// The only list of operations: `for_each_operation!([name] ...)` expands to `name!([...] AdamW, ...)`.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_operation {
    ([$($callback:tt)+] $($more:tt)*) => {
        $crate::with_spiking_operations! {
            [$($callback)+] [$($more)*]
            AdamW,
            AdamWFactored,
            AddValues,
            AddValuesGrad,
            AllGather,
            AllToAll,
            Attention,
            AttentionGrad,
            Average,
            Blend,
            BlendGrad,
            BlendMomentum,
            CachedAttention,
            Carry,
            Compress,
            Dequantise,
            Dropout,
            Embed,
            EmbedGrad,
            EmbedUpdate,
            Exchange,
            Expand,
            FactoredUpdate,
            Gelu,
            HeadLoss,
            Linear,
            LinearGrad,
            Lion,
            MatrixMomentum,
            MatrixMove,
            MaxParts,
            MostLikely,
            Norm,
            NormGrad,
            Orthogonalise,
            PieceNorms,
            QkNorm,
            QkNormGrad,
            Quantise,
            QuantiseRows,
            Rescale,
            Rotate,
            RowFactors,
            Sample,
            Sgd,
            Softcap,
            Spread,
            SpreadGrad,
            SquaredNorm,
            SumNorms,
            SumParts,
            SwiGlu,
            SwiGluGrad,
        }
    };
}

/// Adds the operations of spiking neurons to a list, in a build that has them.
#[cfg(feature = "neurogen")]
#[doc(hidden)]
#[macro_export]
macro_rules! with_spiking_operations {
    ([$($callback:tt)+] [$($more:tt)*] $($name:ident,)*) => {
        $($callback)+! {
            [$($more)*]
            $($name,)*
            Context,
            ContextGrad,
            Inhibit,
            Memory,
            MemoryGrad,
            Modulate,
            Readout,
            ReadoutGrad,
            Spike,
            SpikeGrad,
            SynapseGrad,
            SynapseInputGrad,
            Taps,
            TapsGrad,
        }
    };
}

/// Adds nothing to a list of operations.
#[cfg(not(feature = "neurogen"))]
#[doc(hidden)]
#[macro_export]
macro_rules! with_spiking_operations {
    ([$($callback:tt)+] [$($more:tt)*] $($name:ident,)*) => {
        $($callback)+! {
            [$($more)*]
            $($name,)*
        }
    };
}

/// Evaluates `$run` for the operation in `$op`: compiled once for each operation, with `$o` of that operation's type.
///
/// ```
/// use capful_core::device::{Op, Operation as _};
///
/// fn operands(op: &Op) -> usize {
///     let mut count = 0;
///     capful_core::with_operation!(op, o => o.operands(&mut |_| count += 1));
///     count
/// }
/// ```
#[macro_export]
macro_rules! with_operation {
    ([$op:expr, $o:ident => $run:expr] $($name:ident,)*) => {
        match $op {
            $($crate::device::Op::$name($o) => $run,)*
        }
    };
    ($op:expr, $o:ident => $run:expr) => {
        $crate::for_each_operation!([$crate::with_operation] $op, $o => $run)
    };
}

/// Declares the enum of all operations.
macro_rules! declare {
    ([] $($name:ident,)*) => {
        /// An operation.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[allow(missing_docs, reason = "each is documented where it is defined")]
        pub enum Op {
            $($name(crate::ops::$name),)*
        }

        $(impl From<crate::ops::$name> for Op {
            fn from(operation: crate::ops::$name) -> Op {
                Op::$name(operation)
            }
        })*
    };
}

for_each_operation!([declare]);

impl Op {
    /// See [`Operation::NAME`].
    pub const fn name(&self) -> &'static str {
        const fn of<O: Operation>(_: &O) -> &'static str {
            O::NAME
        }
        with_operation!(self, o => of(o))
    }

    /// See [`Operation::operands`].
    pub fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        with_operation!(self, o => o.operands(visit))
    }

    /// See [`Operation::validate`].
    ///
    /// # Errors
    /// [`OperationError::Shape`].
    pub fn validate(&self) -> Result<(), OperationError> {
        with_operation!(self, o => o.validate())
    }

    /// See [`Operation::flops`].
    pub fn flops(&self) -> u64 {
        with_operation!(self, o => o.flops())
    }

    /// See [`Operation::flops_8bit`].
    pub fn flops_8bit(&self) -> u64 {
        with_operation!(self, o => o.flops_8bit())
    }

    /// See [`Operation::sent`].
    pub fn sent(&self) -> [u64; 2] {
        with_operation!(self, o => o.sent())
    }

    /// See [`Operation::reference`].
    ///
    /// # Errors
    /// An operand that cannot be carved.
    pub fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        with_operation!(self, o => o.reference(arena))
    }

    /// The minimal traffic in bytes: each operand read or written once.
    pub fn traffic(&self) -> u64 {
        let mut bytes = 0u64;
        self.operands(&mut |operand| bytes = bytes.saturating_add(operand.traffic()));
        bytes
    }
}

// A recorded step has tens of thousands of operations.
const _: () = assert!(size_of::<Op>() <= 512);
