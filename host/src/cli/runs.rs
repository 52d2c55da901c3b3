//! `host runs`: lists a directory of runs.

use capful_base::human_bytes;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::Serialize;

use super::output::{in_columns, say, tell};
use super::{Failure, request, shown, work};
use crate::run::standing::{self, State};
use crate::run::{checkpoint, claim, directory, metrics};
use capful_base::words::date;

/// Flags of `host runs`.
#[derive(Debug, clap::Args)]
pub struct Runs {
    /// The directory that the runs lie in, or one run
    #[arg(value_name = "DIR", default_value = DEFAULT)]
    dir: PathBuf,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

/// The directory in which `train` creates runs without a name.
const DEFAULT: &str = "runs";

/// A directory in the list of runs.
#[derive(Debug, Serialize)]
struct Row {
    run: String,
    preset: Option<String>,
    family: Option<&'static str>,
    /// Steps of the last complete checkpoint.
    steps_done: u64,
    /// Steps of the whole run; `None` if its epochs are not converted yet.
    steps: Option<u64>,
    /// The last validation loss, nats a token, and its step.
    val_loss: Option<f64>,
    val_step: Option<u64>,
    bytes: u64,
    /// When it was last saved, in seconds since 1970.
    saved: Option<u64>,
    state: State,
    /// Why it cannot be read.
    error: Option<String>,
}

impl Runs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let rows: Vec<Row> = self.directories()?.iter().map(|dir| row(dir)).collect();
        if self.json {
            return say!("{}", serde_json::to_string_pretty(&rows).map_err(work)?);
        }
        if rows.is_empty() {
            tell!("no runs in {}; `{} train` makes one", self.dir.display(), crate::name::called());
            return Ok(());
        }
        table(&rows).iter().try_for_each(|line| say!("{line}"))
    }

    /// The directories to list, by name.
    fn directories(&self) -> Result<Vec<PathBuf>, Failure> {
        if directory::holds_run(&self.dir) {
            return Ok(vec![self.dir.clone()]);
        }
        if !self.dir.exists() && self.dir == Path::new(DEFAULT) {
            return Ok(Vec::new());
        }
        let failed = |e: std::io::Error| request(format_args!("{}: {e}", self.dir.display()));
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }
}

/// The row of the run in `dir`.
fn row(dir: &Path) -> Row {
    let mut row = Row {
        run: dir.display().to_string(),
        preset: None,
        family: None,
        steps_done: 0,
        steps: None,
        val_loss: None,
        val_step: None,
        bytes: size(dir),
        saved: None,
        state: State::Foreign,
        error: None,
    };
    if directory::holds_run(dir)
        && let Err(error) = describe(dir, &mut row)
    {
        row.state = if claim::is_claimed(dir) { State::Running } else { State::Damaged };
        row.error = Some(error);
    }
    row
}

fn describe(dir: &Path, row: &mut Row) -> Result<(), String> {
    let config = directory::read_config(dir).map_err(|e| e.to_string())?;
    row.preset = Some(config.begun_as());
    row.family = Some(config.model.name());
    row.steps = (config.steps > 0).then_some(config.steps);
    let last = checkpoint::last(dir).map_err(|e| e.to_string())?;
    let modified = fs::metadata(last.as_deref().unwrap_or(dir)).and_then(|metadata| metadata.modified()).ok();
    row.saved = modified.and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs()));
    let (state, saved) = standing::of(dir, &config, last.as_deref())?;
    row.steps_done = saved.map_or(0, |saved| saved.step);
    let evaluation = metrics::last_evaluation(dir, u64::MAX).map_err(|e| e.to_string())?;
    (row.val_loss, row.val_step) = evaluation.map_or((None, None), |e| (Some(e.val_loss), Some(e.step)));
    row.state = state;
    Ok(())
}

/// Bytes of all files below `dir`; links are not followed.
fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        metadata => metadata.map_or(0, |metadata| metadata.len()),
    };
    entries.map(of).sum()
}

/// The rows as a table for people.
fn table(rows: &[Row]) -> Vec<String> {
    let titles = ["run", "preset", "steps", "val loss", "size", "saved (UTC)", "state"].map(str::to_owned);
    let cells = rows.iter().map(|row| {
        let steps = match (row.state, row.steps) {
            (State::Imported | State::Damaged | State::Foreign, _) => "-".to_owned(),
            (_, Some(steps)) => format!("{}/{steps}", row.steps_done),
            (_, None) => row.steps_done.to_string(),
        };
        let why = row.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        [
            shown(&row.run),
            row.preset.as_deref().map_or("-".to_owned(), shown),
            steps,
            row.val_loss.map_or("-".to_owned(), |loss| format!("{loss:.4}")),
            human_bytes(row.bytes),
            row.saved.map_or("-".to_owned(), date),
            row.state.name().to_owned() + &shown(&why),
        ]
    });
    in_columns(&std::iter::once(titles).chain(cells).collect::<Vec<_>>(), 2..=4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_run_or_is_damaged_is_a_line() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        fs::create_dir_all(dir.join("a/deep")).unwrap();
        fs::write(dir.join("a/deep/file"), [0; 1000]).unwrap();
        fs::create_dir(dir.join("b")).unwrap();
        fs::write(dir.join("b/config.toml"), "preset = ").unwrap();
        fs::write(dir.join("file"), "").unwrap();
        let runs = Runs { dir: dir.to_owned(), json: false };
        let rows: Vec<Row> = runs.directories().unwrap().iter().map(|dir| row(dir)).collect();
        let states: Vec<_> = rows.iter().map(|row| (row.state, row.bytes)).collect();
        assert_eq!(states, [(State::Foreign, 1000), (State::Damaged, 9)]);
        let lines = table(&rows);
        assert!(lines.len() == 3 && lines[1].ends_with("no run"), "{lines:?}");
        assert!(lines[2].contains("damaged: ") && lines[2].contains("config.toml"), "{lines:?}");
    }
}
