//! cublasLt, loaded when the device is opened. The functions and constants are those of cublasLt.h, versions 12 and 13.
//! The module `tuning` chooses among its algorithms for each matrix multiplication.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr;

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use libloading::Library;

use super::product::{Case, Product};
use super::tuning::Chosen;
use crate::device::Cuda;
use crate::error::CudaError;
use crate::profile::WORKSPACE;

/// Number of algorithms that are requested and timed.
const CANDIDATES: usize = 16;

const LIBRARIES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

type Handle = *mut c_void;
type Status = i32;

/// Full f32 precision.
const COMPUTE_F32: i32 = 68;
/// Operands of f32 rounded to TF32, 10 bits of mantissa, for tensor cores; sums in f32.
const COMPUTE_TF32: i32 = 77;
const TYPE_F32: i32 = 0;
const TYPE_BF16: i32 = 14;
const TYPE_E4M3: i32 = 28;
const TYPE_E5M2: i32 = 29;
const DESC_TRANSPOSE_A: i32 = 3;
const DESC_TRANSPOSE_B: i32 = 4;
const DESC_EPILOGUE: i32 = 7;
const DESC_BIAS_POINTER: i32 = 8;
/// Attributes for the addresses of the scales by which 8-bit matrices are multiplied. Their sums are in f32 throughout:
/// the attribute "fast accumulation" (25) is off by default.
const DESC_A_SCALE_POINTER: i32 = 17;
const DESC_B_SCALE_POINTER: i32 = 18;
const EPILOGUE_BIAS: i32 = 4;
const PREFERENCE_WORKSPACE: i32 = 1;
const PREFERENCE_REDUCTIONS: i32 = 3;
/// The minimum alignment of the first matrix; the attributes of the other three follow.
const PREFERENCE_ALIGNMENT: i32 = 5;
const CONFIG_REDUCTION: i32 = 3;
/// Partial sums over k are stored in the workspace as f32 and added by a separate pass, in a fixed order. The other
/// schemes add in the result, or round to its type in between.
const REDUCTION_F32: u32 = 2;

/// An algorithm with its settings, opaque.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithm {
    pub data: [u64; 8],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: Algorithm,
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [i32; 4],
}

type VersionFn = unsafe extern "C" fn() -> usize;
type CreateFn = unsafe extern "C" fn(*mut Handle) -> Status;
type DestroyFn = unsafe extern "C" fn(Handle) -> Status;
type DescCreateFn = unsafe extern "C" fn(*mut Handle, i32, i32) -> Status;
type SetFn = unsafe extern "C" fn(Handle, i32, *const c_void, usize) -> Status;
type LayoutCreateFn = unsafe extern "C" fn(*mut Handle, i32, u64, u64, i64) -> Status;
type HeuristicFn = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    i32,
    *mut Heuristic,
    *mut i32,
) -> Status;
type CheckFn =
    unsafe extern "C" fn(Handle, Handle, Handle, Handle, Handle, Handle, *const Algorithm, *mut Heuristic) -> Status;
type ConfigFn = unsafe extern "C" fn(*const Algorithm, i32, *mut c_void, usize, *mut usize) -> Status;
type MatmulFn = unsafe extern "C" fn(
    Handle,
    Handle,
    *const f32,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    *const f32,
    *const c_void,
    Handle,
    *mut c_void,
    Handle,
    *const Algorithm,
    *mut c_void,
    usize,
    *mut c_void,
) -> Status;

/// The operation after a matrix multiplication. The library adds a bias; a GELU, a rotation, or the gradient of a GELU
/// with column sums, is a separate pass, or part of this program's own kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum With {
    /// None, or a matrix is added.
    Plain,
    /// A bias.
    Bias,
    /// A bias, and a GELU as a second output.
    Gelu,
    /// A bias, and the rotation of queries and keys.
    Turned,
    /// The gradient of a GELU, and column sums.
    GeluGrad,
}

impl With {
    pub(crate) const ALL: [With; 5] = [With::Plain, With::Bias, With::Gelu, With::Turned, With::GeluGrad];

    /// The name in saved choices.
    pub(crate) fn name(self) -> &'static str {
        match self {
            With::Plain => "plain",
            With::Bias => "bias",
            With::Gelu => "gelu",
            With::Turned => "turned",
            With::GeluGrad => "gelu_grad",
        }
    }

    /// Whether it needs a separate pass after the library's matrix multiplication.
    pub(crate) fn passes(self) -> bool {
        matches!(self, With::Gelu | With::Turned | With::GeluGrad)
    }

    fn of(p: &Product) -> With {
        match (p.bias.is_some(), p.activated.is_some(), p.before_gelu.is_some() && p.summed.is_some()) {
            (true, true, _) => With::Gelu,
            (true, ..) if p.turned.is_some() => With::Turned,
            (true, false, _) => With::Bias,
            (false, _, true) => With::GeluGrad,
            (false, ..) => With::Plain,
        }
    }
}

/// The properties of a matrix multiplication that determine its algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    pub case: Case,
    /// [m, n, k].
    pub sizes: [u32; 3],
    /// Whether operands of f32 are rounded to TF32.
    pub tf32: bool,
    /// A's type, and B's except for E5M2: E5M2 is for gradients, which are multiplied with E4M3.
    pub input: Dtype,
    pub output: Dtype,
    /// The operation after the multiplication.
    pub with: With,
    /// The common alignment of all addresses, 256 at most: chunks of rows may begin at smaller multiples.
    pub alignment: u32,
}

/// The library, a handle, and the algorithms chosen so far.
pub struct Blas {
    handle: Handle,
    destroy: DestroyFn,
    desc_create: DescCreateFn,
    desc_set: SetFn,
    desc_destroy: DestroyFn,
    layout_create: LayoutCreateFn,
    layout_destroy: DestroyFn,
    preference_create: CreateFn,
    preference_set: SetFn,
    preference_destroy: DestroyFn,
    heuristic: HeuristicFn,
    check: CheckFn,
    config: ConfigFn,
    matmul: MatmulFn,
    /// The version, in the numbering of cublasLtGetVersion.
    pub version: u64,
    pub chosen: Vec<Chosen>,
    _library: Library,
}

/// The start-up warning when the library is missing.
pub fn warning(why: &str) -> String {
    format!(
        "cublasLt not found ({why}): products run on capful's own kernels, several times slower; install CUDA 13's libcublas, or python3 -m pip install nvidia-cublas and set LD_LIBRARY_PATH to its lib folder"
    )
}

/// Folders where CUDA machines store the library, in addition to the loader's own.
fn folders() -> Vec<PathBuf> {
    let under = |variable: &str, folder: &str| Some(Path::new(&std::env::var_os(variable)?).join(folder));
    let mut found: Vec<PathBuf> = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(|v| under(v, "lib64")).collect();
    found.push("/usr/local/cuda/lib64".into());
    let roots = [under("VIRTUAL_ENV", "lib"), Some("/usr/local/lib".into()), Some("/usr/lib".into())];
    for root in roots.into_iter().flatten() {
        for python in std::fs::read_dir(root).into_iter().flatten().flatten() {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = python.path().join(packages).join("nvidia");
                found.extend(["cu13/lib", "cublas/lib"].map(|folder| nvidia.join(folder)));
            }
        }
    }
    found.retain(|folder| folder.is_dir());
    found
}

/// Opens the library in any of these folders.
///
/// # Errors
/// The loader's error message.
pub fn open() -> Result<Library, String> {
    // A simulated driver contains the library's functions itself; NVIDIA's driver needs NVIDIA's library.
    if let Ok(driver) = capful_driver::load() {
        // SAFETY: already loaded; only checks whether the function exists.
        let library = unsafe { Library::new(driver) }.map_err(|e| e.to_string())?;
        // SAFETY: as above.
        if unsafe { library.get::<CreateFn>(b"cublasLtCreate\0") }.is_ok() {
            return Ok(library);
        }
    }
    let mut names: Vec<PathBuf> = LIBRARIES.iter().map(PathBuf::from).collect();
    let folders = folders();
    names.extend(LIBRARIES.iter().flat_map(|name| folders.iter().map(move |f| f.join(name)).filter(|p| p.is_file())));
    let mut why = None;
    for name in names {
        // SAFETY: NVIDIA's library, with NVIDIA's initialisers.
        match unsafe { Library::new(&name) } {
            Ok(library) => return Ok(library),
            Err(e) => drop(why.get_or_insert(e.to_string())),
        }
    }
    Err(why.unwrap_or_default())
}

impl Blas {
    /// Opens the library and creates a handle in the current context.
    ///
    /// # Errors
    /// Why the library or the handle is not available.
    pub fn load() -> Result<Blas, String> {
        let library = open()?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: declared above as in cublasLt.h.
                *unsafe { library.get($name) }.map_err(|e| e.to_string())?
            };
        }
        let create: CreateFn = function!(b"cublasLtCreate\0");
        let version: VersionFn = function!(b"cublasLtGetVersion\0");
        let mut handle = ptr::null_mut();
        // SAFETY: a pointer to one handle.
        let status = unsafe { create(&mut handle) };
        if status != 0 {
            return Err(format!("cublasLtCreate gives status {status}"));
        }
        Ok(Blas {
            handle,
            destroy: function!(b"cublasLtDestroy\0"),
            desc_create: function!(b"cublasLtMatmulDescCreate\0"),
            desc_set: function!(b"cublasLtMatmulDescSetAttribute\0"),
            desc_destroy: function!(b"cublasLtMatmulDescDestroy\0"),
            layout_create: function!(b"cublasLtMatrixLayoutCreate\0"),
            layout_destroy: function!(b"cublasLtMatrixLayoutDestroy\0"),
            preference_create: function!(b"cublasLtMatmulPreferenceCreate\0"),
            preference_set: function!(b"cublasLtMatmulPreferenceSetAttribute\0"),
            preference_destroy: function!(b"cublasLtMatmulPreferenceDestroy\0"),
            heuristic: function!(b"cublasLtMatmulAlgoGetHeuristic\0"),
            check: function!(b"cublasLtMatmulAlgoCheck\0"),
            config: function!(b"cublasLtMatmulAlgoConfigGetAttribute\0"),
            matmul: function!(b"cublasLtMatmul\0"),
            // SAFETY: takes no arguments.
            version: unsafe { version() } as u64,
            chosen: Vec::new(),
            _library: library,
        })
    }

    /// The library's description of a matrix multiplication.
    fn describe(&self, shape: &Shape, bias: u64, inverses: [u64; 2]) -> Result<Described, Status> {
        let mut owned = Owned { made: Vec::with_capacity(5) };
        let [m, n, k] = shape.sizes.map(u64::from);
        // SAFETY: handles are created here and destroyed by their owner; attributes point at values of the attribute's
        // type.
        unsafe {
            let mut desc = ptr::null_mut();
            let compute = if shape.tf32 { COMPUTE_TF32 } else { COMPUTE_F32 };
            check((self.desc_create)(&mut desc, compute, TYPE_F32))?;
            owned.made.push((desc, self.desc_destroy));
            // The library's matrices are column-major: it computes Cᵀ = Bᵀ Aᵀ from the same bytes.
            let (first, second) = (shape.case == Case::Nt, shape.case == Case::Tn);
            for (attribute, transposed) in [(DESC_TRANSPOSE_A, first), (DESC_TRANSPOSE_B, second)] {
                let value = i32::from(transposed);
                check((self.desc_set)(desc, attribute, (&raw const value).cast(), 4))?;
            }
            if matches!(shape.with, With::Bias | With::Gelu | With::Turned) {
                let epilogue = EPILOGUE_BIAS;
                check((self.desc_set)(desc, DESC_EPILOGUE, (&raw const epilogue).cast(), 4))?;
                check((self.desc_set)(desc, DESC_BIAS_POINTER, (&raw const bias).cast(), 8))?;
            }
            let eight_bits = matches!(shape.input, Dtype::E4m3 | Dtype::E5m2);
            if eight_bits {
                // Its first matrix is B.
                for (attribute, inverse) in [DESC_B_SCALE_POINTER, DESC_A_SCALE_POINTER].into_iter().zip(inverses) {
                    check((self.desc_set)(desc, attribute, (&raw const inverse).cast(), 8))?;
                }
            }
            let kind = |dtype| match dtype {
                Dtype::Bf16 => TYPE_BF16,
                Dtype::E4m3 => TYPE_E4M3,
                Dtype::E5m2 => TYPE_E5M2,
                // Other types are no operands of the library's multiplications.
                _ => TYPE_F32,
            };
            let input_b = if eight_bits { Dtype::E4m3 } else { shape.input };
            let mut layout = |dtype, rows: u64, columns: u64| {
                let mut made = ptr::null_mut();
                check((self.layout_create)(&mut made, kind(dtype), rows, columns, rows as i64))?;
                owned.made.push((made, self.layout_destroy));
                Ok::<Handle, Status>(made)
            };
            let b = if first { layout(input_b, k, n)? } else { layout(input_b, n, k)? };
            let a = if second { layout(shape.input, m, k)? } else { layout(shape.input, k, m)? };
            let c = layout(shape.output, n, m)?;
            Ok(Described { desc, a, b, c, _owned: owned })
        }
    }

    /// Algorithms for a matrix multiplication, the most promising first; empty if the library has none.
    pub fn candidates(&self, p: &Call) -> Result<Vec<Algorithm>, Status> {
        let Call { shape, bias, inverses, .. } = p;
        let Described { desc, a, b, c, _owned } = self.describe(shape, *bias, *inverses)?;
        let nothing =
            Heuristic { algorithm: Algorithm { data: [0; 8] }, workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
        let (mut found, mut count) = ([nothing; CANDIDATES], 0);
        // SAFETY: as in `probe`; room for as many results as are requested.
        unsafe {
            let mut preference = ptr::null_mut();
            check((self.preference_create)(&mut preference))?;
            let _owned = Owned { made: vec![(preference, self.preference_destroy)] };
            let (bytes, reductions) = (WORKSPACE, REDUCTION_F32);
            check((self.preference_set)(preference, PREFERENCE_WORKSPACE, (&raw const bytes).cast(), 8))?;
            check((self.preference_set)(preference, PREFERENCE_REDUCTIONS, (&raw const reductions).cast(), 4))?;
            for attribute in PREFERENCE_ALIGNMENT..PREFERENCE_ALIGNMENT + 4 {
                let alignment = (&raw const shape.alignment).cast();
                check((self.preference_set)(preference, attribute, alignment, 4))?;
            }
            let (room, results) = (CANDIDATES as i32, found.as_mut_ptr());
            let status = (self.heuristic)(self.handle, desc, b, a, c, c, preference, room, results, &mut count);
            if status != 0 {
                return Ok(Vec::new());
            }
        }
        let found = found.iter().take(count.max(0) as usize).filter(|h| h.state == 0).map(|h| h.algorithm);
        Ok(found.filter(|algorithm| self.repeats(algorithm)).collect())
    }

    /// Whether an algorithm always gives the same bits, and sums in f32.
    fn repeats(&self, algorithm: &Algorithm) -> bool {
        let (mut scheme, mut written) = (0u32, 0);
        // SAFETY: an algorithm, and a pointer to the one integer of this attribute.
        let status = unsafe { (self.config)(algorithm, CONFIG_REDUCTION, (&raw mut scheme).cast(), 4, &mut written) };
        status == 0 && (scheme == 0 || scheme == REDUCTION_F32)
    }

    /// Whether this library can compute a matrix multiplication by this algorithm.
    pub fn accepts(&self, shape: &Shape, algorithm: &Algorithm) -> bool {
        // The library requires addresses, but does not use them.
        let Ok(Described { desc, a, b, c, _owned }) = self.describe(shape, 256, [256; 2]) else { return false };
        let nothing = Algorithm { data: [0; 8] };
        let mut result = Heuristic { algorithm: nothing, workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
        // SAFETY: as in `probe`, and a pointer to one result.
        let status = unsafe { (self.check)(self.handle, desc, b, a, c, c, algorithm, &mut result) };
        status == 0 && result.state == 0 && result.workspace as u64 <= WORKSPACE && self.repeats(algorithm)
    }

    /// Queues a matrix multiplication.
    pub fn queue(&self, p: &Call, algorithm: &Algorithm, stream: *mut c_void) -> Result<(), Status> {
        let Described { desc, a, b, c, _owned } = self.describe(&p.shape, p.bias, p.inverses)?;
        let (one, beta) = (1.0f32, if p.added == 0 { 0.0f32 } else { 1.0 });
        let added = if p.added == 0 { p.c } else { p.added };
        // SAFETY: handles created for this call; addresses of regions of the given sizes.
        check(unsafe {
            (self.matmul)(
                self.handle,
                desc,
                &one,
                p.b as *const c_void,
                b,
                p.a as *const c_void,
                a,
                &beta,
                added as *const c_void,
                c,
                p.c as *mut c_void,
                c,
                algorithm,
                p.workspace as *mut c_void,
                WORKSPACE as usize,
                stream,
            )
        })
    }
}

fn check(status: Status) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// A multiplication's description and layouts.
struct Described {
    desc: Handle,
    a: Handle,
    b: Handle,
    c: Handle,
    _owned: Owned,
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by cublasLtCreate and destroyed once.
        unsafe { (self.destroy)(self.handle) };
    }
}

/// Handles that are destroyed at the end of the call.
struct Owned {
    made: Vec<(Handle, DestroyFn)>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        for (handle, destroy) in self.made.drain(..).rev() {
            // SAFETY: made by the library and destroyed once.
            unsafe { destroy(handle) };
        }
    }
}

/// The addresses of one matrix multiplication, 0 for an absent matrix.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub shape: Shape,
    a: u64,
    b: u64,
    c: u64,
    bias: u64,
    /// The residual, or C itself.
    added: u64,
    /// Inverse scales of A and B, if these have 8 bits.
    inverses: [u64; 2],
    workspace: u64,
}

impl Call {
    /// Address, type and number of elements of A and of B.
    pub(crate) fn operands(&self) -> [(u64, Dtype, u64); 2] {
        let Shape { sizes, input, .. } = self.shape;
        let [m, n, k] = sizes.map(u64::from);
        let other = if input == Dtype::E5m2 { Dtype::E4m3 } else { input };
        [(self.a, input, m * k), (self.b, other, n * k)]
    }
}

/// Converts a status of the library to an error.
pub(crate) fn failed(what: &'static str, status: Status) -> CudaError {
    CudaError::Driver { what, code: format!("status {status}") }
}

impl Cuda {
    /// Queues the matrix multiplication with bias and residual. Returns false where this program's own kernel must
    /// compute it.
    pub(crate) fn product_by_library(&mut self, p: &Product) -> Result<bool, OperationError> {
        self.carry_all()?;
        // The library adds a single matrix, and its bias has the result's type.
        let both = p.residual.is_some() && p.accumulate;
        if both || p.bias.is_some_and(|b| b.dtype != p.c.dtype) || self.scratch().bytes() < WORKSPACE {
            return Ok(false);
        }
        // GPUs before sm_80 store bf16 and compute in f32.
        if p.a.dtype == Dtype::Bf16 && !self.hardware.tensor_cores {
            return Ok(false);
        }
        let (a, b, c) = (self.address(p.a)?, self.address(p.b)?, self.address(p.c)?);
        let bias = self.address_or_null(p.bias)?;
        let added = if p.accumulate { c } else { self.address_or_null(p.residual)? };
        let inverses = match p.inverses {
            Some([a, b]) => [self.address(a)?, self.address(b)?],
            None => [0; 2],
        };
        let workspace = self.scratch_at(0, WORKSPACE)?;
        let shape = Shape {
            case: p.case,
            sizes: p.sizes(),
            tf32: self.library.tf32 && p.a.dtype == Dtype::F32,
            input: p.a.dtype,
            output: p.c.dtype,
            with: With::of(p),
            alignment: 1 << (a | b | c | bias | added).trailing_zeros().min(8),
        };
        let call = Call { shape, a, b, c, bias, added, inverses, workspace };
        let Some(algorithm) = self.algorithm(&call, p)? else { return Ok(false) };
        let stream = self.stream.as_inner().cast();
        let queued = self.library.blas.as_ref().map_or(Ok(()), |blas| blas.queue(&call, &algorithm, stream));
        queued.map_err(|status| self.fail(failed("cublasLtMatmul", status)))?;
        Ok(true)
    }
}
