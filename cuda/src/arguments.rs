//! The arguments of the kernels, in the layout of the kernel sources: addresses are u64, and `Heads` of the kernels is
//! `HeadsArgs` here.

capful_kernels::arguments!();
