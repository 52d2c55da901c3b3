//! A step recorded once as a CUDA graph and replayed.

use std::collections::HashMap;
use std::ptr;

use capful_core::device::OperationError;
use cust::sys;

use super::device::Cuda;
use super::error::CudaError;

/// CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY, since CUDA 11.7: nodes have the priority of the stream they were
/// recorded from.
const BY_NODE: u64 = 8;

/// An instantiated graph.
pub struct Graph {
    executable: sys::CUgraphExec,
}

/// The graphs of a device.
#[derive(Default)]
pub(super) struct Graphs {
    /// By their keys.
    pub recorded: HashMap<u64, Graph>,
    /// A graph is being recorded.
    pub recording: bool,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created by `record` and destroyed once. A failure cannot be handled.
        unsafe { sys::cuGraphExecDestroy(self.executable) };
    }
}

impl Cuda {
    /// Whether a graph of this key is recorded.
    pub fn recorded(&self, key: u64) -> bool {
        self.graphs.recorded.contains_key(&key)
    }

    /// Starts to record all queued work, until [`Cuda::end_recording`].
    ///
    /// # Errors
    /// An error of the driver.
    pub fn begin_recording(&mut self) -> Result<(), CudaError> {
        self.begin()
    }

    /// Stores the work queued since [`Cuda::begin_recording`] as the graph of `key`. The work must depend on the key
    /// only; values that change belong in the control region.
    ///
    /// # Errors
    /// An error of an operation or of the driver.
    pub fn end_recording(&mut self, key: u64, queued: Result<(), OperationError>) -> Result<(), CudaError> {
        let graph = self.end(queued)?;
        self.graphs.recorded.insert(key, graph);
        Ok(())
    }

    /// Runs the graph of `key`, where it is recorded.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn replay_recorded(&mut self, key: u64) -> Result<(), CudaError> {
        self.carry_all().map_err(|e| self.explain(e))?;
        self.graphs.recorded.get(&key).map_or(Ok(()), |graph| self.replay(graph))
    }

    pub(super) fn launch_graph(&mut self, graph: &Graph) -> Result<(), CudaError> {
        self.carry_all().map_err(|e| self.explain(e))?;
        self.replay(graph)
    }

    /// Queues a graph after all queued work.
    fn replay(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: an instantiated graph whose addresses lie in the arena, on the stream it was recorded on.
        let launch = || unsafe { sys::cuGraphLaunch(graph.executable, self.stream.as_inner()) };
        // The call waits where the GPU's queue is full.
        let code = self.wait(launch);
        CudaError::check("cuGraphLaunch", code)
    }

    pub(super) fn record(
        &mut self,
        record: impl FnOnce(&mut Cuda) -> Result<(), OperationError>,
    ) -> Result<Graph, CudaError> {
        self.begin()?;
        let recorded = record(self);
        self.end(recorded)
    }

    /// Starts to record queued work instead of running it.
    fn begin(&mut self) -> Result<(), CudaError> {
        self.carry_all().map_err(|e| self.explain(e))?;
        // Relaxed: libraries may load a kernel's code during the recording, and only this thread uses the stream.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a stream of this device.
        let code = unsafe { sys::cuStreamBeginCapture_v2(self.stream.as_inner(), mode) };
        CudaError::check("cuStreamBeginCapture", code)?;
        self.graphs.recording = true;
        Ok(())
    }

    /// Ends the recording that [`Cuda::begin`] started, even if an operation failed.
    fn end(&mut self, recorded: Result<(), OperationError>) -> Result<Graph, CudaError> {
        let recorded = recorded.and_then(|()| self.finish_all()).and_then(|()| self.carry_all());
        self.deferred.clear();
        self.graphs.recording = false;
        let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
        let stream = self.stream.as_inner();
        // SAFETY: a stream of this device, and a pointer to the new handle.
        let ended = unsafe { sys::cuStreamEndCapture(stream, &mut graph) };
        let result = recorded.map_err(|e| self.explain(e)).and_then(|()| {
            CudaError::check("cuStreamEndCapture", ended)?;
            // SAFETY: a graph just recorded.
            let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, BY_NODE) };
            CudaError::check("cuGraphInstantiate", code)
        });
        if !graph.is_null() {
            // SAFETY: the instantiated graph does not need its source.
            unsafe { sys::cuGraphDestroy(graph) };
        }
        result.map(|()| Graph { executable })
    }
}
