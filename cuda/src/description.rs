//! What a machine offers the CUDA device, as `host doctor` and `host plan` show it.

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// As the driver names it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub bytes: u64,
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Whether it multiplies bf16 matrices; where not, bf16 is storage only and arithmetic is f32.
    pub bf16: bool,
    /// Whether the embedded code has kernels for its warpgroups (compute capability 9.0).
    pub warpgroups: bool,
    /// Whether a kernel can be made ready while the one before it runs (code of 9.0 or later, and a driver that can).
    pub early: bool,
}

/// The machine as the CUDA device sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The CUDA version of the driver, as in `13.0`, and the library it was loaded from.
    pub driver: Result<(String, String), String>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// Compute capabilities with embedded code.
    pub targets: &'static str,
    /// Each library that is missing, and what to do about it.
    pub missing: Vec<String>,
}
