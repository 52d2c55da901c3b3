//! The devices a step can run on, behind one type.

mod any;
mod stopwatch;

pub use any::{AnyDevice, AnyProfile, Ticket};
pub use capful_cpu as cpu;
pub use capful_cuda as cuda;
pub use capful_cuda::Choice;
pub use capful_device::{Allocation, Assignment, Collectives, DeviceError, Held, Overlap, Storage, Stream, Window};
pub use stopwatch::Stopwatch;
