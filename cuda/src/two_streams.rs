//! Runs a program on two streams, to which [`Overlap`] assigns the operations.
//!
//! Both streams are recorded into one graph. A stream's wait for an operation of the other stream is an edge of the
//! graph.

use std::collections::VecDeque;

use capful_core::device::{Op, OperationError};
use capful_core::ops::AllGather;
use cust::context::CurrentContext;
use cust::event::{Event, EventFlags};
use cust::stream::{Stream as Queue, StreamFlags, StreamWaitEventFlags};

use super::device::Cuda;
use super::error::CudaError;
use capful_device::{Assignment, Overlap, Stream};

/// Bytes that are worth one NCCL kernel: consecutive gathers of tables are combined up to this size. Sizes of whole
/// tables count, so that all ranks combine the same tables.
const TOGETHER: u64 = 64 << 20;

impl Cuda {
    /// Opens the stream for communication between ranks. Its blocks have priority: they are few, and would otherwise
    /// wait for all blocks of a matrix multiplication.
    ///
    /// # Errors
    /// An error of the driver.
    pub(super) fn open_exchange(&mut self) -> Result<(), CudaError> {
        let range = CurrentContext::get_stream_priority_range();
        let first = range.map_err(CudaError::of("cuCtxGetStreamPriorityRange"))?.greatest;
        let queue = Queue::new(StreamFlags::NON_BLOCKING, Some(first)).map_err(CudaError::of("cuStreamCreate"))?;
        self.ranks.stream = Some(queue);
        Ok(())
    }

    /// Records a program on both streams.
    pub(super) fn run_beside(&mut self, ops: &[Op]) -> Result<(), OperationError> {
        let mut overlap = Overlap::default();
        let places: Vec<Assignment> = ops.iter().map(|op| overlap.place(op)).collect();
        // The operations of the other stream that each stream waits for, in order, each once.
        let awaited =
            |stream| places.iter().filter(move |place| place.stream != stream).filter_map(|place| place.behind);
        let mut awaited = [Stream::Compute, Stream::Exchange].map(|stream| awaited(stream).peekable());
        // Events at the ends of those operations, and the number of operations so far in each stream.
        let (mut ends, mut done) = ([VecDeque::new(), VecDeque::new()], [0; 2]);
        let mut gathers = Vec::new();
        // The exchange stream joins the recording.
        let begun = self.end_of(Stream::Compute)?;
        self.wait_for(Stream::Exchange, begun)?;
        for (at, (op, Assignment { stream, behind })) in ops.iter().zip(&places).enumerate() {
            let own = *stream as usize;
            if behind.is_some() {
                let end = ends[1 - own].pop_front().ok_or(OperationError::Device)?;
                self.wait_for(*stream, end)?;
            }
            let end = awaited[own].next_if_eq(&done[own]).is_some();
            done[own] += 1;
            match op {
                Op::AllGather(gather) if !end => {
                    gathers.push(*gather);
                    if gathers.iter().map(|gather| gather.whole.bytes()).sum::<u64>() >= TOGETHER {
                        self.gather_beside(&mut gathers)?;
                    }
                    continue;
                }
                _ if *stream == Stream::Exchange => self.gather_beside(&mut gathers)?,
                _ => (),
            }
            self.on(*stream, |cuda| cuda.run_at(ops, at))?;
            if end {
                ends[own].push_back(self.end_of(*stream)?);
            }
        }
        self.gather_beside(&mut gathers)?;
        let ended = self.end_of(Stream::Exchange)?;
        self.wait_for(Stream::Compute, ended)
    }

    /// Queues the gathers that wait to be combined.
    fn gather_beside(&mut self, gathers: &mut Vec<AllGather>) -> Result<(), OperationError> {
        match gathers.is_empty() {
            true => Ok(()),
            false => self.on(Stream::Exchange, |cuda| cuda.gather(&std::mem::take(gathers))),
        }
    }

    /// Runs `queue` with `stream` as the current stream.
    fn on<T>(
        &mut self,
        stream: Stream,
        queue: impl FnOnce(&mut Cuda) -> Result<T, OperationError>,
    ) -> Result<T, OperationError> {
        if stream == Stream::Compute {
            return queue(self);
        }
        // Waiting copies belong to the stream that was current when they were requested.
        self.carry_all()?;
        let exchange = self.ranks.stream.take().ok_or(OperationError::Device)?;
        // The kernels of the exchange stream follow messages, so they are not started early.
        let compute =
            (std::mem::replace(&mut self.stream, exchange), std::mem::replace(&mut self.hardware.early, false));
        let done = queue(self).and_then(|done| self.carry_all().map(|()| done));
        self.hardware.early = compute.1;
        self.ranks.stream = Some(std::mem::replace(&mut self.stream, compute.0));
        done
    }

    /// An event at the end of the work queued on `stream`.
    fn end_of(&mut self, stream: Stream) -> Result<Event, OperationError> {
        self.on(stream, |cuda| {
            cuda.carry_all()?;
            let event = Event::new(EventFlags::DISABLE_TIMING).map_err(CudaError::of("cuEventCreate"));
            let recorded = event.and_then(|event| {
                event.record(&cuda.stream).map_err(CudaError::of("cuEventRecord"))?;
                Ok(event)
            });
            recorded.map_err(|e| cuda.fail(e))
        })
    }

    /// Makes all further work on `stream` wait for `end`.
    fn wait_for(&mut self, stream: Stream, end: Event) -> Result<(), OperationError> {
        self.on(stream, |cuda| {
            cuda.carry_all()?;
            cuda.joined = true;
            let waits = cuda.stream.wait_event(end, StreamWaitEventFlags::DEFAULT);
            waits.map_err(CudaError::of("cuStreamWaitEvent")).map_err(|e| cuda.fail(e))
        })
    }
}
