//! What people see of a run under way, said by a thread of its own from a few numbers that the run leaves for it: a line
//! that stays in its place in a terminal, line after line elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use capful_core::train::Stage;
use heapless::Deque;
use terminal_size::{Width, terminal_size_of};

use super::evaluations::{Evaluation, ROSE};
use super::metrics::EvalMetrics;
use super::spark::Spark;
use super::status::{Status, wrapped};
use crate::allocations::{self, Activity};
use crate::plan::course::Course;
use crate::plan::memory;
use crate::suggest::ending::Expected;
use capful_base::words::grouped;

/// How often the line in a terminal is drawn, and how often the rest is looked after.
const TURN: Duration = Duration::from_millis(250);
/// The longest time in which nothing is said in a file.
const SILENCE: Duration = Duration::from_secs(30);
/// Lines that may wait for the reporter. Of more, the oldest are not said.
const WAITING: usize = 256;

/// A logged step, or an evaluation.
#[derive(Debug, Clone, Copy)]
struct Logged {
    step: u64,
    stage: usize,
    loss: Option<f64>,
    val_loss: Option<f64>,
    /// The same of the averages of the weights.
    averaged: Option<f64>,
    gap: Option<f64>,
    /// Where the run will end, by the last evaluation.
    end: Option<Expected>,
    /// The evaluation that was lowest, where all since were higher while the training loss fell.
    opened: Option<Evaluation>,
    skipped: u64,
    tokens_per_s: Option<f64>,
}

/// What is ahead of a run.
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    /// Steps of the run, as far as can be told.
    pub end: u64,
    /// Seconds that are left.
    pub left: Option<f64>,
}

/// The numbers, written by the run and read by the reporter.
#[derive(Debug)]
struct Numbers {
    /// The last of everything.
    now: Logged,
    /// What was ahead when the last step was done, and when that was.
    ahead: Ahead,
    at: Instant,
    /// What is to be told of the session, once: its seconds, and tokens a second.
    told: Option<(f64, f64)>,
    /// What was logged and not yet said.
    waiting: Deque<Logged, WAITING>,
}

#[derive(Debug)]
struct Shared {
    numbers: Mutex<Numbers>,
    done: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running reporter; dropping it ends the line.
#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins to report a session of `course` on standard error, or does not where `quiet`. Where so many bytes of main
    /// memory were `planned` it says how many are in use beside them.
    pub fn start(course: Course, planned: Option<u64>, quiet: bool) -> Progress {
        let now = Logged {
            step: course.first,
            stage: 0,
            loss: None,
            val_loss: None,
            averaged: None,
            gap: None,
            end: None,
            opened: None,
            skipped: 0,
            tokens_per_s: None,
        };
        let ahead = Ahead { end: course.steps, left: None };
        let numbers = Numbers { now, ahead, at: Instant::now(), told: None, waiting: Deque::new() };
        let shared = Arc::new(Shared { numbers: Mutex::new(numbers), done: AtomicBool::new(false) });
        let theirs = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("reporter".to_owned()).stack_size(256 << 10);
        let spawn = || {
            // A thread's own start allocates: it belongs to the reporter, not to the first steps.
            let started = Arc::new(Barrier::new(2));
            let reached = Arc::clone(&started);
            let thread = builder.spawn(move || {
                reached.wait();
                allocations::during(Activity::Report, || Reporter::new(course, planned).run(&theirs));
            });
            thread.ok().inspect(|_| {
                started.wait();
            })
        };
        let thread = (!quiet).then(spawn).flatten();
        Progress { shared, thread }
    }

    /// Notes that a step is done, and what is ahead.
    pub fn done(&self, step: u64, ahead: Ahead) {
        let mut numbers = self.shared.lock();
        numbers.now.step = step;
        (numbers.at, numbers.ahead) = (Instant::now(), ahead);
    }

    /// Leaves how many seconds the session takes, at so many tokens a second, to be told once.
    pub fn tell(&self, seconds: f64, tokens_per_s: f64) {
        self.shared.lock().told = Some((seconds, tokens_per_s));
    }

    /// Leaves the numbers of a logged step, of the stage of index `stage`, and how many steps were skipped so far.
    pub fn step(&self, step: u64, stage: usize, loss: f64, skipped: u64, tokens_per_s: f64) {
        let (loss, tokens_per_s) = (Some(loss), Some(tokens_per_s));
        let (val_loss, averaged, gap, end, opened) = (None, None, None, None, None);
        let logged = Logged { step, stage, loss, val_loss, averaged, gap, end, opened, skipped, tokens_per_s };
        let Logged { val_loss, averaged, gap, end, .. } = self.shared.lock().now;
        self.leave(logged, Logged { val_loss, averaged, gap, end, ..logged });
    }

    /// Leaves the losses of an evaluation with where the run will end, and the lowest one where the validation loss rises since while the training loss
    /// falls.
    pub fn evaluation(&self, metrics: &EvalMetrics, opened: Option<Evaluation>) {
        let (val_loss, averaged, gap) = (Some(metrics.val_loss), metrics.val_loss_averaged, metrics.gap());
        let now = Logged { val_loss, averaged, gap, end: metrics.expected_end, ..self.shared.lock().now };
        // The mean that the gap is above.
        let logged = Logged { loss: metrics.train_loss, tokens_per_s: None, opened, ..now };
        self.leave(logged, now);
    }

    fn leave(&self, logged: Logged, now: Logged) {
        // Where nobody reports, nothing waits.
        let Some(thread) = &self.thread else { return };
        let mut numbers = self.shared.lock();
        numbers.now = now;
        if numbers.waiting.is_full() {
            numbers.waiting.pop_front();
        }
        // There is room.
        let _ = numbers.waiting.push_back(logged);
        drop(numbers);
        thread.thread().unpark();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// What the reporter knows.
struct Reporter {
    course: Course,
    planned: Option<u64>,
    /// Whether standard error is a terminal that can go back to a line's beginning.
    terminal: bool,
    /// The course of the loss.
    spark: Spark,
    /// When a line was said last.
    said: Instant,
}

impl Reporter {
    fn new(course: Course, planned: Option<u64>) -> Reporter {
        let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        Reporter {
            course,
            planned,
            terminal: io::stderr().is_terminal() && !dumb,
            spark: Spark::new(),
            said: Instant::now(),
        }
    }

    fn run(mut self, shared: &Shared) {
        loop {
            let done = shared.done.load(Ordering::Relaxed);
            let (now, waiting, ahead, told) = {
                let mut numbers = shared.lock();
                let waiting = std::mem::take(&mut numbers.waiting);
                let left = numbers.ahead.left.map(|left| (left - numbers.at.elapsed().as_secs_f64()).max(0.0));
                (numbers.now, waiting, Ahead { left, ..numbers.ahead }, numbers.told.take())
            };
            self.course.steps = ahead.end;
            if let Some((seconds, tokens_per_s)) = told {
                self.tell(&self.course.estimate(seconds, tokens_per_s));
            }
            for (step, lowest) in waiting.iter().filter_map(|logged| Some((logged.step, logged.opened?))) {
                self.tell(&rises(step, &lowest));
            }
            let steps = waiting.iter().filter(|logged| logged.tokens_per_s.is_some());
            steps.filter_map(|logged| logged.loss).for_each(|loss| self.spark.add(loss));
            if self.terminal {
                // In the last column some terminals begin the next line.
                let line = self.status(&now, &ahead, true).fitting(columns().saturating_sub(1));
                // Where it cannot be shown, the run goes on.
                let _ = write!(io::stderr().lock(), "\r{}\u{1b}[K", if done { "" } else { &line });
            } else {
                for logged in &waiting {
                    self.say(&self.status(logged, &ahead, false).whole());
                }
                if self.said.elapsed() >= SILENCE && !done {
                    self.say(&self.status(&now, &ahead, false).whole());
                }
            }
            if done {
                break;
            }
            std::thread::park_timeout(TURN);
        }
    }

    /// Says a line of its own.
    fn tell(&mut self, line: &str) {
        match self.terminal {
            true => self.say(&format!("\r\u{1b}[K{}", wrapped(line, columns()))),
            false => self.say(line),
        }
    }

    fn say(&mut self, line: &str) {
        self.said = Instant::now();
        let _ = writeln!(io::stderr().lock(), "{line}");
    }

    fn status(&self, logged: &Logged, ahead: &Ahead, all: bool) -> Status {
        let Logged { step, stage, loss, val_loss, averaged, gap, end, skipped, tokens_per_s, .. } = *logged;
        Status {
            step,
            steps: ahead.end,
            stage: name(&self.course.stages, stage),
            loss,
            course: self.spark.draw().filter(|_| self.terminal),
            val_loss,
            averaged,
            gap,
            end: end.filter(|_| step < ahead.end),
            skipped,
            tokens_per_s,
            memory: memory::resident().zip(self.planned),
            left: ahead.left.filter(|_| all || step < ahead.end),
        }
    }
}

/// What is said where the gap opens.
fn rises(step: u64, lowest: &Evaluation) -> String {
    format!(
        "step {}: the validation loss rose in {ROSE} evaluations in a row while the training loss fell; it was lowest, {:.4}, \
         after step {}",
        grouped(step),
        lowest.val_loss,
        grouped(lowest.step)
    )
}

/// Columns of the terminal, which may change.
fn columns() -> usize {
    terminal_size_of(io::stderr()).map_or(80, |(Width(columns), _)| columns.into())
}

/// What the stage of an index is called, where there are several.
fn name(stages: &[Stage], index: usize) -> String {
    match stages.get(index).filter(|_| stages.len() > 1) {
        Some(stage) => format!("stage {}/{} ({} × {})", index + 1, stages.len(), stage.batch, stage.seq_len),
        None => String::new(),
    }
}
