//! Every operation as one type, so that a step is data: it can be run, counted, kept and compared.

use super::{Operand, Operation, OperationError};
use crate::memory::Arena;
use crate::ops::{
    AdamW, AllGather, AllToAll, Attention, AttentionGrad, CachedAttention, Carry, Context, ContextGrad, Embed,
    EmbedGrad, EmbedUpdate, FactoredUpdate, Gelu, HeadLoss, Inhibit, Linear, LinearGrad, MaxParts, Memory, MemoryGrad,
    Modulate, MostLikely, Norm, NormGrad, PieceNorms, QkNorm, QkNormGrad, Quantise, QuantiseRows, Readout, ReadoutGrad,
    Rescale, Rotate, Sample, Spike, SpikeGrad, SquaredNorm, SumNorms, SumParts, SwiGlu, SwiGluGrad, SynapseGrad,
    SynapseInputGrad, Taps, TapsGrad,
};

/// Declares the enum of all operations and what is asked of whichever one it is.
macro_rules! operations {
    ($($name:ident,)*) => {
        /// An operation.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[allow(missing_docs, reason = "each is documented where it is defined")]
        pub enum Op {
            $($name($name),)*
        }

        $(impl From<$name> for Op {
            fn from(operation: $name) -> Op {
                Op::$name(operation)
            }
        })*

        impl Op {
            /// See [`Operation::NAME`].
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Op::$name(_) => $name::NAME,)*
                }
            }

            /// See [`Operation::operands`].
            pub fn operands(&self, visit: &mut dyn FnMut(Operand)) {
                match self {
                    $(Op::$name(o) => o.operands(visit),)*
                }
            }

            /// See [`Operation::validate`].
            ///
            /// # Errors
            /// [`OperationError::Shape`].
            pub fn validate(&self) -> Result<(), OperationError> {
                match self {
                    $(Op::$name(o) => o.validate(),)*
                }
            }

            /// See [`Operation::flops`].
            pub fn flops(&self) -> u64 {
                match self {
                    $(Op::$name(o) => o.flops(),)*
                }
            }

            /// See [`Operation::flops_8bit`].
            pub fn flops_8bit(&self) -> u64 {
                match self {
                    $(Op::$name(o) => o.flops_8bit(),)*
                }
            }

            /// See [`Operation::sent`].
            pub fn sent(&self) -> [u64; 2] {
                match self {
                    $(Op::$name(o) => o.sent(),)*
                }
            }

            /// See [`Operation::reference`].
            ///
            /// # Errors
            /// An operand that cannot be carved.
            pub fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
                match self {
                    $(Op::$name(o) => o.reference(arena),)*
                }
            }
        }
    };
}

operations! {
    AdamW,
    AllGather,
    AllToAll,
    Attention,
    AttentionGrad,
    CachedAttention,
    Carry,
    Context,
    ContextGrad,
    Embed,
    EmbedGrad,
    EmbedUpdate,
    FactoredUpdate,
    Gelu,
    HeadLoss,
    Inhibit,
    Linear,
    LinearGrad,
    MaxParts,
    Memory,
    MemoryGrad,
    Modulate,
    MostLikely,
    Norm,
    NormGrad,
    PieceNorms,
    QkNorm,
    QkNormGrad,
    Quantise,
    QuantiseRows,
    Readout,
    ReadoutGrad,
    Rescale,
    Rotate,
    Sample,
    Spike,
    SpikeGrad,
    SquaredNorm,
    SumNorms,
    SumParts,
    SwiGlu,
    SwiGluGrad,
    SynapseGrad,
    SynapseInputGrad,
    Taps,
    TapsGrad,
}

impl Op {
    /// Bytes of traffic that it cannot avoid: each operand read or written once.
    pub fn traffic(&self) -> u64 {
        let mut bytes = 0u64;
        self.operands(&mut |operand| bytes = bytes.saturating_add(operand.traffic()));
        bytes
    }
}

// A recorded step has tens of thousands of them.
const _: () = assert!(size_of::<Op>() <= 512);
