//! The parts that the programs share: start-up, a line to the debugger, a count of instructions, the stack's depth, and
//! devices with the operations of a program: of a transformer's decoding, and of models that learn.
//!
//! Unsafe code is limited to what a chip needs: start-up, registers, storage that lives as long as the program.
#![no_std]
#![deny(missing_docs)]

#[cfg(feature = "alloc")]
extern crate alloc;

mod adapt;
mod chip;
mod count;
mod dsp;
mod learn;
mod learner;
mod outside;
pub mod recipe;
pub mod semihosting;
mod spiking;
mod stack;
mod start;
mod tell;

pub use adapt::adapt;
pub use chip::{QuickSpeaker, Speaker};
pub use count::Counter;
pub use dsp::Dsp;
pub use learn::learn;
pub use learner::{Learner, SpikingLearner};
pub use outside::outside;
pub use semihosting::{Line, exit};
pub use spiking::SpikingSpeaker;
pub use stack::used as stack_used;
pub use tell::{Refused, number, open, tell};

/// Storage that lives as long as the program, and can be taken once.
pub struct Once<T>(core::cell::UnsafeCell<T>, core::sync::atomic::AtomicBool);

// One core and no interrupts: the storage is taken once, and nothing else has access to it.
unsafe impl<T> Sync for Once<T> {}

impl<T> Once<T> {
    /// Storage with the initial content `value`.
    pub const fn new(value: T) -> Once<T> {
        Once(core::cell::UnsafeCell::new(value), core::sync::atomic::AtomicBool::new(false))
    }

    /// The storage on the first call, then `None`.
    #[allow(clippy::mut_from_ref, reason = "given away once")]
    pub fn take(&'static self) -> Option<&'static mut T> {
        let taken = self.1.swap(true, core::sync::atomic::Ordering::Relaxed);
        // Safety: the flag was false, so this is the only reference there ever is.
        (!taken).then(|| unsafe { &mut *self.0.get() })
    }
}
