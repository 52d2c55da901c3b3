//! A progress bar, drawn by a thread of its own from a few numbers that the run leaves for it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use capful_core::train::Stage;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::allocations::{self, Activity};
use crate::config::human_bytes;
use crate::plan::memory;

/// The numbers, written by the run and read by the reporter.
#[derive(Debug, Default)]
struct Shared {
    step: AtomicU64,
    stage: AtomicUsize,
    loss: AtomicU64,
    val_loss: AtomicU64,
    skipped: AtomicU64,
    tokens_per_s: AtomicU64,
    done: AtomicBool,
}

/// A running reporter; dropping it ends the bar.
#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts a bar of `steps` on standard error, or nothing where `quiet`. Where there are several `stages` it names
    /// the one under way. Where so many bytes of main memory were `planned` it shows how many are in use beside them.
    pub fn start(steps: u64, stages: &[Stage], planned: Option<u64>, quiet: bool) -> Progress {
        let names = if stages.len() > 1 { names(stages) } else { Vec::new() };
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("reporter".to_owned()).stack_size(256 << 10);
        let spawn = || {
            // A thread's own start allocates: it belongs to the reporter, not to the first steps.
            let started = Arc::new(Barrier::new(2));
            let reached = Arc::clone(&started);
            let thread = builder.spawn(move || {
                reached.wait();
                report(&theirs, steps, &names, planned);
            });
            thread.ok().inspect(|_| {
                started.wait();
            })
        };
        let thread = (!quiet).then(spawn).flatten();
        Progress { shared, thread }
    }

    /// Leaves the numbers of a step, of the stage of index `stage`, and how many steps were skipped so far.
    pub fn step(&self, step: u64, stage: usize, loss: f64, skipped: u64, tokens_per_s: f64) {
        self.shared.skipped.store(skipped, Ordering::Relaxed);
        self.shared.step.store(step, Ordering::Relaxed);
        self.shared.stage.store(stage, Ordering::Relaxed);
        self.shared.loss.store(loss.to_bits(), Ordering::Relaxed);
        self.shared.tokens_per_s.store(tokens_per_s.to_bits(), Ordering::Relaxed);
    }

    /// Leaves the loss of an evaluation.
    pub fn evaluation(&self, val_loss: f64) {
        self.shared.val_loss.store(val_loss.to_bits(), Ordering::Relaxed);
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

/// What the bar calls each stage.
fn names(stages: &[Stage]) -> Vec<String> {
    let name = |(i, stage): (usize, &Stage)| {
        format!("stage {}/{} ({} × {}) ", i + 1, stages.len(), stage.batch, stage.seq_len)
    };
    stages.iter().enumerate().map(name).collect()
}

/// Main memory in use beside what was planned, where the system says.
fn memory_in_use(planned: Option<u64>) -> String {
    let both = memory::resident().zip(planned);
    both.map_or(String::new(), |(used, planned)| format!(" {} of {}", human_bytes(used), human_bytes(planned)))
}

fn report(shared: &Shared, steps: u64, stages: &[String], planned: Option<u64>) {
    allocations::during(Activity::Report, || {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} eta {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        while !shared.done.load(Ordering::Relaxed) {
            let number = |a: &AtomicU64| f64::from_bits(a.load(Ordering::Relaxed));
            let val_loss = number(&shared.val_loss);
            let validation = if val_loss > 0.0 { format!(" validation {val_loss:.3}") } else { String::new() };
            let (loss, speed) = (number(&shared.loss), number(&shared.tokens_per_s));
            let stage = stages.get(shared.stage.load(Ordering::Relaxed)).map_or("", String::as_str);
            bar.set_position(shared.step.load(Ordering::Relaxed));
            let skipped = match shared.skipped.load(Ordering::Relaxed) {
                0 => String::new(),
                count => format!(" {count} steps skipped"),
            };
            let memory = memory_in_use(planned);
            bar.set_message(format!("{stage}loss {loss:.3}{validation}{skipped} {speed:.0} tokens/s{memory}"));
            std::thread::park_timeout(Duration::from_millis(250));
        }
        bar.finish_and_clear();
    });
}
