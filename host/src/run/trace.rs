//! Writes a profiled step as trace events in JSON, for Perfetto and Chrome's own viewer.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::profile::Profile;

/// The tracks: the parts of the step, and their operations.
const PARTS: u32 = 1;
const OPERATIONS: u32 = 2;

/// A time of the step in nanoseconds. Events end where the next ones begin, so that none overlap by rounding.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// An event with beginning and end; times in microseconds, as viewers expect.
fn event(name: &str, track: u32, [from, to]: [u64; 2], arguments: Value) -> Value {
    let micros = |ns: u64| ns as f64 / 1e3;
    json!({
        "name": name, "ph": "X", "pid": 1, "tid": track,
        "ts": micros(from), "dur": micros(to - from), "args": arguments,
    })
}

/// The trace of `profile`; `title` names it.
fn events(profile: &Profile, title: &str) -> Vec<Value> {
    let named = |kind: &str, track: u32, name: &str| json!({"name": kind, "ph": "M", "pid": 1, "tid": track, "args": {"name": name}});
    let mut events = vec![
        named("process_name", 0, title),
        named("thread_name", PARTS, "step"),
        named("thread_name", OPERATIONS, "operations"),
    ];
    for part in profile.operations.chunk_by(|a, b| a.part == b.part) {
        let first = nanoseconds(part[0].start_seconds);
        let mut from = first;
        for o in part {
            let to = nanoseconds(o.start_seconds + o.seconds).max(from);
            let arguments = json!({
                "number": o.number, "part": o.part, "operands": o.operands, "bytes": o.bytes, "flops": o.flops,
                "roofline_us": o.roofline_seconds * 1e6, "seconds": o.seconds,
            });
            events.push(event(o.operation, OPERATIONS, [from, to], arguments));
            from = to;
        }
        events.push(event(&part[0].part, PARTS, [first, from], json!({"operations": part.len()})));
    }
    events
}

/// A trace file: created at once, so that a path that cannot be written is detected before anything is timed; renamed
/// to its final name when it is complete.
pub struct TraceFile {
    path: PathBuf,
    temporary: PathBuf,
    file: Option<File>,
}

impl TraceFile {
    /// Creates the file under a temporary name.
    ///
    /// # Errors
    /// It cannot be created there: a directory has that name, or its parent directory does not exist.
    pub fn create(path: &Path) -> io::Result<TraceFile> {
        if path.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let file = Some(File::create(&temporary)?);
        Ok(TraceFile { path: path.to_owned(), temporary, file })
    }

    /// Writes the trace of `profile` and gives the file its final name.
    ///
    /// # Errors
    /// The file system; then no file is left.
    pub fn write(mut self, profile: &Profile, title: &str) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let mut out = BufWriter::new(file);
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        for (i, event) in events(profile, title).iter().enumerate() {
            // One event in each line, so that a text editor is usable too.
            out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut out, event)?;
        }
        out.write_all(b"\n]}\n")?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        // The file has its final name by now, or is not wanted.
        let _ = fs::remove_file(&self.temporary);
    }
}
