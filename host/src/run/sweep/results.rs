//! The results of a sweep's runs, as its file stores them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Planned;
use crate::run::{checkpoint, directory, metrics};
use crate::{disk, regular};

/// The file in a sweep's directory.
pub const FILE_NAME: &str = "sweep.json";

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All of its steps are done.
    Done,
    /// Not started, or not continued.
    Waiting,
    /// Interrupted and saved.
    Interrupted,
    /// Ended with an error.
    Failed,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name: the name of its directory inside the sweep's.
    pub name: String,
    /// The settings in which it differs from other runs.
    pub varied: BTreeMap<String, String>,
    /// The state of the run.
    pub state: State,
    /// Parameters of the model.
    pub params: u64,
    /// Bytes of the device's memory that its plan needs.
    pub bytes: u64,
    /// Steps done, according to its last checkpoint.
    pub steps: u64,
    /// Tokens trained on, by then.
    pub tokens: u64,
    /// Seconds of its processes, from start to end.
    pub seconds: f64,
    /// Training speed, as measured by its last session.
    pub tokens_per_s: Option<f64>,
    /// The last evaluation in its metrics, nats a token.
    pub val_loss: Option<f64>,
    /// Its standard error.
    pub val_loss_se: Option<f64>,
    /// The loss of the averages of the weights, if there are any.
    pub val_loss_averaged: Option<f64>,
    /// Bits a byte of text, if tokens restore it.
    pub bits_per_byte: Option<f64>,
    /// Its error message, if it failed.
    pub error: Option<String>,
}

impl Row {
    /// The row of a planned run in `dir`; `before` is its row from the last time.
    pub fn of(name: &str, varied: BTreeMap<String, String>, run: &Planned, dir: &Path, before: Option<&Row>) -> Row {
        let mut row = Row {
            name: name.to_owned(),
            varied,
            state: if run.done { State::Done } else { State::Waiting },
            params: run.plan.params,
            bytes: run.plan.needed_bytes,
            steps: 0,
            tokens: 0,
            seconds: before.map_or(0.0, |before| before.seconds),
            tokens_per_s: before.and_then(|before| before.tokens_per_s),
            val_loss: None,
            val_loss_se: None,
            val_loss_averaged: None,
            bits_per_byte: None,
            error: None,
        };
        row.look(dir);
        row
    }

    /// Reads the files that the run in `dir` has written. Values that cannot be read stay unchanged.
    pub fn look(&mut self, dir: &Path) {
        if let Ok(Some(evaluation)) = metrics::last_evaluation(dir, u64::MAX) {
            self.val_loss = Some(evaluation.val_loss);
            self.val_loss_se = evaluation.val_loss_se;
            self.val_loss_averaged = evaluation.val_loss_averaged;
            self.bits_per_byte = evaluation.val_bits_per_byte;
        }
        if let Ok(Some(state)) =
            checkpoint::last(dir).map(|last| last.and_then(|last| checkpoint::read_state(&last).ok()))
        {
            (self.steps, self.tokens) = (state.step, state.tokens);
        }
        // The data may have made the vocabulary smaller than planned.
        let plan = regular::text_at_most(&dir.join(directory::PLAN), regular::STATE);
        let plan: Value = plan.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        self.params = plan["params"].as_u64().unwrap_or(self.params);
        self.bytes = plan["needed_bytes"].as_u64().unwrap_or(self.bytes);
    }
}

/// Whether `dir` contains a sweep.
pub fn holds_sweep(dir: &Path) -> bool {
    dir.join(FILE_NAME).exists()
}

/// The rows as they are stored and shown: finished runs in the order of their losses, the others after them.
#[derive(Serialize, Deserialize)]
struct Sweep {
    runs: Vec<Row>,
}

/// Writes `rows` into `dir`, sorted. Returns the sorted rows, and the text.
///
/// # Errors
/// The file system; the old file stays.
pub fn keep(dir: &Path, rows: &[Row]) -> io::Result<(Vec<Row>, String)> {
    let mut runs = rows.to_vec();
    let loss = |row: &Row| row.val_loss.unwrap_or(f64::INFINITY);
    let open = |row: &Row| row.state != State::Done;
    runs.sort_by(|a, b| open(a).cmp(&open(b)).then(loss(a).total_cmp(&loss(b))));
    let sweep = Sweep { runs };
    let text = serde_json::to_string_pretty(&sweep)?;
    disk::replace(&dir.join(FILE_NAME), text.as_bytes())?;
    Ok((sweep.runs, text))
}

/// The rows that a sweep has stored in `dir`; empty if there are none.
///
/// # Errors
/// A file that cannot be read.
pub fn kept(dir: &Path) -> io::Result<Vec<Row>> {
    match regular::text_at_most(&dir.join(FILE_NAME), regular::STATE) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        text => Ok(serde_json::from_str::<Sweep>(&text?)?.runs),
    }
}
