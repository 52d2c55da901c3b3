//! Every wait for another rank has an end.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait: others may choose algorithms meanwhile.
pub const LONGEST: Duration = Duration::from_secs(600);
/// The longest for work that one rank does for all, such as encoding text.
pub const LONGEST_LED: Duration = Duration::from_secs(48 * 3600);
/// The longest after a signal: the others were sent it too, and end with their step.
pub const AFTER_SIGNAL: Duration = Duration::from_secs(30);

/// Looks after one process' waits.
pub struct Watch {
    began: Instant,
    /// 0 where nobody waits, else milliseconds since `began`, plus 1, and the rank waited for in the lower 24 bits.
    wait: Arc<AtomicU64>,
    /// Seconds of the longest wait.
    longest: Arc<AtomicU64>,
}

const RANK: u64 = (1 << 24) - 1;

impl Watch {
    /// Begins to watch, on a thread of its own: rank `rank`, with a flag that a signal raises. A wait that is too long ends
    /// the process with status 1 and a line.
    pub fn start(rank: u32, signal: Arc<AtomicBool>) -> Watch {
        let longest = Arc::new(AtomicU64::new(LONGEST.as_secs()));
        let watch = Watch { began: Instant::now(), wait: Arc::new(AtomicU64::new(0)), longest };
        let (began, wait, longest) = (watch.began, Arc::clone(&watch.wait), Arc::clone(&watch.longest));
        let look = move || {
            let mut signalled = None;
            loop {
                thread::sleep(Duration::from_millis(500));
                let now = began.elapsed();
                if signal.load(Ordering::Relaxed) {
                    signalled.get_or_insert(now);
                }
                if let Some(what) = overdue(
                    wait.load(Ordering::Relaxed),
                    now,
                    signalled,
                    Duration::from_secs(longest.load(Ordering::Relaxed)),
                ) {
                    let _ = writeln!(std::io::stderr(), "host: rank {rank} {what}");
                    std::process::exit(1);
                }
            }
        };
        // Without a thread for it, waits have no end; the run itself is not in danger.
        let _ = thread::Builder::new().name("watch".to_owned()).stack_size(256 << 10).spawn(look);
        watch
    }

    /// Lets waits last as long as this from here on.
    pub fn wait_at_most(&self, longest: Duration) {
        self.longest.store(longest.as_secs(), Ordering::Relaxed);
    }

    /// Runs what waits for rank `other`.
    pub fn wait_for<T>(&self, other: u32, wait: impl FnOnce() -> T) -> T {
        let since = self.began.elapsed().as_millis() as u64 + 1;
        self.wait.store(since << 24 | u64::from(other) & RANK, Ordering::Relaxed);
        let done = wait();
        self.wait.store(0, Ordering::Relaxed);
        done
    }
}

/// What is wrong with a wait at `now`, where it is longer than `longest`. A signal came at `signalled`.
fn overdue(wait: u64, now: Duration, signalled: Option<Duration>, longest: Duration) -> Option<String> {
    let since = Duration::from_millis((wait >> 24).checked_sub(1)?);
    let (other, waited) = (wait & RANK, now.saturating_sub(since));
    let seconds = waited.as_secs();
    if signalled.is_some_and(|signal| now.saturating_sub(signal.max(since)) >= AFTER_SIGNAL) {
        return Some(format!(
            "has waited {seconds} s for rank {other}, which is gone; continue with --resume from the last checkpoint"
        ));
    }
    (waited >= longest).then(|| {
        format!(
            "has waited {seconds} s for rank {other}, which is gone or hangs; continue with --resume from the last checkpoint"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_overdue_after_its_time_or_some_time_after_a_signal() {
        let at = Duration::from_secs;
        let wait = (20_000u64 + 1) << 24 | 7;
        let overdue = |wait, now, signalled| super::overdue(wait, now, signalled, LONGEST);
        assert_eq!(overdue(0, at(10_000), Some(at(1))), None);
        assert_eq!(overdue(wait, at(619), None), None);
        assert_eq!(super::overdue(wait, at(620), None, LONGEST_LED), None);
        let late = overdue(wait, at(620), None).unwrap();
        assert!(late.contains("600 s for rank 7"), "{late}");
        // The signal came before the wait began, and meanwhile.
        assert_eq!(overdue(wait, at(49), Some(at(5))), None);
        assert!(overdue(wait, at(50), Some(at(5))).is_some());
        assert_eq!(overdue(wait, at(129), Some(at(100))), None);
        assert!(overdue(wait, at(130), Some(at(100))).unwrap().contains("110 s for rank 7, which is gone"));
    }

    #[test]
    fn a_wait_is_noted_while_it_lasts() {
        let watch = Watch::start(0, Arc::new(AtomicBool::new(false)));
        let noted = watch.wait_for(5, || watch.wait.load(Ordering::Relaxed));
        assert!(noted & RANK == 5 && noted >> 24 > 0);
        assert_eq!(watch.wait.load(Ordering::Relaxed), 0);
    }
}
