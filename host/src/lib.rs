//! Everything of capful that uses a file, a thread or a GPU.
//!
//! - [`config`]: what the user wrote → what will run; [`plan`]: every region of memory, its cost, and whether it fits
//! - [`device`]: the devices that run a step
//! - [`data`]: sources, tokenizers, batches
//! - [`cli`]: the commands
//! - [`report`]: a page about runs, from their files; [`live`]: the page of a run in progress
//! - [`suggest`]: what to train with the available memory, time and text
//! - [`run`]: the training loop, checkpoints, metrics; [`format`](mod@format): files that other programs read too
//! - [`regular`]: opens files without waiting; [`disk`]: replaces files as a whole; [`digest`]: detects changed files;
//!   [`lock`]: a file that one process at a time locks

// The printing macros panic if they cannot write: see `cli/output.rs`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod cli;
pub mod device;
pub mod format;
pub mod live;
pub mod plan;
pub mod report;
pub mod run;
pub mod suggest;

use capful_base::name;
pub use capful_base::{allocations, digest, disk, lock, regular};
pub use {capful_config as config, capful_data as data, capful_ranks as ranks};
