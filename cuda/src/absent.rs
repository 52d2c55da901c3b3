//! Replaces the CUDA device in a build without the feature `cuda`: runs can be planned, but none can start.

use capful_core::device::{Device, Op, OperationError};
use capful_core::memory::Region;

use capful_ranks::SharedPeers;

use crate::{Description, Gpu, Precision, Products, Room};

/// The algorithm chosen for one matrix multiplication, passed through unchanged.
pub type Choice = serde_json::Value;

/// The error that this build has no CUDA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this build has no CUDA device; build it with --features cuda, or use --device cpu")]
pub struct CudaError;

impl CudaError {
    /// Whether the error occurred before any work was started.
    pub fn refuses(&self) -> bool {
        true
    }
}

/// The machine as seen by this build: without GPUs.
pub fn describe() -> Description {
    Description { driver: Err(CudaError.to_string()), gpus: Vec::new(), targets: "none", missing: Vec::new() }
}

/// No GPUs.
pub fn gpus() -> Vec<Gpu> {
    Vec::new()
}

/// Always fails.
///
/// # Errors
/// Always.
pub fn require(_: u32, _: Precision) -> Result<(), CudaError> {
    Err(CudaError)
}

/// Always fails.
///
/// # Errors
/// Always.
pub fn free(_: u32) -> Result<u64, CudaError> {
    Err(CudaError)
}

/// A device that cannot exist.
pub enum Cuda {}

/// Results that cannot exist.
#[derive(Debug, Clone, Copy)]
pub enum Pending {}

/// A program that cannot exist.
pub enum TimedGraph {}

impl Cuda {
    /// Always fails.
    ///
    /// # Errors
    /// Always.
    pub fn open(_: u32, _: Room, _: Products) -> Result<Cuda, CudaError> {
        Err(CudaError)
    }
}

/// The device's methods, none of which can be called.
macro_rules! never {
    ($($name:ident($($argument:ty),*) -> $out:ty;)*) => {
        #[allow(missing_docs, reason = "as the device's own")]
        impl Cuda {
            $(pub fn $name(&mut self, $(_: $argument),*) -> $out {
                match *self {}
            })*
        }
    };
}

never! {
    allow_tf32(bool) -> ();
    arena_bytes() -> u64;
    begin_recording() -> Result<(), CudaError>;
    busy_seconds() -> f64;
    choices() -> Vec<Choice>;
    clear() -> Result<(), CudaError>;
    end_recording(u64, Result<(), OperationError>) -> Result<(), CudaError>;
    join(&SharedPeers) -> Result<(), CudaError>;
    joules() -> Option<f64>;
    name_outside(&'static str) -> Result<(), CudaError>;
    next_step() -> Result<(), CudaError>;
    outside() -> &[(&'static str, u64)];
    queue_read(Region) -> Result<Pending, CudaError>;
    queue_write(Region, &[u8]) -> Result<(), CudaError>;
    read(Region, &mut [u8]) -> Result<(), CudaError>;
    record_timed(&[Op]) -> Result<TimedGraph, CudaError>;
    recorded(u64) -> bool;
    replay_recorded(u64) -> Result<(), CudaError>;
    replay_timed(&TimedGraph) -> Result<Vec<f64>, CudaError>;
    results(Pending) -> Result<&[u8], CudaError>;
    results_soon(Pending) -> Result<&mut [u8], CudaError>;
    require_library() -> Result<(), CudaError>;
    run_program(&[Op]) -> Result<(), OperationError>;
    reuse(&[Choice]) -> Result<(), String>;
    set_tuning(bool) -> ();
    synchronise() -> Result<(), CudaError>;
    take_failure() -> Option<CudaError>;
    tuning() -> bool;
    used() -> Result<u64, CudaError>;
    warn(String) -> ();
    warnings() -> &[String];
    write(Region, &[u8]) -> Result<(), CudaError>;
}

impl Device for Cuda {
    fn run(&mut self, _: &Op) -> Result<(), OperationError> {
        match *self {}
    }
}
