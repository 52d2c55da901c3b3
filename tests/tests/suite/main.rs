//! The real binary and real files, as a user uses them, and whole models compared with independent oracles.
//!
//! One program, because each test program links everything again. Tests that count allocations have programs of their
//! own.

mod adapters;
mod averages;
mod bad_input;
mod best;
mod chat;
mod chip;
mod conversations;
mod cuda;
mod curriculum;
mod damage;
mod digests;
mod docs;
mod dropout;
mod export;
mod factored;
#[cfg(target_os = "linux")]
mod faults;
mod files;
mod firmware;
mod fp8;
mod generation;
mod image;
mod import;
mod integers;
mod live;
mod masks;
mod memory;
mod mix;
mod mixtures;
mod muon;
mod neurogen;
mod no_alloc;
mod non_finite;
mod optimizers;
mod profile;
mod pythia;
mod ranks;
mod released;
mod report;
mod resume;
mod rooms;
mod runs;
mod saved;
mod schedule;
mod screen;
mod softcap;
mod states;
mod suggest;
mod sweep;
mod time;
mod tokenizers;
mod validation;
mod yxanul;
