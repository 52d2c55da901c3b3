//! Oracles and helpers shared by the tests of capful.

pub mod binary;
pub mod digests;
pub mod emulated;
#[cfg(target_os = "linux")]
pub mod faults;
pub mod gguf;
pub mod model;
pub mod oracle;
pub mod page;
pub mod profile;
pub mod runs;
pub mod safetensors;
