//! Oracles and helpers shared by the tests of capful.

pub mod binary;
pub mod model;
pub mod oracle;
