//! cublasLt, loaded when the device is opened. The functions and constants are those of cublasLt.h, versions 12
//! and 13.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr;

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use libloading::Library;

use super::device::Cuda;
use super::error::CudaError;
use super::product::{Case, Product};
use super::profile::WORKSPACE;

const LIBRARIES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

type Handle = *mut c_void;
type Status = i32;

const COMPUTE_F32: i32 = 68;
const TYPE_F32: i32 = 0;
const TYPE_BF16: i32 = 14;
const DESC_TRANSPOSE_A: i32 = 3;
const DESC_TRANSPOSE_B: i32 = 4;
const DESC_EPILOGUE: i32 = 7;
const DESC_BIAS_POINTER: i32 = 8;
const EPILOGUE_BIAS: i32 = 4;
const PREFERENCE_WORKSPACE: i32 = 1;
/// The least alignment of the first matrix; the other three's follow.
const PREFERENCE_ALIGNMENT: i32 = 5;

#[repr(C)]
#[derive(Clone, Copy)]
struct Algorithm {
    data: [u64; 8],
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

/// What decides an algorithm.
type Shape = (Case, [u32; 3], Dtype, Dtype, bool, u32);

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
    matmul: MatmulFn,
    chosen: HashMap<Shape, Option<Algorithm>>,
    _library: Library,
}

/// What is said once when the library is not there.
pub fn warning(why: &str) -> String {
    format!(
        "cublasLt not found ({why}): products run on capful's own kernels, several times slower; install CUDA 13's libcublas, or python3 -m pip install nvidia-cublas and set LD_LIBRARY_PATH to its lib folder"
    )
}

/// Folders where CUDA machines keep the library, beside those that the loader knows.
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

/// Opens the library, wherever it is.
///
/// # Errors
/// The loader's words.
pub fn open() -> Result<Library, String> {
    let mut names: Vec<PathBuf> = LIBRARIES.iter().map(PathBuf::from).collect();
    let folders = folders();
    names.extend(LIBRARIES.iter().flat_map(|name| folders.iter().map(move |f| f.join(name)).filter(|p| p.is_file())));
    let mut why = None;
    for name in names {
        // SAFETY: NVIDIA's library; its initialisers are its own.
        match unsafe { Library::new(&name) } {
            Ok(library) => return Ok(library),
            Err(e) => drop(why.get_or_insert(e.to_string())),
        }
    }
    Err(why.unwrap_or_default())
}

impl Blas {
    /// Opens the library and makes a handle on the current context.
    ///
    /// # Errors
    /// Why there is none.
    pub fn load() -> Result<Blas, String> {
        let library = open()?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: declared above as in cublasLt.h.
                *unsafe { library.get($name) }.map_err(|e| e.to_string())?
            };
        }
        let create: CreateFn = function!(b"cublasLtCreate\0");
        let mut handle = ptr::null_mut();
        // SAFETY: a place for one handle.
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
            matmul: function!(b"cublasLtMatmul\0"),
            chosen: HashMap::new(),
            _library: library,
        })
    }

    /// Queues a product. False where the library has no algorithm for it.
    fn run(&mut self, p: &Call, stream: *mut c_void) -> Result<bool, Status> {
        let check = |status| if status == 0 { Ok(()) } else { Err(status) };
        let mut owned = Owned { made: Vec::with_capacity(5) };
        let [m, n, k] = p.sizes.map(u64::from);
        // SAFETY: handles are made, used and destroyed here; attributes point at values of the type that the
        // attribute has; addresses are those of regions of the sizes given.
        unsafe {
            let mut desc = ptr::null_mut();
            check((self.desc_create)(&mut desc, COMPUTE_F32, TYPE_F32))?;
            owned.made.push((desc, self.desc_destroy));
            // The library's matrices are column-major: it computes Cᵀ = Bᵀ Aᵀ from the same bytes.
            let (first, second) = (p.case == Case::Nt, p.case == Case::Tn);
            for (attribute, transposed) in [(DESC_TRANSPOSE_A, first), (DESC_TRANSPOSE_B, second)] {
                let value = i32::from(transposed);
                check((self.desc_set)(desc, attribute, (&raw const value).cast(), 4))?;
            }
            if p.bias != 0 {
                let epilogue = EPILOGUE_BIAS;
                check((self.desc_set)(desc, DESC_EPILOGUE, (&raw const epilogue).cast(), 4))?;
                check((self.desc_set)(desc, DESC_BIAS_POINTER, (&raw const p.bias).cast(), 8))?;
            }
            let kind = |dtype| if dtype == Dtype::Bf16 { TYPE_BF16 } else { TYPE_F32 };
            let mut layout = |dtype, rows: u64, columns: u64| {
                let mut made = ptr::null_mut();
                check((self.layout_create)(&mut made, kind(dtype), rows, columns, rows as i64))?;
                owned.made.push((made, self.layout_destroy));
                Ok::<Handle, Status>(made)
            };
            let b = if first { layout(p.input, k, n)? } else { layout(p.input, n, k)? };
            let a = if second { layout(p.input, m, k)? } else { layout(p.input, k, m)? };
            let c = layout(p.output, n, m)?;
            // Rows of a chunk begin where they begin: an algorithm must not count on more.
            let alignment = 1u32 << (p.a | p.b | p.c | p.added).trailing_zeros().min(8);
            let key = (p.case, p.sizes, p.input, p.output, p.bias != 0, alignment);
            if !self.chosen.contains_key(&key) {
                let mut preference = ptr::null_mut();
                check((self.preference_create)(&mut preference))?;
                owned.made.push((preference, self.preference_destroy));
                let bytes = WORKSPACE;
                check((self.preference_set)(preference, PREFERENCE_WORKSPACE, (&raw const bytes).cast(), 8))?;
                for attribute in PREFERENCE_ALIGNMENT..PREFERENCE_ALIGNMENT + 4 {
                    check((self.preference_set)(preference, attribute, (&raw const alignment).cast(), 4))?;
                }
                let nothing = Algorithm { data: [0; 8] };
                let mut best = Heuristic { algorithm: nothing, workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
                let mut count = 0;
                let status = (self.heuristic)(self.handle, desc, b, a, c, c, preference, 1, &mut best, &mut count);
                let found = status == 0 && count > 0 && best.state == 0;
                self.chosen.insert(key, found.then_some(best.algorithm));
            }
            let Some(Some(algorithm)) = self.chosen.get(&key) else { return Ok(false) };
            let (one, beta) = (1.0f32, if p.added == 0 { 0.0f32 } else { 1.0 });
            let added = if p.added == 0 { p.c } else { p.added };
            check((self.matmul)(
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
            ))?;
        }
        Ok(true)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by cublasLtCreate and destroyed once.
        unsafe { (self.destroy)(self.handle) };
    }
}

/// Handles that go when the call is over.
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

/// One product: addresses, 0 for none.
struct Call {
    case: Case,
    sizes: [u32; 3],
    input: Dtype,
    output: Dtype,
    a: u64,
    b: u64,
    c: u64,
    bias: u64,
    /// The residual, or C itself.
    added: u64,
    workspace: u64,
}

impl Cuda {
    /// Queues the product with bias and residual. False where our own kernel has to do it.
    pub(super) fn product_by_library(&mut self, p: &Product) -> Result<bool, OperationError> {
        // The library adds one matrix, and its bias has the result's type.
        let both = p.residual.is_some() && p.accumulate;
        if both || p.bias.is_some_and(|b| b.dtype != p.c.dtype) || self.scratch().bytes() < WORKSPACE {
            return Ok(false);
        }
        let c = self.address(p.c)?;
        let call = Call {
            case: p.case,
            sizes: p.sizes(),
            input: p.a.dtype,
            output: p.c.dtype,
            a: self.address(p.a)?,
            b: self.address(p.b)?,
            c,
            bias: self.address_or_null(p.bias)?,
            added: if p.accumulate { c } else { self.address_or_null(p.residual)? },
            workspace: self.scratch_at(0, WORKSPACE)?,
        };
        let stream = self.stream.as_inner().cast();
        let Some(blas) = &mut self.blas else { return Ok(false) };
        let result = blas.run(&call, stream);
        result
            .map_err(|status| self.fail(CudaError::Driver { what: "cublasLtMatmul", code: format!("status {status}") }))
    }
}
