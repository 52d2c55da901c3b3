//! The command `host`.

fn main() {}
