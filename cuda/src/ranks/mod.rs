//! What several ranks make of parts of a tensor, and what they send each other.

mod collective;
mod max_parts;
pub(super) mod nccl;
mod sum_parts;

use cust::stream::Stream;
use nccl::Communicator;

/// The connection to the other ranks, where there are any.
#[derive(Default)]
pub(super) struct Ranks {
    /// NCCL's.
    pub communicator: Option<Communicator>,
    /// The stream for what ranks send each other, next to the device's own.
    pub stream: Option<Stream>,
}
