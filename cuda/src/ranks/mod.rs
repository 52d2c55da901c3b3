//! What several ranks make of parts of a tensor, and what they send each other.

mod collective;
mod max_parts;
pub(super) mod nccl;
mod sum_parts;
