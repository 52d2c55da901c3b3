//! Everything of capful that touches a file, a thread or a GPU.

pub mod data;
pub mod device;
