//! What several ranks make of parts of a tensor, and what they send each other.

mod collective;
mod sum_parts;
