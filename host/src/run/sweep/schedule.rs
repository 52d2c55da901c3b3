//! Decides which of several jobs starts next on shared resources: memory, threads, slots. This module knows no clock
//! and no process.

/// At most this many jobs start before the largest waiting job; then none starts until that job does.
const PASSES: u32 = 8;

/// A waiting job.
#[derive(Debug, Clone)]
struct Waiting<const R: usize> {
    job: usize,
    takes: [u64; R],
    /// Number of later jobs that started before it.
    passed: u32,
}

/// Jobs that share `R` resources; each takes a fixed amount of each resource from its start to its end. The largest
/// starts first; while it does not fit, smaller ones may start before it, but only a limited number.
#[derive(Debug, Clone)]
pub struct Schedule<const R: usize> {
    capacity: [u64; R],
    waiting: Vec<Waiting<R>>,
    running: Vec<(usize, [u64; R])>,
}

impl<const R: usize> Schedule<R> {
    /// A schedule without jobs, with these amounts of the resources.
    pub fn new(capacity: [u64; R]) -> Self {
        Schedule { capacity, waiting: Vec::new(), running: Vec::new() }
    }

    /// Adds `job` after the waiting jobs that take at least as much of the first resource.
    ///
    /// # Errors
    /// A job that takes more of a resource than exists, so it could never run; the error is the resource's index.
    pub fn add(&mut self, job: usize, takes: [u64; R]) -> Result<(), usize> {
        if let Some(short) = (0..R).find(|&r| takes[r] > self.capacity[r]) {
            return Err(short);
        }
        let at = self.waiting.partition_point(|other| other.takes >= takes);
        self.waiting.insert(at, Waiting { job, takes, passed: 0 });
        Ok(())
    }

    /// The job that starts now, if there is one; it runs until [`end`](Schedule::end).
    pub fn start(&mut self) -> Option<usize> {
        let free = self.free();
        let fits = |waiting: &Waiting<R>| waiting.takes.iter().zip(&free).all(|(takes, free)| takes <= free);
        let barred = self.waiting.iter().position(|waiting| waiting.passed >= PASSES && !fits(waiting));
        let at = self.waiting.iter().take(barred.unwrap_or(usize::MAX)).position(fits)?;
        self.waiting[..at].iter_mut().for_each(|before| before.passed += 1);
        let Waiting { job, takes, .. } = self.waiting.remove(at);
        self.running.push((job, takes));
        Some(job)
    }

    /// Releases the resources of `job`.
    pub fn end(&mut self, job: usize) {
        self.running.retain(|(running, _)| *running != job);
    }

    /// The amount of each resource that the running jobs take.
    pub fn taken(&self) -> [u64; R] {
        std::array::from_fn(|r| self.running.iter().map(|(_, takes)| takes[r]).sum())
    }

    /// Number of running jobs.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    fn free(&self) -> [u64; R] {
        let taken = self.taken();
        // They fitted together when they started.
        std::array::from_fn(|r| self.capacity[r] - taken[r])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs all jobs, `(takes, time)` each, and returns the order in which they started. The capacity is never
    /// exceeded.
    fn order<const R: usize>(capacity: [u64; R], jobs: &[([u64; R], u64)]) -> Vec<usize> {
        let mut schedule = Schedule::new(capacity);
        jobs.iter().enumerate().for_each(|(job, (takes, _))| schedule.add(job, *takes).unwrap());
        let (mut now, mut running, mut order) = (0, Vec::new(), Vec::new());
        loop {
            while let Some(job) = schedule.start() {
                order.push(job);
                running.push((now + jobs[job].1, job));
                let taken: [u64; R] = std::array::from_fn(|r| running.iter().map(|(_, job)| jobs[*job].0[r]).sum());
                assert!(taken == schedule.taken() && taken.iter().zip(&capacity).all(|(taken, all)| taken <= all));
                assert_eq!(running.len(), schedule.running());
            }
            let Some(&first) = running.iter().min() else { return order };
            running.retain(|one| *one != first);
            now = first.0;
            schedule.end(first.1);
        }
    }

    #[test]
    fn the_largest_is_first_and_small_ones_fill_what_it_leaves() {
        assert_eq!(order([10], &[([3], 1), ([8], 5), ([2], 9), ([8], 1)]), [1, 2, 3, 0]);
        // Jobs of equal size start in the order of their addition.
        assert_eq!(order([1], &[([1], 1), ([1], 1), ([1], 1)]), [0, 1, 2]);
        // The second resource is the scarce one.
        assert_eq!(order([10, 2], &[([1, 1], 1), ([3, 1], 3), ([2, 1], 1)]), [1, 2, 0]);
    }

    #[test]
    fn what_can_never_run_is_refused() {
        let mut schedule = Schedule::new([4, 1]);
        assert_eq!(schedule.add(0, [5, 1]), Err(0));
        assert_eq!(schedule.add(1, [4, 2]), Err(1));
        assert_eq!((schedule.add(2, [4, 1]), schedule.start(), schedule.start()), (Ok(()), Some(2), None));
    }

    #[test]
    fn small_ones_do_not_hold_up_a_large_one_for_ever() {
        let mut schedule = Schedule::new([4]);
        schedule.add(0, [3]).unwrap();
        assert_eq!(schedule.start(), Some(0));
        schedule.add(1, [4]).unwrap();
        let mut small = 2;
        let started = loop {
            // One more always waits, and two never end at the same time.
            schedule.add(small, [1]).unwrap();
            let Some(job) = schedule.start() else { break small - 2 };
            assert_eq!(job, small);
            schedule.end(if small == 2 { 0 } else { small - 1 });
            small += 1;
        };
        assert_eq!(started, PASSES as usize);
        schedule.end(small - 1);
        assert_eq!(schedule.start(), Some(1));
    }

    proptest! {
        #[test]
        fn all_run_once_and_none_is_passed_more_often_than_is_allowed(
            jobs in prop::collection::vec(([1..=100u64, 0..=4u64], 1..50u64), 1..40),
        ) {
            let order = order([100, 4], &jobs);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..jobs.len()).collect::<Vec<_>>());
            for (at, &job) in order.iter().enumerate() {
                let smaller = |other: &&usize| (jobs[**other].0, job) < (jobs[job].0, **other);
                prop_assert!(order[..at].iter().filter(smaller).count() <= PASSES as usize);
            }
        }
    }
}
