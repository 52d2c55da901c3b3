//! What a run writes down on the way: lines of JSON in metrics.jsonl and events for TensorBoard.
//!
//! The thread that trains writes them itself, from buffers on its stack: nothing is allocated.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::gauges::Readings;
use super::speed::Speed;
use super::tensorboard;

/// One logged step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepMetrics {
    /// Steps done.
    pub step: u64,
    /// The stage of the curriculum that the step was of, counted from 1.
    pub stage: usize,
    /// Training loss, nats a token.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Global norm of the gradient before the clip.
    pub norm: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Since the last logged step.
    pub speed: Speed,
    /// What the family has to watch.
    pub gauges: Readings,
}

/// One evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvalMetrics {
    /// Steps done.
    pub step: u64,
    /// Nats a token.
    pub val_loss: f64,
    /// Its standard error over the documents, where there are several.
    pub val_loss_se: Option<f64>,
    /// Targets scored.
    pub val_tokens: u64,
}

/// A line that fits its buffer whatever the numbers.
type Line = heapless::String<768>;

impl StepMetrics {
    /// The line of JSON, with its end.
    pub fn json(&self) -> Line {
        let mut line = Line::new();
        let Self { step, stage, loss, lr, norm, tokens, speed: Speed { tokens_per_s, cpu, gpu, waited }, gauges } =
            self;
        // A number that is not finite is no JSON; such a run stops anyway.
        let _ = write!(
            line,
            "{{\"step\":{step},\"stage\":{stage},\"loss\":{loss:.6},\"lr\":{lr:.6e},\"norm\":{norm:.5},\"tokens\":{tokens},\"tokens_per_s\":{tokens_per_s:.1}"
        );
        for (name, share) in [("cpu", cpu), ("gpu", gpu)] {
            if let Some(share) = share {
                let _ = write!(line, ",\"{name}\":{share:.3}");
            }
        }
        let _ = write!(line, ",\"waited_s\":{waited:.4}");
        for (name, value) in gauges {
            let _ = write!(line, ",\"{name}\":{value:.4}");
        }
        let _ = line.push_str("}\n");
        line
    }
}

impl EvalMetrics {
    /// The line of JSON, with its end.
    pub fn json(&self) -> Line {
        let mut line = Line::new();
        let Self { step, val_loss, val_loss_se, val_tokens } = self;
        let _ = write!(line, "{{\"step\":{step},\"val_loss\":{val_loss:.6}");
        if let Some(error) = val_loss_se {
            let _ = write!(line, ",\"val_loss_se\":{error:.6}");
        }
        let _ = writeln!(line, ",\"val_tokens\":{val_tokens}}}");
        line
    }
}

/// The files of a run's metrics, open for appending.
#[derive(Debug)]
pub struct Metrics {
    lines: File,
    events: File,
}

impl Metrics {
    /// Opens metrics.jsonl, cut back to the steps up to `step`, and a new event file in tb/.
    ///
    /// # Errors
    /// The file system.
    pub fn open(run: &Path, step: u64) -> io::Result<Metrics> {
        let path = run.join("metrics.jsonl");
        if path.exists() {
            keep_until(&path, step)?;
        }
        let lines = OpenOptions::new().create(true).append(true).open(path)?;
        let dir = run.join("tb");
        fs::create_dir_all(&dir)?;
        let name = format!("events.out.tfevents.{}.{step}.capful", now() as u64);
        let mut events = OpenOptions::new().create(true).append(true).open(dir.join(name))?;
        events.write_all(&tensorboard::version(now()))?;
        Ok(Metrics { lines, events })
    }

    /// Writes a logged step.
    ///
    /// # Errors
    /// The file system.
    pub fn step(&mut self, m: &StepMetrics) -> io::Result<()> {
        self.lines.write_all(m.json().as_bytes())?;
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
        let shares = [("speed/cpu", m.speed.cpu), ("speed/gpu", m.speed.gpu)];
        shares
            .iter()
            .filter_map(|(tag, share)| Some((*tag, (*share)?)))
            .try_for_each(|one| self.scalars(m.step, &[one]))
    }

    /// Writes an evaluation.
    ///
    /// # Errors
    /// The file system.
    pub fn evaluation(&mut self, m: &EvalMetrics) -> io::Result<()> {
        self.lines.write_all(m.json().as_bytes())?;
        self.scalars(m.step, &[("validation/loss", m.val_loss)])
    }

    fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        values
            .iter()
            .try_for_each(|(tag, value)| self.events.write_all(&tensorboard::scalar(now(), step, tag, *value as f32)))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// Drops lines of steps that a resumed run will take again.
fn keep_until(path: &Path, step: u64) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let kept = |line: &&str| {
        let value = serde_json::from_str::<serde_json::Value>(line).ok();
        value.and_then(|v| v["step"].as_u64()).is_some_and(|s| s <= step)
    };
    let mut out = String::new();
    for line in text.lines().filter(kept) {
        out.push_str(line);
        out.push('\n');
    }
    let temporary = path.with_extension("jsonl.tmp");
    fs::write(&temporary, out)?;
    fs::rename(temporary, path)
}
