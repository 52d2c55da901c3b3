//! The logs of a run: lines of JSON in metrics.jsonl and events for TensorBoard.
//!
//! The training thread writes them itself, from buffers on its stack: nothing is allocated.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::gauges::Readings;
use super::speed::Speed;
use super::tensorboard;
use crate::data::sequences::mixture::BySource;
use crate::digest::{self, Digest};
use crate::suggest::ending::Expected;
use crate::{disk, regular};

/// One logged step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepMetrics {
    /// Steps done.
    pub step: u64,
    /// The step's stage in the curriculum, counted from 1.
    pub stage: usize,
    /// Training loss, nats a token.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Global norm of the gradient before the clip.
    pub norm: f64,
    /// Number of steps so far that changed nothing, because their loss or norm was not finite.
    pub skipped: u64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// The shares of the sources of a mixture among those tokens.
    pub drawn: BySource,
    /// The speed since the last logged step.
    pub speed: Speed,
    /// The family's gauges.
    pub gauges: Readings,
}

/// One evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvalMetrics {
    /// Steps done.
    pub step: u64,
    /// Nats a token.
    pub val_loss: f64,
    /// Its standard error over the documents, if there are several.
    pub val_loss_se: Option<f64>,
    /// Targets scored.
    pub val_tokens: u64,
    /// Bits a byte of text, if tokens restore it.
    pub val_bits_per_byte: Option<f64>,
    /// The losses on the sources of a mixture.
    pub val_by_source: BySource,
    /// The loss of the averages of the weights, if there are any.
    pub val_loss_averaged: Option<f64>,
    /// The mean training loss since the last scheduled evaluation, if there is one.
    pub train_loss: Option<f64>,
    /// The number of consecutive evaluations whose loss rose while the training loss fell.
    pub rose: u32,
    /// The predicted final loss of the run, in bits a byte, where it can be predicted.
    pub expected_end: Option<Expected>,
}

impl EvalMetrics {
    /// The same metrics for the averages of the weights, if there are any.
    pub fn of_averages(self) -> Option<EvalMetrics> {
        let val_loss = self.val_loss_averaged?;
        // Both losses have the same tokens and bytes.
        let val_bits_per_byte = self.val_bits_per_byte.map(|bits| bits * (val_loss / self.val_loss));
        let val_by_source = BySource::NONE;
        Some(EvalMetrics { val_loss, val_loss_se: None, val_bits_per_byte, val_by_source, expected_end: None, ..self })
    }

    /// The validation loss above the training loss, where both are known.
    pub fn gap(&self) -> Option<f64> {
        Some(self.val_loss - self.train_loss?)
    }
}

/// A line; it fits its buffer for all numbers.
type Line = heapless::String<1152>;

/// A number with this many decimals; a number that is not finite has no JSON form and becomes null.
fn number(line: &mut Line, value: f64, decimals: usize) {
    let _ = if value.is_finite() { write!(line, "{value:.decimals$}") } else { line.write_str("null") };
}

/// A number for each source of a mixture, in the order of the configuration; nothing for a single source.
fn numbers(line: &mut Line, name: &str, values: BySource, decimals: usize) {
    for (i, value) in values.iter().enumerate() {
        let _ = if i == 0 { write!(line, ",\"{name}\":[") } else { line.write_str(",") };
        number(line, *value, decimals);
    }
    let _ = if values.is_empty() { Ok(()) } else { line.write_str("]") };
}

impl StepMetrics {
    /// The line of JSON, with its end.
    pub fn json(&self) -> Line {
        let mut line = Line::new();
        let Self { step, stage, loss, lr, norm, skipped, tokens, drawn, speed, gauges } = self;
        let Speed { tokens_per_s, cpu, gpu, waited } = speed;
        let _ = write!(line, "{{\"step\":{step},\"stage\":{stage},\"loss\":");
        number(&mut line, *loss, 6);
        let _ = write!(line, ",\"lr\":{lr:.6e},\"norm\":");
        number(&mut line, *norm, 5);
        if *skipped > 0 {
            let _ = write!(line, ",\"skipped\":{skipped}");
        }
        let _ = write!(line, ",\"tokens\":{tokens}");
        numbers(&mut line, DRAWN, *drawn, 5);
        let _ = write!(line, ",\"tokens_per_s\":{tokens_per_s:.1}");
        for (name, share) in [("cpu", cpu), ("gpu", gpu)] {
            if let Some(share) = share {
                let _ = write!(line, ",\"{name}\":{share:.3}");
            }
        }
        let _ = write!(line, ",\"waited_s\":{waited:.4}");
        for (name, value) in gauges {
            let _ = write!(line, ",\"{name}\":");
            number(&mut line, *value, 4);
        }
        let _ = line.push_str("}\n");
        line
    }
}

impl EvalMetrics {
    /// The line of JSON, with its end.
    pub fn json(&self) -> Line {
        let mut line = Line::new();
        let Self { step, val_loss, val_loss_se, val_tokens, val_bits_per_byte, .. } = self;
        let Self { val_by_source, val_loss_averaged, train_loss, rose, expected_end, .. } = self;
        let _ = write!(line, "{{\"step\":{step},\"val_loss\":{val_loss:.6}");
        if let Some(error) = val_loss_se {
            let _ = write!(line, ",\"val_loss_se\":{error:.6}");
        }
        let _ = write!(line, ",\"val_tokens\":{val_tokens}");
        if let Some(bits) = val_bits_per_byte {
            let _ = write!(line, ",\"val_bits_per_byte\":{bits:.6}");
        }
        numbers(&mut line, BY_SOURCE, *val_by_source, 6);
        if let Some(loss) = val_loss_averaged {
            let _ = line.push_str(",\"val_loss_averaged\":");
            number(&mut line, *loss, 6);
        }
        if let Some(loss) = train_loss {
            let _ = write!(line, ",\"train_loss\":{loss:.6}");
        }
        if *rose > 0 {
            let _ = write!(line, ",\"rose\":{rose}");
        }
        if let Some(Expected { bits, between: [low, high] }) = expected_end {
            let _ = write!(line, ",\"{EXPECTED}\":{bits:.6},\"{BETWEEN}\":[{low:.6},{high:.6}]");
        }
        let _ = line.push_str("}\n");
        line
    }
}

/// The shares drawn from each source, and the loss on each.
const DRAWN: &str = "drawn";
const BY_SOURCE: &str = "val_by_source";

/// The predicted final loss, and the ends of its interval.
const EXPECTED: &str = "expected_end_bits_per_byte";
const BETWEEN: &str = "expected_end_between";

/// The file of lines.
pub const LINES: &str = "metrics.jsonl";
/// The file of the lines' digest.
pub const DIGEST: &str = "metrics.jsonl.xxh3";
/// The directory of TensorBoard's files.
pub const EVENTS: &str = "tb";

/// The files of a run's metrics, open for appending.
#[derive(Debug)]
pub struct Metrics {
    run: PathBuf,
    lines: File,
    /// The digest of the lines so far, and their number of bytes.
    digest: Digest,
    bytes: u64,
    events: File,
    /// The step of the last evaluation that was written.
    evaluated: Option<u64>,
    /// For each source of a mixture the tag of its share, and the tag of its loss.
    tags: Vec<[String; 2]>,
}

impl Metrics {
    /// Opens metrics.jsonl, cut back to the steps up to `step`, and a new event file in tb/.
    ///
    /// # Errors
    /// The file system.
    pub fn open(run: &Path, step: u64) -> io::Result<Metrics> {
        let path = run.join(LINES);
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{LINES}: {e}"));
        let (kept, evaluated) = if path.exists() { keep_until(run, step).map_err(named)? } else { Default::default() };
        let mut digest = Digest::default();
        digest.add(kept.as_bytes());
        let lines = OpenOptions::new().create(true).append(true).open(path).map_err(named)?;
        let dir = run.join(EVENTS);
        fs::create_dir_all(&dir)?;
        let name = format!("events.out.tfevents.{}.{step}.capful", now() as u64);
        let mut events = OpenOptions::new().create(true).append(true).open(dir.join(name))?;
        events.write_all(&tensorboard::version(now()))?;
        Ok(Metrics {
            run: run.to_owned(),
            lines,
            digest,
            bytes: kept.len() as u64,
            events,
            evaluated,
            tags: Vec::new(),
        })
    }

    /// Adds charts for the sources of a mixture, with these labels.
    #[must_use]
    pub fn of_sources(mut self, labels: &[String]) -> Metrics {
        self.tags =
            labels.iter().map(|label| [format!("data/share/{label}"), format!("validation/loss/{label}")]).collect();
        self
    }

    /// Writes the digest of the lines so far into its file.
    ///
    /// # Errors
    /// The file system.
    pub fn seal(&self) -> io::Result<()> {
        seal(&self.run, self.digest.value(), self.bytes)
    }

    fn line(&mut self, line: &str) -> io::Result<()> {
        self.lines.write_all(line.as_bytes())?;
        self.digest.add(line.as_bytes());
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Writes a logged step.
    ///
    /// # Errors
    /// The file system.
    pub fn step(&mut self, m: &StepMetrics) -> io::Result<()> {
        self.line(&m.json())?;
        self.scalars(
            m.step,
            &[
                ("train/loss", m.loss),
                ("train/lr", m.lr),
                ("train/norm", m.norm),
                ("speed/tokens_per_s", m.speed.tokens_per_s),
                ("speed/waited_s", m.speed.waited),
            ],
        )?;
        let skipped = (m.skipped > 0).then_some(m.skipped as f64);
        let some = [("speed/cpu", m.speed.cpu), ("speed/gpu", m.speed.gpu), ("train/skipped", skipped)];
        some.iter()
            .filter_map(|(tag, value)| Some((*tag, (*value)?)))
            .try_for_each(|one| self.scalars(m.step, &[one]))?;
        self.by_source(m.step, 0, m.drawn)?;
        m.gauges.iter().try_for_each(|(name, value)| {
            let mut tag = heapless::String::<40>::new();
            // A longer tag would be cut: names are short constants.
            let _ = write!(tag, "gauge/{name}");
            self.scalars(m.step, &[(&tag, *value)])
        })
    }

    /// Writes an evaluation, unless one of the same step exists: a run whose last step is done evaluates again.
    ///
    /// # Errors
    /// The file system.
    pub fn evaluation(&mut self, m: &EvalMetrics) -> io::Result<()> {
        if self.evaluated.replace(m.step) == Some(m.step) {
            return Ok(());
        }
        self.line(&m.json())?;
        self.scalars(m.step, &[("validation/loss", m.val_loss)])?;
        let some = [
            ("validation/loss_averaged", m.val_loss_averaged),
            ("validation/gap", m.gap()),
            ("validation/expected_end_bits", m.expected_end.map(|expected| expected.bits)),
        ];
        let mut some = some.iter().filter_map(|(tag, value)| Some((*tag, (*value)?)));
        some.try_for_each(|one| self.scalars(m.step, &[one]))?;
        self.by_source(m.step, 1, m.val_by_source)
    }

    /// A number for each source, under the tags of this kind.
    fn by_source(&mut self, step: u64, kind: usize, values: BySource) -> io::Result<()> {
        let tags = std::mem::take(&mut self.tags);
        let mut each = tags.iter().zip(values.iter());
        let written = each.try_for_each(|(tags, value)| self.scalars(step, &[(&tags[kind], *value)]));
        self.tags = tags;
        written
    }

    fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        // A chart cannot show numbers that are not finite.
        values
            .iter()
            .filter(|(_, value)| value.is_finite())
            .try_for_each(|(tag, value)| self.events.write_all(&tensorboard::scalar(now(), step, tag, *value as f32)))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// The last evaluation in a run's metrics up to `step`; `None` if there is none.
///
/// # Errors
/// A file that cannot be read.
pub fn last_evaluation(run: &Path, step: u64) -> io::Result<Option<EvalMetrics>> {
    Ok(text(run)?.lines().rev().find_map(|line| evaluation(line, step)))
}

/// All evaluations in a run's metrics up to `step`, in order.
///
/// # Errors
/// A file that cannot be read.
pub fn evaluations(run: &Path, step: u64) -> io::Result<Vec<EvalMetrics>> {
    Ok(text(run)?.lines().filter_map(|line| evaluation(line, step)).collect())
}

/// The text of a run's metrics; empty if there are none.
fn text(run: &Path) -> io::Result<String> {
    let path = run.join(LINES);
    if path.exists() { regular::read_to_string(&path) } else { Ok(String::new()) }
}

/// The evaluation in a line, if the line has one, up to `step`.
fn evaluation(line: &str, step: u64) -> Option<EvalMetrics> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    let (between, bits) = (&value[BETWEEN], value[EXPECTED].as_f64());
    let expected = |bits| Some(Expected { bits, between: [between[0].as_f64()?, between[1].as_f64()?] });
    Some(EvalMetrics {
        step: value["step"].as_u64().filter(|of| *of <= step)?,
        val_loss: value["val_loss"].as_f64()?,
        val_loss_se: value["val_loss_se"].as_f64(),
        val_tokens: value["val_tokens"].as_u64()?,
        val_bits_per_byte: value["val_bits_per_byte"].as_f64(),
        val_by_source: BySource::of(value[BY_SOURCE].as_array().into_iter().flatten().filter_map(|loss| loss.as_f64())),
        val_loss_averaged: value["val_loss_averaged"].as_f64(),
        train_loss: value["train_loss"].as_f64(),
        rose: value["rose"].as_u64().unwrap_or(0) as u32,
        expected_end: bits.and_then(expected),
    })
}

/// The finite training losses of a run's logged steps, in order.
///
/// # Errors
/// A file that cannot be read.
pub fn losses(run: &Path) -> io::Result<Vec<f64>> {
    let text = regular::read_to_string(&run.join(LINES))?;
    let loss = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["loss"].as_f64();
    Ok(text.lines().filter_map(loss).collect())
}

/// Removes lines of steps that a resumed run will repeat, and duplicate evaluations. Returns the lines and the step of
/// the last remaining evaluation.
fn keep_until(run: &Path, step: u64) -> io::Result<(String, Option<u64>)> {
    let path = run.join(LINES);
    let text = String::from_utf8_lossy(&regular::read(&path)?).into_owned();
    let (mut out, mut evaluated) = (String::new(), None);
    for line in text.lines() {
        let Ok(value) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let Some(of) = value["step"].as_u64().filter(|of| *of <= step) else { continue };
        let again = value.get("val_loss").is_some() && evaluated.replace(of) == Some(of);
        if !again {
            out.push_str(line);
            out.push('\n');
        }
    }
    // An interruption between the two leaves lines without a digest.
    match fs::remove_file(run.join(DIGEST)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    disk::replace(&path, out.as_bytes())?;
    seal(run, digest::of(out.as_bytes()), out.len() as u64)?;
    Ok((out, evaluated))
}

/// Writes the digest of the first `bytes` of the lines. `xxhsum --check` compares it after a run has ended.
fn seal(run: &Path, digest: u64, bytes: u64) -> io::Result<()> {
    disk::replace(&run.join(DIGEST), sealed(digest, bytes).as_bytes())
}

fn sealed(digest: u64, bytes: u64) -> String {
    format!("XXH3 ({LINES}) = {digest:016x}\n{bytes} bytes\n")
}

/// Compares the lines of the run in `dir` with their digest, as far as a digest was written: up to the last save.
/// Returns the number of bytes compared; `None` where an earlier version wrote them.
///
/// # Errors
/// The file that is damaged, or cannot be read.
pub fn compare(dir: &Path) -> Result<Option<u64>, String> {
    let (path, list) = (dir.join(LINES), dir.join(DIGEST));
    let at = |path: &Path, what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
    let content = match regular::read(&list) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|e| at(&list, &e))?,
    };
    let content = String::from_utf8_lossy(&content);
    let bytes = content.lines().nth(1).and_then(|line| line.strip_suffix(" bytes")?.parse::<u64>().ok());
    let bytes = bytes.ok_or_else(|| at(&list, &"it is damaged"))?;
    let mut lines = regular::read(&path).map_err(|e| at(&path, &e))?;
    lines.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    if sealed(digest::of(&lines), bytes) != content {
        return Err(at(
            &path,
            &format_args!("it is damaged: its content is not what was written, by its digest in {DIGEST}"),
        ));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: StepMetrics = StepMetrics {
        step: 7,
        stage: 1,
        loss: 2.5,
        lr: 1e-3,
        norm: 0.5,
        skipped: 0,
        tokens: 896,
        drawn: BySource::NONE,
        speed: Speed { tokens_per_s: 1000.0, cpu: None, gpu: None, waited: 0.0 },
        gauges: Readings::new(),
    };

    fn lines(run: &Path) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Whether a run's event files contain a tag, in any order: the lengths before the tags are ignored.
    fn holds_tag(run: &Path, tag: &str) -> bool {
        let files = fs::read_dir(run.join("tb")).unwrap();
        let holds = |bytes: Vec<u8>| bytes.windows(tag.len()).any(|part| part == tag.as_bytes());
        files.map(|file| fs::read(file.unwrap().path()).unwrap()).any(holds)
    }

    #[test]
    fn an_evaluation_of_a_step_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let evaluation = |step| EvalMetrics {
            step,
            val_loss: 2.0,
            val_loss_se: None,
            val_tokens: 9,
            val_bits_per_byte: None,
            val_by_source: BySource::NONE,
            val_loss_averaged: None,
            train_loss: None,
            rose: 0,
            expected_end: None,
        };
        let mut metrics = Metrics::open(dir.path(), 0).unwrap();
        metrics.step(&STEP).unwrap();
        for step in [5, 7, 9] {
            metrics.evaluation(&evaluation(step)).unwrap();
        }
        drop(metrics);
        // From a version that wrote the evaluation twice.
        let path = dir.path().join("metrics.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        let last = evaluation(7).json();
        fs::write(&path, text.replace(last.as_str(), &last.repeat(2))).unwrap();
        let mut again = Metrics::open(dir.path(), 7).unwrap();
        again.evaluation(&evaluation(7)).unwrap();
        again.evaluation(&evaluation(8)).unwrap();
        let found: Vec<_> = lines(dir.path()).iter().map(|l| l["step"].as_u64().unwrap()).collect();
        assert_eq!(found, [7, 5, 7, 8]);
    }

    #[test]
    fn the_training_loss_beside_an_evaluation_is_written_where_it_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let one = EvalMetrics {
            step: 5,
            val_loss: 2.0,
            val_loss_se: None,
            val_tokens: 9,
            val_bits_per_byte: None,
            val_by_source: BySource::NONE,
            val_loss_averaged: None,
            train_loss: None,
            rose: 0,
            expected_end: None,
        };
        let mut metrics = Metrics::open(dir.path(), 0).unwrap();
        metrics.evaluation(&one).unwrap();
        assert!(
            lines(dir.path())[0].get("train_loss").or(lines(dir.path())[0].get("val_loss_averaged")).is_none()
                && !holds_tag(dir.path(), "validation/gap")
        );
        let expected_end = Some(Expected { bits: 1.25, between: [1.234567, 1.265625] });
        let known = EvalMetrics { step: 7, val_loss_averaged: Some(1.5), train_loss: Some(1.75), rose: 2, ..one };
        let known = EvalMetrics { expected_end, ..known };
        metrics.evaluation(&known).unwrap();
        let line = &lines(dir.path())[1];
        assert_eq!((&line["train_loss"], &line["rose"], known.gap()), (&1.75.into(), &2.into(), Some(0.25)));
        assert_eq!(line["val_loss_averaged"], 1.5);
        assert_eq!(line["expected_end_bits_per_byte"], 1.25);
        let tags = ["validation/gap", "validation/loss_averaged", "validation/expected_end_bits"];
        assert!(tags.iter().all(|tag| holds_tag(dir.path(), tag)));
        assert_eq!(last_evaluation(dir.path(), 9).unwrap(), Some(known));
        assert_eq!(evaluations(dir.path(), 9).unwrap(), [one, known]);
        assert_eq!(evaluations(dir.path(), 6).unwrap(), [one]);
    }

    #[test]
    fn skipped_steps_and_gauges_are_written_where_there_are_any() {
        let dir = tempfile::tempdir().unwrap();
        let mut metrics = Metrics::open(dir.path(), 0).unwrap();
        metrics.step(&STEP).unwrap();
        assert!(lines(dir.path())[0].get("skipped").is_none() && !holds_tag(dir.path(), "train/skipped"));
        let mut gauges = Readings::new();
        gauges.push(("rate_broca", 0.125)).unwrap();
        metrics.step(&StepMetrics { loss: f64::NAN, norm: f64::INFINITY, skipped: 3, gauges, ..STEP }).unwrap();
        let line = &lines(dir.path())[1];
        assert!(line["loss"].is_null() && line["norm"].is_null(), "{line}");
        assert_eq!((&line["skipped"], &line["rate_broca"]), (&3.into(), &0.125.into()));
        assert!(["train/skipped", "gauge/rate_broca"].iter().all(|tag| holds_tag(dir.path(), tag)));
    }
}
