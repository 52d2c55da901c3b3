//! Sums of the parts of a tensor from several ranks, and communication between ranks.

mod collective;
mod sum_parts;
