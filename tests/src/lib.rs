//! Oracles and helpers shared by the tests of capful.

pub mod oracle;
