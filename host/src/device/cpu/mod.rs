//! The CPU device: a pool of threads, matrix products and vector mathematics that its operations are made of.
//!
//! Three rules hold for everything in here:
//! - nothing allocates once the [pool](pool::Pool) has started; storage is the caller's;
//! - results do not depend on the number of threads, nor on which thread does what;
//! - one generic source for every instruction set, chosen at run time through [`simd::arch`].

pub mod gemm;
pub mod pool;
pub mod simd;
