//! Everything of capful that touches a file, a thread or a GPU.
//!
//! - [`config`]: what the user wrote → what will run; [`plan`]: every region, cost and fit of it
//! - [`device`]: the devices that run a step
//! - [`data`]: sources, tokenizers, batches
//! - [`cli`]: the commands
//! - [`report`]: a page of what runs have written; [`live`]: the page of a run that goes on
//! - [`suggest`]: what to train with the bytes, the seconds and the text there are
//! - [`run`]: the training loop, checkpoints, metrics; [`format`](mod@format): files that others read too
//! - [`regular`]: files that can be opened without waiting; [`disk`]: files that are replaced whole; [`digest`]: what finds
//!   a changed one; [`lock`]: one that one process at a time has

// They panic where they cannot write: see `cli/output.rs`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod allocations;
pub mod cli;
pub mod config;
mod contain;
pub mod data;
pub mod device;
pub mod digest;
pub mod disk;
pub mod format;
pub mod live;
pub mod lock;
mod name;
pub mod plan;
pub mod ranks;
pub mod regular;
pub mod report;
pub mod run;
pub mod suggest;
