//! The thread that owns what is known of the run: it follows the log, draws the page and accepts connections.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::answer;
use super::places::{GRACE, News, Shared, State};
use super::served::{Logged, WAITING};
use crate::report::known::Known;
use crate::report::{self, Served};
use crate::run::standing;

/// The interval at which the thread checks for work.
const TURN: Duration = Duration::from_millis(50);
/// The least time between two events.
const PULSE: Duration = Duration::from_secs(1);
/// Drawing takes at most one part in `RARE` of the time, and there is at most one drawing a [`PULSE`].
const RARE: u32 = 200;
/// The most connections accepted a turn: with pages of a few hundred kilobytes clients cannot keep a core busy.
const ACCEPTED: usize = 16;
/// The fewest seconds after which a browser without scripts reloads the page.
const AGAIN: u64 = 10;

/// What the thread knows and has published.
pub struct Follower {
    known: Known,
    /// The step of the last evaluation in the curves: a run that has done its last step evaluates that step again, and
    /// writes no second line.
    evaluated: Option<u64>,
    queue: Receiver<Logged>,
    /// Lines for which the queue had no room.
    lost: Arc<AtomicU64>,
    /// When news were last published; and when the page was last drawn, with how many lines.
    told: Instant,
    drawn: Option<(Instant, u64)>,
    /// The least time between two drawings.
    every: Duration,
    /// The page before the last: while a client still reads it, no third page is drawn.
    before: Weak<String>,
}

impl Follower {
    /// A follower of the run `known`; new lines come from `queue`.
    pub fn new(known: Known, queue: Receiver<Logged>, lost: Arc<AtomicU64>) -> Follower {
        let evaluated = known.curves.last.map(|last| last.step);
        let (told, every) = (Instant::now(), PULSE);
        Follower { known, evaluated, queue, lost, told, drawn: None, every, before: Weak::new() }
    }

    /// The current news, with this number.
    pub fn news(&self, number: u64) -> News {
        let curves = &self.known.curves;
        News { number, step: curves.step, loss: curves.loss.last.map(|(_, loss)| loss), every: self.every }
    }

    /// Follows the run to its end, then serves the open connections for a moment longer.
    pub fn run(mut self, listener: &TcpListener, shared: &Shared) {
        let mut ended = None;
        loop {
            self.take();
            if ended.is_none() && shared.lock().ending {
                self.end();
                self.tell(shared, true);
                ended = Some(Instant::now());
            }
            if self.told.elapsed() >= PULSE {
                self.tell(shared, ended.is_some());
            }
            accept(listener, shared);
            if shared.lock().wanted {
                self.draw(shared);
            }
            if ended.is_some_and(|ended| shared.is_idle() || ended.elapsed() >= GRACE) {
                return;
            }
            std::thread::park_timeout(TURN);
        }
    }

    /// Moves waiting lines from the queue into the curves.
    fn take(&mut self) {
        for logged in self.queue.try_iter().take(WAITING) {
            let line = match &logged {
                Logged::Step(metrics) => metrics.json(),
                Logged::Evaluation(metrics) if self.evaluated.replace(metrics.step) == Some(metrics.step) => continue,
                Logged::Evaluation(metrics) => metrics.json(),
            };
            // A run logs only lines that the curves accept.
            let _ = self.known.curves.add_line(line.as_bytes());
        }
    }

    /// Publishes what is new, and whether the run has `ended`.
    fn tell(&mut self, shared: &Shared, ended: bool) {
        let old = shared.lock().news;
        let news = self.news(old.number);
        if news == old && !ended {
            return;
        }
        self.told = Instant::now();
        shared.change(|state| (state.news, state.ended) = (News { number: old.number + 1, ..news }, ended));
    }

    /// Reads the run's directory again, now that its files are complete.
    fn end(&mut self) {
        let Ok(mut known) = Known::of(&self.known.dir) else { return };
        // This process still has the directory claimed.
        known.state = standing::unclaimed(&known.config, known.saved.as_ref());
        self.known = known;
        self.drawn = None;
    }

    /// Makes the page available to waiting clients, drawn again if a new drawing is due.
    fn draw(&mut self, shared: &Shared) {
        let logged = self.known.curves.logged + self.known.curves.evaluated;
        let due = self.drawn.is_none_or(|(at, of)| at.elapsed() >= self.every && of != logged);
        if !due || self.before.strong_count() > 0 {
            return shared.change(State::answer);
        }
        let begun = Instant::now();
        let ended = shared.lock().ended;
        let again = self.every.as_secs().max(AGAIN);
        let served = Served { again, lost: self.lost.load(Ordering::Relaxed), ended };
        let page = report::page_of(std::slice::from_ref(&self.known), Some(served)).ok().map(Arc::new);
        self.drawn = Some((Instant::now(), logged));
        self.every = PULSE.max(RARE * begun.elapsed());
        let before = &mut self.before;
        shared.change(|state| {
            *before = state.page.take().map_or_else(Weak::new, |page| Arc::downgrade(&page));
            state.page = page;
            state.answer();
        });
    }
}

/// Accepts waiting connections into slots.
fn accept(listener: &TcpListener, shared: &Shared) {
    for _ in 0..ACCEPTED {
        let Ok((stream, _)) = listener.accept() else { return };
        // On some systems a connection from a non-blocking listener is non-blocking too.
        if stream.set_nonblocking(false).is_err() {
            continue;
        }
        if let Err(stream) = shared.admit(stream) {
            answer::turn_away(&stream);
        }
    }
}
