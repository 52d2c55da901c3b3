//! Reductions over the parts of several ranks, and the exchange of data between ranks.

mod all_gather;
mod all_to_all;
mod max_parts;
mod sum_parts;

pub use all_gather::AllGather;
pub use all_to_all::AllToAll;
pub use max_parts::MaxParts;
pub use sum_parts::SumParts;
