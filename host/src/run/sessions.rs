//! What a run reports when its command begins and when it ends, stored next to its metrics: lines of JSON, each of
//! which begins with the digest of its remaining text. Runs of earlier versions have no such file.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{digest, disk, regular};

/// The file in a run's directory.
pub const FILE_NAME: &str = "sessions.jsonl";

/// A reported event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// A command began to train.
    Began(Began),
    /// A sample of the model's text at an evaluation.
    Sampled(Sampled),
    /// The command finished its run.
    Ended(Ended),
}

/// The beginning of a command's training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Began {
    /// Steps done before it.
    pub step: u64,
    /// Seconds since 1970.
    pub at: u64,
    /// The program's version.
    pub version: String,
    /// The operating system and the processor architecture.
    pub system: String,
    /// Number of available cores.
    pub cores: usize,
    /// The training device.
    pub device: String,
    /// The command line.
    pub command: Vec<String>,
    /// The report about the data: order, held-out documents, words unknown to the tokenizer.
    #[serde(default)]
    pub data: Vec<String>,
}

/// A sample of the model's text during the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Steps done.
    pub step: u64,
    /// The text.
    pub sample: String,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Steps done.
    pub step: u64,
    /// Seconds since 1970.
    pub at: u64,
    /// The last line of `train --json`.
    pub result: serde_json::Value,
    /// A sample of the model's text after it, if one was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
    /// Number of documents of the source, including held-out ones, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<u64>,
    /// Number of tokens of the source, including those of held-out documents, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_tokens: Option<u64>,
    /// Skipped and repaired text, one line for each source.
    #[serde(default)]
    pub flaws: Vec<String>,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The text of a line before its digest, and the text after it.
const SEAL: [&str; 2] = ["{\"xxh3\":\"", "\","];
const DIGITS: usize = 16;

/// A line with the digest of its remaining text.
fn sealed(event: &Event) -> serde_json::Result<String> {
    let text = serde_json::to_string(event)?;
    // Without the opening brace.
    let rest = &text[1..];
    Ok(format!("{}{:016x}{}{rest}\n", SEAL[0], digest::of(rest.as_bytes()), SEAL[1]))
}

/// The event of a line; `None` if the line has changed.
fn opened(line: &str) -> Option<Event> {
    let line = line.strip_prefix(SEAL[0])?;
    let (digits, rest) = line.split_at_checked(DIGITS)?;
    let rest = rest.strip_prefix(SEAL[1])?;
    let same = format!("{:016x}", digest::of(rest.as_bytes())) == digits;
    serde_json::from_str(&format!("{{{rest}")).ok().filter(|_| same)
}

/// Adds a line to the file of the run in `dir`. An incomplete line before it is removed.
///
/// # Errors
/// The file system.
pub fn add(dir: &Path, event: &Event) -> io::Result<()> {
    let path = dir.join(FILE_NAME);
    match regular::read(&path) {
        Ok(before) if before.last().is_some_and(|last| *last != b'\n') => {
            let whole = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            disk::replace(&path, &before[..whole])?;
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    file.write_all(sealed(event).map_err(io::Error::other)?.as_bytes())?;
    file.sync_data()
}

/// All events of the run in `dir`; empty for earlier versions. An incomplete last line is skipped.
///
/// # Errors
/// The line that has changed.
pub fn read(dir: &Path) -> Result<Vec<Event>, String> {
    let path = dir.join(FILE_NAME);
    let text = match regular::text_at_most(&path, regular::STATE) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|e| format!("{}: {e}", path.display()))?,
    };
    let lines = (1..).zip(text.split_inclusive('\n')).filter(|(_, line)| line.ends_with('\n'));
    let event = |(number, line): (u64, &str)| {
        opened(line.trim_end_matches('\n')).ok_or_else(|| {
            format!("{}: line {number} is damaged: its content is not what was written, by its digest", path.display())
        })
    };
    lines.map(event).collect()
}

/// Checks the file against its digests and returns its number of lines; `None` if there is no file.
///
/// # Errors
/// As [`read`]; an incomplete last line.
pub fn compare(dir: &Path) -> Result<Option<usize>, String> {
    let path = dir.join(FILE_NAME);
    if !path.exists() {
        return Ok(None);
    }
    let events = read(dir)?;
    let whole = regular::read(&path).map_err(|e| format!("{}: {e}", path.display()))?.ends_with(b"\n");
    if whole { Ok(Some(events.len())) } else { Err(format!("{}: its last line is cut", path.display())) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn events() -> [Event; 2] {
        let began = Began {
            step: 0,
            at: 5,
            version: "0.1.0".to_owned(),
            system: "linux x86_64".to_owned(),
            cores: 2,
            device: "cpu".to_owned(),
            command: vec!["host".to_owned(), "a \"b\"\n".to_owned()],
            data: Vec::new(),
        };
        let result = serde_json::json!({ "val_loss": 0.1 + 0.2, "floor": null });
        let sample = Some("</script>]]>".to_owned());
        let ended = Ended { step: 9, at: 7, result, sample, documents: None, source_tokens: None, flaws: Vec::new() };
        [Event::Began(began), Event::Ended(ended)]
    }

    #[test]
    fn what_was_added_is_read_and_a_cut_line_makes_way() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!((read(dir), compare(dir)), (Ok(Vec::new()), Ok(None)));
        let [began, ended] = events();
        add(dir, &began).unwrap();
        add(dir, &ended).unwrap();
        assert_eq!(read(dir).unwrap(), [began.clone(), ended.clone()]);
        let path = dir.join(FILE_NAME);
        let text = fs::read_to_string(&path).unwrap();
        let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(first["command"][1], "a \"b\"\n");
        fs::write(&path, &text[..text.len() - 3]).unwrap();
        assert_eq!(read(dir).unwrap(), std::slice::from_ref(&began));
        assert!(compare(dir).unwrap_err().contains("cut"));
        add(dir, &ended).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), compare(dir)), (text, Ok(Some(2))));
    }

    #[test]
    fn every_changed_bit_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let [began, ended] = events();
        add(dir.path(), &began).unwrap();
        add(dir.path(), &ended).unwrap();
        let path = dir.path().join(FILE_NAME);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, bad).unwrap();
            let said = compare(dir.path()).unwrap_err();
            assert!(said.contains(FILE_NAME), "byte {at}: {said}");
        }
    }
}
