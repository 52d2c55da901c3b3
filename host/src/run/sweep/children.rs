//! The processes of a sweep: the `train` command as a user would start it, so that no run can harm another.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::config::RawConfig;
use crate::{disk, regular};

/// A running child process.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    begun: Instant,
    log: PathBuf,
    /// Bytes of the log before the process began.
    before: u64,
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit status; `None` after a signal.
    pub status: Option<i32>,
    /// Seconds from its start.
    pub seconds: f64,
    /// Tokens a second, if the run succeeded.
    pub tokens_per_s: Option<f64>,
    /// The last line of its output for people, or the signal that ended it.
    pub line: String,
}

/// `dir` with this suffix: the name of a file next to it.
fn beside(dir: &Path, ending: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// `raw` as the text of a configuration file, without the keys that only flags can express.
fn told(raw: &RawConfig) -> Result<String, toml::ser::Error> {
    // The configuration of a started run has both keys: its epochs were converted to steps.
    let steps = raw.steps.filter(|_| raw.epochs.is_none());
    toml::to_string(&RawConfig { steps, ..raw.clone() })
}

impl Child {
    /// Starts or continues the run in `dir` that `raw` describes. Its input is in `dir`.toml, its output in `dir`.log.
    ///
    /// # Errors
    /// Files that cannot be written, a process that cannot be started.
    pub fn start(dir: &Path, raw: &RawConfig) -> io::Result<Child> {
        let text = told(raw).map_err(io::Error::other)?;
        let (told, log) = (beside(dir, ".toml"), beside(dir, ".log"));
        disk::replace(&told, text.as_bytes())?;
        let says = OpenOptions::new().create(true).append(true).open(&log)?;
        let before = says.metadata()?.len();
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("train").arg("--config").arg(told);
        // A configuration file has these as tables, which would apply at a later point.
        command.args(raw.set.iter().map(|pair| format!("--set={pair}")));
        command.args(raw.groups.iter().map(|pair| format!("--group={pair}")));
        command.arg("--out").arg(dir).args(["--resume", "--json"]);
        command.stdin(Stdio::null()).stdout(says.try_clone()?).stderr(says);
        // A terminal's interrupt reaches only the sweep, which passes it on once: a second interrupt would end a run
        // without saving.
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt as _;
            command.process_group(0).arg0(crate::name::called());
        }
        Ok(Child { process: command.spawn()?, begun: Instant::now(), log, before })
    }

    /// Requests that the process saves and ends.
    pub fn interrupt(&mut self) {
        // An error means that the process has already ended.
        #[cfg(unix)]
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.process),
            rustix::process::Signal::INT,
        );
        #[cfg(not(unix))]
        let _ = self.process.kill();
    }

    /// How the process ended, if it has ended.
    ///
    /// # Errors
    /// The system.
    pub fn ended(&mut self) -> io::Result<Option<Ended>> {
        Ok(self.process.try_wait()?.map(|status| self.told(status)))
    }

    fn told(&self, status: ExitStatus) -> Ended {
        let text = self.said().unwrap_or_default();
        let last = |which: &dyn Fn(&&str) -> bool| text.lines().rev().find(which).unwrap_or_default().to_owned();
        let done: Value =
            serde_json::from_str(&last(&|line| line.starts_with("{\"") && line.contains("\"done\":true")))
                .unwrap_or_default();
        let line = last(&|line| !line.trim().is_empty() && !line.starts_with('{'));
        Ended {
            status: status.code(),
            seconds: self.begun.elapsed().as_secs_f64(),
            tokens_per_s: done["tokens_per_s"].as_f64(),
            line: if status.code().is_some() { line } else { format!("it was ended by {status}") },
        }
    }

    /// The last part of the output of this process.
    fn said(&self) -> io::Result<String> {
        let mut file = File::open(&self.log)?;
        let end = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(self.before.max(end.saturating_sub(regular::SETTINGS))))?;
        let mut bytes = Vec::new();
        file.take(regular::SETTINGS).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Takes one of `children` that has ended out of the list, with its job and how it ended; `None` while all are running.
///
/// # Errors
/// The system.
pub fn take_ended(children: &mut Vec<(usize, Child)>) -> io::Result<Option<(usize, Ended)>> {
    for at in 0..children.len() {
        if let Some(how) = children[at].1.ended()? {
            return Ok(Some((children.swap_remove(at).0, how)));
        }
    }
    Ok(None)
}

/// A process that is no longer waited for saves and ends.
impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.interrupt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, presets};

    #[test]
    fn what_a_run_is_told_is_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            RawConfig::read(&path).unwrap()
        };
        let written = "recompute = 'fit:3GiB'\ntokens_per_step = '10k'\nbudget = '1.5GiB'\ngpu = '22GiB'\nclip = 0.1\n\
                       eps = 1e-9\nlr = 3e-4\nema = 0.999\npool = '3MiB'\ntokenizer = 'bpe'\ndata = '/a b'\n\
                       precision = 'bf16'\nkeep_best = true\nbatch_size = 'auto'\nstage_scale = 1.5\n\
                       [model]\nlayers = 3\nbias = true\n[group.matrix]\nlr = 0.7\nweight_decay = 0.2";
        let stages = "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 4\nclip = 0.3\n[[stage]]\nfrom = 9\nseq_len = 16\nbatch_size = 2";
        for text in [written, stages, ""] {
            let raw = read(text);
            assert_eq!(read(&told(&raw).unwrap()), raw, "{text}");
        }
        // The file of another run, including its epochs.
        for preset in presets() {
            let config = toml::from_str(&format!("preset = '{}'\nepochs = 2", preset.name)).unwrap();
            let run = Config { steps: 7, ..Config::resolve(config).unwrap() };
            let raw = read(&toml::to_string(&run).unwrap());
            let again = read(&told(&raw).unwrap());
            assert_eq!(Config::resolve(again).unwrap(), Config { steps: 0, ..run }, "{}", preset.name);
        }
    }
}
