//! Measures the time of each operation of a program, run in its place among the others.

use std::time::Instant;

use capful_core::device::{Device as _, Op};

use super::cuda::TimedGraph;
use super::{AnyDevice, DeviceError};

/// A program prepared for timing.
pub struct Stopwatch {
    /// The recorded program on a GPU, whose operations are only queued when `run` returns.
    graph: Option<TimedGraph>,
}

impl AnyDevice {
    /// Prepares `ops` for timing. Runs no operation.
    ///
    /// # Errors
    /// An operation that failed.
    pub fn stopwatch(&mut self, ops: &[Op]) -> Result<Stopwatch, DeviceError> {
        Ok(Stopwatch { graph: self.gpu().map(|gpu| gpu.record_timed(ops)).transpose()? })
    }

    /// Runs `ops` and waits for them: returns the seconds of each operation, from the end of the operation before it to
    /// its own end.
    ///
    /// # Errors
    /// An operation that failed.
    pub fn run_timed(&mut self, ops: &[Op], stopwatch: &Stopwatch) -> Result<Vec<f64>, DeviceError> {
        if let (Some(graph), Some(gpu)) = (&stopwatch.graph, self.gpu()) {
            return Ok(gpu.replay_timed(graph)?);
        }
        let mut seconds = Vec::with_capacity(ops.len());
        let mut before = Instant::now();
        for op in ops {
            self.run(op).map_err(|e| self.explain(e))?;
            let after = Instant::now();
            seconds.push((after - before).as_secs_f64());
            before = after;
        }
        Ok(seconds)
    }
}
