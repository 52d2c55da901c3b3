//! Additional outputs of a run: lines of JSON, and the served page.

use std::io::{self, Write as _};
use std::path::Path;

use super::Failure;
use super::output::{lost, tell};
use crate::config::Config;
use crate::live::{Bound, Live};
use crate::name;
use crate::report::known::Known;
use crate::run::metrics::{EvalMetrics, StepMetrics};
use crate::run::train::Observer;

/// Lines of JSON on standard output. A line that cannot be written does not stop the training.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The error of the first lost line.
    lost: Option<io::Error>,
}

impl Lines {
    fn write(&mut self, line: &str) {
        let mut out = io::stdout().lock();
        let written = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        self.lost = self.lost.take().or(written.err());
    }

    /// Whether all lines were written, or the reader went away.
    pub fn complete(self) -> Result<(), Failure> {
        match self.lost.filter(|e| e.kind() != io::ErrorKind::BrokenPipe) {
            Some(error) => Err(lost(error)),
            None => Ok(()),
        }
    }
}

/// The receivers of what a run logs.
pub(super) struct Watched<'a> {
    /// Standard output.
    pub lines: Option<&'a mut Lines>,
    /// The page.
    pub live: Option<&'a Live>,
}

impl Observer for Watched<'_> {
    fn step(&mut self, metrics: &StepMetrics) {
        if let Some(lines) = &mut self.lines {
            lines.write(&metrics.json());
        }
        if let Some(live) = self.live {
            live.step(metrics);
        }
    }

    fn evaluation(&mut self, metrics: &EvalMetrics) {
        if let Some(lines) = &mut self.lines {
            lines.write(&metrics.json());
        }
        if let Some(live) = self.live {
            live.evaluation(metrics);
        }
    }
}

/// Serves the page of the run of `config` in `dir`, and reports its address. A run continues without a page that cannot
/// be made.
pub(super) fn served(bound: Bound, dir: &Path, config: &Config) -> Option<Live> {
    let address = bound.address();
    let live = Known::of(dir).map_err(|e| e.to_string()).and_then(|known| {
        // The saved configuration is the previous one until a step has succeeded.
        bound.serve(Known { config: config.clone(), ..known }).map_err(|e| e.to_string())
    });
    match live {
        Ok(live) => {
            tell!("live page: {address}");
            Some(live)
        }
        Err(what) => {
            tell!("{}: --live: {what}; the run goes on without a page", name::called());
            None
        }
    }
}
