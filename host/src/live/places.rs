//! The connections: a fixed number of places, each a thread that reads a request and writes its answer.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use heapless::Deque;

use super::answer;
use super::head::{Refused, Request, Target};

/// The most connections at once.
pub const PLACES: usize = 8;
/// The most of them that are streams of events: a page can be had beside them.
const STREAMS: usize = 6;
/// After so long without news a stream has a line of nothing, by which a client that is gone is found.
const SILENCE: Duration = Duration::from_secs(15);
/// How long clients have for the last page once their run has ended; who has it and closes is not waited for.
pub const GRACE: Duration = Duration::from_secs(3);

const SCRIPT: &str = include_str!("live.js");

/// What a stream says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct News {
    /// Which it is of all that there were.
    pub number: u64,
    /// The last step logged.
    pub step: u64,
    /// Its loss, where that is a number.
    pub loss: Option<f64>,
    /// The least time between two drawings of the page.
    pub every: Duration,
}

impl News {
    /// The event.
    fn event(&self, name: &str) -> String {
        let loss = self.loss.map_or("null".to_owned(), |loss| format!("{loss:.6}"));
        let (step, every) = (self.step, self.every.as_millis());
        format!("event: {name}\ndata: {{\"step\":{step},\"loss\":{loss},\"every\":{every}}}\n\n")
    }
}

/// What the threads share.
#[derive(Debug)]
pub struct State {
    /// Threads that have started.
    pub started: usize,
    /// Connections that nobody has begun with.
    waiting: Deque<Arc<TcpStream>, PLACES>,
    /// Those under way, by the place.
    taken: [Option<Arc<TcpStream>>; PLACES],
    /// How many of them are streams.
    streams: usize,
    /// What streams say.
    pub news: News,
    /// The last page; nothing where it could not be made.
    pub page: Option<Arc<String>>,
    /// Whether somebody waits for the page.
    pub wanted: bool,
    /// How often who waited was told that the page is the one to have.
    pub answered: u64,
    /// The run has ended.
    pub ending: bool,
    /// What came of it is known: streams say so.
    pub ended: bool,
    /// Nothing is served any more.
    pub closed: bool,
}

impl State {
    /// Tells who waits that the page is the one to have.
    pub fn answer(&mut self) {
        (self.wanted, self.answered) = (false, self.answered + 1);
    }
}

/// The threads' state, and what wakes them.
#[derive(Debug)]
pub struct Shared {
    state: Mutex<State>,
    /// There is a connection to begin with, or the end.
    arrived: Condvar,
    /// There is a page, news or the end.
    changed: Condvar,
    names: [String; 2],
}

impl Shared {
    /// Of a server of these names, before anything came.
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

    /// The state, for this thread alone.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes who waits for that.
    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `ready` gives something, the end or `time` is over; then it gives what it does then.
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

    /// Gives a connection to a place; back where there is none.
    pub fn admit(&self, stream: TcpStream) -> Result<(), TcpStream> {
        let mut state = self.lock();
        if state.waiting.len() + state.taken.iter().flatten().count() >= PLACES {
            return Err(stream);
        }
        // There is room.
        let _ = state.waiting.push_back(Arc::new(stream));
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Whether there is no connection.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.taken.iter().all(Option::is_none)
    }

    /// Ends all connections and lets the threads end.
    pub fn close(&self) {
        let mut state = self.lock();
        (state.ended, state.closed) = (true, true);
        while state.waiting.pop_front().is_some() {}
        state.taken.iter().flatten().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        drop(state);
        self.arrived.notify_all();
        self.changed.notify_all();
    }

    /// Serves one connection after the other in the place of this number until the end.
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

    /// The page that is to be had, which the follower draws where the last one is too old.
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

    /// Says what is new until the end, or until the client is gone.
    fn stream(&self, stream: &TcpStream) {
        {
            let mut state = self.lock();
            if state.streams >= STREAMS {
                drop(state);
                return answer::refuse(stream, Refused::Full);
            }
            state.streams += 1;
        }
        // A client that is gone has had enough.
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
                    // It closes once it has the last page.
                    answer::close(stream, GRACE);
                    return Ok(());
                }
                None => answer::part(stream, ":\n\n")?,
            }
        }
    }
}
