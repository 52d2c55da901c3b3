//! Measures the time of operations on the GPU, with the GPU's own clock.

use capful_core::device::OperationError;
use cust::event::{Event, EventFlags};

use super::device::Cuda;
use super::error::CudaError;

/// Number of repetitions in [`Cuda::time_cold`], and the number for work that takes longer than [`LONG`] seconds.
const TIMES: [usize; 2] = [7, 3];
const LONG: f64 = 1e-3;

impl Cuda {
    /// Seconds of the work that `queue` queues when its operands are not in the cache, as in a step: the median of a
    /// few runs, before each of which `words` words from `flush` on are written.
    ///
    /// # Errors
    /// An error of an operation or of the driver.
    pub(super) fn time_cold(
        &mut self,
        [flush, words]: [u64; 2],
        mut queue: impl FnMut(&mut Cuda) -> Result<(), OperationError>,
    ) -> Result<f64, CudaError> {
        let event = || Event::new(EventFlags::DEFAULT).map_err(CudaError::of("cuEventCreate"));
        let (before, after) = (event()?, event()?);
        let mut once = |cuda: &mut Cuda| {
            if words > 0 {
                cuda.fill(flush, 0, words).map_err(|e| cuda.explain(e))?;
            }
            before.record(&cuda.stream).map_err(CudaError::of("cuEventRecord"))?;
            queue(cuda).map_err(|e| cuda.explain(e))?;
            after.record(&cuda.stream).map_err(CudaError::of("cuEventRecord"))?;
            cuda.synchronise()?;
            let ms = after.elapsed_time_f32(&before).map_err(CudaError::of("cuEventElapsedTime"))?;
            Ok::<f64, CudaError>(f64::from(ms) / 1e3)
        };
        // The first run loads the code.
        let first = once(self)?;
        let count = TIMES[usize::from(first > LONG)];
        let mut times = (0..count).map(|_| once(self)).collect::<Result<Vec<f64>, CudaError>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[count / 2])
    }

    /// Seconds of the work that `record` queues: recorded `repeats` times as one graph, replayed once to warm up and
    /// once for the measurement.
    ///
    /// # Errors
    /// An error of an operation or of the driver.
    pub fn time(
        &mut self,
        repeats: u32,
        mut record: impl FnMut(&mut Cuda) -> Result<(), OperationError>,
    ) -> Result<f64, CudaError> {
        let graph = self.record(|cuda| (0..repeats).try_for_each(|_| record(cuda)))?;
        let event = || Event::new(EventFlags::DEFAULT).map_err(CudaError::of("cuEventCreate"));
        let (before, after) = (event()?, event()?);
        self.launch_graph(&graph)?;
        before.record(&self.stream).map_err(CudaError::of("cuEventRecord"))?;
        self.launch_graph(&graph)?;
        after.record(&self.stream).map_err(CudaError::of("cuEventRecord"))?;
        self.synchronise()?;
        let ms = after.elapsed_time_f32(&before).map_err(CudaError::of("cuEventElapsedTime"))?;
        Ok(f64::from(ms) / 1e3 / f64::from(repeats))
    }
}
