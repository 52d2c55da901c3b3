//! The real binary `host`, run as a user runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// A model and a batch so small that a run takes a fraction of a second on any device.
pub const TINY: &str = "--set layers=1 --set d_model=16 --set heads=2 --set d_ff=32 --vocab-size 300 --seq-len 32 \
                        --batch-size 4 --eval-tokens 500 --baseline-tokens 20000";

/// The path of the binary: `CAPFUL_HOST`, on a machine without cargo, else the one next to the tests.
pub fn path() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("CAPFUL_HOST") {
            return path.into();
        }
        // This test is in target/PROFILE/deps and the binary in target/PROFILE.
        let test = std::env::current_exe().expect("a test has a path");
        let binary = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST").join("host-under-test");
        assert!(binary.exists(), "{} is not there: cargo builds it with tests/tests", binary.display());
        binary
    })
}

/// The result of a command.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The command line, for messages.
    pub line: String,
    /// The exit status; none after a signal.
    pub status: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Outcome {
    /// The result of a finished process.
    pub fn of(line: &str, output: Output) -> Outcome {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        Outcome {
            line: line.to_owned(),
            status: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Returns itself if the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Outcome {
        assert_eq!(self.status, Some(0), "host {}\n{}", self.line, self.err);
        self
    }

    /// Returns itself if a plan was printed: of a run that fits, or of one that does not, which the status shows.
    #[track_caller]
    pub fn planned(self) -> Outcome {
        let (fits, printed) = (self.status == Some(0), !self.out.is_empty());
        assert!(printed && (fits || self.status == Some(2)), "host {}\n{}", self.line, self.err);
        self
    }

    /// Standard output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("host {}: {e}\n{}{}", self.line, self.out, self.err))
    }

    /// Standard output as one JSON value for each line.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        let parse = |l: &str| serde_json::from_str(l).unwrap_or_else(|e| panic!("host {}: {e}\n{l}", self.line));
        self.out.lines().map(parse).collect()
    }

    /// The one line on standard error of a command that ended with `status`; it must contain each of `says`.
    #[track_caller]
    pub fn refused(&self, status: i32, says: &[&str]) -> &str {
        assert_eq!(self.status, Some(status), "host {}\n{}{}", self.line, self.out, self.err);
        assert_eq!(self.err.matches('\n').count(), 1, "host {}: not one line:\n{}", self.line, self.err);
        let message = self.err.strip_prefix("host: ").unwrap_or_else(|| panic!("host {}\n{}", self.line, self.err));
        assert!(!message.contains("panicked"), "{message}");
        for what in says {
            assert!(message.contains(what), "host {}: no '{what}' in\n{message}", self.line);
        }
        message.trim_end()
    }
}

/// Runs `host LINE` in `dir`; the words of the line are separated by white space.
pub fn host(dir: &Path, line: &str) -> Outcome {
    host_with(dir, line, &[])
}

/// Runs `host LINE MORE…`; the arguments in `more` may contain white space.
pub fn host_with(dir: &Path, line: &str, more: &[&str]) -> Outcome {
    let output = with_arguments(dir, line, more).stdin(Stdio::null()).output().expect("the binary starts");
    Outcome::of(line, output)
}

/// `host LINE`, not yet started.
pub fn command(dir: &Path, line: &str) -> Command {
    with_arguments(dir, line, &[])
}

/// `host LINE MORE…`, not yet started.
fn with_arguments(dir: &Path, line: &str, more: &[&str]) -> Command {
    let mut command = Command::new(path());
    let words = line.split_whitespace().chain(more.iter().copied());
    let small = if says_no_model(words.clone()) { SMALL } else { "" };
    command.args(words).args(small.split_whitespace()).current_dir(dir);
    command
}

/// A model that supports everything: ranks, precisions, exports. The default preset has newer parts, which some
/// features lack.
const SMALL: &str = "--preset pythia-tiny";

/// `line`, with the model of most tests added where it names none.
pub fn of_a_model(line: &str) -> String {
    if says_no_model(line.split_whitespace()) { format!("{line} {SMALL}") } else { line.to_owned() }
}

fn says_no_model<'a>(mut words: impl Iterator<Item = &'a str>) -> bool {
    const ELSEWHERE: [&str; 6] = ["--preset", "--config", "--resume", "--init-from", "--run", "--help"];
    let takes_one = matches!(words.next(), Some("train" | "plan" | "bench"));
    takes_one && !words.any(|word| ELSEWHERE.iter().any(|of| word.starts_with(of)))
}

/// Removes the digests from the run's directory `run`, as earlier versions left it: its files can then be changed, and
/// the other checks can be tested.
pub fn forget_digests(run: &Path) {
    for entry in fs::read_dir(run).expect("a run's directory") {
        let done = entry.expect("an entry").path().join("DONE");
        if done.exists() {
            fs::write(done, "").expect("DONE can be written");
        }
    }
    let config = run.join("config.toml");
    let text = fs::read_to_string(&config).expect("a configuration");
    let text = if text.starts_with('#') { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &text };
    fs::write(&config, text).expect("a configuration can be written");
}

/// An empty directory that is removed when it is dropped.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}
