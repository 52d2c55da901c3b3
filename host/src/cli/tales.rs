//! `host tales`.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use serde_json::json;

use super::output::{say, tell};
use super::{Failure, request, work};
use crate::data::tales::Tales;
use crate::disk;

/// Flags of `host tales`.
#[derive(Debug, clap::Args)]
pub struct WriteTales {
    /// How many
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    count: u64,
    /// Each with a question about it and the answer, as the messages of a conversation
    #[arg(long)]
    questions: bool,
    /// Those that a run on the tales is scored on, and not those that it learns from
    #[arg(long)]
    validation: bool,
    /// Decides the tales
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The file of JSON lines, for --data
    #[arg(long, value_name = "FILE.jsonl")]
    out: PathBuf,
}

impl WriteTales {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.out.is_dir() {
            return Err(request(format!("{}: a directory; name a file", self.out.display())));
        }
        let tales = if self.validation { Tales::validation(self.seed) } else { Tales::training(self.seed) };
        let temporary = disk::temporary(&self.out);
        let failed = |e: std::io::Error| work(format!("{}: {e}", self.out.display()));
        let written = File::create(&temporary).and_then(|file| {
            let mut out = BufWriter::new(file);
            for index in 0..self.count {
                writeln!(out, "{}", self.line(&tales, index))?;
            }
            out.into_inner()?.sync_all()?;
            fs::rename(&temporary, &self.out)
        });
        written.inspect_err(|_| drop(fs::remove_file(&temporary))).map_err(failed)?;
        tell!("{} {} in {}", self.count, if self.questions { "questions" } else { "tales" }, self.out.display());
        say!("{}", self.line(&tales, 0))
    }

    fn line(&self, tales: &Tales, index: u64) -> serde_json::Value {
        if self.questions {
            let (question, answer) = tales.question(index);
            let message = |role: &str, content: String| json!({ "role": role, "content": content });
            return json!({ "messages": [message("user", question), message("assistant", answer)] });
        }
        let mut text = String::new();
        tales.tale(index, &mut text);
        json!({ "text": text })
    }
}
