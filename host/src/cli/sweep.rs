//! `host sweep`.

use capful_base::human_bytes;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::output::{in_columns, say, tell};
use super::vary::{self, Varied, Vary};
use super::{Failure, RunFlags, end_with_the_reader, request, shown, stop, team, work};
use crate::config::{ConfigError, Device, RawConfig};
use crate::device::cuda;
use crate::name;
use crate::run::claim::Claim;
use crate::run::directory;
use crate::run::sweep::{Child, Ended, FILE_NAME, Planned, Row, Schedule, State, holds_sweep, keep, kept, take_ended};
use capful_base::words::{counted, duration, grouped};

/// Flags of `host sweep`.
#[derive(Debug, clap::Args)]
pub struct Sweep {
    /// A configuration file in TOML with a table [vary] of lists, or tables [[run]], beside the keys of all runs
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// A key and its values, several times: the sweep has a run for each combination. --set's and --group's keys are
    /// model.KEY and group.GROUP.KEY
    #[arg(long, help_heading = "Sweep", value_name = "KEY=V1,V2,…")]
    vary: Vec<String>,
    /// The most runs at once. --budget is what all of them may take together; on the cpu each has its share of the cores
    /// unless --threads says how many
    #[arg(long, help_heading = "Sweep", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    #[command(flatten)]
    flags: RunFlags,
    /// The directory of the sweep, in which each run has its own; without it a new one, runs/sweep-NNN
    #[arg(long, help_heading = "Output", value_name = "DIR")]
    out: Option<PathBuf>,
    /// Goes on with the sweep in --out: runs that are done are left alone, others go on or begin
    #[arg(long, help_heading = "Output", requires = "out")]
    resume: bool,
    /// JSON on standard output, as in DIR/sweep.json, in place of the table
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// How often the processes are checked.
const TURN: Duration = Duration::from_millis(20);
/// Free memory changes from moment to moment: this fraction of it is left free.
const MARGIN: u64 = 16;

/// A run of the sweep.
struct Run {
    name: String,
    dir: PathBuf,
    planned: Planned,
    row: Row,
}

impl Sweep {
    pub(super) fn run(self) -> Result<(), Failure> {
        if team::launched() {
            return Err(request("a sweep starts its processes itself: call it without a launcher"));
        }
        let (base, vary) = self.written()?;
        let all = vary.all()?;
        if let Some(dir) = self.out.as_deref().filter(|dir| !self.resume && holds_sweep(dir)) {
            return Err(request(format_args!(
                "{} holds a sweep already; continue it with --resume or name another with --out",
                dir.display()
            )));
        }
        let claim = self.out.as_deref().map_or_else(|| Claim::next("sweep"), Claim::of)?;
        let dir = std::path::absolute(claim.dir()).map_err(work)?;
        if !self.resume {
            directory::require_free(&dir)?;
        }
        let runs = self.planned(&dir, &base, all)?;
        let (mut schedule, from) = self.schedule(&runs)?;
        let shown = self.out.as_deref().unwrap_or(claim.dir());
        tell_of(shown, &runs, &from);
        let stop = stop()?;
        let runs = train(&dir, runs, &mut schedule, &stop)?;
        end_with_the_reader()?;
        self.report(shown, &dir, &runs, stop.load(Ordering::Relaxed))
    }

    /// The settings of all runs, and the varied settings.
    fn written(&self) -> Result<(RawConfig, Vary), Failure> {
        let (file, mut vary) = self.file.as_deref().map(Vary::read).transpose()?.unwrap_or_default();
        self.vary.iter().try_for_each(|list| vary.flag(list))?;
        let config = self.flags.config.as_deref().map(RawConfig::read).transpose()?.unwrap_or_default();
        Ok((config.overlaid(file).overlaid(self.flags.raw.clone()).rooted(), vary))
    }

    /// Every run, resolved and planned.
    fn planned(&self, dir: &Path, base: &RawConfig, all: Vec<(Varied, RawConfig)>) -> Result<Vec<Run>, Failure> {
        let unread = |e| request(format_args!("{}: {e}; take its {FILE_NAME} away", dir.display()));
        let before = kept(dir).map_err(unread)?;
        let cores = cores();
        let side_by_side = u64::from(self.jobs.unwrap_or(u32::MAX)).min(all.len() as u64).max(1);
        let mut runs: Vec<Run> = Vec::with_capacity(all.len());
        for (varied, own) in all {
            let name = vary::name(&varied);
            if runs.iter().any(|run| run.name == name) {
                return Err(request(format_args!("two runs are called {name}; let each have another value")));
            }
            let mut raw = base.clone().overlaid(own.rooted());
            let gpu = raw.device.as_ref().map_or(raw.gpu.is_some(), |device| device.starts_with("cuda"));
            if !gpu {
                raw.threads.get_or_insert((cores / side_by_side).max(1) as u32);
            }
            raw.baseline_tokens.get_or_insert(0);
            let named = |ConfigError(what)| request(format_args!("{name}: {what}"));
            let own = dir.join(&name);
            let planned = Planned::of(raw, &own, dir).map_err(named)?;
            if let Some(first) = runs.first().filter(|first| first.planned.config.device != planned.config.device) {
                let (one, other) = (&first.planned.config.device, &planned.config.device);
                return Err(request(format_args!(
                    "{name}: its device is {other} and that of the runs before it {one}; give each device a sweep of its \
                     own"
                )));
            }
            let known = before.iter().find(|row| row.name == name);
            let row = Row::of(&name, varied.into_iter().collect(), &planned, &own, known);
            runs.push(Run { name, dir: own, planned, row });
        }
        Ok(runs)
    }

    /// The schedule of `runs`, and the shared resources in words: the device's memory, main memory in addition, cores,
    /// and slots.
    fn schedule(&self, runs: &[Run]) -> Result<(Schedule<4>, String), Failure> {
        let all = || runs.iter().filter(|run| !run.planned.done);
        let cores = cores();
        let takes = |run: &Run| {
            let Planned { config, plan, .. } = &run.planned;
            let bytes = plan.needed_bytes;
            if run.planned.on_gpu() {
                [bytes, plan.main_memory_bytes, 0, 1]
            } else {
                [bytes, 0, u64::from(config.threads).min(cores), 1]
            }
        };
        // Each run fits alone: its plan was checked.
        let largest = |resource: usize| all().map(|run| takes(run)[resource]).max().unwrap_or(0);
        let less = |free: u64, resource| (free - free / MARGIN).max(largest(resource));
        let Some(Planned { config, plan, machine, .. }) = runs.first().map(|run| &run.planned) else {
            return Err(request("a sweep has at least one run"));
        };
        let main = machine.free.map_or(u64::MAX, |free| less(free.bytes + machine.held, 1));
        let planned = plan.budget_bytes.unwrap_or(u64::MAX);
        let (bytes, from) = match (config.budget, config.device()?) {
            (Some(bytes), _) => (bytes, "--budget".to_owned()),
            (None, Device::Cuda(number)) => {
                let free = cuda::free(number).map_err(request)?;
                (free.min(planned), format!("memory free on {}", config.device))
            }
            (None, _) => (less(planned, 0), plan.budget_from.clone()),
        };
        let mut schedule = Schedule::new([bytes, main, cores, self.jobs.map_or(u64::MAX, u64::from)]);
        for (job, run) in runs.iter().enumerate().filter(|(_, run)| !run.planned.done) {
            let [needed, ..] = takes(run);
            schedule.add(job, takes(run)).map_err(|_| {
                let (name, needed, bytes) = (&run.name, human_bytes(needed), human_bytes(bytes));
                request(format_args!("{name}: it needs {needed}, more than the {bytes} of {from}"))
            })?;
        }
        Ok((schedule, format!("{} of {from}", human_bytes(bytes))))
    }

    /// Reports the results of all runs, and stores them.
    fn report(&self, shown: &Path, dir: &Path, runs: &[Run], stopped: bool) -> Result<(), Failure> {
        let (rows, text) = kept_now(dir, runs)?;
        match self.json {
            true => say!("{text}")?,
            false => table(&rows).iter().try_for_each(|line| say!("{line}"))?,
        }
        let count = |state: State| rows.iter().filter(|row| row.state == state).count();
        let (done, failed) = (count(State::Done), count(State::Failed));
        let open = rows.len() - done - failed;
        if stopped && open > 0 {
            return Err(Failure::Interrupted(format!(
                "interrupted; {done} of {} runs are done, the others are saved as far as they came; the same command with \
                 --resume --out {} goes on",
                rows.len(),
                shown.display()
            )));
        }
        match rows.iter().find(|row| row.state == State::Failed) {
            Some(row) => Err(work(format_args!(
                "{failed} of {} runs failed; {}: {}",
                rows.len(),
                row.name,
                row.error.as_deref().unwrap_or_default()
            ))),
            None => Ok(()),
        }
    }
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

/// Stores the state of all runs: the sorted rows, and the text.
fn kept_now(dir: &Path, runs: &[Run]) -> Result<(Vec<Row>, String), Failure> {
    let rows: Vec<Row> = runs.iter().map(|run| run.row.clone()).collect();
    keep(dir, &rows).map_err(|e| work(format_args!("{}: {e}", dir.display())))
}

/// Reports the directory of a sweep and the memory of its runs.
fn tell_of(dir: &Path, runs: &[Run], from: &str) {
    let bytes = |run: &Run| run.planned.plan.needed_bytes;
    let (least, most) = (runs.iter().map(bytes).min(), runs.iter().map(bytes).max());
    let [least, most] = [least, most].map(|bytes| human_bytes(bytes.unwrap_or(0)));
    let each = if least == most { format!("{most} each") } else { format!("{least} to {most}") };
    let done = runs.iter().filter(|run| run.planned.done).count();
    let done = if done > 0 { format!(", {done} done already") } else { String::new() };
    tell!("sweep {}: {}{done}; {each}, in {from}", dir.display(), counted(runs.len() as u64, "run"));
}

/// Trains `runs` as the schedule starts them, until all have ended or the flag is set and they are saved.
fn train(dir: &Path, mut runs: Vec<Run>, schedule: &mut Schedule<4>, stop: &AtomicBool) -> Result<Vec<Run>, Failure> {
    kept_now(dir, &runs)?;
    let mut children: Vec<(usize, Child)> = Vec::new();
    let mut stopped = false;
    loop {
        if stop.load(Ordering::Relaxed) && !stopped {
            stopped = true;
            tell!("{}: waiting for {} to be saved", name::called(), counted(children.len() as u64, "run"));
            children.iter_mut().for_each(|(_, child)| child.interrupt());
        }
        while !stopped && let Some(job) = schedule.start() {
            let Run { name, dir, planned, row } = &mut runs[job];
            // On a GPU the memory outside the arena is known only as a constant, which a budget would treat as exact.
            let budget = (!planned.on_gpu()).then_some(planned.plan.needed_bytes);
            let raw = RawConfig { budget: budget.map(crate::config::ByteSize), ..planned.raw.clone() };
            match Child::start(dir, &raw) {
                Ok(child) => {
                    let verb = if planned.begun { "goes on" } else { "begins" };
                    let (side, taken) = (schedule.running(), human_bytes(schedule.taken()[0]));
                    tell!("{name}: {verb}, {} parameters; {side} at once in {taken}", grouped(row.params));
                    children.push((job, child));
                }
                Err(error) => {
                    (row.state, row.error) = (State::Failed, Some(format!("it cannot be started: {error}")));
                    tell!("{name}: {}", row.error.as_deref().unwrap_or_default());
                    schedule.end(job);
                }
            }
        }
        if children.is_empty() {
            return Ok(runs);
        }
        std::thread::sleep(TURN);
        while let Some((job, how)) = take_ended(&mut children).map_err(work)? {
            schedule.end(job);
            end(&mut runs[job], &how, stopped);
            kept_now(dir, &runs)?;
        }
    }
}

/// Records and reports how a run ended.
fn end(run: &mut Run, how: &Ended, stopped: bool) {
    let Run { name, dir, row, .. } = run;
    row.look(dir);
    row.seconds += how.seconds;
    row.tokens_per_s = how.tokens_per_s.or(row.tokens_per_s);
    let line = how.line.split_once(": ").filter(|(who, _)| *who == name::called()).map_or(&*how.line, |(_, line)| line);
    row.state = match how.status {
        Some(0) => State::Done,
        // A process that had not yet installed its handler is killed by the signal.
        Some(130) | None if stopped => State::Interrupted,
        _ => State::Failed,
    };
    match row.state {
        State::Done => tell!("{name}: done in {}, validation loss {}", duration(how.seconds), loss(row)),
        State::Failed => {
            row.error = Some(line.to_owned());
            tell!("{name}: {}", shown(line));
        }
        _ => tell!("{name}: {}", shown(line)),
    }
}

/// The validation loss and its error.
fn loss(row: &Row) -> String {
    let error = row.val_loss_se.map_or_else(String::new, |error| format!(" ± {error:.4}"));
    row.val_loss.map_or("-".to_owned(), |loss| format!("{loss:.4}{error}"))
}

/// The rows as a table for people.
fn table(rows: &[Row]) -> Vec<String> {
    let titles = ["run", "val loss", "bits/byte", "parameters", "tokens", "seconds", "tokens/s", "memory", "state"];
    let cells = rows.iter().map(|row| {
        [
            row.name.clone(),
            loss(row),
            row.bits_per_byte.map_or("-".to_owned(), |bits| format!("{bits:.4}")),
            grouped(row.params),
            grouped(row.tokens),
            format!("{:.1}", row.seconds),
            row.tokens_per_s.map_or("-".to_owned(), |speed| grouped(speed as u64)),
            human_bytes(row.bytes),
            match (row.state, &row.error) {
                (State::Done, _) => "done".to_owned(),
                (State::Failed, why) => format!("failed: {}", shown(why.as_deref().unwrap_or_default())),
                (State::Interrupted, _) => "interrupted".to_owned(),
                (State::Waiting, _) => "waits".to_owned(),
            },
        ]
    });
    in_columns(&std::iter::once(titles.map(str::to_owned)).chain(cells).collect::<Vec<_>>(), 1..=7)
}
