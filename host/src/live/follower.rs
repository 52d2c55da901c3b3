//! The thread that knows the run: it follows what is logged, draws the page and accepts connections.

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

/// How often it looks.
const TURN: Duration = Duration::from_millis(50);
/// The least time between two events.
const PULSE: Duration = Duration::from_secs(1);
/// A drawing takes at most one part in so many of the time, and there is at most one a [`PULSE`].
const RARE: u32 = 200;
/// Connections that are accepted a turn: with pages of a few hundred kilobytes no client can keep a core busy.
const ACCEPTED: usize = 16;
/// The least seconds after which a browser without scripts asks again.
const AGAIN: u64 = 10;

/// What the thread knows and has given out.
pub struct Follower {
    known: Known,
    /// The last evaluation in the curves: a run whose last step is done evaluates again, and writes no second line.
    evaluated: Option<u64>,
    queue: Receiver<Logged>,
    /// Lines that found no place in the queue.
    lost: Arc<AtomicU64>,
    /// When news were given out, when the page was drawn and of which news.
    told: Instant,
    drawn: Option<(Instant, u64)>,
    /// The least time between two drawings.
    every: Duration,
    /// The page before: while somebody still reads it there is no third.
    before: Weak<String>,
}

impl Follower {
    /// Of what is known, to which the queue brings what comes.
    pub fn new(known: Known, queue: Receiver<Logged>, lost: Arc<AtomicU64>) -> Follower {
        let evaluated = known.curves.last.map(|last| last.step);
        let (told, every) = (Instant::now(), PULSE);
        Follower { known, evaluated, queue, lost, told, drawn: None, every, before: Weak::new() }
    }

    /// The news as they are, of this number.
    pub fn news(&self, number: u64) -> News {
        let curves = &self.known.curves;
        News { number, step: curves.step, loss: curves.loss.last.map(|(_, loss)| loss), every: self.every }
    }

    /// Follows the run to its end, and serves what is connected then a moment longer.
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

    /// Takes what waits into the curves.
    fn take(&mut self) {
        for logged in self.queue.try_iter().take(WAITING) {
            let line = match &logged {
                Logged::Step(metrics) => metrics.json(),
                Logged::Evaluation(metrics) if self.evaluated.replace(metrics.step) == Some(metrics.step) => continue,
                Logged::Evaluation(metrics) => metrics.json(),
            };
            // A run writes no others.
            let _ = self.known.curves.add_line(line.as_bytes());
        }
    }

    /// Gives out what is new, and that the run has `ended`.
    fn tell(&mut self, shared: &Shared, ended: bool) {
        let old = shared.lock().news;
        let news = self.news(old.number);
        if news == old && !ended {
            return;
        }
        self.told = Instant::now();
        shared.change(|state| (state.news, state.ended) = (News { number: old.number + 1, ..news }, ended));
    }

    /// Reads once more what lies in the run's directory, which is all there now.
    fn end(&mut self) {
        let Ok(mut known) = Known::of(&self.known.dir) else { return };
        // This process still has it claimed.
        known.state = standing::unclaimed(&known.config, known.saved.as_ref());
        self.known = known;
        self.drawn = None;
    }

    /// Lets who waits have the page, drawn again where it is due.
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

/// Gives those who wait at the door their places.
fn accept(listener: &TcpListener, shared: &Shared) {
    for _ in 0..ACCEPTED {
        let Ok((stream, _)) = listener.accept() else { return };
        // Of a listener that does not wait some systems make connections that do not either.
        if stream.set_nonblocking(false).is_err() {
            continue;
        }
        if let Err(stream) = shared.admit(stream) {
            answer::turn_away(&stream);
        }
    }
}
