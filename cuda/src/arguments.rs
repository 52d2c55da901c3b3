//! What the kernels take, as their sources say: addresses are u64, and `Heads` of the kernels is `HeadsArgs` here.

capful_kernels::arguments!();
