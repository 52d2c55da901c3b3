//! Inputs and results through pinned memory, so that the host never waits for the running step. A kernel reads and
//! writes the pinned memory: one kernel for all inputs of a step takes less time than a separate copy for each.
//!
//! Steps alternate between two halves. A step's inputs are queued before its kernels and its results after them; the
//! results are read while the next step runs.

use capful_core::memory::Region;
use cust::event::{Event, EventFlags, EventStatus};
use cust::memory::LockedBuffer;

use super::device::Cuda;
use super::error::CudaError;

/// How long [`Cuda::results_soon`] polls before it sleeps.
const LOOKING: std::time::Duration = std::time::Duration::from_millis(1);

/// Two halves of pinned memory, and events of their last uses.
pub struct Staging {
    memory: LockedBuffer<u8>,
    half: usize,
    /// Number of steps begun.
    steps: u64,
    /// Bytes of the current half in use.
    used: usize,
    /// Events recorded before and after the step that used this half.
    begun: [Event; 2],
    done: [Event; 2],
    /// Whether the end of the current step is recorded.
    ended: bool,
    /// Seconds that the finished steps took on the GPU.
    busy: f64,
}

/// Results that are being copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    step: u64,
    start: usize,
    len: usize,
}

impl Staging {
    /// Allocates twice `bytes`.
    pub fn new(bytes: usize) -> Result<Staging, CudaError> {
        let half = bytes.next_multiple_of(64).max(64);
        // A waiting thread sleeps: the reader thread needs the processor.
        let event = || Event::new(EventFlags::BLOCKING_SYNC).map_err(CudaError::of("cuEventCreate"));
        let memory = LockedBuffer::new(&0, 2 * half).map_err(CudaError::of("cuMemAllocHost"))?;
        let (begun, done) = ([event()?, event()?], [event()?, event()?]);
        Ok(Staging { memory, half, steps: 0, used: 0, begun, done, ended: false, busy: 0.0 })
    }

    fn take(&mut self, len: usize) -> Result<std::ops::Range<usize>, CudaError> {
        let start = (self.steps % 2) as usize * self.half + self.used;
        if self.used + len > self.half {
            return Err(CudaError::OutOfBounds { end: (self.used + len) as u64, bytes: self.half as u64 });
        }
        self.used += len.next_multiple_of(16);
        Ok(start..start + len)
    }
}

impl Cuda {
    /// Begins the next step's copies. Waits for the step before the last, which used the same half.
    ///
    /// # Errors
    /// An error in that step.
    pub fn next_step(&mut self) -> Result<(), CudaError> {
        self.carry_all().map_err(|e| self.explain(e))?;
        let Cuda { staging: s, stream, .. } = self;
        if s.steps > 0 && !s.ended {
            s.done[((s.steps - 1) % 2) as usize].record(stream).map_err(CudaError::of("cuEventRecord"))?;
        }
        s.steps += 1;
        s.ended = false;
        s.used = 0;
        // The events of the step that used the half last: two steps before this one.
        let half = ((s.steps - 1) % 2) as usize;
        if s.steps > 2 {
            self.wait(|| self.staging.done[half].synchronize()).map_err(CudaError::of("cuEventSynchronize"))?;
        }
        self.staging.begun[half].record(&self.stream).map_err(CudaError::of("cuEventRecord"))
    }

    /// Seconds that the steps with read results took on the GPU.
    pub fn busy_seconds(&self) -> f64 {
        self.staging.busy
    }

    /// Queues a copy of `bytes` into a region, in the region's own type.
    ///
    /// # Errors
    /// More than the staging memory holds; a region outside the arena; an error of the driver.
    pub fn queue_write(&mut self, region: Region, bytes: &[u8]) -> Result<(), CudaError> {
        let range = self.staging.take(bytes.len())?;
        self.staging.memory[range.clone()].copy_from_slice(bytes);
        let to = self.checked(region, bytes.len())?;
        // The pinned bytes are unchanged until the step after the next begins.
        let from = self.staging.memory[range].as_ptr() as u64;
        self.carry([from, to, bytes.len() as u64]).map_err(|e| self.explain(e))
    }

    /// Queues a copy of a region's bytes to the host, after all queued work.
    ///
    /// # Errors
    /// As [`Cuda::queue_write`].
    pub fn queue_read(&mut self, region: Region) -> Result<Pending, CudaError> {
        let len = region.bytes() as usize;
        let range = self.staging.take(len)?;
        let from = self.checked(region, len)?;
        // These bytes are not read before `results` has waited.
        let to = self.staging.memory[range.clone()].as_mut_ptr() as u64;
        self.carry([from, to, len as u64]).and_then(|()| self.carry_all()).map_err(|e| self.explain(e))?;
        let done = &self.staging.done[((self.staging.steps.max(1) - 1) % 2) as usize];
        done.record(&self.stream).map_err(CudaError::of("cuEventRecord"))?;
        self.staging.ended = true;
        Ok(Pending { step: self.staging.steps, start: range.start, len })
    }

    /// The bytes that a step requested with [`Cuda::queue_read`]. Waits for that step; there is no wait if the next
    /// step was queued long before.
    ///
    /// # Errors
    /// An error in that step; or the results were overwritten because the step after the next has begun.
    pub fn results(&mut self, pending: Pending) -> Result<&[u8], CudaError> {
        let half = self.half_of(pending)?;
        self.results_of(pending, half).map(|bytes| &*bytes)
    }

    /// As [`Cuda::results`], but mutable, for a step that takes less time than waking up a thread: polls, for a
    /// millisecond at most.
    ///
    /// # Errors
    /// As [`Cuda::results`].
    pub fn results_soon(&mut self, pending: Pending) -> Result<&mut [u8], CudaError> {
        let half = self.half_of(pending)?;
        let (done, start) = (&self.staging.done[half], std::time::Instant::now());
        while start.elapsed() < LOOKING && matches!(done.query(), Ok(EventStatus::NotReady)) {
            std::hint::spin_loop();
        }
        self.results_of(pending, half)
    }

    /// The half with a step's results, unless a later step has reused it.
    fn half_of(&self, pending: Pending) -> Result<usize, CudaError> {
        let (step, now) = (pending.step, self.staging.steps);
        if now > step + 1 {
            return Err(CudaError::Stale { step, now });
        }
        Ok(((step.max(1) - 1) % 2) as usize)
    }

    fn results_of(&mut self, pending: Pending, half: usize) -> Result<&mut [u8], CudaError> {
        let (begun, done) = (&self.staging.begun[half], &self.staging.done[half]);
        self.wait(|| done.synchronize()).map_err(CudaError::of("cuEventSynchronize"))?;
        let ms = done.elapsed_time_f32(begun).map_err(CudaError::of("cuEventElapsedTime"))?;
        self.staging.busy += f64::from(ms) / 1e3;
        Ok(&mut self.staging.memory[pending.start..pending.start + pending.len])
    }
}
