//! A program recorded as a graph that reads the GPU's clock before the first operation and after each operation.
//!
//! The marks are nodes of the graph, so the operations follow each other as in a step: queuing them one by one would
//! add a launch time to each. The time of a mark is measured between marks with nothing between them, and subtracted
//! from every interval; not subtracted is that a kernel after a mark cannot be prepared early.

use std::ptr;

use capful_core::device::{Op, OperationError};
use cust::sys;

use super::device::Cuda;
use super::error::CudaError;
use super::fused::together;
use super::graph::Graph;

/// CU_EVENT_RECORD_EXTERNAL: an event recorded into a graph is a node that stores the time at every replay.
const EXTERNAL: u32 = 1;

/// Empty intervals after the operations.
const EMPTY: usize = 8;

/// A moment on the GPU's clock.
struct Mark(sys::CUevent);

impl Mark {
    fn new() -> Result<Mark, CudaError> {
        let mut event = ptr::null_mut();
        // SAFETY: a pointer to the new handle.
        let code = unsafe { sys::cuEventCreate(&mut event, 0) };
        CudaError::check("cuEventCreate", code).map(|()| Mark(event))
    }

    /// Seconds since `before`. Both marks must have been reached.
    fn since(&self, before: &Mark) -> Result<f64, CudaError> {
        let mut ms = 0.0;
        // SAFETY: two existing events, and a pointer to the number.
        let code = unsafe { sys::cuEventElapsedTime(&mut ms, before.0, self.0) };
        CudaError::check("cuEventElapsedTime", code).map(|()| f64::from(ms) / 1e3)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: created by `new` and destroyed once. A failure cannot be handled.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// A program with marks.
pub struct TimedGraph {
    // Dropped before the events that its nodes refer to.
    graph: Graph,
    /// The first mark, one after each interval, and the marks of the empty intervals.
    marks: Vec<Mark>,
    /// Number of intervals with operations.
    intervals: usize,
    /// For each operation its interval, and its share of the interval's time.
    portions: Vec<(usize, f64)>,
}

/// The interval of each operation, and its share of the interval's time. Consecutive copies are one kernel, and so are
/// operations that are computed together: they divide an interval in proportion to their bytes.
fn portions(ops: &[Op]) -> Vec<(usize, f64)> {
    let one = |a: &Op, b: &Op| matches!((a, b), (Op::Carry(_), Op::Carry(_))) || together(a, b);
    let parts = |(interval, group): (usize, &[Op])| {
        let bytes: f64 = group.iter().map(|op| op.traffic() as f64).sum();
        let equal = 1.0 / group.len() as f64;
        let part = |op: &Op| if bytes > 0.0 { op.traffic() as f64 / bytes } else { equal };
        group.iter().map(|op| (interval, part(op))).collect::<Vec<_>>()
    };
    ops.chunk_by(one).enumerate().flat_map(parts).collect()
}

/// The median of some numbers; 0 for none.
fn middle(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

impl Cuda {
    /// Records `ops` with marks. Runs no operation.
    ///
    /// # Errors
    /// An error of an operation or of the driver.
    pub fn record_timed(&mut self, ops: &[Op]) -> Result<TimedGraph, CudaError> {
        let portions = portions(ops);
        let intervals = portions.last().map_or(0, |(last, _)| last + 1);
        let marks = (0..=intervals + EMPTY).map(|_| Mark::new()).collect::<Result<Vec<_>, _>>()?;
        let graph = self.record(|cuda| {
            cuda.mark(&marks[0])?;
            let mut at = 0;
            for (group, mark) in portions.chunk_by(|a, b| a.0 == b.0).zip(&marks[1..]) {
                cuda.run_some(ops, at..at + group.len())?;
                at += group.len();
                cuda.carry_all()?;
                cuda.mark(mark)?;
            }
            marks[intervals + 1..].iter().try_for_each(|mark| cuda.mark(mark))
        })?;
        Ok(TimedGraph { graph, marks, intervals, portions })
    }

    fn mark(&mut self, mark: &Mark) -> Result<(), OperationError> {
        // SAFETY: an event that outlives the graph, and a stream of this device.
        let code = unsafe { sys::cuEventRecordWithFlags(mark.0, self.stream.as_inner(), EXTERNAL) };
        CudaError::check("cuEventRecordWithFlags", code).map_err(|e| self.fail(e))
    }

    /// Runs the recorded program and waits for it: returns the seconds of each operation, from the end of the operation
    /// before it to its own end.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn replay_timed(&mut self, timed: &TimedGraph) -> Result<Vec<f64>, CudaError> {
        self.launch_graph(&timed.graph)?;
        self.synchronise()?;
        let between = |pair: &[Mark]| pair[1].since(&pair[0]);
        let seconds = timed.marks.windows(2).map(between).collect::<Result<Vec<_>, CudaError>>()?;
        let (seconds, empty) = seconds.split_at(timed.intervals);
        let mark = middle(empty);
        Ok(timed.portions.iter().map(|(interval, part)| part * (seconds[*interval] - mark).max(0.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::portions;
    use capful_core::device::Op;
    use capful_core::memory::{Dtype, Region, Space};
    use capful_core::ops::{Carry, Gelu, Heads, Linear, LinearGrad, Rotary, Rotate};

    #[test]
    fn copies_that_follow_each_other_share_an_interval_by_their_bytes() {
        let at = |n| Region { space: Space::Arena, dtype: Dtype::F32, offset: 0, shape: [1, 1, 1, n] };
        let far = |n, place: u64| Region { offset: 256 * place, ..at(n) };
        let carry = |n| Op::from(Carry { from: at(n), to: at(n) });
        let gelu = Op::from(Gelu { x: at(5), out: at(5) });
        let shared = portions(&[gelu, carry(1), carry(3), gelu, gelu, carry(7)]);
        assert_eq!(shared, [(0, 1.0), (1, 0.25), (1, 0.75), (2, 1.0), (3, 1.0), (4, 1.0)]);
        assert_eq!(portions(&[carry(0), carry(0)]), [(0, 0.5), (0, 0.5)]);
        // A GELU that is recomputed in the pass of its gradient.
        let again = Op::from(Gelu { x: far(4, 0), out: far(4, 1) });
        let grad = LinearGrad {
            before_gelu: Some(far(4, 0)),
            x_bias_grad: Some(far(4, 2)),
            ..LinearGrad::new([far(4, 1), far(4, 3)], far(1, 4), [far(4, 5), far(4, 6)])
        };
        let grad = Op::from(grad);
        let both = (again.traffic() + grad.traffic()) as f64;
        let parts = [again, grad].map(|op| op.traffic() as f64 / both);
        assert_eq!(portions(&[gelu, again, grad]), [(0, 1.0), (1, parts[0]), (1, parts[1])]);
        // A rotation in the epilogue of the multiplication before it.
        let linear = Op::from(Linear::new(far(4, 0), far(8, 1), Some(far(2, 2)), far(2, 3)));
        let table = Region { shape: [1, 1, 1, 2], ..far(2, 4) };
        let rotary = Rotary { table, heads: Heads::interleaved(1, 2), positions: 1 };
        let rotate = Op::from(Rotate { qkv: far(2, 3), rotary });
        let both = (linear.traffic() + rotate.traffic()) as f64;
        let parts = [linear, rotate].map(|op| op.traffic() as f64 / both);
        assert_eq!(portions(&[linear, rotate, gelu]), [(0, parts[0]), (0, parts[1]), (1, 1.0)]);
        assert!(portions(&[]).is_empty());
    }
}
