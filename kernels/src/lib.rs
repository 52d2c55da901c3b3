//! The CUDA kernels, one file for each operation in the folders of the core's `ops`, embedded as fat binaries for every
//! GPU that capful supports: machine code for compute capability 7.5, 8.0, 8.6, 8.9 and 9.0, PTX for later ones.
//!
//! `arguments!` declares their arguments. Without the feature `cuda` there is nothing else.

#[cfg(feature = "cuda")]
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

include!(concat!(env!("OUT_DIR"), "/arguments.rs"));

#[cfg(test)]
#[path = "../arguments.rs"]
mod arguments;
