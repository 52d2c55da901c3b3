//! Why the CUDA device could not be opened or failed.

use cust::sys::cudaError_enum;

/// Each message is one line: what was asked, what is there, what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No driver library.
    #[error("--device cuda: no NVIDIA driver found ({0}); install the driver, or use --device cpu")]
    NoDriver(String),
    /// A driver that cannot run the embedded code.
    #[error(
        "--device cuda: the driver knows CUDA {found}, the embedded kernels need {needed}; update the NVIDIA driver to 580 or later, or use --device cpu"
    )]
    OldDriver {
        /// What the driver says of itself, as in `12.4`.
        found: String,
        /// What is needed.
        needed: &'static str,
    },
    /// A driver without a GPU.
    #[error("--device cuda: the driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu")]
    NoCard,
    /// A GPU that is not there.
    #[error("--device cuda:{asked}: there are {gpus} GPUs, numbered from 0; choose one of them")]
    NoSuchCard {
        /// The number asked for.
        asked: u32,
        /// GPUs that are there.
        gpus: u32,
    },
    /// A GPU that the embedded code does not run on.
    #[error("--device cuda: {name} has compute capability {major}.{minor}; 7.5 is the least, use --device cpu")]
    OldCard {
        /// The GPU.
        name: String,
        /// Of its compute capability.
        major: i32,
        /// Of its compute capability.
        minor: i32,
    },
    /// A GPU without 8-bit units.
    #[error(
        "--precision fp8: {name} has compute capability {major}.{minor}, which multiplies no 8-bit floats; 8.9 is the least, use --precision bf16"
    )]
    NoFp8 {
        /// The GPU.
        name: String,
        /// Of its compute capability.
        major: i32,
        /// Of its compute capability.
        minor: i32,
    },
    /// 8-bit products without the library that computes them.
    #[error(
        "--precision fp8: its products need cublasLt, which cannot be used ({0}); install CUDA 13's libcublas, or use --precision bf16"
    )]
    NoFp8Library(String),
    /// The arena does not fit.
    #[error(
        "--device cuda: the run needs {needed} bytes on {name}, which has {total} bytes, {free} of them free; lower --batch-size or --seq-len, or end what else uses the GPU"
    )]
    TooSmall {
        /// The GPU.
        name: String,
        /// Bytes of the arena.
        needed: u64,
        /// Bytes that nobody uses.
        free: u64,
        /// Bytes of the GPU.
        total: u64,
    },
    /// The driver or the GPU does not start.
    #[error(
        "--device cuda: the GPU cannot be used now: {what}: {code}; end what else uses it, see nvidia-smi, or use --device cpu"
    )]
    NotStarted {
        /// What was being done.
        what: &'static str,
        /// The CUresult's name.
        code: String,
    },
    /// A call of the driver failed.
    #[error("the CUDA device failed: {what}: {code}; see dmesg and nvidia-smi")]
    Driver {
        /// What was being done.
        what: &'static str,
        /// The CUresult's name.
        code: String,
    },
    /// Several ranks without the library that connects them.
    #[error(
        "ranks on GPUs need NCCL, which cannot be used ({0}); install libnccl2, or python3 -m pip install nvidia-nccl-cu13"
    )]
    NoNccl(String),
    /// An operation that the kernels have no form for.
    #[error("the CUDA device cannot run {operation}: {why}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// What it cannot do.
        why: &'static str,
    },
    /// An operand that ends beyond the arena.
    #[error("the CUDA device was given a region that ends at byte {end} of {bytes}")]
    OutOfBounds {
        /// Its end.
        end: u64,
        /// Bytes of the arena.
        bytes: u64,
    },
    /// Results that later ones have taken the place of.
    #[error(
        "the CUDA device was asked for the results of step {step} in step {now}; they are kept until step {} begins",
        .step + 2
    )]
    Stale {
        /// The step that they are of.
        step: u64,
        /// The step under way.
        now: u64,
    },
}

/// The name of a CUresult, of the driver's own where cust has none for it; its number where the driver does not
/// know it either.
fn name(code: u32) -> String {
    let code = if code == capful_driver::UNKNOWN { capful_driver::last_code() } else { code };
    unsafe extern "C" {
        /// As cust declares it, but with a plain number: codes that its enum lacks are no error to ask about.
        #[allow(clashing_extern_declarations)]
        fn cuGetErrorName(code: u32, name: *mut *const std::ffi::c_char) -> u32;
    }
    let mut text = std::ptr::null();
    // SAFETY: a place for one pointer; the driver's names live for ever.
    unsafe {
        if cuGetErrorName(code, &mut text) == 0 && !text.is_null() {
            return std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned();
        }
    }
    format!("CUresult {code}")
}

impl CudaError {
    /// Whether nothing was begun: the GPU is not there, or has less than was asked for.
    pub fn refuses(&self) -> bool {
        !matches!(self, CudaError::Driver { .. } | CudaError::OutOfBounds { .. } | CudaError::Stale { .. })
    }

    /// For a result of cust.
    pub(super) fn of(what: &'static str) -> impl Fn(cust::error::CudaError) -> CudaError {
        move |error| CudaError::Driver { what, code: name(error as u32) }
    }

    /// For a result of cust before anything is begun.
    pub(super) fn start(what: &'static str) -> impl Fn(cust::error::CudaError) -> CudaError {
        move |error| match CudaError::of(what)(error) {
            CudaError::Driver { what, code } => CudaError::NotStarted { what, code },
            other => other,
        }
    }

    /// For a result of the driver itself.
    pub(super) fn check(what: &'static str, code: cudaError_enum) -> Result<(), CudaError> {
        match code {
            cudaError_enum::CUDA_SUCCESS => Ok(()),
            code => Err(CudaError::Driver { what, code: name(code as u32) }),
        }
    }
}
