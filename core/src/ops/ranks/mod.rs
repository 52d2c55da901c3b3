//! What several ranks make of parts of a tensor, and what they send each other.

mod all_gather;
mod all_to_all;
mod max_parts;
mod sum_parts;

pub use all_gather::AllGather;
pub use all_to_all::AllToAll;
pub use max_parts::MaxParts;
pub use sum_parts::SumParts;
