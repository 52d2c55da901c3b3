//! `host verify`.

use std::path::PathBuf;

use serde_json::json;

use super::output::say;
use super::{Failure, request};
use crate::run::verify::{Finding, State, verify};

/// Flags of `host verify`.
#[derive(Debug, clap::Args)]
pub struct Verify {
    /// The run's directory, or one of its checkpoints, DIR/checkpoint-N
    #[arg(long = "run", value_name = "DIR")]
    dir: PathBuf,
    /// JSON on standard output: a line a file or directory
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(super) fn run(self) -> Result<(), Failure> {
        let found = verify(&self.dir).map_err(request)?;
        let (mut damaged, mut unknown) = (0, 0);
        for Finding { path, state } in &found {
            let path = path.display();
            let (word, what) = match state {
                State::Whole(what) => ("whole", what.as_str()),
                State::Unknown(why) => ("unknown", *why),
                State::Damaged(what) => ("damaged", what.as_str()),
            };
            damaged += u32::from(word == "damaged");
            unknown += u32::from(word == "unknown");
            match self.json {
                true => say!("{}", json!({ "path": path.to_string(), "state": word, "what": what }))?,
                false => say!("{word:<8} {path}: {what}")?,
            }
        }
        if damaged > 0 {
            return Err(request(format_args!(
                "{}: {damaged} of {} parts are damaged; they are named above",
                self.dir.display(),
                found.len()
            )));
        }
        if !self.json {
            let rest = if unknown > 0 { format!(", {unknown} cannot be compared") } else { String::new() };
            match found.len() - unknown as usize {
                1 => say!("1 part is as it was written{rest}")?,
                whole => say!("{whole} parts are as they were written{rest}")?,
            }
        }
        Ok(())
    }
}
