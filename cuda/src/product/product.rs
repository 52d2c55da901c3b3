//! Matrix multiplication: by cublasLt where it is available, else by this program's own tiled kernel.

use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{QuantisedProduct, Rotary};

use super::linear_grad::Pass;
use crate::arguments::{EpilogueArgs, ProductArgs, RowArgs};
use crate::device::{Cuda, blocks, threads, width};
use crate::error::CudaError;

/// The memory layout of A and B; C is always [m, n].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Case {
    /// A [m, k], B [n, k].
    Nt,
    /// A [m, k], B [k, n].
    Nn,
    /// A [k, m], B [k, n].
    Tn,
}

/// Column sums of a multiplication's result, after the gradient of a GELU if there is one.
#[derive(Debug, Clone, Copy)]
pub struct Summed {
    /// Receives the sums.
    pub to: Region,
    /// Whether the sums are added to the existing content.
    pub accumulate: bool,
    /// Receives the GELU of `before_gelu`, recomputed.
    pub activated: Option<Region>,
    /// Receives a copy of the sums.
    pub copy: Option<Region>,
}

impl Summed {
    /// Sums without any of the other outputs.
    pub const fn new(to: Region, accumulate: bool) -> Summed {
        Summed { to, accumulate, activated: None, copy: None }
    }
}

/// Writes exponentials in place of the multiplication's result, as the first step of a softmax: only in the warpgroup
/// kernel.
#[derive(Debug, Clone, Copy)]
pub struct Powers {
    /// `[m]` f32: subtracted from all results of a row.
    pub at_targets: Region,
    /// Number of columns that have exponentials.
    pub ids: u32,
    /// C of `C · tanh(z / C)`, or 0. The function is applied to the results first; the exponentials are then multiplied
    /// with its gradient by z.
    pub softcap: f32,
}

/// `C = A · B (+ bias) (+ residual) (+ C) (∘ gelu'(before_gelu))`, then `activated = gelu(C)`, or C's queries and keys
/// are rotated.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub operation: &'static str,
    pub case: Case,
    pub a: Region,
    pub b: Region,
    pub c: Region,
    pub bias: Option<Region>,
    pub residual: Option<Region>,
    pub before_gelu: Option<Region>,
    pub activated: Option<Region>,
    pub summed: Option<Summed>,
    pub powers: Option<Powers>,
    /// The rotation of C's queries and keys.
    pub turned: Option<Rotary>,
    pub accumulate: bool,
    /// The factors of A and B if these have 8 bits, one number each.
    pub inverses: Option<[Region; 2]>,
}

impl Product {
    /// A multiplication without any additions.
    pub fn new(operation: &'static str, case: Case, a: Region, b: Region, c: Region) -> Product {
        let none = None;
        let (bias, residual, before_gelu, activated) = (none, none, none, none);
        let (summed, powers, turned, accumulate, inverses) = (None, None, None, false, None);
        Product {
            operation,
            case,
            a,
            b,
            c,
            bias,
            residual,
            before_gelu,
            activated,
            summed,
            powers,
            turned,
            accumulate,
            inverses,
        }
    }

    /// The multiplication of copies in 8 bits.
    pub fn quantised(operation: &'static str, of: &QuantisedProduct, c: Region) -> Product {
        let inverses = Some([of.a, of.b].map(|side| side.scaling.inverse()));
        Product { inverses, ..Product::new(operation, Case::Nt, of.a.codes, of.b.codes, c) }
    }

    /// [m, n, k].
    pub fn sizes(&self) -> [u32; 3] {
        let k = if self.case == Case::Tn { self.a.rows() } else { self.a.columns() };
        [self.c.rows(), self.c.columns(), k]
    }
}

impl Cuda {
    pub(crate) fn product(&mut self, p: Product) -> Result<(), OperationError> {
        let output =
            self.dtype(p.operation, [Some(p.c), p.residual, p.before_gelu, p.activated].into_iter().flatten())?;
        if p.inverses.is_some() {
            if self.library.blas.is_some() && self.product_by_library(&p)? {
                return self.epilogue(&p);
            }
            let why = "cublasLt multiplies no 8-bit floats of these sizes here; use --precision bf16";
            return Err(self.fail(CudaError::Unsupported { operation: p.operation, why }));
        }
        let one = p.case == Case::Nt && p.c.rows() == 1;
        // With a single row in f32, the weight may be bf16.
        let mixed = one && (p.a.dtype, p.b.dtype, output) == (Dtype::F32, Dtype::Bf16, Dtype::F32);
        let input = self.dtype(p.operation, [p.a, if mixed { p.a } else { p.b }].into_iter().chain(p.bias))?;
        if (input, output) == (Dtype::F32, Dtype::Bf16) {
            let why = "its operands are f32 and its result bf16";
            return Err(self.fail(CudaError::Unsupported { operation: p.operation, why }));
        }
        if one && p.summed.is_none() {
            self.product_of_a_row(&p, output)?;
            return self.turn(&p);
        }
        if self.library.blas.is_some() && self.product_by_library(&p)? {
            return self.epilogue(&p);
        }
        if self.multiplies(&p)? {
            return self.product_by_warpgroups(&p);
        }
        // With column sums, the summing pass also propagates the result through the GELU.
        let before_gelu = p.before_gelu.filter(|_| p.summed.is_none());
        self.product_by_tiles(&Product { before_gelu, ..p }, input, output)?;
        match p.summed {
            Some(_) => self.epilogue(&p),
            None => self.turn(&p),
        }
    }

    /// Rotates the queries and keys of a finished multiplication.
    fn turn(&mut self, p: &Product) -> Result<(), OperationError> {
        p.turned.map_or(Ok(()), |rotary| self.rotate(p.c, &rotary, false))
    }

    fn product_of_a_row(&mut self, p: &Product, output: Dtype) -> Result<(), OperationError> {
        let [_, n, k] = p.sizes();
        let (x, weight) = (self.address(p.a)?, self.address(p.b)?);
        let arguments = RowArgs {
            x,
            weight,
            out: self.address(p.c)?,
            bias: self.address_or_null(p.bias)?,
            residual: self.address_or_null(p.residual)?,
            before_gelu: self.address_or_null(p.before_gelu)?,
            activated: self.address_or_null(p.activated)?,
            n,
            k,
            accumulate: p.accumulate.into(),
            wide: (width(p.b.dtype, k.into(), &[x, weight]) > 1).into(),
        };
        // One block for each row as long as all multiprocessors can run all blocks at once.
        let (kind, each) = match n {
            0..=1024 if k >= 512 => ("block", 1),
            0..=8191 => ("1", 8),
            _ => ("2", 16),
        };
        let input = match (p.a.dtype, p.b.dtype) {
            (Dtype::F32, Dtype::Bf16) => "f32_bf16",
            (_, weight) => weight.name(),
        };
        let kernel = format!("product_row_{kind}_{input}_{}", output.name());
        self.launch("product_row", &kernel, [n.div_ceil(each), 1, 1], 256, &arguments)
    }

    pub(crate) fn product_by_tiles(&mut self, p: &Product, input: Dtype, output: Dtype) -> Result<(), OperationError> {
        let [m, n, k] = p.sizes();
        let arguments = ProductArgs {
            a: self.address(p.a)?,
            b: self.address(p.b)?,
            c: self.address(p.c)?,
            bias: self.address_or_null(p.bias)?,
            residual: self.address_or_null(p.residual)?,
            before_gelu: self.address_or_null(p.before_gelu)?,
            activated: self.address_or_null(p.activated)?,
            m,
            n,
            k,
            accumulate: p.accumulate.into(),
        };
        let tiles = |side| blocks(u64::from(m), side) * blocks(u64::from(n), side);
        // Large tiles if they give every multiprocessor at least two.
        let side = if tiles(128) >= 264 { 128 } else { 64 };
        let case = match p.case {
            Case::Nt => "nt",
            Case::Nn => "nn",
            Case::Tn => "tn",
        };
        let kernel = format!("product_{case}_{side}_{}_{}", input.name(), output.name());
        self.launch("product", &kernel, [tiles(side), 1, 1], 256, &arguments)
    }

    /// The steps that remain after the library's multiplication: the library's own GELU is the tanh approximation.
    pub(crate) fn epilogue(&mut self, p: &Product) -> Result<(), OperationError> {
        if let Some(summed) = p.summed {
            return self
                .sum_columns(Pass { rows: p.c, before_gelu: p.before_gelu, activated: summed.activated }, summed);
        }
        if p.before_gelu.is_none() && p.activated.is_none() {
            return self.turn(p);
        }
        let (out, count) = (self.address(p.c)?, p.c.elements());
        let (before_gelu, activated) = (self.address_or_null(p.before_gelu)?, self.address_or_null(p.activated)?);
        let width = width(p.c.dtype, 0, &[out, before_gelu, activated]);
        let arguments = EpilogueArgs { before_gelu, out, activated, count, wide: (width > 1).into() };
        let kernel = format!("linear_epilogue_{}", p.c.dtype.name());
        self.launch("linear", &kernel, [blocks(threads(count, width), 256), 1, 1], 256, &arguments)
    }
}
