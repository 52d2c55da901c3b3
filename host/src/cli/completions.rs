//! `host completions`.

use clap::CommandFactory as _;

use super::{Arguments, Failure};

/// Flags of `host completions`.
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<(), Failure> {
        clap_complete::generate(self.shell, &mut Arguments::command(), "host", &mut std::io::stdout());
        Ok(())
    }
}
