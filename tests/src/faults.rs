//! Faults of the file system: the real binary with a library preloaded before the C library (faults.c), which makes one
//! call fail or kills the process at it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::binary::{Outcome, command};

/// The fault at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The call fails: an input/output error.
    Failed,
    /// The call fails: no space is left.
    Full,
    /// The process is killed at the call; half of a write is done.
    Killed,
}

impl How {
    fn name(self) -> &'static str {
        match self {
            How::Failed => "EIO",
            How::Full => "ENOSPC",
            How::Killed => "KILL",
        }
    }
}

/// The library, compiled once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("faults.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/faults.c");
        let built =
            Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&path).arg(source).arg("-ldl").status();
        assert!(built.expect("cc starts").success(), "faults.c does not compile");
        (dir, path)
    });
    path
}

fn prepared(dir: &Path, line: &str) -> Command {
    let mut command = command(dir, line);
    command.env("LD_PRELOAD", library()).env("FAULTS_UNDER", dir).stdin(Stdio::null());
    command
}

/// Runs `host LINE` in `dir` undisturbed, and returns each call that could fail: its kind and its file.
pub fn calls(dir: &Path, line: &str) -> Vec<String> {
    let log = tempfile::tempdir().expect("a temporary directory");
    let path = log.path().join("calls");
    let output = prepared(dir, line).env("FAULTS_LOG", &path).output().expect("the binary starts");
    Outcome::of(line, output).ok();
    let text = fs::read_to_string(path).expect("calls were counted");
    text.lines().map(|line| line.split_once(' ').map_or(line, |(_, call)| call).to_owned()).collect()
}

/// Runs `host LINE` in `dir` with a fault at call `number`, counted from 1.
pub fn disturbed(dir: &Path, line: &str, number: usize, how: How) -> Outcome {
    let mut command = prepared(dir, line);
    command.env("FAULTS_AT", number.to_string()).env("FAULTS_HOW", how.name());
    Outcome::of(line, command.output().expect("the binary starts"))
}
