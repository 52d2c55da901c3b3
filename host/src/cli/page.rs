//! `host report`.

use capful_base::human_bytes;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::output::say;
use super::{Failure, request, work};
use crate::config::ConfigError;
use crate::{disk, regular, report};
use capful_base::words::counted;

/// Flags of `host report`.
#[derive(Debug, clap::Args)]
pub struct Report {
    /// The directories of runs: of one all there is, of several what differs first
    #[arg(long, value_name = "DIR", required = true, num_args = 1..)]
    run: Vec<PathBuf>,
    /// The page that is written; one that is there already is replaced
    #[arg(long, value_name = "FILE.html")]
    out: PathBuf,
}

/// The beginning of every page.
const BEGIN: &[u8] = b"<!DOCTYPE html>";

impl Report {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Report { run, out } = self;
        require_free(&out)?;
        let html = report::page(&run)?;
        disk::replace(&out, html.as_bytes()).map_err(|e| {
            let what = format!("--out {}: {e}", out.display());
            if disk::is_full(&e) { work(what) } else { request(what) }
        })?;
        let size = human_bytes(html.len() as u64);
        say!("{}: {size}, {}", out.display(), counted(run.len() as u64, "run"))
    }
}

/// Refuses to overwrite a file that is not a page.
fn require_free(out: &Path) -> Result<(), ConfigError> {
    let refused = |what: &str| Err(ConfigError(format!("--out {}: {what}", out.display())));
    if out.is_dir() {
        return refused("it is a directory; name a file in it");
    }
    if !out.exists() {
        return Ok(());
    }
    let mut begin = Vec::new();
    let read = regular::open(out).and_then(|file: File| file.take(BEGIN.len() as u64).read_to_end(&mut begin));
    match read {
        Err(e) => refused(&e.to_string()),
        Ok(_) if begin.is_empty() || begin.eq_ignore_ascii_case(BEGIN) => Ok(()),
        Ok(_) => refused("it is there, and is no page of HTML; name another"),
    }
}
