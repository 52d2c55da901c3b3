//! Inputs and results through pinned memory, so that the host never waits for the step that runs. A kernel reads and writes
//! it: one for all inputs of a step takes less time than a copy for each.
//!
//! Steps take turns on two halves. A step's inputs are queued before its kernels and its results after them; they
//! are read while the next step runs.

use capful_core::memory::Region;
use cust::event::{Event, EventFlags, EventStatus};
use cust::memory::LockedBuffer;

use super::device::Cuda;
use super::error::CudaError;

/// How long [`Cuda::results_soon`] looks before it sleeps.
const LOOKING: std::time::Duration = std::time::Duration::from_millis(1);

/// Two halves of pinned memory, and when each was last used.
pub struct Staging {
    memory: LockedBuffer<u8>,
    half: usize,
    /// Steps begun.
    steps: u64,
    /// Bytes of the current half in use.
    used: usize,
    /// Recorded before and after the step that used this half.
    begun: [Event; 2],
    done: [Event; 2],
    /// Whether the end of the current step is recorded.
    ended: bool,
    /// Seconds that the steps so far took on the GPU.
    busy: f64,
}

/// Results on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    step: u64,
    start: usize,
    len: usize,
}

impl Staging {
    /// Twice `bytes`.
    pub fn new(bytes: usize) -> Result<Staging, CudaError> {
        let half = bytes.next_multiple_of(64).max(64);
        // Who waits sleeps: the processor is the reader's.
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
    /// Begins the next step's copies. Waits for the step before the last, whose half it takes.
    ///
    /// # Errors
    /// What went wrong in that step.
    pub fn next_step(&mut self) -> Result<(), CudaError> {
        self.carry_all().map_err(|e| self.explain(e))?;
        let Cuda { staging: s, stream, .. } = self;
        if s.steps > 0 && !s.ended {
            s.done[((s.steps - 1) % 2) as usize].record(stream).map_err(CudaError::of("cuEventRecord"))?;
        }
        s.steps += 1;
        s.ended = false;
        s.used = 0;
        // Indexed by the step that used the half: two steps before this one.
        let half = ((s.steps - 1) % 2) as usize;
        if s.steps > 2 {
            self.wait(|| self.staging.done[half].synchronize()).map_err(CudaError::of("cuEventSynchronize"))?;
        }
        self.staging.begun[half].record(&self.stream).map_err(CudaError::of("cuEventRecord"))
    }

    /// Seconds that the steps whose results were read took on the GPU.
    pub fn busy_seconds(&self) -> f64 {
        self.staging.busy
    }

    /// Queues `bytes` into a region, in its own type.
    ///
    /// # Errors
    /// More than the staging memory holds; a region beyond the arena; what the driver says.
    pub fn queue_write(&mut self, region: Region, bytes: &[u8]) -> Result<(), CudaError> {
        let range = self.staging.take(bytes.len())?;
        self.staging.memory[range.clone()].copy_from_slice(bytes);
        let to = self.checked(region, bytes.len())?;
        // Pinned bytes stay as they are until the step after the next begins.
        let from = self.staging.memory[range].as_ptr() as u64;
        self.carry([from, to, bytes.len() as u64]).map_err(|e| self.explain(e))
    }

    /// Queues a copy of a region's bytes to the host, behind what was queued so far.
    ///
    /// # Errors
    /// As [`Cuda::queue_write`].
    pub fn queue_read(&mut self, region: Region) -> Result<Pending, CudaError> {
        let len = region.bytes() as usize;
        let range = self.staging.take(len)?;
        let from = self.checked(region, len)?;
        // Nobody reads these bytes before `results` has waited.
        let to = self.staging.memory[range.clone()].as_mut_ptr() as u64;
        self.carry([from, to, len as u64]).and_then(|()| self.carry_all()).map_err(|e| self.explain(e))?;
        let done = &self.staging.done[((self.staging.steps.max(1) - 1) % 2) as usize];
        done.record(&self.stream).map_err(CudaError::of("cuEventRecord"))?;
        self.staging.ended = true;
        Ok(Pending { step: self.staging.steps, start: range.start, len })
    }

    /// The bytes that a step's [`Cuda::queue_read`] asked for. Waits for that step: none at all where the next one
    /// was long since queued.
    ///
    /// # Errors
    /// What went wrong in that step; the step after the next has begun, whose results take their place.
    pub fn results(&mut self, pending: Pending) -> Result<&[u8], CudaError> {
        let half = self.half_of(pending)?;
        self.results_of(pending, half).map(|bytes| &*bytes)
    }

    /// As [`Cuda::results`], to change at will, for a step that takes less time than waking up does: looks again and
    /// again, a millisecond at most.
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

    /// Which half a step's results lie in, unless a later step has taken it.
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
