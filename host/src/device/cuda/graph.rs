//! A step recorded once as a CUDA graph and replayed.

use std::ptr;

use capful_core::device::OperationError;
use cust::sys;

use super::device::Cuda;
use super::error::CudaError;

/// An instantiated graph.
pub struct Graph {
    executable: sys::CUgraphExec,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `record` and destroyed once. A failure leaves nothing to do.
        unsafe { sys::cuGraphExecDestroy(self.executable) };
    }
}

impl Cuda {
    /// Runs what `record` queues: recorded as a graph at the first call with `key`, replayed at every call. What
    /// `record` queues must depend on the key only; values that change belong in the control region.
    ///
    /// # Errors
    /// What an operation or the driver could not do.
    pub fn replay(
        &mut self,
        key: u64,
        record: impl FnOnce(&mut Cuda) -> Result<(), OperationError>,
    ) -> Result<(), CudaError> {
        if !self.graphs.contains_key(&key) {
            let graph = self.record(record)?;
            self.graphs.insert(key, graph);
        }
        self.graphs.get(&key).map_or(Ok(()), |graph| self.launch_graph(graph))
    }

    pub(super) fn launch_graph(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: an instantiated graph whose addresses lie in the arena, on the stream it was recorded on.
        let code = unsafe { sys::cuGraphLaunch(graph.executable, self.stream.as_inner()) };
        CudaError::check("cuGraphLaunch", code)
    }

    /// Forgets every recorded graph: another stage lays other regions.
    ///
    /// # Errors
    /// What went wrong in what was queued.
    pub fn forget(&mut self) -> Result<(), CudaError> {
        self.synchronise()?;
        self.graphs.clear();
        Ok(())
    }

    pub(super) fn record(
        &mut self,
        record: impl FnOnce(&mut Cuda) -> Result<(), OperationError>,
    ) -> Result<Graph, CudaError> {
        let stream = self.stream.as_inner();
        let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
        // Relaxed: libraries may load a kernel's code while it is recorded, and nobody else uses this stream.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: our own stream, and places for the handles made.
        CudaError::check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })?;
        self.recording = true;
        let recorded = record(self);
        self.recording = false;
        // SAFETY: ends what was begun above, whether or not the recording went well.
        let ended = unsafe { sys::cuStreamEndCapture(stream, &mut graph) };
        let result = recorded.map_err(|e| self.explain(e)).and_then(|()| {
            CudaError::check("cuStreamEndCapture", ended)?;
            // SAFETY: a graph just recorded.
            let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
            CudaError::check("cuGraphInstantiate", code)
        });
        if !graph.is_null() {
            // SAFETY: the instantiated graph does not need its source.
            unsafe { sys::cuGraphDestroy(graph) };
        }
        result.map(|()| Graph { executable })
    }
}
