//! How long operations take on the GPU, by its own clock.

use capful_core::device::OperationError;
use cust::event::{Event, EventFlags};

use super::device::Cuda;
use super::error::CudaError;

impl Cuda {
    /// Seconds that what `record` queues takes: recorded `repeats` times as one graph, replayed once to warm up and
    /// once for the clock.
    ///
    /// # Errors
    /// What an operation or the driver could not do.
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
