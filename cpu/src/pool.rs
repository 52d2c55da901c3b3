//! A pool of threads that share the tasks of one operation.
//!
//! [`Pool::tasks`] is the one primitive: the threads claim tasks one by one through an atomic counter, and the call
//! returns when all tasks are done. A thread that the system has descheduled claims no task, and no thread waits for
//! it; so the pool keeps its speed on a machine that other programs use too. There are no barriers inside a run: where
//! one phase needs the results of another, call `tasks` twice, which costs about a microsecond.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread spins for work, or for the end of other threads' work, before it sleeps.
const SPIN: Duration = Duration::from_micros(40);
/// Spins between two reads of the clock.
const SPINS_A_GLANCE: u32 = 32;

// The gate is one word: the number of the run (high), whether it may still be joined, how many threads are inside (low).
const INSIDE: u64 = (1 << 16) - 1;
const OPEN: u64 = 1 << 16;
const RUN: u64 = 1 << 17;
// The gate's value in the last run, which tells the workers to end: only OPEN is set.
const LEAVE: u64 = 0;

/// The work of a run: a closure of (worker, task), its lifetime erased.
type Job = dyn Fn(usize, usize) + Sync;

struct Shared {
    gate: AtomicU64,
    next: AtomicUsize,
    count: AtomicUsize,
    /// Written by the owner while no thread is inside, read by the threads that entered.
    job: UnsafeCell<Option<*const Job>>,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    owner: Mutex<Option<Thread>>,
    owner_sleeps: AtomicBool,
    asleep: Box<[AtomicBool]>,
}

// SAFETY: `job` is the only part that is not Sync by itself. It is written only by the owner of the pool while the gate
// is closed and no thread is inside, and read only by threads that entered through the gate; the gate's release and
// acquire order the two. The pointee is Sync by its type, and outlives the run because the owner waits until the gate
// is closed and empty before it returns.
unsafe impl Sync for Shared {}
// SAFETY: as above; the raw pointer is never dereferenced outside a run.
unsafe impl Send for Shared {}

impl Shared {
    /// Claims and runs tasks until none is left. A panic ends the run early and is stored for the owner.
    fn work(&self, worker: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        let count = self.count.load(Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= count {
                    break;
                }
                job(worker, task);
            }
        }));
        if let Err(payload) = result {
            self.next.store(count, Ordering::Relaxed);
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            if first.is_none() {
                *first = Some(payload);
            }
            self.panicked.store(true, Ordering::Release);
        }
    }

    /// Enters the open run, unless it is run `seen`. Returns the run's number.
    fn enter(&self, seen: u64) -> Option<u64> {
        let mut gate = self.gate.load(Ordering::SeqCst);
        while gate & OPEN != 0 && gate / RUN != seen {
            match self.gate.compare_exchange_weak(gate, gate + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(gate / RUN),
                Err(now) => gate = now,
            }
        }
        None
    }

    /// The main loop of a worker thread.
    fn serve(&self, worker: usize) {
        let mut seen = u64::MAX;
        loop {
            let Some(run) = self.await_run(worker, seen) else { return };
            seen = run;
            // SAFETY: this thread is inside the gate, so the owner wrote the job before it opened the gate and keeps
            // the closure alive until this thread has left.
            let job = unsafe { (*self.job.get()).map(|job| &*job) };
            if let Some(job) = job {
                self.work(worker, job);
            }
            let before = self.gate.fetch_sub(1, Ordering::SeqCst);
            let last = before & INSIDE == 1 && before & OPEN == 0;
            if last && self.owner_sleeps.swap(false, Ordering::SeqCst) {
                let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(owner) = owner.as_ref() {
                    owner.unpark();
                }
            }
        }
    }

    /// Waits for a run that this worker has not seen and enters it; `None` when the pool ends.
    fn await_run(&self, worker: usize, seen: u64) -> Option<u64> {
        loop {
            let mut found = None;
            spin_until(|| {
                found = self.enter(seen);
                found.is_some()
            });
            if found.is_none() {
                self.asleep[worker].store(true, Ordering::SeqCst);
                // Checked once more after the flag is set: either this thread sees the run, or the owner sees the flag.
                found = self.enter(seen);
                if found.is_none() {
                    thread::park();
                }
                self.asleep[worker].store(false, Ordering::SeqCst);
            }
            match found {
                Some(LEAVE) => return None,
                Some(run) => return Some(run),
                None => {}
            }
        }
    }
}

/// Spins until `done` returns true or the spin time is over; returns whether `done` was true.
fn spin_until(mut done: impl FnMut() -> bool) -> bool {
    let mut begin = None;
    loop {
        for _ in 0..SPINS_A_GLANCE {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if now - *begin.get_or_insert(now) > SPIN {
            return false;
        }
    }
}

/// A fixed number of threads, started once; the thread that owns the pool is worker 0 and works too.
///
/// A run allocates nothing. A panic in a task reaches the caller of the run, once all tasks in flight have ended.
/// Dropping the pool ends its threads and joins them.
///
/// ```
/// use capful_cpu::pool::Pool;
/// let mut pool = Pool::new(2);
/// let mut squares = [0usize; 10];
/// pool.chunks(&mut squares, 3, |_worker, chunk, part| {
///     for (i, x) in part.iter_mut().enumerate() {
///         *x = (chunk * 3 + i).pow(2);
///     }
/// });
/// assert_eq!(squares[9], 81);
/// ```
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    run: u64,
}

impl Pool {
    /// Starts a pool of `threads` workers, the caller among them; 0 counts as 1. Returns when all threads have started.
    ///
    /// # Panics
    /// If the system refuses to start a thread, or for more than 65,535 threads.
    pub fn new(threads: usize) -> Self {
        let threads = threads.max(1);
        assert!(threads <= INSIDE as usize, "at most 65,535 threads");
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            // The handle is requested here, since the first request may allocate.
            owner: Mutex::new(Some(thread::current())),
            owner_sleeps: AtomicBool::new(false),
            asleep: (0..threads).map(|_| AtomicBool::new(false)).collect(),
        });
        let workers = (1..threads)
            .map(|worker| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("capful-{worker}"))
                    .spawn(move || shared.serve(worker))
                    .expect("the system starts a thread")
            })
            .collect();
        let mut pool = Self { shared, workers, run: LEAVE };
        // A starting thread allocates; so wait until every thread has run a task once.
        let here = AtomicUsize::new(0);
        pool.tasks(threads, |_, _| {
            here.fetch_add(1, Ordering::SeqCst);
            while here.load(Ordering::SeqCst) < threads {
                thread::yield_now();
            }
        });
        pool
    }

    /// The number of workers, the owner included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(worker, index)` once for each index below `count`, in any order and on any thread, and returns when
    /// all calls have ended. `worker` is below [`threads`](Self::threads); no two concurrent calls have the same
    /// `worker`.
    ///
    /// # Panics
    /// With the first panic of a task; tasks not yet begun are then left out.
    pub fn tasks(&mut self, count: usize, task: impl Fn(usize, usize) + Sync) {
        if self.workers.is_empty() || count < 2 {
            (0..count).for_each(|index| task(0, index));
            return;
        }
        self.run += 1;
        let shared = &*self.shared;
        let job: *const (dyn Fn(usize, usize) + Sync + '_) = &task;
        // SAFETY: only the lifetime changes. The pointer is used only inside the gate, and `close` below returns, on
        // every path, only when the gate is closed and empty; so not after `task` is gone.
        let job: *const Job = unsafe { std::mem::transmute(job) };
        // SAFETY: the gate is closed and empty (the state at the start and after each run) and `&mut self` keeps other
        // runs out, so nobody reads the cell.
        unsafe { *shared.job.get() = Some(job) };
        shared.next.store(0, Ordering::Relaxed);
        shared.count.store(count, Ordering::Relaxed);
        shared.gate.store((self.run * RUN) | OPEN, Ordering::SeqCst);
        self.wake(count - 1);
        shared.work(0, &task);
        self.close();
        if shared.panicked.swap(false, Ordering::Acquire) {
            let payload = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(payload) = payload {
                resume_unwind(payload);
            }
        }
    }

    /// Calls `part(worker)` once for each worker number: for work that is divided into as many parts as there are
    /// threads. A thread may run several parts, so parts must not wait for one another.
    ///
    /// # Panics
    /// As [`tasks`](Self::tasks).
    pub fn run(&mut self, part: impl Fn(usize) + Sync) {
        self.tasks(self.threads(), |_, worker| part(worker));
    }

    /// Divides `slice` into chunks of `len` (the last may be shorter) and calls `task(worker, chunk number, chunk)` for
    /// each.
    ///
    /// # Panics
    /// If `len` is 0, and as [`tasks`](Self::tasks).
    pub fn chunks<T: Send>(&mut self, slice: &mut [T], len: usize, task: impl Fn(usize, usize, &mut [T]) + Sync) {
        let (total, count) = (slice.len(), slice.len().div_ceil(len));
        let parts = Parts::new(slice);
        self.tasks(count, |worker, chunk| {
            let begin = chunk * len;
            // SAFETY: chunks are disjoint, and each number is claimed once.
            task(worker, chunk, unsafe { parts.range(begin..total.min(begin + len)) });
        });
    }

    /// Divides each of `slices` into parts of a length of its own (the last may be shorter) and calls `task(worker,
    /// number, parts)` for each number; a slice that has ended, or is empty, gives empty parts.
    ///
    /// # Panics
    /// If a length is 0, and as [`tasks`](Self::tasks).
    pub fn bands<T: Send, const N: usize>(
        &mut self,
        slices: [(&mut [T], usize); N],
        task: impl Fn(usize, usize, [&mut [T]; N]) + Sync,
    ) {
        let count = slices.iter().map(|(slice, len)| slice.len().div_ceil(*len)).max().unwrap_or(0);
        let slices = slices.map(|(slice, len)| (slice.len(), len, Parts::new(slice)));
        self.tasks(count, |worker, number| {
            let parts = slices.each_ref().map(|(total, len, parts)| {
                let begin = number * len;
                // SAFETY: the parts of a slice are disjoint, and each number is claimed once.
                unsafe { parts.range(begin.min(*total)..(begin + len).min(*total)) }
            });
            task(worker, number, parts);
        });
    }

    /// Runs tasks as [`tasks`](Self::tasks) does; each worker receives its own equal share of `scratch`.
    ///
    /// # Panics
    /// As [`tasks`](Self::tasks).
    pub fn tasks_with<T: Send>(
        &mut self,
        scratch: &mut [T],
        count: usize,
        task: impl Fn(usize, usize, &mut [T]) + Sync,
    ) {
        let share = scratch.len() / self.threads();
        let parts = Parts::new(scratch);
        self.tasks(count, |worker, index| {
            // SAFETY: shares are disjoint, and no two calls at the same time have the same worker number.
            task(worker, index, unsafe { parts.range(worker * share..(worker + 1) * share) });
        });
    }

    /// Wakes up to `wanted` of the sleeping workers.
    fn wake(&self, wanted: usize) {
        let asleep = self.shared.asleep[1..].iter().zip(&self.workers);
        for (_, worker) in asleep.filter(|(asleep, _)| asleep.load(Ordering::SeqCst)).take(wanted) {
            worker.thread().unpark();
        }
    }

    /// Closes the gate and waits until all threads have left. Allocates nothing and cannot panic.
    fn close(&self) {
        let shared = &*self.shared;
        let gate = shared.gate.fetch_and(!OPEN, Ordering::SeqCst);
        let empty = || shared.gate.load(Ordering::SeqCst) & INSIDE == 0;
        if gate & INSIDE == 0 || spin_until(empty) {
            return;
        }
        *shared.owner.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        loop {
            shared.owner_sleeps.store(true, Ordering::SeqCst);
            if empty() {
                break;
            }
            thread::park();
        }
        shared.owner_sleeps.store(false, Ordering::SeqCst);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.gate.store(OPEN, Ordering::SeqCst);
        self.wake(self.workers.len());
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so the result has no information.
            let _ = worker.join();
        }
    }
}

/// A mutable slice that can give disjoint parts to several threads at once.
pub struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]`; the contract of `range` keeps the parts disjoint, so sharing it sends parts only.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: as a `&mut [T]`.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Borrows the slice for as long as parts of it are in use.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The part of the slice in `range`.
    ///
    /// # Safety
    /// While the part is in use, no overlapping part may be in use.
    ///
    /// # Panics
    /// If the range does not lie in the slice.
    #[allow(clippy::mut_from_ref, reason = "the contract makes the parts disjoint")]
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: in bounds by the assertion; exclusive by the caller's promise, for as long as the slice is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for count in [0, 1, 2, 7, 100] {
                for _ in 0..if cfg!(miri) { 2 } else { 300 } {
                    let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                    let busy: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
                    pool.tasks(count, |worker, task| {
                        assert!(!busy[worker].swap(true, Ordering::SeqCst), "a worker number used twice at once");
                        seen[task].fetch_add(1, Ordering::Relaxed);
                        busy[worker].store(false, Ordering::SeqCst);
                    });
                    assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn sleepers_wake() {
        let mut pool = Pool::new(3);
        for _ in 0..3 {
            thread::sleep(SPIN * 50);
            // Both other threads must arrive, or this thread would wait for ever.
            let inside = AtomicUsize::new(0);
            pool.tasks(3, |_, _| {
                inside.fetch_add(1, Ordering::SeqCst);
                while inside.load(Ordering::SeqCst) < 3 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn the_owner_sleeps_until_the_last_task_ends() {
        let mut pool = Pool::new(2);
        let done = AtomicUsize::new(0);
        for _ in 0..3 {
            pool.tasks(2, |_, task| {
                thread::sleep(Duration::from_millis(5 * task as u64));
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        assert_eq!(done.load(Ordering::SeqCst), 6);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for threads in [1, 2, 4] {
            let mut pool = Pool::new(threads);
            for guilty in [0, 3, 9] {
                let run = AssertUnwindSafe(|| pool.tasks(10, |_, task| assert!(task != guilty, "task {task} fails")));
                let payload = catch_unwind(run);
                let payload = payload.expect_err("the panic comes through");
                assert_eq!(payload.downcast_ref::<String>().unwrap(), &format!("task {guilty} fails"));
                let sum = AtomicUsize::new(0);
                pool.tasks(10, |_, task| {
                    sum.fetch_add(task, Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), 45);
            }
        }
    }

    #[test]
    fn chunks_and_shares_are_disjoint_and_complete() {
        let mut pool = Pool::new(3);
        let mut numbers = [usize::MAX; 10];
        pool.chunks(&mut numbers, 4, |_, chunk, part| {
            assert_eq!(part.len(), if chunk == 2 { 2 } else { 4 });
            part.iter_mut().enumerate().for_each(|(i, x)| *x = chunk * 4 + i);
        });
        assert!(numbers.iter().enumerate().all(|(i, &x)| i == x));
        let (mut wide, mut narrow) = ([0usize; 10], [0usize; 3]);
        pool.bands([(&mut wide[..], 4), (&mut narrow[..], 2), (&mut [], 1)], |_, number, [wide, narrow, none]| {
            assert_eq!((wide.len(), narrow.len(), none.len()), [(4, 2, 0), (4, 1, 0), (2, 0, 0)][number]);
            wide.iter_mut().chain(narrow).for_each(|x| *x += number + 1);
        });
        assert_eq!((wide, narrow), ([1, 1, 1, 1, 2, 2, 2, 2, 3, 3], [1, 1, 2]));
        let mut scratch = [0u8; 8];
        pool.tasks_with(&mut scratch, 50, |worker, _, mine| {
            assert_eq!(mine.len(), 2);
            assert!(mine.iter().all(|&x| x == 0 || x == worker as u8 + 1));
            mine.fill(worker as u8 + 1);
        });
        let mut workers = [0u8; 3];
        let parts = Parts::new(&mut workers);
        // SAFETY: each worker number occurs once.
        pool.run(|worker| unsafe { parts.range(worker..worker + 1) }[0] += 1);
        assert_eq!(workers, [1; 3]);
    }
}
