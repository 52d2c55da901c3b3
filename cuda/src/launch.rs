//! Queues kernels. Some kernels need all of their blocks to wait for each other; their launch guarantees that the
//! blocks run at the same time (CUDA's cooperative launch). For other kernels on GPUs of compute capability 9.0 and
//! later, the blocks are prepared while the kernel before them runs (CUDA's programmatic dependent launch): each block
//! waits at its beginning, as `common.cuh` says, so only the time between kernels changes.

use std::ffi::c_void;

use capful_core::device::OperationError;
use cust::sys;

use super::device::Cuda;
use super::error::CudaError;

/// Mirrors CUlaunchAttribute; only these two kinds are used.
#[repr(C)]
struct Attribute {
    id: u32,
    padding: u32,
    value: [u64; 8],
}

/// CU_LAUNCH_ATTRIBUTE_COOPERATIVE.
const TOGETHER: u32 = 2;
/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
const EARLY: u32 = 6;

/// How a kernel's blocks are started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// As soon as the GPU has room for them.
    Plain,
    /// As soon as the GPU has room for them; they prepare while the previous kernel runs.
    Early,
    /// All at the same time, or the launch fails.
    Together,
}

/// Mirrors CUlaunchConfig.
#[repr(C)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: sys::CUstream,
    attributes: *const Attribute,
    count: u32,
}

unsafe extern "C" {
    /// Since CUDA 11.8, which is newer than cust's declarations.
    fn cuLaunchKernelEx(
        config: *const Config,
        function: sys::CUfunction,
        arguments: *mut *mut c_void,
        more: *mut *mut c_void,
    ) -> sys::CUresult;
}

impl Cuda {
    /// Queues a kernel. `arguments` must be the struct that the kernel's source declares.
    pub(super) fn launch<A: Copy>(
        &mut self,
        module: &'static str,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        arguments: &A,
    ) -> Result<(), OperationError> {
        self.launch_with(module, kernel, grid, threads, 0, arguments)
    }

    /// As [`Cuda::launch`], with `shared` bytes of dynamic shared memory in addition to the kernel's static shared
    /// memory.
    pub(super) fn launch_with<A: Copy>(
        &mut self,
        module: &'static str,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        arguments: &A,
    ) -> Result<(), OperationError> {
        self.carry_all()?;
        let kernel = self.kernel(module, kernel)?;
        self.launch_kernel(module, kernel, (grid, threads, shared), arguments)
    }

    /// As [`Cuda::launch_with`], with one block on each multiprocessor; the blocks may wait for each other.
    pub(super) fn launch_together<A: Copy>(
        &mut self,
        module: &'static str,
        kernel: &str,
        threads: u32,
        shared: u32,
        arguments: &A,
    ) -> Result<(), OperationError> {
        self.carry_all()?;
        let grid = [self.hardware.together, 1, 1];
        let kernel = self.kernel(module, kernel)?;
        let start = if self.hardware.together > 1 { Start::Together } else { Start::Plain };
        self.start(module, kernel, (grid, threads, shared), start, arguments)
    }

    /// As [`Cuda::launch_with`], for a kernel handle; with grid, threads and shared bytes.
    pub(super) fn launch_kernel<A: Copy>(
        &mut self,
        module: &'static str,
        kernel: sys::CUfunction,
        shape: ([u32; 3], u32, u32),
        arguments: &A,
    ) -> Result<(), OperationError> {
        let start = if self.hardware.early && !self.joined { Start::Early } else { Start::Plain };
        self.start(module, kernel, shape, start, arguments)
    }

    /// Looks up a kernel.
    pub(super) fn kernel(&mut self, module: &'static str, kernel: &str) -> Result<sys::CUfunction, OperationError> {
        let Some((_, found)) = self.modules.iter().find(|(name, _)| *name == module) else {
            return Err(self.fail(CudaError::Unsupported { operation: module, why: "its kernels are not embedded" }));
        };
        #[cfg(test)]
        assert!(super::tests::kernels::exports(module, kernel), "{module}.cu has no kernel {kernel}");
        let function = found.get_function(kernel).map(|function| function.to_raw());
        function.map_err(CudaError::of(module)).map_err(|e| self.fail(e))
    }

    fn start<A: Copy>(
        &mut self,
        module: &'static str,
        kernel: sys::CUfunction,
        (grid, threads, shared): ([u32; 3], u32, u32),
        start: Start,
        arguments: &A,
    ) -> Result<(), OperationError> {
        if grid.contains(&0) {
            return Ok(());
        }
        self.joined &= !self.hardware.early;
        if grid[1].max(grid[2]) > 65_535 {
            let why = "a GPU takes no more than 65,535 streams, tokens of a stream or heads at once; lower --batch-size or --seq-len";
            return Err(self.fail(CudaError::Unsupported { operation: module, why }));
        }
        let queued = || {
            if shared > 0 {
                let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: a function of a module that is loaded.
                let code = unsafe { sys::cuFuncSetAttribute(kernel, most, shared as i32) };
                CudaError::check("cuFuncSetAttribute", code)?;
            }
            let mut arguments = [std::ptr::from_ref(arguments) as *mut c_void];
            let id = if start == Start::Together { TOGETHER } else { EARLY };
            let how = Attribute { id, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] };
            let (block, stream) = ([threads, 1, 1], self.stream.as_inner());
            let count = u32::from(start != Start::Plain);
            let config = Config { grid, block, shared, stream, attributes: &how, count };
            // SAFETY: one argument, a struct that the kernel's source declares; the addresses in it were checked by
            // `address`. The attribute outlives the call.
            let code = unsafe { cuLaunchKernelEx(&config, kernel, arguments.as_mut_ptr(), std::ptr::null_mut()) };
            CudaError::check(module, code)
        };
        queued().map_err(|e| self.fail(e))
    }
}
