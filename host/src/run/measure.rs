//! Measures the times of a run on this machine: some seconds of its steps, an evaluation and a write to its disk.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use capful_core::train::Stage;
use serde::Serialize;

use super::Session;
use super::bench::Bench;
use super::costs::{others_ahead, steps_ahead};
use super::energy::{self, Energy};
use super::session::Rows;
use crate::config::Config;
use crate::device::DeviceError;
use crate::plan::Laid;
use capful_base::words::{counted, duration, grouped};

/// Seconds of measured steps, over all stages together.
const SECONDS: f64 = 10.0;
/// The most bytes that are written to time the disk.
const PROBE: u64 = 256 << 20;

/// Seconds of the parts of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Seconds of a step in each stage.
    pub step: Vec<f64>,
    /// Seconds of an evaluation with `eval_tokens` tokens.
    pub evaluation: f64,
    /// Seconds of a save.
    pub save: f64,
    /// Seconds of the whole run: its steps, evaluations and saves.
    pub run: f64,
    /// Joules of the run, from the power of its steps, where there is a counter.
    pub joules: Option<f64>,
    /// Number of evaluations and saves of the run, except for saves by time.
    pub evaluations: u64,
    /// See [`Measured::evaluations`].
    pub saves: u64,
}

impl Measured {
    /// Measures the run of `config`; `stages` gives the plans and layouts of its stages one by one. Checkpoints have
    /// `save_bytes` bytes and are on the disk of the directory `dir`.
    ///
    /// # Errors
    /// A refused memory, a lost device.
    pub fn of(
        config: &Config,
        laid: impl Fn(&Config) -> Result<Laid, DeviceError>,
        save_bytes: u64,
        dir: &Path,
    ) -> Result<Measured, DeviceError> {
        let stages = config.stages();
        let count = config.stage.len();
        let seconds = SECONDS / count.max(1) as f64;
        let (mut step, mut evaluation) = (Vec::with_capacity(stages.len()), 0.0);
        let mut joules_a_step = Vec::with_capacity(stages.len());
        for number in 1..=count.max(1) {
            let of_stage = if count > 0 {
                config.clone().only(number).map_err(|e| DeviceError::Refused(e.0))?
            } else {
                config.clone()
            };
            let profile = crate::plan::profile(&of_stage).map_err(|e| DeviceError::Refused(e.0))?;
            let mut session = Session::start_training(laid(&of_stage)?, &profile, &of_stage, &[], None)?;
            let (begun, mut energy) = (Instant::now(), Energy::start(&mut session));
            let took = Bench::as_training(&mut session, &of_stage).time_for(seconds)?;
            step.push(took);
            joules_a_step.push(energy.joules(&mut session).map(|joules| joules / begun.elapsed().as_secs_f64() * took));
            if number == count.max(1) {
                evaluation = evaluation_of(&mut session, config)?;
            }
        }
        let save = seconds_to_write(dir, save_bytes).unwrap_or(0.0);
        let [evaluations, saves] = others_ahead(config, 0, config.steps);
        let counts = || steps_ahead(&stages, 0, config.steps);
        let steps: f64 = counts().zip(&step).map(|(count, each)| count as f64 * each).sum();
        let run = steps + evaluations as f64 * evaluation + saves as f64 * save;
        let joules: Option<f64> = counts().zip(joules_a_step).map(|(count, each)| Some(count as f64 * each?)).sum();
        // The other parts use less power, and are short.
        let joules = joules.filter(|_| config.steps > 0).map(|joules| joules * run / steps);
        Ok(Measured { step, evaluation, save, run, joules, evaluations, saves })
    }
}

impl Measured {
    /// The times of the run of `config`, in a line or two.
    pub fn line(&self, config: &Config) -> String {
        let Measured { step, evaluation, save, run, joules, evaluations, saves } = self;
        let shown =
            |seconds: &f64| if *seconds < 1.0 { format!("{:.2} ms", seconds * 1e3) } else { duration(*seconds) };
        let steps: Vec<_> = step.iter().map(shown).collect();
        let tokens: u64 = config.stages().last().map_or(0, Stage::step_tokens);
        let speed = tokens as f64 / step.last().copied().unwrap_or(f64::INFINITY);
        let length = match config.steps {
            0 => String::new(),
            steps => format!(
                "; {}, {}, {}: {}{}",
                counted(steps, "step"),
                counted(*evaluations, "evaluation"),
                counted(*saves, "save"),
                duration(*run),
                joules.map_or(String::new(), |joules| format!(" and about {}", energy::shown(joules)))
            ),
        };
        format!(
            "measured here: {} a step, {} tokens/s, {} an evaluation, {} a save{length}",
            steps.join(", "),
            grouped(speed as u64),
            duration(*evaluation),
            duration(*save)
        )
    }
}

/// Seconds of an evaluation with the most tokens of an evaluation of `config`.
fn evaluation_of(session: &mut Session, config: &Config) -> Result<f64, DeviceError> {
    let tokens = session.evaluation_stage()?.tokens();
    let zeros = vec![0; tokens as usize];
    let mut losses = vec![0.0; tokens as usize];
    let mut seconds = 0.0;
    // The first one is slower than later ones.
    for _ in 0..3 {
        let begun = Instant::now();
        session.evaluate(Rows::of(&zeros))?;
        session.losses(&mut losses)?;
        seconds = begun.elapsed().as_secs_f64();
    }
    Ok(seconds * config.eval_tokens.div_ceil(tokens.into()) as f64)
}

/// Seconds to write this number of bytes to the disk of `dir`; the bytes are removed again.
fn seconds_to_write(dir: &Path, bytes: u64) -> std::io::Result<f64> {
    let piece = vec![0x5a; 1 << 20];
    let path = dir.join(format!(".measure-{}", std::process::id()));
    let write = || {
        let mut file = File::create_new(&path)?;
        let pieces = bytes.min(PROBE).div_ceil(piece.len() as u64).max(1);
        let begun = Instant::now();
        (0..pieces).try_for_each(|_| file.write_all(&piece))?;
        file.sync_all()?;
        Ok(begun.elapsed().as_secs_f64() * bytes as f64 / (pieces * piece.len() as u64) as f64)
    };
    let seconds = write();
    let _ = std::fs::remove_file(&path);
    seconds
}
