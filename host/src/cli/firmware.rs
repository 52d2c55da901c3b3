//! `host firmware`.

use std::path::PathBuf;

use serde_json::json;

use super::Failure;
use super::output::say;
use crate::format::firmware;

/// Flags of `host firmware`.
#[derive(Debug, clap::Args)]
pub struct Firmware {
    /// The run's directory; its last complete checkpoint is exported
    #[arg(long = "run", value_name = "DIR")]
    dir: PathBuf,
    /// The image to make; a file of its sizes for Rust is made beside it
    out: PathBuf,
    /// Leave the tokenizer out: the chip is then given ids
    #[arg(long)]
    no_tokenizer: bool,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Firmware {
    pub(super) fn run(self) -> Result<(), Failure> {
        let made = firmware::export(&self.dir, &self.out, !self.no_tokenizer)?;
        let sizes = made.sizes;
        if self.json {
            let files: serde_json::Map<_, _> =
                made.files.iter().map(|(path, bytes)| (path.display().to_string(), (*bytes).into())).collect();
            return say!("{}", json!({ "files": files, "image": sizes.image(), "arena": sizes.arena }));
        }
        for (path, bytes) in &made.files {
            say!("{bytes:>14}  {}", path.display())?;
        }
        say!("{:>14}  bytes of storage that the model needs to speak", sizes.arena)
    }
}
