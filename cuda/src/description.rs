//! The CUDA properties of a machine, which `host doctor` and `host plan` show.

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The name that the driver gives it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub bytes: u64,
    /// Multiprocessors.
    pub multiprocessors: i32,
    /// Whether it multiplies bf16 matrices; where not, bf16 is a storage format only and arithmetic is in f32.
    pub bf16: bool,
    /// Whether the embedded code has kernels for its warpgroups (compute capability 9.0).
    pub warpgroups: bool,
    /// Whether a kernel can be prepared while the kernel before it runs (code for 9.0 or later, and a driver that
    /// supports it).
    pub early: bool,
}

/// The machine as seen by the CUDA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The CUDA version of the driver, as in `13.0`, and the library it was loaded from.
    pub driver: Result<(String, String), String>,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// Compute capabilities with embedded code.
    pub targets: &'static str,
    /// A line for each missing library that says how to install it.
    pub missing: Vec<String>,
}
