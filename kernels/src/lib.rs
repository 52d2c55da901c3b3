//! The CUDA kernels, one operation a file in the folders of the core's `ops`, embedded as fat binaries for every GPU that
//! capful knows: machine code for compute capability 7.5, 8.0, 8.6, 8.9 and 9.0, PTX for later ones.
//!
//! Without the feature `cuda` this crate is empty.
#![cfg_attr(not(feature = "cuda"), allow(unused))]

#[cfg(feature = "cuda")]
include!(concat!(env!("OUT_DIR"), "/modules.rs"));
