//! The devices: each runs the operations of the core on one kind of machine, one file an operation.

#[cfg(feature = "cuda")]
pub mod cuda;
