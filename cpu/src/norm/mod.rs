//! Norms of rows, of queries and keys, and their gradients.

mod norm;
mod norm_grad;
mod qk_norm;
mod qk_norm_grad;
