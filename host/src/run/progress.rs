//! The progress report of a running session, written by a separate thread from a few numbers that the run stores for
//! it: in a terminal a line that is redrawn in place, elsewhere line after line.

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

/// How often the line in a terminal is drawn, and how often the numbers are checked.
const TURN: Duration = Duration::from_millis(250);
/// The longest time without a line in a file.
const SILENCE: Duration = Duration::from_secs(30);
/// The most lines that wait for the reporter. If there are more, the oldest are dropped.
const WAITING: usize = 256;

/// A logged step, or an evaluation.
#[derive(Debug, Clone, Copy)]
struct Logged {
    step: u64,
    stage: usize,
    loss: Option<f64>,
    val_loss: Option<f64>,
    /// The validation loss of the averages of the weights.
    averaged: Option<f64>,
    gap: Option<f64>,
    /// The predicted final loss at the last evaluation.
    end: Option<Expected>,
    /// The lowest evaluation, if all later ones were higher while the training loss fell.
    opened: Option<Evaluation>,
    skipped: u64,
    tokens_per_s: Option<f64>,
}

/// The rest of a run.
#[derive(Debug, Clone, Copy)]
pub struct Ahead {
    /// Steps of the run, as far as predicted.
    pub end: u64,
    /// Seconds until the end.
    pub left: Option<f64>,
}

/// The numbers, written by the run and read by the reporter.
#[derive(Debug)]
struct Numbers {
    /// The latest value of every number.
    now: Logged,
    /// The rest of the run after the last step, and the time of that step.
    ahead: Ahead,
    at: Instant,
    /// The prediction for the session, to be reported once: its seconds, and tokens a second.
    told: Option<(f64, f64)>,
    /// Logged values that are not reported yet.
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
    /// Starts to report a session of `course` on standard error, unless `quiet`. If a number of bytes of main memory
    /// were `planned`, the report compares them with the memory in use.
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
            // The start of a thread allocates: this counts for the reporter, not for the first steps.
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

    /// Records that a step is done, and the rest of the run.
    pub fn done(&self, step: u64, ahead: Ahead) {
        let mut numbers = self.shared.lock();
        numbers.now.step = step;
        (numbers.at, numbers.ahead) = (Instant::now(), ahead);
    }

    /// Stores the predicted seconds of the session, and its tokens a second, to be reported once.
    pub fn tell(&self, seconds: f64, tokens_per_s: f64) {
        self.shared.lock().told = Some((seconds, tokens_per_s));
    }

    /// Stores the numbers of a logged step, of the stage of index `stage`, and the number of skipped steps so far.
    pub fn step(&self, step: u64, stage: usize, loss: f64, skipped: u64, tokens_per_s: f64) {
        let (loss, tokens_per_s) = (Some(loss), Some(tokens_per_s));
        let (val_loss, averaged, gap, end, opened) = (None, None, None, None, None);
        let logged = Logged { step, stage, loss, val_loss, averaged, gap, end, opened, skipped, tokens_per_s };
        let Logged { val_loss, averaged, gap, end, .. } = self.shared.lock().now;
        self.leave(logged, Logged { val_loss, averaged, gap, end, ..logged });
    }

    /// Stores the losses of an evaluation with the predicted final loss, and the lowest evaluation if the validation
    /// loss has been rising since while the training loss falls.
    pub fn evaluation(&self, metrics: &EvalMetrics, opened: Option<Evaluation>) {
        let (val_loss, averaged, gap) = (Some(metrics.val_loss), metrics.val_loss_averaged, metrics.gap());
        let now = Logged { val_loss, averaged, gap, end: metrics.expected_end, ..self.shared.lock().now };
        // The mean training loss that the gap refers to.
        let logged = Logged { loss: metrics.train_loss, tokens_per_s: None, opened, ..now };
        self.leave(logged, now);
    }

    fn leave(&self, logged: Logged, now: Logged) {
        // Without a reporter nothing waits.
        let Some(thread) = &self.thread else { return };
        let mut numbers = self.shared.lock();
        numbers.now = now;
        if numbers.waiting.is_full() {
            numbers.waiting.pop_front();
        }
        // The queue has room.
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

/// The state of the reporter.
struct Reporter {
    course: Course,
    planned: Option<u64>,
    /// Whether standard error is a terminal that can return to the beginning of a line.
    terminal: bool,
    /// The plot of the loss.
    spark: Spark,
    /// When the last line was written.
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
                // After the last column some terminals begin the next line.
                let line = self.status(&now, &ahead, true).fitting(columns().saturating_sub(1));
                // If the line cannot be written, the run continues.
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

    /// Writes a separate line.
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

/// The message when the gap opens.
fn rises(step: u64, lowest: &Evaluation) -> String {
    format!(
        "step {}: the validation loss rose in {ROSE} evaluations in a row while the training loss fell; it was lowest, {:.4}, \
         after step {}",
        grouped(step),
        lowest.val_loss,
        grouped(lowest.step)
    )
}

/// The number of columns of the terminal, which may change.
fn columns() -> usize {
    terminal_size_of(io::stderr()).map_or(80, |(Width(columns), _)| columns.into())
}

/// The name of the stage of an index, if there are several stages.
fn name(stages: &[Stage], index: usize) -> String {
    match stages.get(index).filter(|_| stages.len() > 1) {
        Some(stage) => format!("stage {}/{} ({} × {})", index + 1, stages.len(), stage.batch, stage.seq_len),
        None => String::new(),
    }
}
