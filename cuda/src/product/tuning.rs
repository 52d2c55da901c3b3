//! Chooses the library's algorithm for each matrix multiplication: the fastest by the GPU's clock, stored for the next
//! time.
//!
//! An algorithm determines the order of sums. So the choices are saved with a run and used again when the run
//! continues.

use std::fmt::{self, Display};
use std::str::FromStr;

use capful_core::device::OperationError;
use capful_core::fp8::Format;
use capful_core::memory::Dtype;
use capful_core::random::Random;
use cust::sys;
use serde::{Deserialize, Serialize};

use super::blas::{Algorithm, Blas, Call, Shape, With, failed};
use super::product::{Case, Product};
use crate::device::Cuda;
use crate::error::CudaError;

/// The algorithm for a shape; `None` where this program's own kernel runs.
#[derive(Debug, Clone, Copy)]
pub struct Chosen {
    pub shape: Shape,
    pub algorithm: Option<Algorithm>,
    /// The measured time; `None` if nothing was timed.
    pub milliseconds: Option<f32>,
}

/// Represents every multiplication where the library computes none.
const OWN: &str = "all by own kernels";

/// The name of f32 operands that are rounded.
const TF32: &str = "tf32";

/// The algorithm chosen for one matrix multiplication, in its saved form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Case, [m, n, k], types of the operands (`tf32`: of f32, rounded) and the result, the operation after it
    /// (`plain`, `bias`, `gelu`, `turned` or `gelu_grad`), alignment: `nt 64 128 32 bf16 f32 bias 256`.
    pub product: String,
    /// The algorithm's 64 bytes in hexadecimal digits; `None` where capful's own kernel runs.
    pub algorithm: Option<String>,
    /// The measured time; `None` if nothing was timed.
    pub milliseconds: Option<f32>,
    /// cublasLt's version, in its own numbering.
    pub library: u64,
    /// The GPU's name.
    #[serde(alias = "card")]
    pub gpu: String,
}

impl Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = match self.case {
            Case::Nt => "nt",
            Case::Nn => "nn",
            Case::Tn => "tn",
        };
        let ([m, n, k], with) = (self.sizes, self.with.name());
        let (input, output) = (if self.tf32 { TF32 } else { self.input.name() }, self.output.name());
        write!(f, "{case} {m} {n} {k} {input} {output} {with} {}", self.alignment)
    }
}

impl FromStr for Shape {
    type Err = ();

    fn from_str(text: &str) -> Result<Shape, ()> {
        let words: Vec<&str> = text.split(' ').collect();
        let [case, m, n, k, input, output, with, alignment] = words[..] else { return Err(()) };
        let case = [("nt", Case::Nt), ("nn", Case::Nn), ("tn", Case::Tn)].into_iter().find(|(name, _)| *name == case);
        let size = |word: &str| word.parse::<u32>().map_err(drop);
        let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::E4m3, Dtype::E5m2];
        let dtype = |word| dtypes.into_iter().find(|d| d.name() == word).ok_or(());
        let tf32 = input == TF32;
        Ok(Shape {
            tf32,
            case: case.ok_or(())?.1,
            sizes: [size(m)?, size(n)?, size(k)?],
            input: if tf32 { Dtype::F32 } else { dtype(input)? },
            output: dtype(output)?,
            with: With::ALL.into_iter().find(|w| w.name() == with).ok_or(())?,
            alignment: size(alignment)?,
        })
    }
}

fn to_hex(algorithm: &Algorithm) -> String {
    algorithm.data.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Algorithm> {
    if text.len() != 128 || !text.is_ascii() {
        return None;
    }
    let mut data = [0; 8];
    for (at, word) in data.iter_mut().enumerate() {
        // The digits of a little-endian word.
        *word = u64::from_str_radix(&text[16 * at..16 * at + 16], 16).ok()?.swap_bytes();
    }
    Some(Algorithm { data })
}

impl Cuda {
    /// Runs the operations that `step` queues once, and times the library's algorithms for every matrix multiplication
    /// in it without a chosen algorithm. Multiplications that first occur later use the library's first proposal.
    /// Zeroes the arena afterwards: must be called before the arena has any content.
    ///
    /// # Errors
    /// An error of an operation or of the driver.
    pub fn tune(&mut self, step: impl FnOnce(&mut Cuda) -> Result<(), OperationError>) -> Result<(), CudaError> {
        if self.library.blas.is_none() {
            return Ok(());
        }
        self.set_tuning(true);
        let ran = step(self);
        self.set_tuning(false);
        ran.map_err(|e| self.explain(e))?;
        self.clear()
    }

    /// Whether algorithms are timed for multiplications without a chosen one.
    pub fn tuning(&self) -> bool {
        self.library.tuning
    }

    /// Turns the timing of algorithms on or off. While it is on, the arena's contents are lost and nothing can be
    /// recorded.
    pub fn set_tuning(&mut self, tuning: bool) {
        self.library.tuning = tuning && self.library.blas.is_some();
    }

    /// The chosen algorithms, in the order of their multiplications; a single entry where this program's own kernels
    /// compute all of them.
    pub fn choices(&self) -> Vec<Choice> {
        let Some(blas) = &self.library.blas else { return vec![self.own()] };
        let mut choices: Vec<Choice> = blas.chosen.iter().map(|c| self.saved(blas, c)).collect();
        choices.sort_by(|a, b| a.product.cmp(&b.product));
        choices
    }

    fn own(&self) -> Choice {
        let gpu = self.hardware.name.clone();
        Choice { product: OWN.to_owned(), algorithm: None, milliseconds: None, library: 0, gpu }
    }

    fn saved(&self, blas: &Blas, chosen: &Chosen) -> Choice {
        Choice {
            product: chosen.shape.to_string(),
            algorithm: chosen.algorithm.as_ref().map(to_hex),
            milliseconds: chosen.milliseconds,
            library: blas.version,
            gpu: self.hardware.name.clone(),
        }
    }

    /// Uses the algorithms of an earlier run, so that the results have the same bits: all of them or, with the reason,
    /// none.
    ///
    /// # Errors
    /// One line for the user: another GPU, another library, or an algorithm that this library does not accept.
    pub fn reuse(&mut self, choices: &[Choice]) -> Result<(), String> {
        const AGAIN: &str = "algorithms are chosen anew, and results differ in their last bits";
        if choices.is_empty() {
            return Ok(());
        }
        if choices.iter().any(|c| c.product == OWN) {
            return match self.library.blas.take() {
                None => Ok(()),
                Some(_) => {
                    Err("the run's products were computed by capful's own kernels, and go on with them for the same \
                                bits; cublasLt, which is here now, would be several times faster in a new run"
                        .to_owned())
                }
            };
        }
        let gpu = &self.hardware.name;
        let Some(blas) = &mut self.library.blas else {
            return Err(format!("the run's products were computed by cublasLt, which is not there now; {AGAIN}"));
        };
        if let Some(other) = choices.iter().find(|c| c.gpu != *gpu || c.library != blas.version) {
            let (now, version) = (gpu, blas.version);
            let Choice { gpu, library, .. } = other;
            return Err(format!(
                "the run's products were tuned for {gpu} with cublasLt {library}, this is {now} with {version}; {AGAIN}"
            ));
        }
        let mut chosen = Vec::new();
        for choice in choices {
            let read = || {
                let shape = choice.product.parse().ok()?;
                let algorithm = match &choice.algorithm {
                    Some(text) => Some(from_hex(text).filter(|a| blas.accepts(&shape, a))?),
                    None => None,
                };
                Some(Chosen { shape, algorithm, milliseconds: choice.milliseconds })
            };
            let product = &choice.product;
            let read = read().ok_or_else(|| format!("cublasLt does not accept its algorithm for {product}; {AGAIN}"));
            chosen.push(read?);
        }
        blas.chosen = chosen;
        Ok(())
    }

    /// The algorithm for a multiplication; `None` where this program's own kernel must compute it.
    pub(crate) fn algorithm(&mut self, call: &Call, p: &Product) -> Result<Option<Algorithm>, OperationError> {
        let Some(blas) = self.library.blas.take() else { return Ok(None) };
        let known = blas.chosen.iter().find(|c| c.shape == call.shape).copied();
        let chosen = known.map_or_else(|| self.choose(&blas, call, p), Ok);
        let blas = self.library.blas.insert(blas);
        let chosen = chosen?;
        if known.is_none() {
            blas.chosen.push(chosen);
        }
        Ok(chosen.algorithm)
    }

    fn choose(&mut self, blas: &Blas, call: &Call, p: &Product) -> Result<Chosen, OperationError> {
        let candidates = blas.candidates(call);
        let candidates = candidates.map_err(|status| self.fail(failed("cublasLtMatmulDescCreate", status)))?;
        let own = self.multiplies(p)?;
        let first = Chosen { shape: call.shape, algorithm: candidates.first().copied(), milliseconds: None };
        // The kernel that saves a pass is the better guess.
        let first = if own && call.shape.with.passes() { Chosen { algorithm: None, ..first } } else { first };
        // Nothing can be timed while a graph is recorded.
        if !self.library.tuning || self.graphs.recording {
            return Ok(first);
        }
        let mut best = Chosen { algorithm: None, ..first };
        self.randomise(call).map_err(|e| self.fail(e))?;
        let flush = self.flush(call);
        for algorithm in candidates {
            // An algorithm that the library proposes and then refuses is left out.
            let Ok(seconds) = self.time_algorithm(blas, call, &algorithm, flush) else { continue };
            let milliseconds = (seconds * 1e3) as f32;
            // An earlier algorithm is preferred unless it is clearly slower, so that the choice is mostly the same the
            // next time.
            if best.milliseconds.is_none_or(|least| milliseconds < 0.97 * least) {
                best = Chosen { algorithm: Some(algorithm), milliseconds: Some(milliseconds), ..first };
            }
        }
        if own && let Some(algorithm) = best.algorithm {
            let whole = self.time_cold(flush, |cuda| {
                let stream = cuda.stream.as_inner().cast();
                let queued = blas.queue(call, &algorithm, stream);
                queued.map_err(|status| cuda.fail(failed("cublasLtMatmul", status)))?;
                cuda.epilogue(p)
            });
            let (whole, ours) = (whole, self.time_cold(flush, |cuda| cuda.product_by_warpgroups(p)));
            let [whole, ours] = [whole, ours].map(|seconds| seconds.map_err(|e| self.fail(e)));
            let (whole, ours) = (whole?, ours?);
            if ours < 0.97 * whole {
                best = Chosen { algorithm: None, milliseconds: Some((ours * 1e3) as f32), ..first };
            }
        }
        // An error of the GPU in the meantime is reported here.
        self.synchronise().map_err(|e| self.fail(e))?;
        Ok(best)
    }

    /// Seconds of a multiplication, with operands that are not in the cache.
    fn time_algorithm(
        &mut self,
        blas: &Blas,
        call: &Call,
        algorithm: &Algorithm,
        flush: [u64; 2],
    ) -> Result<f64, CudaError> {
        let stream = self.stream.as_inner().cast();
        self.time_cold(flush, |cuda| {
            blas.queue(call, algorithm, stream).map_err(|status| cuda.fail(failed("cublasLtMatmul", status)))
        })
    }

    /// Fills the operands of a multiplication with random numbers: multiplying zeros takes less power, and therefore
    /// less time, than any real step.
    fn randomise(&mut self, call: &Call) -> Result<(), CudaError> {
        for (stream, (address, dtype, count)) in call.operands().into_iter().enumerate() {
            let bytes = noise(dtype, count.min(NOISE), stream as u64);
            // SAFETY: an operand of the call, with `count` elements at its address.
            let code = unsafe { sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) };
            CudaError::check("cuMemcpyHtoD", code)?;
            let (mut done, all) = (bytes.len() as u64, count * dtype.size());
            while done < all {
                let more = done.min(all - done);
                let queue = self.stream.as_inner();
                // SAFETY: as above; the source of the copy is before its target.
                let code = unsafe { sys::cuMemcpyDtoDAsync_v2(address + done, address, more as usize, queue) };
                CudaError::check("cuMemcpyDtoDAsync", code)?;
                done += more;
            }
        }
        Ok(())
    }

    /// The range to overwrite so that the operands leave the cache, as its address and its number of words: twice the
    /// size of the cache, or the largest range of the arena outside the operands if that is smaller.
    fn flush(&self, call: &Call) -> [u64; 2] {
        let arena = self.arena_range();
        let mut operands = call.operands().map(|(address, dtype, count)| [address, address + count * dtype.size()]);
        operands.sort_unstable();
        let [first, second] = operands;
        let gaps = [[arena[0], first[0]], [first[1], second[0]], [first[1].max(second[1]), arena[1]]];
        let [begin, end] = gaps.into_iter().max_by_key(|[begin, end]| end.saturating_sub(*begin)).unwrap_or_default();
        let begin = begin.next_multiple_of(4);
        [begin, (end.saturating_sub(begin) / 4).min(2 * self.hardware.cache / 4)]
    }
}

/// Number of distinct random values; not a power of two, so that rows differ too.
const NOISE: u64 = 65_521;

/// Normal numbers as bytes of a type.
pub(crate) fn noise(dtype: Dtype, count: u64, stream: u64) -> Vec<u8> {
    let random = Random::new(0, stream);
    let numbers = (0..count).map(|i| random.normal(i));
    match dtype {
        Dtype::Bf16 => numbers.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        Dtype::E4m3 => numbers.map(|x| Format::E4m3.encode(x)).collect(),
        Dtype::E5m2 => numbers.map(|x| Format::E5m2.encode(x)).collect(),
        // The other types are no operands of timed multiplications.
        _ => numbers.flat_map(f32::to_le_bytes).collect(),
    }
}
