//! Reads the numbers of exported tensors from a checkpoint's file, in pieces.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use safetensors::Dtype as FileDtype;

use super::element::Element;
use super::error::ExportError;
use super::tensor::{Rows, Tensor, Values};
use crate::format::safetensors::TensorFile;
use crate::format::tensors::Tensors;

/// The most numbers of a piece; a multiple of every block size of quantised tensors.
pub const PIECE: usize = 1 << 20;

/// The most numbers of a factor P in memory: 64 MiB.
const FACTOR: u64 = 16 << 20;

/// The base model of adapters, with which they are merged while it is read: W + α / r · B · A.
struct Beneath {
    base: Tensors,
    scale: f32,
    /// The A that was read last, with its name.
    a: (String, Vec<f32>),
}

/// The weights of a checkpoint, read piece by piece.
pub struct Checkpoint<'s> {
    file: TensorFile,
    /// The base model, if the file contains only adapters.
    beneath: Option<Beneath>,
    path: String,
    stop: &'s AtomicBool,
    numbers: Vec<f32>,
    bytes: Vec<u8>,
}

impl<'s> Checkpoint<'s> {
    /// Opens the file of weights at `path`. `stop` is set when the work should end.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub fn open(path: &Path, stop: &'s AtomicBool) -> Result<Checkpoint<'s>, ExportError> {
        let file = TensorFile::open(path)?;
        let path = path.display().to_string();
        Ok(Checkpoint { file, beneath: None, path, stop, numbers: Vec::new(), bytes: Vec::new() })
    }

    /// A checkpoint of adapters, merged with the weights of `base`: the adapters' contribution is multiplied by
    /// `scale`.
    #[must_use]
    pub fn merged(self, base: Tensors, scale: f32) -> Checkpoint<'s> {
        Checkpoint { beneath: Some(Beneath { base, scale, a: (String::new(), Vec::new()) }), ..self }
    }

    /// Fills `numbers` with elements of the tensor `name`, from element `first` on.
    fn read(&mut self, name: &str, first: u64, numbers: &mut [f32]) -> Result<(), ExportError> {
        let Some(Beneath { base, scale, a: (cached, a) }) = &mut self.beneath else {
            return Ok(self.file.read_numbers(name, first, numbers, &mut self.bytes)?);
        };
        base.read_numbers(name, first, numbers, &mut self.bytes)?;
        let Some([of_a, of_b]) = adapter_of(name) else { return Ok(()) };
        let Some(&[rank, inputs]) = self.file.describe(&of_a).map(|(_, shape)| shape) else { return Ok(()) };
        if *cached != of_a {
            a.resize(rank * inputs, 0.0);
            self.file.read_numbers(&of_a, 0, a, &mut self.bytes)?;
            *cached = of_a;
        }
        let (mut at, mut b) = (first as usize, vec![0.0; rank]);
        let mut left = numbers;
        while !left.is_empty() && inputs > 0 {
            let (row, column) = (at / inputs, at % inputs);
            let (own, behind) = left.split_at_mut((inputs - column).min(left.len()));
            self.file.read_numbers(&of_b, (row * rank) as u64, &mut b, &mut self.bytes)?;
            for (b, a) in b.iter().zip(a.chunks_exact(inputs)) {
                own.iter_mut().zip(&a[column..]).for_each(|(w, a)| *w += *scale * b * a);
            }
            at += own.len();
            left = behind;
        }
        Ok(())
    }

    /// The storage type of a tensor; for a matrix product that of its first factor. Numbers of this program's own are
    /// f32.
    ///
    /// # Errors
    /// Stored tensors that are missing, or whose shape does not fit `tensor`.
    pub fn element(&self, tensor: &Tensor) -> Result<Element, ExportError> {
        let columns = tensor.columns();
        match &tensor.values {
            Values::Numbers(_) => Ok(Element::F32),
            Values::Product([left, right]) => {
                let rank = self.shape(right)?.1.last().copied().unwrap_or(0) as u64;
                self.require(right, columns, rank)?;
                if columns.checked_mul(rank).is_none_or(|n| n > FACTOR) {
                    return Err(ExportError::Refused(format!(
                        "{}: {right} is {columns} × {rank}; a factor of more than {FACTOR} numbers is not multiplied out",
                        self.path
                    )));
                }
                self.require(left, tensor.shape[0], rank)
            }
            Values::Rows(rows) => {
                let mut found = Element::F32;
                for part in rows {
                    found = self.require(&part.tensor, part.first.saturating_add(part.count), columns)?;
                }
                Ok(found)
            }
        }
    }

    fn shape(&self, name: &str) -> Result<(FileDtype, &[usize]), ExportError> {
        let missing = || ExportError::Refused(format!("{}: {name} is missing; the checkpoint is damaged", self.path));
        match &self.beneath {
            None => self.file.describe(name),
            Some(beneath) => beneath.base.describe(name),
        }
        .ok_or_else(missing)
    }

    /// Checks that a stored tensor has at least `rows` of `columns`, and returns its type.
    fn require(&self, name: &str, rows: u64, columns: u64) -> Result<Element, ExportError> {
        let (dtype, shape) = self.shape(name)?;
        let there = match *shape {
            [rows] => [rows, 1],
            [rows, columns] => [rows, columns],
            _ => [0, 0],
        };
        let element = match dtype {
            FileDtype::F32 => Some(Element::F32),
            FileDtype::BF16 => Some(Element::Bf16),
            FileDtype::F16 => Some(Element::F16),
            _ => None,
        };
        match element.filter(|_| there[0] as u64 >= rows && there[1] as u64 == columns) {
            Some(element) => Ok(element),
            None => Err(ExportError::Refused(format!(
                "{}: {name} is {dtype:?} {shape:?} there, and the run's configuration has {rows} × {columns}; restore the \
                 run's config.toml",
                self.path
            ))),
        }
    }

    /// Passes all numbers of `tensor` to `visit` in order, at most [`PIECE`] at a time; all pieces but the last have
    /// exactly that size.
    ///
    /// # Errors
    /// A file that cannot be read, numbers that are not finite, [`ExportError::Interrupted`], and those of `visit`.
    pub fn stream(
        &mut self,
        tensor: &Tensor,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        match &tensor.values {
            Values::Numbers(numbers) => numbers.chunks(PIECE).try_for_each(visit),
            Values::Rows(rows) => self.rows(rows, tensor.columns(), visit),
            Values::Product(factors) => self.product(factors, tensor, visit),
        }
    }

    fn going_on(&self) -> Result<(), ExportError> {
        if self.stop.load(Ordering::Relaxed) { Err(ExportError::Interrupted) } else { Ok(()) }
    }

    fn rows(
        &mut self,
        rows: &[Rows],
        columns: u64,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        self.numbers.clear();
        for part in rows {
            if part.paired {
                for i in 0..part.count {
                    let row = part.first + i / 2 + (i % 2) * (part.count / 2);
                    self.run(&part.tensor, row * columns, columns, visit)?;
                }
            } else {
                self.run(&part.tensor, part.first * columns, part.count * columns, visit)?;
            }
        }
        if self.numbers.is_empty() { Ok(()) } else { visit(&self.numbers) }
    }

    /// Appends a run of elements to the buffer, and passes every complete piece on.
    fn run(
        &mut self,
        name: &str,
        first: u64,
        count: u64,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let mut done = 0;
        while done < count {
            let begun = self.numbers.len();
            let some = ((PIECE - begun) as u64).min(count - done);
            self.numbers.resize(begun + some as usize, 0.0);
            let mut numbers = std::mem::take(&mut self.numbers);
            let read = self.read(name, first + done, &mut numbers[begun..]);
            self.numbers = numbers;
            read?;
            done += some;
            if self.numbers.len() == PIECE {
                self.going_on()?;
                visit(&self.numbers)?;
                self.numbers.clear();
            }
        }
        Ok(())
    }

    fn product(
        &mut self,
        [left, right]: &[std::rc::Rc<str>; 2],
        tensor: &Tensor,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let (rows, columns) = (tensor.shape[0], tensor.columns());
        let rank = self.shape(right)?.1.last().copied().unwrap_or(0);
        let mut factor = vec![0.0; columns as usize * rank];
        self.read(right, 0, &mut factor)?;
        let (mut row, mut out) = (vec![0.0; rank], Vec::with_capacity(PIECE));
        for i in 0..rows {
            self.read(left, i * rank as u64, &mut row)?;
            for column in factor.chunks_exact(rank) {
                out.push(dot(&row, column));
                if out.len() == PIECE {
                    self.going_on()?;
                    visit(&out)?;
                    out.clear();
                }
            }
        }
        if out.is_empty() { Ok(()) } else { visit(&out) }
    }
}

/// The names of A and B in the adapter of the weight `name`, if it has an adapter.
fn adapter_of(name: &str) -> Option<[String; 2]> {
    let stem = name.strip_suffix(".weight")?;
    Some(["A", "B"].map(|which| format!("{stem}.lora_{which}.weight")))
}

/// Σ x y in f32, in eight sums that are added at the end.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let ((x8, x_rest), (y8, y_rest)) = (x.as_chunks::<8>(), y.as_chunks::<8>());
    for (x, y) in x8.iter().zip(y8) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum += x * y;
        }
    }
    let rest: f32 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}
