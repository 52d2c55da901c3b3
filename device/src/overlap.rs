//! What ranks send each other, beside what they compute: a pass that gives every operation of a program one of two streams.
//!
//! Each stream runs its operations in the order of the program. Before one that uses what the other stream writes, or
//! writes what that one uses, it waits for the last such operation of the other stream, unless it has waited for a later
//! one. So a layer's gradients are on their way as soon as they are complete, while those of the layers before it are
//! formed, and nothing else changes: the operations, what they read and their bits are those of one stream.

use capful_core::device::{Access, Op};
use capful_core::memory::Region;

/// Where an operation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// With what forms gradients and moves weights.
    Compute,
    /// With what ranks send each other, and its sums. Such operations take no scratch, which the others share.
    Exchange,
}

impl Stream {
    /// Where `op` runs.
    pub const fn of(op: &Op) -> Stream {
        match op {
            Op::AllGather(_) | Op::AllToAll(_) | Op::SumParts(_) => Stream::Exchange,
            _ => Stream::Compute,
        }
    }

    const fn other(self) -> Stream {
        match self {
            Stream::Compute => Stream::Exchange,
            Stream::Exchange => Stream::Compute,
        }
    }
}

/// An operation's stream, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Its stream.
    pub stream: Stream,
    /// The operation of the other stream that it waits for, by its number there.
    pub behind: Option<usize>,
}

/// What an operation uses.
struct Uses(Vec<(Region, bool)>);

impl Uses {
    fn of(op: &Op) -> Uses {
        let mut uses = Vec::new();
        op.operands(&mut |operand| uses.push((operand.region, operand.access != Access::Read)));
        Uses(uses)
    }

    /// Whether one of both writes what the other one uses.
    fn meets(&self, other: &Uses) -> bool {
        let meet = |(a, written): &(Region, bool)| {
            other.0.iter().any(|(b, also)| (*written || *also) && a.bytes() > 0 && b.bytes() > 0 && a.overlaps(b))
        };
        self.0.iter().any(meet)
    }
}

/// The operations of a program so far.
#[derive(Default)]
pub struct Overlap {
    /// What those of each stream use.
    done: [Vec<Uses>; 2],
    /// How many of the other stream's each has waited for.
    waited: [usize; 2],
}

impl Overlap {
    /// Places the next operation of the program.
    pub fn place(&mut self, op: &Op) -> Assignment {
        let (stream, uses) = (Stream::of(op), Uses::of(op));
        let (own, other) = (stream as usize, stream.other() as usize);
        let since = self.waited[own];
        let behind = self.done[other][since..].iter().rposition(|before| before.meets(&uses)).map(|i| since + i);
        if let Some(last) = behind {
            self.waited[own] = last + 1;
        }
        self.done[own].push(uses);
        Assignment { stream, behind }
    }
}
