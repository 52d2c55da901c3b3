//! The GPU with its single allocation, copies in and out, and launches.

use capful_core::device::{Device, Op, OperationError};
use capful_core::memory::{Dtype, Region, Space};
use capful_core::with_operation;
use cust::context::{Context, CurrentContext};
use cust::memory::DeviceBuffer;
use cust::module::Module;
use cust::stream::{Stream, StreamFlags};

use super::attention::Limits;
use super::deferred::Deferred;
use super::energy::Meter;
use super::error::CudaError;
use super::graph::Graphs;
use super::hardware::Hardware;
use super::product::Library;
use super::product::blas::Blas;
use super::profile::WORKSPACE;
use super::ranks::Ranks;
use super::room::CudaScratch;
use super::staging::Staging;
use super::{Products, Room, probe};

/// A CUDA GPU that runs the operations of a step on one allocation.
pub struct Cuda {
    // Dropped in this order: everything that uses the context before the context.
    pub(super) graphs: Graphs,
    pub(super) ranks: Ranks,
    pub(super) library: Library,
    pub(super) staging: Staging,
    arena: DeviceBuffer<u8>,
    pub(super) modules: Vec<(&'static str, Module)>,
    pub(super) stream: Stream,
    scratch: Region,
    failure: Option<CudaError>,
    pub(super) hardware: Hardware,
    pub(super) limits: Limits,
    pub(super) deferred: Deferred,
    /// Whether the next kernel waits for two streams: then it is not prepared early.
    pub(super) joined: bool,
    meter: Meter,
    /// Warnings for start-up: missing parts and what their absence costs.
    pub warnings: Vec<String>,
    /// Bytes of the GPU outside the arena, each with its name, as measured.
    outside: Vec<(&'static str, u64)>,
    /// Released last.
    _context: Context,
}

impl Cuda {
    /// Opens GPU `ordinal`, allocates exactly the arena's bytes there, zeroes them, and loads every kernel.
    ///
    /// # Errors
    /// No driver, no such GPU, or too little memory on it: detected before anything is allocated.
    pub fn open(ordinal: u32, room: Room, products: Products) -> Result<Cuda, CudaError> {
        let Room { arena: arena_bytes, scratch, staging } = room;
        let device = probe::find(ordinal)?;
        let hardware = Hardware::of(device)?;
        let total = device.total_memory().map_err(CudaError::of("cuDeviceTotalMem"))? as u64;
        let too_small = |free| CudaError::TooSmall { name: hardware.name.clone(), needed: arena_bytes, free, total };
        if arena_bytes > total {
            return Err(too_small(total));
        }
        let context = Context::new(device).map_err(CudaError::start("cuDevicePrimaryCtxRetain"))?;
        let free = total.saturating_sub(used()?);
        if arena_bytes > free {
            return Err(too_small(free));
        }
        let mut outside = vec![("CUDA context and other programs", used()?)];
        let mut modules = Vec::new();
        for (file, image) in capful_kernels::MODULES {
            let module = Module::from_fatbin(image, &[]).map_err(CudaError::of("cuModuleLoadData"))?;
            modules.push((*file, module));
        }
        note(&mut outside, "kernels", used()?);
        // A stream that synchronises with the default stream, which `write` and `clear` use.
        let stream = Stream::new(StreamFlags::DEFAULT, None).map_err(CudaError::of("cuStreamCreate"))?;
        // SAFETY: bytes; zeroed below before they are read.
        let arena = unsafe { DeviceBuffer::<u8>::uninitialized(arena_bytes as usize) };
        let mut arena = arena.map_err(|e| match e {
            cust::error::CudaError::OutOfMemory => too_small(free),
            other => CudaError::of("cuMemAlloc")(other),
        })?;
        arena.set_8(0).map_err(CudaError::of("cuMemsetD8"))?;
        let staging = Staging::new(staging as usize)?;
        CurrentContext::synchronize().map_err(CudaError::of("cuCtxSynchronize"))?;
        note(&mut outside, "streams and pinned memory", used()?.saturating_sub(arena_bytes));
        let mut warnings = Vec::new();
        let blas = match products {
            Products::Own => None,
            Products::Library => Blas::load().map_err(|why| warnings.push(super::product::blas::warning(&why))).ok(),
        };
        note(&mut outside, "cublasLt", used()?.saturating_sub(arena_bytes));
        Ok(Cuda {
            graphs: Graphs::default(),
            ranks: Ranks::default(),
            library: Library { blas, tuning: false, tf32: false },
            staging,
            arena,
            modules,
            stream,
            scratch,
            failure: None,
            hardware,
            limits: Limits {
                sequences: super::attention::heads::SEQUENCES,
                long_sequence: super::room::attention::LONG,
            },
            deferred: Deferred::new(),
            joined: false,
            meter: Meter::of(device)?,
            warnings,
            outside,
            _context: context,
        })
    }

    /// Sets whether cublasLt may round the operands of an f32 matrix multiplication to TF32 (10 bits of mantissa; sums
    /// stay f32), as a run in bf16 does: tensor cores multiply TF32 some ten times faster. Must be called before
    /// anything is tuned or recorded.
    pub fn allow_tf32(&mut self, allow: bool) {
        self.library.tf32 = allow && self.hardware.tensor_cores;
    }

    /// Adds a warning.
    pub fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// The warnings about missing parts and what their absence costs.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Checks that cublasLt is available: only it multiplies 8-bit floats.
    ///
    /// # Errors
    /// The library is missing.
    pub fn require_library(&self) -> Result<(), CudaError> {
        if self.library.blas.is_some() {
            Ok(())
        } else {
            Err(CudaError::NoFp8Library("it is missing or does not start".to_owned()))
        }
    }

    /// The arena's first address and the address after its end.
    pub(super) fn arena_range(&self) -> [u64; 2] {
        let begin = self.arena.as_device_ptr().as_raw();
        [begin, begin + self.arena_bytes()]
    }

    /// Number of bytes of the arena.
    pub fn arena_bytes(&self) -> u64 {
        self.arena.len() as u64
    }

    /// Bytes of the GPU that are in use by any process.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn used(&self) -> Result<u64, CudaError> {
        used()
    }

    /// Joules that the board has used since the driver was loaded; `None` if the board has no counter.
    pub fn joules(&mut self) -> Option<f64> {
        self.meter.joules()
    }

    /// Measured bytes of the GPU outside the arena, each with a name.
    pub fn outside(&self) -> &[(&'static str, u64)] {
        &self.outside
    }

    /// Gives a name to the memory in use that is neither in the arena nor in the list so far.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn name_outside(&mut self, name: &'static str) -> Result<(), CudaError> {
        self.synchronise()?;
        let outside = used()?.saturating_sub(self.arena_bytes());
        note(&mut self.outside, name, outside);
        Ok(())
    }

    /// Zeroes the arena after all queued work.
    ///
    /// # Errors
    /// An error of the driver.
    pub fn clear(&mut self) -> Result<(), CudaError> {
        self.synchronise()?;
        self.arena.set_8(0).map_err(CudaError::of("cuMemsetD8"))?;
        CurrentContext::synchronize().map_err(CudaError::of("cuCtxSynchronize"))
    }

    /// Takes the details of the last failure of an operation; later calls return `None`.
    pub fn take_failure(&mut self) -> Option<CudaError> {
        self.failure.take()
    }

    /// Stores the details of a failure for [`Cuda::take_failure`].
    pub fn fail(&mut self, error: CudaError) -> OperationError {
        self.failure.get_or_insert(error);
        OperationError::Device
    }

    /// The details of an operation's error.
    pub(super) fn explain(&mut self, error: OperationError) -> CudaError {
        self.failure.take().unwrap_or(CudaError::Driver { what: "an operation", code: error.to_string() })
    }

    /// The address of a region on the GPU.
    pub(super) fn address(&mut self, region: Region) -> Result<u64, OperationError> {
        let bytes = self.arena.len() as u64;
        if region.space != Space::Arena || region.end() > bytes {
            return Err(self.fail(CudaError::OutOfBounds { end: region.end(), bytes }));
        }
        Ok(self.arena.as_device_ptr().as_raw() + region.offset)
    }

    /// As [`Cuda::address`], 0 for no region.
    pub(super) fn address_or_null(&mut self, region: Option<Region>) -> Result<u64, OperationError> {
        region.map_or(Ok(0), |r| self.address(r))
    }

    /// `bytes` of scratch at `offset`; first finishes waiting sums where their pieces could overlap these bytes.
    pub(super) fn scratch_at(&mut self, offset: u64, bytes: u64) -> Result<u64, OperationError> {
        if offset.saturating_add(bytes) > WORKSPACE {
            self.finish_all()?;
        }
        self.scratch_beside(offset, bytes)
    }

    /// `bytes` of scratch at `offset`, without finishing waiting sums.
    pub(super) fn scratch_beside(&mut self, offset: u64, bytes: u64) -> Result<u64, OperationError> {
        let start = self.scratch.offset + offset;
        let (end, limit) = (start.saturating_add(bytes), self.scratch.end());
        if end > limit {
            return Err(self.fail(CudaError::OutOfBounds { end, bytes: limit }));
        }
        self.address(Region { offset: start, shape: [1, 1, 1, 0], ..self.scratch })
    }

    /// The scratch region.
    pub(super) fn scratch(&self) -> Region {
        self.scratch
    }

    /// The common type of all `regions`.
    pub(super) fn dtype(
        &mut self,
        operation: &'static str,
        regions: impl IntoIterator<Item = Region>,
    ) -> Result<Dtype, OperationError> {
        let mut found = None;
        for region in regions {
            if *found.get_or_insert(region.dtype) != region.dtype {
                let why = "its operands are of different types";
                return Err(self.fail(CudaError::Unsupported { operation, why }));
            }
        }
        Ok(found.unwrap_or(Dtype::F32))
    }

    /// Refuses operands that are not f32, of operations whose operands are f32 in every precision.
    pub(crate) fn exact(
        &mut self,
        operation: &'static str,
        regions: impl IntoIterator<Item = Region>,
    ) -> Result<(), OperationError> {
        if self.dtype(operation, regions)? == Dtype::F32 {
            return Ok(());
        }
        let why = "its rows, weights and states are f32 in every precision";
        Err(self.fail(CudaError::Unsupported { operation, why }))
    }

    /// Queues a fill of `count` 32-bit words with `value`.
    pub(super) fn fill(&mut self, address: u64, value: u32, count: u64) -> Result<(), OperationError> {
        self.carry_all()?;
        // SAFETY: an address from `address` or `scratch_at`, with this many words.
        let code = unsafe { cust::sys::cuMemsetD32Async(address, value, count as usize, self.stream.as_inner()) };
        CudaError::check("cuMemsetD32Async", code).map_err(|e| self.fail(e))
    }

    /// Queues a fill of `bytes` with zeros.
    pub(super) fn fill_zeros(&mut self, address: u64, bytes: u64) -> Result<(), OperationError> {
        let rest = bytes % 4;
        self.fill(address, 0, bytes / 4)?;
        if rest == 0 {
            return Ok(());
        }
        // SAFETY: as in `fill`; the bytes after the last whole word.
        let code =
            unsafe { cust::sys::cuMemsetD8Async(address + bytes - rest, 0, rest as usize, self.stream.as_inner()) };
        CudaError::check("cuMemsetD8Async", code).map_err(|e| self.fail(e))
    }

    /// Writes a region's bytes, in its own type. Waits until all queued work is done.
    ///
    /// # Errors
    /// A region outside the arena; an error of the driver.
    pub fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), CudaError> {
        self.synchronise()?;
        let to = self.checked(region, bytes.len())?;
        // SAFETY: a checked address with this many bytes.
        let code = unsafe { cust::sys::cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len()) };
        CudaError::check("cuMemcpyHtoD", code)
    }

    /// Reads a region's bytes, in its own type. Waits until all queued work is done.
    ///
    /// # Errors
    /// As [`Cuda::write`].
    pub fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.synchronise()?;
        let from = self.checked(region, bytes.len())?;
        // SAFETY: as in `write`.
        let code = unsafe { cust::sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, bytes.len()) };
        CudaError::check("cuMemcpyDtoH", code)
    }

    /// The address of a region's first `len` bytes.
    pub(super) fn checked(&mut self, region: Region, len: usize) -> Result<u64, CudaError> {
        if len as u64 > region.bytes() {
            return Err(CudaError::OutOfBounds { end: region.offset + len as u64, bytes: region.end() });
        }
        self.address(region).map_err(|e| self.explain(e))
    }

    /// Waits until all queued work is done.
    ///
    /// # Errors
    /// Any error since the last call.
    pub fn synchronise(&mut self) -> Result<(), CudaError> {
        self.carry_all().map_err(|e| self.explain(e))?;
        self.wait(|| self.stream.synchronize()).map_err(CudaError::of("cuStreamSynchronize"))
    }

    /// Runs a function that waits for the GPU. If the GPU waits for other ranks, the wait is limited: see
    /// [`crate::ranks::watch`].
    pub(super) fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        match &self.ranks.communicator {
            Some(communicator) => communicator.wait(wait),
            None => wait(),
        }
    }
}

/// Bytes of the current GPU that are in use by any process.
fn used() -> Result<u64, CudaError> {
    let (free, total) = cust::memory::mem_get_info().map_err(CudaError::of("cuMemGetInfo"))?;
    Ok((total - free) as u64)
}

/// Adds a line for the growth of `outside`, all bytes beyond the arena.
fn note(lines: &mut Vec<(&'static str, u64)>, name: &'static str, outside: u64) {
    let named: u64 = lines.iter().map(|(_, bytes)| bytes).sum();
    lines.push((name, outside.saturating_sub(named)));
}

impl Device for Cuda {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        self.finish_before(op)?;
        with_operation!(*op, o => OnCuda::run(o, self))
    }
}

/// The CUDA implementation of an operation; its scratch is in [`CudaScratch`](super::room::CudaScratch).
pub(super) trait OnCuda: CudaScratch {
    /// Queues the operation. An implementation is never inlined, so that a device's stack frame is not as large as the
    /// frames of all operations together.
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError>;
}

/// Number of values that one thread of a kernel processes, for rows of `columns` at `addresses`: 16 bytes of values
/// where every row begins at a multiple of 16 bytes, else one value. Address 0 stands for no tensor.
pub(super) fn width(dtype: Dtype, columns: u64, addresses: &[u64]) -> u32 {
    let aligned = (columns * dtype.size()).is_multiple_of(16) && addresses.iter().all(|a| a.is_multiple_of(16));
    if aligned { 16 / dtype.size() as u32 } else { 1 }
}

/// Whether values of this type, f32 or bf16, are rounded, as a kernel argument.
pub(super) fn reduced(dtype: Dtype) -> u32 {
    (dtype == Dtype::Bf16).into()
}

/// Threads for `count` values, `width` values for each thread, and one thread for each remaining value.
pub(super) fn threads(count: u64, width: u32) -> u64 {
    count / u64::from(width) + count % u64::from(width)
}

/// Number of blocks of `size` that cover `count`; `u32::MAX` if that overflows, which the driver refuses.
pub(super) fn blocks(count: u64, size: u32) -> u32 {
    u32::try_from(count.div_ceil(u64::from(size))).unwrap_or(u32::MAX)
}
