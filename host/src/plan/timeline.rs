//! Simulates the time of a step on one of several ranks over each link: its operations on the two streams of a GPU.

use capful_core::device::{Device, Op, OperationError, Rates};

use crate::config::Link;
use crate::device::{Assignment, Overlap, Stream};

/// Seconds over each link.
pub type OverLinks = [f64; Link::ALL.len()];

/// A program with a clock. An operation begins when the previous operation of its stream has ended, and the operation
/// of the other stream that it waits for. It takes its roofline time, whatever runs at the same time, plus the link's
/// time for what it sends.
pub(super) struct Timeline {
    rates: Rates,
    /// The assignment to two streams; `None` for a single stream.
    overlap: Option<Overlap>,
    /// When each operation of each stream ends.
    ends: [Vec<OverLinks>; 2],
}

impl Timeline {
    /// A timeline at its beginning; `beside` is whether there are two streams.
    pub(super) fn new(rates: Rates, beside: bool) -> Timeline {
        Timeline { rates, overlap: beside.then(Overlap::default), ends: [Vec::new(), Vec::new()] }
    }

    /// When all operations have ended.
    pub(super) fn end(&self) -> OverLinks {
        let last = |of: &Vec<OverLinks>| of.last().copied().unwrap_or_default();
        let [compute, exchange] = [0, 1].map(|i| last(&self.ends[i]));
        std::array::from_fn(|link| f64::max(compute[link], exchange[link]))
    }
}

impl Device for Timeline {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        let alone = Assignment { stream: Stream::Compute, behind: None };
        let Assignment { stream, behind } = self.overlap.as_mut().map_or(alone, |overlap| overlap.place(op));
        let own = stream as usize;
        let before = self.ends[own].last().copied().unwrap_or_default();
        let other = behind.and_then(|number| self.ends[1 - own].get(number)).copied().unwrap_or_default();
        let seconds = self.rates.seconds(op.flops(), op.flops_8bit(), op.traffic());
        let [sent, messages] = op.sent();
        let link = |i: usize| f64::max(before[i], other[i]) + seconds + Link::ALL[i].seconds(sent, messages);
        self.ends[own].push(std::array::from_fn(link));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use capful_core::memory::{Dtype, Region, Share, Space};
    use capful_core::ops::{AllToAll, Gelu, SumParts};

    fn region(offset: u64, shape: [u32; 4]) -> Region {
        Region { space: Space::Arena, dtype: Dtype::F32, offset, shape }
    }

    /// Gradients of two layers, each computed by an operation of 3 s that moves 300 bytes; the first gradients are sent
    /// while the second are computed. By hand.
    #[test]
    fn what_is_sent_is_hidden_as_far_as_something_is_computed_beside_it() {
        let rates = Rates { bytes_per_s: 100.0, ..Rates::ONE };
        let gradients = |layer: u64| region(1000 * (layer + 1), [1, 1, 2, 8]);
        let forms = |layer| Op::from(Gelu { x: region(8000, [1, 1, 2, 8]), out: gradients(layer) });
        let share = Share::of_pieces(0, 2, 2, 1);
        let to = region(4000, [1, 2, 1, 8]);
        let sends = |layer| Op::from(AllToAll { from: gradients(layer), to, share, first: 0 });
        let sums = |layer| Op::from(SumParts { parts: to, sum: gradients(layer).slice_rows(0, 1), adds: false });
        let step = [forms(0), forms(1), sends(0), sums(0), sends(1), sums(1)];
        let time = |beside| {
            let mut timeline = Timeline::new(rates, beside);
            step.iter().for_each(|op| timeline.run(op).unwrap());
            timeline.end()
        };
        // 64 bytes read and 64 written; 64 bytes of two ranks' tables sent and 64 received; 64 and 32.
        let (form, send, sum) = (1.28, 1.28, 0.96);
        let [_, _, ethernet] = time(false);
        let message = Link::Ethernet.seconds(32, 1);
        approx::assert_relative_eq!(ethernet, 2.0 * (form + send + sum + message), max_relative = 1e-12);
        // The second layer's gradients are computed while the first layer's are sent, but not while those are summed.
        let [_, _, ethernet] = time(true);
        approx::assert_relative_eq!(ethernet, form + 2.0 * (send + sum + message), max_relative = 1e-12);
    }
}
