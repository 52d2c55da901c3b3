//! Limits every wait for another rank.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::PeerError;
use capful_base::contain;

/// The longest wait unless the environment sets another: the other ranks may be choosing algorithms.
const LONGEST: Duration = Duration::from_secs(600);
/// The longest wait for work that one rank does for all, such as encoding text.
const LONGEST_LED: Duration = Duration::from_secs(48 * 3600);
/// The longest wait after a signal: the other ranks also received it, and end with their step.
const AFTER_SIGNAL: Duration = Duration::from_secs(30);
/// How long it may take to free this process of an overdue wait. The process ends after that in any case.
const GRACE: Duration = Duration::from_secs(10);
/// The environment variable with the longest wait in seconds.
const VARIABLE: &str = "CAPFUL_WAIT";

/// Monitors the waits of one process. A clone monitors the same waits.
#[derive(Clone)]
pub struct Watch(Arc<Shared>);

struct Shared {
    rank: u32,
    /// Set by a signal.
    signal: Arc<AtomicBool>,
    began: Instant,
    /// Whether one rank is doing work for all.
    led: AtomicBool,
    /// 0 if nobody waits, [`OVERDUE`], or else: milliseconds since `began`, plus 1, and in the lower 24 bits the rank
    /// waited for.
    wait: AtomicU64,
    /// Called before an overdue wait ends the process.
    free: Mutex<Option<Free>>,
}

/// Frees the process from whatever it waits in.
type Free = Box<dyn FnOnce() + Send>;

const RANK: u64 = (1 << 24) - 1;
/// Instead of a rank: all others, when a GPU waits for one of them.
const OTHERS: u64 = RANK;
const RESUME: &str = "continue with --resume from the last checkpoint";
/// Marks a wait that took too long: the process is about to end.
const OVERDUE: u64 = u64::MAX;

/// The longest wait, from the environment.
fn longest(variable: &dyn Fn(&str) -> Option<String>) -> Result<Duration, PeerError> {
    let Some(text) = variable(VARIABLE) else { return Ok(LONGEST) };
    let most = LONGEST_LED.as_secs();
    let seconds = text.trim().parse().ok().filter(|seconds| (1..=most).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        PeerError(format!("{VARIABLE} is '{text}'; set it to the longest wait in seconds, from 1 to {most}"))
    })
}

impl Watch {
    /// A watch for rank `rank`, with a flag that a signal sets.
    pub fn new(rank: u32, signal: Arc<AtomicBool>) -> Watch {
        Watch(Arc::new(Shared {
            rank,
            signal,
            began: Instant::now(),
            led: AtomicBool::new(false),
            wait: AtomicU64::new(0),
            free: Mutex::new(None),
        }))
    }

    /// Starts to watch on its own thread: from here on a wait that takes too long ends the process with status 1 and an
    /// error line.
    ///
    /// # Errors
    /// An invalid longest wait in the environment; a thread that cannot start.
    pub fn begin(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<(), PeerError> {
        let usual = longest(variable)?;
        self.begin_with(move |shared| shared.look(usual))
    }

    /// Starts a thread that runs `look`, which returns what is wrong with a wait.
    fn begin_with(&self, look: impl FnOnce(&Shared) -> String + Send + 'static) -> Result<(), PeerError> {
        let shared = Arc::clone(&self.0);
        let watch = move || match contain(|| look(&shared)) {
            Ok(overdue) => {
                shared.say(&overdue);
                shared.free();
                leave()
            }
            // It is not known whether anybody waits, so nothing is aborted: the run goes on until the process is gone.
            Err(panic) => {
                shared.say(&format!("looks after its waits no more ({panic}); {RESUME}"));
                leave()
            }
        };
        let started = thread::Builder::new().name("watch".to_owned()).spawn(watch);
        started.map(drop).map_err(|e| {
            PeerError(format!(
                "the thread that looks after waits cannot start ({e}); end other programs, or allow more threads and memory"
            ))
        })
    }

    /// Sets whether waits from here on are for work that one rank does for all, which may take days.
    pub fn led(&self, led: bool) {
        self.0.led.store(led, Ordering::Relaxed);
    }

    /// Runs `wait`, which waits for rank `other`.
    pub fn wait_for<T>(&self, other: u32, wait: impl FnOnce() -> T) -> T {
        self.0.wait(u64::from(other), wait)
    }

    /// Runs `wait`, which waits for this rank's GPU; the GPU may itself wait for another rank's. A signal does not
    /// shorten this wait: the GPU may be at work.
    pub fn wait_for_gpu<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.wait(OTHERS, wait)
    }

    /// Sets the function that frees an overdue wait before the process ends.
    pub fn free_by(&self, free: Option<Free>) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) = free;
    }
}

impl Shared {
    /// Runs `wait`. It does not return if the wait was overdue: the process is about to end.
    fn wait<T>(&self, other: u64, wait: impl FnOnce() -> T) -> T {
        let since = self.began.elapsed().as_millis() as u64 + 1;
        let noted = since << 24 | other & RANK;
        let outer = self.wait.swap(noted, Ordering::Relaxed);
        let done = wait();
        while self.wait.compare_exchange(noted, outer, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            thread::park();
        }
        done
    }

    /// Checks until a wait is overdue, and returns what is wrong with it.
    fn look(&self, usual: Duration) -> String {
        let mut signalled = None;
        loop {
            thread::sleep(Duration::from_millis(500));
            let now = self.began.elapsed();
            if self.signal.load(Ordering::Relaxed) {
                signalled.get_or_insert(now);
            }
            let longest = if self.led.load(Ordering::Relaxed) { LONGEST_LED } else { usual };
            let wait = self.wait.load(Ordering::Relaxed);
            if let Some(what) = overdue(wait, now, signalled, longest)
                && self.wait.compare_exchange(wait, OVERDUE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                return what;
            }
        }
    }

    fn say(&self, what: &str) {
        let _ = writeln!(std::io::stderr(), "{}: rank {} {what}", capful_base::name::called(), self.rank);
    }

    /// Tries to free this process from the call that it waits in.
    fn free(&self) {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(free) = free {
            // On another thread, because `free` may wait as well.
            let (done, freed) = mpsc::channel::<()>();
            let free = move || {
                free();
                drop(done);
            };
            let _ = thread::Builder::new().name("free".to_owned()).spawn(free);
            let _ = freed.recv_timeout(GRACE);
        }
    }
}

/// Ends the process without running exit handlers: a library's handlers may wait for the GPU.
fn leave() {
    signal_hook::low_level::exit(1);
}

/// What is wrong with a wait at `now`, if it is longer than `longest`. A signal came at `signalled`.
fn overdue(wait: u64, now: Duration, signalled: Option<Duration>, longest: Duration) -> Option<String> {
    let since = Duration::from_millis((wait >> 24).checked_sub(1)?);
    let (other, waited) = (wait & RANK, now.saturating_sub(since));
    let seconds = waited.as_secs();
    if other == OTHERS {
        return (waited >= longest).then(|| {
            format!("has waited {seconds} s for the GPUs of the other ranks, one of which is gone or hangs; {RESUME}")
        });
    }
    if signalled.is_some_and(|signal| now.saturating_sub(signal.max(since)) >= AFTER_SIGNAL) {
        return Some(format!("has waited {seconds} s for rank {other}, which is gone; {RESUME}"));
    }
    (waited >= longest).then(|| format!("has waited {seconds} s for rank {other}, which is gone or hangs; {RESUME}"))
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
        // The signal came before the wait began; below, it comes during the wait.
        assert_eq!(overdue(wait, at(49), Some(at(5))), None);
        assert!(overdue(wait, at(50), Some(at(5))).is_some());
        assert_eq!(overdue(wait, at(129), Some(at(100))), None);
        assert!(overdue(wait, at(130), Some(at(100))).unwrap().contains("110 s for rank 7, which is gone"));
        // After a signal a GPU may still be at work.
        let gpu = wait | OTHERS;
        assert_eq!(overdue(gpu, at(619), Some(at(100))), None);
        let late = overdue(gpu, at(620), None).unwrap();
        assert!(late.contains("600 s for the GPUs of the other ranks"), "{late}");
    }

    #[test]
    fn a_wait_is_noted_while_it_lasts() {
        let watch = Watch::new(0, Arc::default());
        let noted = || watch.0.wait.load(Ordering::Relaxed);
        let (outer, inner, again) = watch.wait_for(5, || (noted(), watch.wait_for_gpu(noted), noted()));
        assert!(outer & RANK == 5 && outer >> 24 > 0 && inner & RANK == OTHERS && again == outer);
        assert_eq!(noted(), 0);
    }

    #[test]
    fn a_watch_that_fails_ends_the_process_with_a_line() {
        const APART: &str = "CAPFUL_TEST_APART";
        if std::env::var_os(APART).is_some() {
            let watch = Watch::new(3, Arc::default());
            watch.free_by(Some(Box::new(|| thread::sleep(GRACE))));
            watch.begin_with(|_| panic!("out of order")).unwrap();
            thread::sleep(Duration::from_secs(20));
            return;
        }
        let name = "watch::tests::a_watch_that_fails_ends_the_process_with_a_line";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let began = Instant::now();
        let output = again.args(["--exact", "--nocapture", name]).env(APART, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let line = "host: rank 3 looks after its waits no more (out of order); continue with --resume";
        assert!(said.starts_with(line) && said.matches('\n').count() == 1, "{said}");
        assert!(began.elapsed() < GRACE, "something was aborted");
    }

    #[test]
    fn the_longest_wait_is_the_environment_s() {
        let of = |value: Option<&str>| longest(&|_| value.map(str::to_owned)).map_err(|e| e.to_string());
        assert_eq!(of(None), Ok(LONGEST));
        assert_eq!(of(Some("7")), Ok(Duration::from_secs(7)));
        for wrong in ["0", "", "-1", "1.5", "ten", "172801"] {
            let message = of(Some(wrong)).unwrap_err();
            assert!(message.contains(&format!("CAPFUL_WAIT is '{wrong}'")) && message.contains("172800"), "{message}");
        }
    }
}
