//! `host suggest --calibrate`: short runs of the best candidates on the text itself, with longer runs for the better
//! half of them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::output::tell;
use super::suggest::distinct;
use super::{Failure, request, stop, work};
use crate::config::{ConfigError, RawConfig, Span};
use crate::run::claim::Claim;
use crate::run::metrics;
use crate::run::sweep::{Child, Planned, Schedule, take_ended};
use crate::suggest::anchor::{Rung, anchor, own, rungs};
use crate::suggest::law::Course;
use crate::suggest::{Candidate, FEWEST, Means, Recipe, Shape};
use capful_base::words::{counted, duration, grouped};

/// Seconds of a short run in addition to its steps, on a CPU and on a GPU that several runs share.
const BESIDE: [f64; 2] = [1.5, 4.0];
/// The share of a run's seconds that is planned for its steps: a run should end in time even if the machine becomes
/// slower.
const SHARE: f64 = 0.9;
/// A machine may become much slower: after this many times the span, running processes are abandoned.
const LATE: f64 = 2.0;
/// Number of runs that share a GPU: while one starts, others train.
const SIDE_BY_SIDE: u64 = 3;
/// How often the processes are checked.
const TURN: Duration = Duration::from_millis(20);
/// How long a run may take to save and to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A short run that ended.
struct Run {
    candidate: Candidate,
    steps: u64,
    bits: f64,
}

impl Run {
    fn course(&self) -> Course {
        self.candidate.course(self.steps as f64)
    }
}

/// Sorts `candidates` by the results of runs of `span` seconds in all; returns the number of runs.
pub(super) fn calibrate(candidates: &mut [Candidate], means: &Means<'_>, span: f64) -> Result<usize, Failure> {
    let gpu = candidates.first().is_some_and(|best| best.config.device.starts_with("cuda"));
    let beside = BESIDE[usize::from(gpu)];
    // The law does not cover short runs with another recipe.
    let by_law = |candidate: &&Candidate| candidate.shape.recipe == Recipe::Quick;
    let best: Vec<Candidate> = distinct(candidates).filter(by_law).cloned().collect();
    // The slowest of the first `n`.
    let least = |n: usize| {
        let slowest = best.iter().take(n).map(|candidate| candidate.step_seconds).fold(0.0, f64::max);
        beside + FEWEST * slowest / SHARE
    };
    let all = rungs(span, best.len(), least).ok_or_else(|| {
        request(format_args!(
            "--calibrate {} is too short: a run of {FEWEST} steps takes about {} here and two are the fewest; give {} or more",
            Span(span),
            duration(least(2)),
            Span((2.0 * least(2)).ceil())
        ))
    })?;
    let claim = Claim::next("calibrate")?;
    let dir = std::path::absolute(claim.dir()).map_err(work)?;
    let begun = Instant::now();
    let until = begun + Duration::from_secs_f64(LATE * span);
    let (places, stop) = (if gpu { SIDE_BY_SIDE } else { 1 }, stop()?);
    let scored = best.first().map_or(0.0, |best| best.config.eval_tokens as f64 * best.tokens.bytes);
    let room = Room { dir: &dir, begun, until, stop: &stop, places, beside, scored };
    let done = climb(candidates, &all, best, &room, (means.seconds, span));
    // The files of the runs are useless afterwards.
    drop(std::fs::remove_dir_all(&dir));
    done
}

/// Runs all rungs with the remaining candidates; returns the number of runs.
fn climb(
    candidates: &mut [Candidate],
    rungs: &[Rung],
    mut chosen: Vec<Candidate>,
    room: &Room<'_>,
    (seconds, span): (f64, f64),
) -> Result<usize, Failure> {
    let mut done = Vec::new();
    for (number, rung) in rungs.iter().enumerate() {
        if room.begun.elapsed().as_secs_f64() >= span {
            break;
        }
        chosen.truncate(rung.runs);
        let runs = counted(chosen.len() as u64, "run");
        tell!("calibrating on this text: {runs} of about {} each", duration(rung.seconds));
        done.extend(room.train(&chosen, number, *rung)?);
        learn(candidates, &done, seconds);
        // In their new order, with the lengths that are now the best for them.
        chosen = distinct(candidates).filter(|new| chosen.iter().any(|old| old.shape == new.shape)).cloned().collect();
    }
    match done.len() {
        0 => Err(request("no run of the calibration ended within its time; give it more")),
        runs => Ok(runs),
    }
}

/// Updates the text's parameters and the candidates from the runs, and sorts the candidates.
fn learn(candidates: &mut [Candidate], done: &[Run], seconds: f64) {
    if done.is_empty() {
        return;
    }
    let runs: Vec<(Course, f64)> = done.iter().map(|run| (run.course(), run.bits)).collect();
    let text = anchor(&runs);
    for candidate in candidates.iter_mut() {
        // The last run of a shape is its longest.
        let last = done.iter().rev().find(|run| run.candidate.shape == candidate.shape);
        let own = last.map_or(1.0, |run| own(text, &run.course(), run.bits));
        candidate.anchored(text, own, seconds);
    }
    candidates.sort_by(|a, b| a.bits.total_cmp(&b.bits));
}

/// The directory and the limits of a calibration's runs.
struct Room<'a> {
    dir: &'a Path,
    begun: Instant,
    /// When running processes are abandoned.
    until: Instant,
    stop: &'a AtomicBool,
    /// Number of concurrent runs.
    places: u64,
    /// Seconds of a run in addition to its steps.
    beside: f64,
    /// Bytes of held-out text that runs are scored on: about as many as in the final run of the first candidate.
    scored: f64,
}

impl Room<'_> {
    /// Trains the candidates of a rung until all have ended or the time is over; returns the finished runs.
    fn train(&self, chosen: &[Candidate], number: usize, rung: Rung) -> Result<Vec<Run>, Failure> {
        let mut runs = Vec::with_capacity(chosen.len());
        for candidate in chosen {
            let steps = (SHARE * (rung.seconds - self.beside) / candidate.step_seconds).max(1.0) as u64;
            let steps = steps.min(candidate.steps.max(1));
            let raw = RawConfig {
                // The same bytes of held-out text for all, whatever their number of tokens.
                eval_tokens: Some((self.scored / candidate.tokens.bytes) as u64),
                eval_every: Some(0),
                baseline_tokens: Some(0),
                save_every: Some(0),
                save_minutes: Some(0.0),
                ..candidate.short(steps)
            };
            let dir = self.dir.join(format!("{number}-{}x{}", candidate.shape.layers, candidate.shape.width));
            let planned = Planned::of(raw, &dir, self.dir).map_err(|ConfigError(e)| request(e))?;
            runs.push((dir, planned, steps));
        }
        // Together they may take as much memory as a single run.
        let bytes = runs.iter().filter_map(|(_, planned, _)| planned.plan.budget_bytes).min().unwrap_or(u64::MAX);
        let mut schedule = Schedule::new([bytes, self.places]);
        for (job, (_, planned, _)) in runs.iter().enumerate() {
            let fits = schedule.add(job, [planned.plan.needed_bytes, 1]);
            fits.map_err(|_| work("a run that fitted does not fit any more"))?;
        }
        let mut children: Vec<(usize, Child)> = Vec::new();
        let mut ended = Vec::new();
        loop {
            let stopped = self.stop.load(Ordering::Relaxed);
            if stopped || Instant::now() >= self.until {
                leave(children)?;
                let left = Failure::Interrupted("interrupted; nothing was chosen".to_owned());
                return if stopped { Err(left) } else { Ok(ended) };
            }
            while let Some(job) = schedule.start() {
                let (dir, planned, _) = &runs[job];
                let child =
                    Child::start(dir, &planned.raw).map_err(|e| work(format_args!("a run did not start: {e}")))?;
                children.push((job, child));
            }
            if children.is_empty() {
                return Ok(ended);
            }
            std::thread::sleep(TURN);
            while let Some((job, how)) = take_ended(&mut children).map_err(work)? {
                schedule.end(job);
                if how.status != Some(0) {
                    return Err(work(format_args!("a run of the calibration failed: {}", how.line)));
                }
                let (dir, _, steps) = &runs[job];
                ended.push(self.ended(&chosen[job], dir, *steps)?);
            }
        }
    }

    /// The result of a run that ended successfully.
    fn ended(&self, candidate: &Candidate, dir: &Path, steps: u64) -> Result<Run, Failure> {
        let last = metrics::last_evaluation(dir, u64::MAX).map_err(work)?;
        let bits = last.and_then(|evaluation| evaluation.val_bits_per_byte).ok_or_else(|| {
            request("this tokenizer does not give back the bytes of its text: runs by it cannot be compared with --calibrate")
        })?;
        let Shape { layers, width, .. } = candidate.shape;
        tell!("  {layers} layers of {width}: {bits:.3} bits a byte after {} steps", grouped(steps));
        Ok(Run { candidate: candidate.clone(), steps, bits })
    }
}

/// Ends the running processes, and waits until they have saved and ended: their memory must be free afterwards.
fn leave(mut children: Vec<(usize, Child)>) -> Result<(), Failure> {
    let until = Instant::now() + PATIENCE;
    children.iter_mut().for_each(|(_, child)| child.interrupt());
    while !children.is_empty() && Instant::now() < until {
        while take_ended(&mut children).map_err(work)?.is_some() {}
        std::thread::sleep(TURN);
    }
    Ok(())
}
