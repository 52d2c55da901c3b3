//! The errors of opening and using the CUDA device.

use cust::sys::cudaError_enum;

/// Each message is one line: the request, the state of the machine, what to do.
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
        /// The driver's version, as in `12.4`.
        found: String,
        /// The required version.
        needed: &'static str,
    },
    /// A driver without a GPU.
    #[error("--device cuda: the driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu")]
    NoCard,
    /// A GPU number that does not exist.
    #[error("--device cuda:{asked}: there are {gpus} GPUs, numbered from 0; choose one of them")]
    NoSuchCard {
        /// The requested number.
        asked: u32,
        /// Number of existing GPUs.
        gpus: u32,
    },
    /// A GPU that cannot run the embedded code.
    #[error("--device cuda: {name} has compute capability {major}.{minor}; 7.5 is the least, use --device cpu")]
    OldCard {
        /// The GPU.
        name: String,
        /// Major compute capability.
        major: i32,
        /// Minor compute capability.
        minor: i32,
    },
    /// A GPU without 8-bit units.
    #[error(
        "--precision fp8: {name} has compute capability {major}.{minor}, which multiplies no 8-bit floats; 8.9 is the least, use --precision bf16"
    )]
    NoFp8 {
        /// The GPU.
        name: String,
        /// Major compute capability.
        major: i32,
        /// Minor compute capability.
        minor: i32,
    },
    /// 8-bit matrix multiplication without the library that computes it.
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
        /// Free bytes.
        free: u64,
        /// Bytes of the GPU.
        total: u64,
    },
    /// The driver or the GPU could not be started.
    #[error(
        "--device cuda: the GPU cannot be used now: {what}: {code}; end what else uses it, see nvidia-smi, or use --device cpu"
    )]
    NotStarted {
        /// The action that failed.
        what: &'static str,
        /// The CUresult's name.
        code: String,
    },
    /// A call of the driver failed.
    #[error("the CUDA device failed: {what}: {code}; see dmesg and nvidia-smi")]
    Driver {
        /// The action that failed.
        what: &'static str,
        /// The CUresult's name.
        code: String,
    },
    /// Several ranks without the library that connects them.
    #[error(
        "ranks on GPUs need NCCL, which cannot be used ({0}); install libnccl2, or python3 -m pip install nvidia-nccl-cu13"
    )]
    NoNccl(String),
    /// An operation in a form that the kernels do not support.
    #[error("the CUDA device cannot run {operation}: {why}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The unsupported form.
        why: &'static str,
    },
    /// An operand that ends outside the arena.
    #[error("the CUDA device was given a region that ends at byte {end} of {bytes}")]
    OutOfBounds {
        /// Its end.
        end: u64,
        /// Bytes of the arena.
        bytes: u64,
    },
    /// Results that later results have overwritten.
    #[error(
        "the CUDA device was asked for the results of step {step} in step {now}; they are kept until step {} begins",
        .step + 2
    )]
    Stale {
        /// The step of the results.
        step: u64,
        /// The current step.
        now: u64,
    },
}

/// The name of a CUresult, or of the simulated driver's own code where cust has none; its number where no name is
/// known.
fn name(code: u32) -> String {
    let code = if code == capful_driver::UNKNOWN { capful_driver::last_code() } else { code };
    unsafe extern "C" {
        /// Declared as in cust, but with a plain number: codes that cust's enum lacks can be looked up too.
        #[allow(clashing_extern_declarations)]
        fn cuGetErrorName(code: u32, name: *mut *const std::ffi::c_char) -> u32;
    }
    let mut text = std::ptr::null();
    // SAFETY: a pointer to one pointer; the driver's names are static.
    unsafe {
        if cuGetErrorName(code, &mut text) == 0 && !text.is_null() {
            return std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned();
        }
    }
    format!("CUresult {code}")
}

impl CudaError {
    /// Whether the error occurred before any work was started: the GPU is missing, or has too little memory.
    pub fn refuses(&self) -> bool {
        !matches!(self, CudaError::Driver { .. } | CudaError::OutOfBounds { .. } | CudaError::Stale { .. })
    }

    /// Converts an error of cust.
    pub(super) fn of(what: &'static str) -> impl Fn(cust::error::CudaError) -> CudaError {
        move |error| CudaError::Driver { what, code: name(error as u32) }
    }

    /// Converts an error of cust from before any work was started.
    pub(super) fn start(what: &'static str) -> impl Fn(cust::error::CudaError) -> CudaError {
        move |error| match CudaError::of(what)(error) {
            CudaError::Driver { what, code } => CudaError::NotStarted { what, code },
            other => other,
        }
    }

    /// Checks a result code of the driver itself.
    pub(super) fn check(what: &'static str, code: cudaError_enum) -> Result<(), CudaError> {
        match code {
            cudaError_enum::CUDA_SUCCESS => Ok(()),
            code => Err(CudaError::Driver { what, code: name(code as u32) }),
        }
    }
}
