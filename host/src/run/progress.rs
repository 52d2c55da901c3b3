//! A progress bar, drawn by a thread of its own from a few numbers that the run leaves for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::allocations::{self, Activity};

/// The numbers, written by the run and read by the reporter.
#[derive(Debug, Default)]
struct Shared {
    step: AtomicU64,
    loss: AtomicU64,
    val_loss: AtomicU64,
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
    /// Starts a bar of `steps` on standard error, or nothing where `quiet`.
    pub fn start(steps: u64, quiet: bool) -> Progress {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("reporter".to_owned()).stack_size(256 << 10);
        let thread = (!quiet).then(|| builder.spawn(move || report(&theirs, steps)).ok()).flatten();
        Progress { shared, thread }
    }

    /// Leaves the numbers of a step.
    pub fn step(&self, step: u64, loss: f64, tokens_per_s: f64) {
        self.shared.step.store(step, Ordering::Relaxed);
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

fn report(shared: &Shared, steps: u64) {
    allocations::during(Activity::Report, || {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} eta {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        while !shared.done.load(Ordering::Relaxed) {
            let number = |a: &AtomicU64| f64::from_bits(a.load(Ordering::Relaxed));
            let val_loss = number(&shared.val_loss);
            let validation = if val_loss > 0.0 { format!(" validation {val_loss:.3}") } else { String::new() };
            let (loss, speed) = (number(&shared.loss), number(&shared.tokens_per_s));
            bar.set_position(shared.step.load(Ordering::Relaxed));
            bar.set_message(format!("loss {loss:.3}{validation} {speed:.0} tokens/s"));
            std::thread::park_timeout(Duration::from_millis(250));
        }
        bar.finish_and_clear();
    });
}
