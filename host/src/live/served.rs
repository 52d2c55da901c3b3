//! From a port to a served page, and its end.

use std::io::{self, ErrorKind};
use std::mem;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::follower::Follower;
use super::head;
use super::places::{PLACES, Shared};
use crate::allocations::{self, Activity};
use crate::config::ConfigError;
use crate::report::known::Known;
use crate::report::{MOST_BYTES, read};
use crate::run::metrics::{EvalMetrics, StepMetrics};

/// The most lines that wait for the follower.
pub const WAITING: usize = 512;
/// Stack sizes: of a slot's thread, and of the follower, which draws.
const STACK: usize = 256 << 10;
const DRAWS: usize = 1 << 20;
/// Bytes that the template engine needs to draw a page.
const DRAWING: usize = 6 << 20;

/// What a run logs.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "all lie in the places of the queue")]
pub enum Logged {
    /// A step.
    Step(StepMetrics),
    /// An evaluation.
    Evaluation(EvalMetrics),
}

/// The most main memory of a page: stacks, the queue, what is known of the run (read again at its end), two pages and
/// the drawing of one.
pub fn bytes() -> u64 {
    let queue = WAITING * (mem::size_of::<Logged>() + mem::size_of::<usize>());
    (DRAWS + PLACES * STACK + queue + 2 * read::bytes() + 2 * MOST_BYTES + DRAWING) as u64
}

/// A bound port that is not served yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    port: u16,
}

impl Bound {
    /// Binds this port of 127.0.0.1, or a free one if `port` is 0.
    ///
    /// # Errors
    /// A port that cannot be bound.
    pub fn to(port: u16) -> Result<Bound, ConfigError> {
        const OTHER: &str = "give another, or --live 0 for one that is free";
        let bound = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            io::Result::Ok(Bound { listener, port })
        };
        bound().map_err(|e| {
            ConfigError(match e.kind() {
                ErrorKind::AddrInUse => format!("--live {port}: this port is in use; {OTHER}"),
                ErrorKind::PermissionDenied => format!("--live {port}: this port is not for everybody; {OTHER}"),
                _ => format!("--live {port}: {e}; {OTHER}"),
            })
        })
    }

    /// The address of the page.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Starts to serve the page of the run `known`. All threads have started when it returns.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn serve(self, known: Known) -> io::Result<Live> {
        let Bound { listener, port } = self;
        let lost = Arc::new(AtomicU64::new(0));
        let (queue, waiting) = sync_channel(WAITING);
        let follower = Follower::new(known, waiting, Arc::clone(&lost));
        let shared = Arc::new(Shared::new(head::names(port), follower.news(1)));
        let mut live = Live { queue, lost, shared: Arc::clone(&shared), follower: None, places: Vec::new() };
        // Waits for the threads, so that their allocations at the start are not counted as a step's.
        let thread = live.spawn("live page", DRAWS, move |shared| follower.run(&listener, shared))?;
        let follower = thread.thread().clone();
        live.follower = Some(thread);
        for place in 0..PLACES {
            let follower = follower.clone();
            let thread = live.spawn("live connection", STACK, move |shared| shared.work(place, &follower))?;
            live.places.push(thread);
        }
        shared.wait(Duration::from_secs(10), |state| (state.started > PLACES).then_some(()));
        Ok(live)
    }
}

/// A served page. Dropping it tells clients that the run has ended, gives them a moment to load the last page, and ends
/// the threads.
#[derive(Debug)]
pub struct Live {
    queue: SyncSender<Logged>,
    lost: Arc<AtomicU64>,
    shared: Arc<Shared>,
    follower: Option<JoinHandle<()>>,
    places: Vec<JoinHandle<()>>,
}

impl Live {
    fn spawn(
        &self,
        name: &str,
        stack: usize,
        work: impl FnOnce(&Shared) + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        Builder::new().name(name.to_owned()).stack_size(stack).spawn(move || {
            allocations::of_thread(Activity::Report, || {
                shared.change(|state| state.started += 1);
                work(&shared);
            });
        })
    }

    /// Passes a logged step to the page.
    pub fn step(&self, metrics: &StepMetrics) {
        self.hand_over(Logged::Step(metrics.clone()));
    }

    /// Passes an evaluation to the page.
    pub fn evaluation(&self, metrics: &EvalMetrics) {
        self.hand_over(Logged::Evaluation(*metrics));
    }

    fn hand_over(&self, logged: Logged) {
        if self.queue.try_send(logged).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        if let Some(follower) = self.follower.take() {
            follower.thread().unpark();
            let _ = follower.join();
        }
        self.shared.close();
        for place in self.places.drain(..) {
            let _ = place.join();
        }
    }
}
