//! Counts heap allocations by what the allocating thread is doing, so that "a step allocates nothing" is measured.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Anything that is not listed below: steps, evaluations, samples.
    Step,
    /// Writing a checkpoint.
    Save,
    /// Reading and tokenizing data.
    Read,
    /// Showing progress.
    Report,
}

const ACTIVITIES: usize = 4;

/// The system's allocator with counters. The binary installs it; without it all counts stay 0.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    // Constant and without a destructor: using it never allocates.
    static ACTIVITY: Cell<usize> = const { Cell::new(Activity::Step as usize) };
    /// Calls and bytes that this thread has allocated at [`Activity::Step`], the activity that every thread begins
    /// with.
    static IN_STEPS: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
}

static COUNTS: [AtomicU64; ACTIVITIES] = [const { AtomicU64::new(0) }; ACTIVITIES];
static BYTES: [AtomicU64; ACTIVITIES] = [const { AtomicU64::new(0) }; ACTIVITIES];

fn record(bytes: usize) {
    // A thread that is ending has lost its cell; that thread is no longer in a step.
    let activity = ACTIVITY.try_with(Cell::get).unwrap_or(Activity::Report as usize);
    COUNTS[activity].fetch_add(1, Ordering::Relaxed);
    BYTES[activity].fetch_add(bytes as u64, Ordering::Relaxed);
    if activity == Activity::Step as usize {
        let _ = IN_STEPS.try_with(|own| {
            let [calls, all] = own.get();
            own.set([calls + 1, all + bytes as u64]);
        });
    }
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments; counting touches only atomics
// and a thread-local cell that needs no initialisation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record(layout.size());
        // SAFETY: the caller's contract, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        record(layout.size());
        // SAFETY: the caller's contract, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        record(size);
        // SAFETY: the caller's contract, passed on.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract, passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Number of allocations and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls of the allocator.
    pub allocations: u64,
    /// Bytes requested.
    pub bytes: u64,
}

/// What threads have allocated during `activity`.
pub fn count(activity: Activity) -> Count {
    let at = activity as usize;
    Count { allocations: COUNTS[at].load(Ordering::Relaxed), bytes: BYTES[at].load(Ordering::Relaxed) }
}

/// What threads have allocated during `activity` since `before`.
pub fn since(activity: Activity, before: Count) -> Count {
    let now = count(activity);
    // A thread that was starting at `before` may since have moved its allocations to another activity.
    Count {
        allocations: now.allocations.saturating_sub(before.allocations),
        bytes: now.bytes.saturating_sub(before.bytes),
    }
}

/// Runs `work` with this thread at `activity`.
pub fn during<T>(activity: Activity, work: impl FnOnce() -> T) -> T {
    let before = ACTIVITY.replace(activity as usize);
    let result = work();
    ACTIVITY.set(before);
    result
}

/// Runs all of this thread's `work` at `activity`, including its start: the system's library allocates there, before
/// the thread can set its activity.
pub fn of_thread<T>(activity: Activity, work: impl FnOnce() -> T) -> T {
    let (from, to) = (Activity::Step as usize, activity as usize);
    for (counters, own) in [&COUNTS, &BYTES].into_iter().zip(IN_STEPS.take()) {
        counters[from].fetch_sub(own, Ordering::Relaxed);
        counters[to].fetch_add(own, Ordering::Relaxed);
    }
    during(activity, work)
}

/// Whether the counting allocator is installed: one allocation is made, and must be seen.
pub fn installed() -> bool {
    let before = count(Activity::Step);
    std::hint::black_box(Box::new(std::hint::black_box(1u64)));
    since(Activity::Step, before).allocations >= 1
}
