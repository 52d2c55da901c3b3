//! `host completions`.

use super::output::say;
use super::{Failure, command};
use crate::name;

/// Flags of `host completions`.
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command(), name::called(), &mut script);
        say!("{}", String::from_utf8_lossy(&script).trim_end())
    }
}
