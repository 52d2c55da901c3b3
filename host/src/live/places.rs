//! The connections: a fixed number of slots, each with a thread that reads a request and writes its answer.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use heapless::Deque;

use super::answer;
use super::head::{Refused, Request, Target};

/// The most connections at once.
pub const PLACES: usize = 8;
/// The most connections that are streams of events: the remaining slots can serve the page.
const STREAMS: usize = 6;
/// After this long without news a stream sends an empty line, which detects a client that is gone.
const SILENCE: Duration = Duration::from_secs(15);
/// How long clients have to load the last page once the run has ended; a client that has closed its connection is not
/// waited for.
pub const GRACE: Duration = Duration::from_secs(3);

const SCRIPT: &str = include_str!("live.js");

/// The content of an event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct News {
    /// Its number, counted over all news.
    pub number: u64,
    /// The last step logged.
    pub step: u64,
    /// The step's loss, if it is a number.
    pub loss: Option<f64>,
    /// The least time between two drawings of the page.
    pub every: Duration,
}

impl News {
    /// Formats an event named `name`.
    fn event(&self, name: &str) -> String {
        let loss = self.loss.map_or("null".to_owned(), |loss| format!("{loss:.6}"));
        let (step, every) = (self.step, self.every.as_millis());
        format!("event: {name}\ndata: {{\"step\":{step},\"loss\":{loss},\"every\":{every}}}\n\n")
    }
}

/// The state that the threads share.
#[derive(Debug)]
pub struct State {
    /// Threads that have started.
    pub started: usize,
    /// Connections that no thread serves yet.
    waiting: Deque<Arc<TcpStream>, PLACES>,
    /// Connections being served, by slot.
    taken: [Option<Arc<TcpStream>>; PLACES],
    /// How many of the served connections are streams.
    streams: usize,
    /// The content of the next event.
    pub news: News,
    /// The last page; `None` if there is none or it could not be made.
    pub page: Option<Arc<String>>,
    /// Whether a client waits for the page.
    pub wanted: bool,
    /// How often waiting threads were notified that `page` is the page to send.
    pub answered: u64,
    /// Whether the run has ended.
    pub ending: bool,
    /// Whether the result of the run is known, which streams then announce.
    pub ended: bool,
    /// Whether the server has closed.
    pub closed: bool,
}

impl State {
    /// Notifies waiting threads that `page` is the page to send.
    pub fn answer(&mut self) {
        (self.wanted, self.answered) = (false, self.answered + 1);
    }
}

/// The threads' state, with the condition variables that wake them.
#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    /// Signals a new connection, or the end.
    arrived: Condvar,
    /// Signals a page, news or the end.
    changed: Condvar,
    names: [String; 2],
}

impl Shared {
    /// The state of a server with these names, before any connection.
    pub fn new(names: [String; 2], news: News) -> Shared {
        let state = State {
            started: 0,
            waiting: Deque::new(),
            taken: [const { None }; PLACES],
            streams: 0,
            news,
            page: None,
            wanted: false,
            answered: 0,
            ending: false,
            ended: false,
            closed: false,
        };
        Shared { state: Mutex::new(state), arrived: Condvar::new(), changed: Condvar::new(), names }
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the threads that wait for a change.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `ready` returns a value, the server closes or `time` has passed; returns the last result of `ready`.
    pub fn wait<T>(&self, time: Duration, mut ready: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let until = Instant::now() + time;
        let mut state = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match ready(&mut state) {
                None if !state.closed && !left.is_zero() => {
                    let woken = self.changed.wait_timeout(state, left);
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
                ready => return ready,
            }
        }
    }

    /// Queues a connection for a slot; returns the connection if all slots are taken.
    pub fn admit(&self, stream: TcpStream) -> Result<(), TcpStream> {
        let mut state = self.lock();
        if state.waiting.len() + state.taken.iter().flatten().count() >= PLACES {
            return Err(stream);
        }
        // The push cannot fail: there is room.
        let _ = state.waiting.push_back(Arc::new(stream));
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Whether there are no connections.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.taken.iter().all(Option::is_none)
    }

    /// Closes all connections and lets the threads end.
    pub fn close(&self) {
        let mut state = self.lock();
        (state.ended, state.closed) = (true, true);
        while state.waiting.pop_front().is_some() {}
        state.taken.iter().flatten().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        drop(state);
        self.arrived.notify_all();
        self.changed.notify_all();
    }

    /// Serves connections in slot `place`, one after the other, until the server closes.
    pub fn work(&self, place: usize, follower: &Thread) {
        loop {
            let stream = {
                let mut state = self.lock();
                loop {
                    if state.closed {
                        return;
                    }
                    if let Some(stream) = state.waiting.pop_front() {
                        state.taken[place] = Some(Arc::clone(&stream));
                        break stream;
                    }
                    state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            self.serve(&stream, follower);
            self.lock().taken[place] = None;
        }
    }

    fn serve(&self, stream: &TcpStream, follower: &Thread) {
        let request = match answer::request(stream, &self.names) {
            Ok(request) => request,
            Err(why) => return why.into_iter().for_each(|why| answer::refuse(stream, why)),
        };
        let Request { target, head } = request;
        match target {
            Target::Script => answer::whole(stream, "text/javascript", SCRIPT, head),
            Target::Events if head => drop(answer::part(stream, &answer::head_of_events())),
            Target::Events => self.stream(stream),
            Target::Page => match self.page(follower) {
                Some(page) => answer::whole(stream, "text/html", &page, head),
                None => answer::refuse(stream, Refused::Broken),
            },
        }
    }

    /// The page to send; the follower draws it again if the last one is too old.
    fn page(&self, follower: &Thread) -> Option<Arc<String>> {
        let before = {
            let mut state = self.lock();
            state.wanted = true;
            state.answered
        };
        follower.unpark();
        let ready = |state: &mut State| (state.answered != before).then(|| state.page.clone());
        self.wait(answer::PATIENCE, ready).unwrap_or_else(|| self.lock().page.clone())
    }

    /// Sends news until the end, or until the client is gone.
    fn stream(&self, stream: &TcpStream) {
        {
            let mut state = self.lock();
            if state.streams >= STREAMS {
                drop(state);
                return answer::refuse(stream, Refused::Full);
            }
            state.streams += 1;
        }
        // An error means that the client is gone.
        let _ = self.tell(stream);
        self.lock().streams -= 1;
    }

    fn tell(&self, stream: &TcpStream) -> std::io::Result<()> {
        answer::part(stream, &format!("{}retry: 2000\n\n", answer::head_of_events()))?;
        let mut told = None;
        loop {
            let next = |state: &mut State| {
                let news = (told != Some(state.news.number) || state.ended).then_some(state.news);
                news.map(|news| (news, state.ended))
            };
            match self.wait(SILENCE, next) {
                Some((news, false)) => {
                    answer::part(stream, &news.event("step"))?;
                    told = Some(news.number);
                }
                Some((news, true)) => {
                    answer::part(stream, &news.event("end"))?;
                    // The client closes once it has the last page.
                    answer::close(stream, GRACE);
                    return Ok(());
                }
                None => answer::part(stream, ":\n\n")?,
            }
        }
    }
}
