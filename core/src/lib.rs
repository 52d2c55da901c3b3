//! The mathematics and the memory accounting of capful.
//!
//! No standard library, no allocator, no unsafe code: every function works on storage that its caller owns.
//!
//! From the bottom up:
//! - [`memory`]: regions of one arena, and the ledger that lays them;
//! - [`device`]: what an operation is, and the two devices that run every one of them, `Reference` and `Meter`;
//! - [`fp8`]: floats of 8 bits; [`float16`]: of 16; [`integer`]: weights and activations in integers;
//! - [`remainder`]: the part of an f32 that its bf16 lacks;
//! - [`ops`]: the operations, a file each, with their definition in plain loops;
//! - [`model`]: a family's regions and its step, written once for all devices;
//! - [`data`]: batches out of a token stream, rows out of documents;
//! - [`train`]: the numbers that change from step to step;
//! - [`generate`]: choosing the next token;
//! - [`vocab`]: the capped vocabulary, its bounded builder, a BPE encoder;
//! - [`image`]: a trained model in flash, read where it lies;
//! - [`random`]: numbers that are a function of (seed, stream, index), and [`permutation`]s made of them.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod compressed;
pub mod data;
pub mod device;
pub mod float16;
pub mod fp8;
pub mod generate;
pub mod image;
pub mod integer;
pub mod memory;
pub mod model;
pub mod ops;
pub mod optimizer;
pub mod permutation;
pub mod random;
pub mod remainder;
pub mod train;
pub mod vocab;
pub mod wiring;
