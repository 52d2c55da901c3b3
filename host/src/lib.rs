//! Everything of capful that touches a file, a thread or a GPU.
//!
//! - [`config`]: what the user wrote → what will run; [`plan`]: every region, cost and fit of it
//! - [`device`]: the devices that run a step
//! - [`data`]: sources, tokenizers, batches
//! - [`cli`]: the commands
//! - [`report`]: a page of what runs have written; [`live`]: the page of a run that goes on
//! - [`suggest`]: what to train with the bytes, the seconds and the text there are
//! - [`run`]: the training loop, checkpoints, metrics; [`format`](mod@format): files that others read too
//! - the crate `capful-base`, here as [`regular`], [`disk`], [`digest`], [`lock`], [`allocations`]

// They panic where they cannot write: see `cli/output.rs`.
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
