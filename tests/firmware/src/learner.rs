//! Devices with only the operations that a family's training needs: the linker leaves out the rest.

use capful_core::device::{Device, Op, OperationError};
use capful_core::image::OnArena;
use capful_core::memory::Arena;

/// A device with the listed operations. Each runs in a function of its own, so that the stack is as deep as the deepest
/// one and not as the sum.
macro_rules! device {
    ($(#[$text:meta])* $name:ident: $($op:ident,)*) => {
        $(#[$text])*
        pub struct $name<'a> {
            /// The storage of the operands.
            pub arena: Arena<'a>,
        }

        impl Device for $name<'_> {
            fn run(&mut self, op: &Op) -> Result<(), OperationError> {
                match op {
                    $(Op::$op(o) => {
                        #[inline(never)]
                        fn run(o: &capful_core::ops::$op, arena: &mut Arena<'_>) -> Result<(), OperationError> {
                            use capful_core::device::Operation as _;
                            o.reference(arena)
                        }
                        run(o, &mut self.arena)
                    })*
                    _ => Err(OperationError::Device),
                }
            }
        }

        impl<'a> From<Arena<'a>> for $name<'a> {
            fn from(arena: Arena<'a>) -> Self {
                $name { arena }
            }
        }

        impl<'a> OnArena<'a> for $name<'a> {
            fn arena(&mut self) -> &mut Arena<'a> {
                &mut self.arena
            }
        }
    };
}

device! {
    /// Trains a Pythia by AdamW.
    Learner: AdamW, Attention, AttentionGrad, Carry, Embed, EmbedGrad, Gelu, HeadLoss, Linear, LinearGrad, Norm, NormGrad,
        Rotate, SquaredNorm,
}

device! {
    /// Trains a NeuroGen by e-prop.
    SpikingLearner: AdamW, Carry, Context, ContextGrad, Embed, EmbedUpdate, FactoredUpdate, HeadLoss, Inhibit, Linear,
        LinearGrad, Memory, MemoryGrad, Modulate, Norm, NormGrad, Readout, ReadoutGrad, Spike, SpikeGrad, SquaredNorm,
        SynapseGrad, Taps, TapsGrad,
}
