//! The mathematics and the memory accounting of capful.
//!
//! No standard library, no allocator, no unsafe code: every function works on storage that its caller owns.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod data;
pub mod random;
