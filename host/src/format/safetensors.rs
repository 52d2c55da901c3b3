//! The safetensors format: a length, a header in JSON, the bytes of the tensors.
//!
//! Files are written in pieces from the device, with storage that does not grow with the model; a file is read header
//! first, so that nothing is used before it was checked.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use capful_core::memory::{Dtype, Entry, Region, Role, Space};
use capful_core::remainder;
use half::{bf16, f16};
use safetensors::tensor::{Dtype as FileDtype, Metadata};

use crate::allocations::{self, Activity};
use crate::device::{DeviceError, Storage};
use crate::digest;
use crate::regular;

/// Why a file could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    /// The file system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file is malformed.
    #[error("{path}: {what}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The file has unusable numbers.
    #[error("{path}: {name} holds numbers that are not finite; it is damaged, use another checkpoint", path = path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl TensorFileError {
    /// Whether this is an interruption and not an error.
    pub fn is_interruption(&self) -> bool {
        matches!(self, TensorFileError::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted)
    }
}

/// A region's shape in files: a vector has one dimension, a matrix two.
pub(super) fn file_shape(region: &Region) -> &[u32] {
    let first = region.shape.iter().position(|&n| n != 1).unwrap_or(3);
    &region.shape[first..]
}

const fn file_type(dtype: Dtype) -> FileDtype {
    match dtype {
        // Remainders are joined with their weights to f32.
        Dtype::F32 | Dtype::Remainder | Dtype::Remainder8 => FileDtype::F32,
        Dtype::Bf16 => FileDtype::BF16,
        Dtype::U32 => FileDtype::U32,
        Dtype::E4m3 => FileDtype::F8_E4M3,
        Dtype::E5m2 => FileDtype::F8_E5M2,
        Dtype::F16 => FileDtype::F16,
        // Blocks are rows of bytes in files.
        Dtype::I8 | Dtype::Moment8 | Dtype::Square8 => FileDtype::I8,
        // The file format has no type with two codes in a byte.
        Dtype::I4 => FileDtype::U8,
    }
}

/// Bytes of a region's tensor in a file.
fn file_bytes(region: &Region) -> u64 {
    match region.dtype {
        Dtype::Remainder | Dtype::Remainder8 => Dtype::F32.size() * region.elements(),
        _ => region.bytes(),
    }
}

/// Counts the bytes written to it.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_header(entries: &[Entry], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"{\"__metadata__\":{\"format\":\"pt\"}")?;
    let mut offset = 0;
    for (name, region) in entries.iter().flat_map(Entry::tensors) {
        write!(out, ",\"{name}\":{{\"dtype\":\"{}\",\"shape\":[", file_type(region.dtype))?;
        for (i, n) in file_shape(&region).iter().enumerate() {
            write!(out, "{}{n}", if i > 0 { "," } else { "" })?;
        }
        let end = offset + file_bytes(&region);
        write!(out, "],\"data_offsets\":[{offset},{end}]}}")?;
        offset = end;
    }
    out.write_all(b"}")
}

/// Bytes before the tensors, and bytes of the whole file.
fn sizes(entries: &[Entry]) -> io::Result<(u64, u64)> {
    let mut header = Counter(0);
    write_header(entries, &mut header)?;
    let begin = 8 + header.0.next_multiple_of(8);
    Ok((begin, begin + entries.iter().flat_map(Entry::tensors).map(|(_, region)| file_bytes(&region)).sum::<u64>()))
}

/// Creates the file of `entries`, each region a tensor: writes its header, and reserves room for the numbers, which
/// [`write_part`] writes.
///
/// # Errors
/// The file system.
pub fn begin(path: &Path, entries: &[Entry]) -> Result<(), TensorFileError> {
    let io = |source| TensorFileError::Io { path: path.to_owned(), source };
    let (begin, bytes) = sizes(entries).map_err(io)?;
    let mut out = BufWriter::with_capacity(8 << 10, File::create(path).map_err(io)?);
    let header = |out: &mut BufWriter<File>| {
        out.write_all(&(begin - 8).to_le_bytes())?;
        let mut counter = Counter(0);
        write_header(entries, &mut counter)?;
        write_header(entries, out)?;
        out.write_all(&b"       "[..(begin - 8 - counter.0) as usize])
    };
    header(&mut out).map_err(io)?;
    let file = out.into_inner().map_err(|e| io(e.into_error()))?;
    file.set_len(bytes).and_then(|()| file.sync_all()).map_err(io)
}

/// Writes the part of rank `rank` of `ranks` to a file that was created, through `staging`, and syncs it: of tables
/// that ranks share the rank's own share, of other tensors a piece in turn. Remainders are joined with their weights,
/// found in `weights`. Returns the digest of the file if a single rank writes all of it.
///
/// # Errors
/// The file system (for example a full disk) or the device.
pub fn write_part(
    path: &Path,
    [entries, weights]: [&[Entry]; 2],
    device: &mut dyn Storage,
    staging: &mut [u8],
    [rank, ranks]: [u32; 2],
) -> Result<Option<u64>, TensorFileError> {
    let io = |source| TensorFileError::Io { path: path.to_owned(), source };
    let (mut at, _) = sizes(entries).map_err(io)?;
    let mut file = File::options().read(true).write(true).open(path).map_err(io)?;
    let mut number = 0;
    for (region, weight) in entries.iter().flat_map(|entry| with_weights(entry, weights)) {
        if weight.is_none() && is_remainder(region.dtype) {
            return Err(DeviceError::Failed("remainders are saved without their weights".to_owned()).into());
        }
        // For remainders both parts and the joined numbers are in the staging buffer: at most eight bytes for each
        // element.
        let times = Dtype::F32.size() / region.dtype.size();
        let most = staging.len() / 8 * region.dtype.size() as usize;
        let [most, times] = if weight.is_some() { [most, times as usize] } else { [staging.len(), 1] };
        in_pieces(region, most, |first, piece| {
            let mut held = device.held(piece);
            if region.space != Space::Shared {
                held.end = if number % ranks == rank { held.end } else { 0 };
                number += 1;
            }
            if held.is_empty() {
                return Ok(());
            }
            let bytes = piece.bytes() as usize;
            let numbers = match weight {
                Some(weight) => {
                    let offset = weight.offset + first / region.dtype.size() * weight.dtype.size();
                    let weight = Region { offset, shape: piece.shape, ..weight };
                    joined([weight, piece], device, staging)?
                }
                None => {
                    device.read(piece, &mut staging[..bytes])?;
                    &staging[..bytes]
                }
            };
            let (first, held) = (first * times as u64, times * held.start..times * held.end);
            file.seek(SeekFrom::Start(at + first + held.start as u64)).map_err(io)?;
            file.write_all(&numbers[held]).map_err(io)
        })?;
        at += file_bytes(&region);
    }
    let synced = if ranks == 1 { sync_and_digest(&file, staging).map(Some) } else { file.sync_all().map(|()| None) };
    synced.map_err(io)
}

/// Syncs a written file, and at the same time reads it through `staging` for its digest: the disk takes longer.
fn sync_and_digest(mut file: &File, staging: &mut [u8]) -> io::Result<u64> {
    file.rewind()?;
    thread::scope(|scope| {
        let sync = || allocations::of_thread(Activity::Save, || file.sync_all());
        let syncing = thread::Builder::new().spawn_scoped(scope, sync)?;
        let digest = digest::of_rest(file, staging);
        syncing.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        digest
    })
}

/// The tensors of `entry`; each tensor of remainders together with its weight, found in `weights`.
fn with_weights<'w>(entry: &Entry, weights: &'w [Entry]) -> impl Iterator<Item = (Region, Option<Region>)> + use<'w> {
    let Entry { slot, .. } = *entry;
    let own = weights.iter().find(|weight| is_remainder(slot.dtype) && weight.slot.name == slot.name);
    let mut own = own.into_iter().flat_map(Entry::tensors);
    entry.tensors().map(move |(_, region)| (region, own.next().map(|(_, weight)| weight)))
}

/// Whether elements are the remainders of bf16 to f32.
const fn is_remainder(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Remainder | Dtype::Remainder8)
}

/// The f32 of a piece of weights and of their remainders, in `staging`, with eight bytes for each element.
fn joined<'s>(
    [weights, remainders]: [Region; 2],
    device: &mut dyn Storage,
    staging: &'s mut [u8],
) -> Result<&'s [u8], DeviceError> {
    let count = weights.elements() as usize;
    let (upper, rest) = staging.split_at_mut(2 * count);
    let (lower, rest) = rest.split_at_mut(remainders.bytes() as usize);
    let whole = &mut rest[..4 * count];
    device.read(weights, upper)?;
    device.read(remainders, lower)?;
    let numbers = upper.as_chunks().0.iter().map(|weight| u16::from_le_bytes(*weight)).zip(whole.as_chunks_mut().0);
    if remainders.dtype == Dtype::Remainder8 {
        numbers.zip(lower).for_each(|((w, to), r)| *to = remainder::join8(w, *r as i8).to_le_bytes());
    } else {
        let lower = lower.as_chunks().0.iter().map(|r| i16::from_le_bytes(*r));
        numbers.zip(lower).for_each(|((w, to), r)| *to = remainder::join(w, r).to_le_bytes());
    }
    Ok(whole)
}

/// Divides a region into pieces of at most `bytes`, and calls a function with each piece and the offset of its first
/// byte in the region.
fn in_pieces(
    region: Region,
    bytes: usize,
    mut visit: impl FnMut(u64, Region) -> Result<(), TensorFileError>,
) -> Result<(), TensorFileError> {
    let size = region.dtype.size();
    let (mut done, most) = (0, bytes as u64 / size);
    while done < region.elements() {
        let count = (region.elements() - done).min(most);
        visit(done * size, Region { offset: region.offset + done * size, shape: [1, 1, 1, count as u32], ..region })?;
        done += count;
    }
    Ok(())
}

/// Receives a row of a tensor, with its number.
pub type VisitRow<'a> = &'a mut dyn FnMut(u32, &[f32]) -> Result<(), TensorFileError>;

/// A file whose header was read and checked.
pub struct TensorFile {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// First byte of the tensors.
    data: u64,
}

/// The longest accepted header: names of a hundred thousand tensors.
const LONGEST_HEADER: u64 = 32 << 20;

impl TensorFile {
    /// Opens a file and checks its header against its length.
    ///
    /// # Errors
    /// A file that is missing, truncated or not a safetensors file.
    pub fn open(path: &Path) -> Result<TensorFile, TensorFileError> {
        let io = |source| TensorFileError::Io { path: path.to_owned(), source };
        let damaged = |what: String| TensorFileError::Damaged { path: path.to_owned(), what };
        let mut file = regular::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| damaged("shorter than a header; it is no safetensors file".into()))?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER || length + 8 > size {
            return Err(damaged(format!("a header of {length} bytes in a file of {size}; it is damaged or truncated")));
        }
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text).map_err(io)?;
        let header: Metadata = serde_json::from_slice(&text)
            .map_err(|e| damaged(format!("its header does not parse ({e}); it is damaged")))?;
        let end = header.tensors().values().map(|t| t.data_offsets.1 as u64).max().unwrap_or(0);
        if length + 8 + end != size {
            return Err(damaged(format!(
                "its header describes {} bytes and it has {size}; it is truncated or damaged",
                length + 8 + end
            )));
        }
        Ok(TensorFile { path: path.to_owned(), file, header, data: length + 8 })
    }

    /// Whether the name of some tensor begins with `prefix`.
    pub fn has(&self, prefix: &str) -> bool {
        self.header.tensors().keys().any(|name| name.starts_with(prefix))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its tensors, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// The element type and the shape of a tensor; `None` if there is no tensor of this name.
    pub fn describe(&self, name: &str) -> Option<(FileDtype, &[usize])> {
        self.header.info(name).map(|info| (info.dtype, info.shape.as_slice()))
    }

    /// The error that the tensor `name` has numbers that are not finite.
    pub(super) fn not_finite(&self, name: &str) -> TensorFileError {
        TensorFileError::NotFinite { path: self.path.clone(), name: name.to_owned() }
    }

    /// Bytes of a tensor; 0 if there is no tensor of this name.
    pub fn bytes(&self, name: &str) -> u64 {
        self.header.info(name).map_or(0, |info| (info.data_offsets.1 - info.data_offsets.0) as u64)
    }

    /// Fills `numbers` with elements of the tensor `name`, in f32, f16 or bf16, from element `first` on; `bytes` is a
    /// buffer.
    ///
    /// # Errors
    /// A tensor that is missing, shorter or of another type; numbers that are not finite.
    pub fn read_numbers(
        &mut self,
        name: &str,
        first: u64,
        numbers: &mut [f32],
        bytes: &mut Vec<u8>,
    ) -> Result<(), TensorFileError> {
        let damaged = |what| TensorFileError::Damaged { path: self.path.clone(), what };
        let info = self.header.info(name).ok_or_else(|| damaged(format!("{name} is missing; the file is damaged")))?;
        let width = match info.dtype {
            FileDtype::F32 => 4,
            FileDtype::F16 | FileDtype::BF16 => 2,
            other => return Err(damaged(format!("{name} is {other:?}; known are F32, F16 and BF16"))),
        };
        let (begin, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let count = numbers.len() as u64;
        let from = first.checked_mul(width).and_then(|at| at.checked_add(begin));
        let to = count.checked_mul(width).zip(from).and_then(|(n, from)| n.checked_add(from));
        let Some((from, _)) = from.zip(to.filter(|to| *to <= end)) else {
            return Err(damaged(format!(
                "{name} ends before element {}; the file is damaged",
                first.saturating_add(count)
            )));
        };
        bytes.resize(numbers.len() * width as usize, 0);
        let io = |source| TensorFileError::Io { path: self.path.clone(), source };
        self.file.seek(SeekFrom::Start(self.data + from)).map_err(io)?;
        self.file.read_exact(bytes).map_err(io)?;
        if !all_finite(bytes, info.dtype) {
            return Err(self.not_finite(name));
        }
        match info.dtype {
            FileDtype::F32 => {
                numbers.iter_mut().zip(bytes.as_chunks().0).for_each(|(y, x)| *y = f32::from_le_bytes(*x))
            }
            FileDtype::F16 => {
                numbers.iter_mut().zip(bytes.as_chunks().0).for_each(|(y, x)| *y = f16::from_le_bytes(*x).to_f32())
            }
            _ => numbers.iter_mut().zip(bytes.as_chunks().0).for_each(|(y, x)| *y = bf16::from_le_bytes(*x).to_f32()),
        }
        Ok(())
    }

    /// Reads every region of `entries` from the tensor of its name. If file and region have different floating-point
    /// types, the numbers are converted, rounded to nearest.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape (the error has both) or another type; numbers that are not finite.
    /// Only the last error is found after some tensors were already written.
    pub fn read_into(
        &mut self,
        entries: &[Entry],
        device: &mut dyn Storage,
        staging: &mut [u8],
    ) -> Result<(), TensorFileError> {
        // The whole header is checked before anything is written: a refused file changes nothing.
        let tensors = || entries.iter().flat_map(|entry| entry.tensors().map(|tensor| (entry.slot.role, tensor)));
        for (_, (name, region)) in tensors() {
            self.find(&name.to_string(), &region)?;
        }
        tensors()
            .try_for_each(|(role, (name, region))| self.read_tensor(&name.to_string(), region, role, device, staging))
    }

    /// Reads the tensor `name` into `region`.
    ///
    /// # Errors
    /// As [`TensorFile::read_into`].
    pub fn read_tensor(
        &mut self,
        name: &str,
        region: Region,
        role: Role,
        device: &mut dyn Storage,
        staging: &mut [u8],
    ) -> Result<(), TensorFileError> {
        let (start, dtype) = self.find(name, &region)?;
        let finite = if file_type(region.dtype) == dtype && !is_remainder(region.dtype) {
            self.copy(start, region, device, staging)?
        } else {
            self.convert(start, dtype, region, device, staging)?
        };
        // Tensors other than parameters and moments may have any bits.
        if !finite && role != Role::State {
            return Err(self.not_finite(name));
        }
        Ok(())
    }

    /// Passes the tensor `name`, with the shape of `region`, row by row in f32 to `visit`.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or of another type; numbers that are not finite; errors of `visit`.
    pub fn rows(&mut self, name: &str, region: &Region, visit: VisitRow<'_>) -> Result<(), TensorFileError> {
        let (start, dtype) = self.find(name, region)?;
        let io = |source| TensorFileError::Io { path: self.path.clone(), source };
        let width = if dtype == FileDtype::F32 { 4 } else { 2 };
        let mut bytes = vec![0; region.columns() as usize * width];
        let mut row = vec![0.0; region.columns() as usize];
        self.file.seek(SeekFrom::Start(start)).map_err(io)?;
        for r in 0..region.rows() {
            self.file.read_exact(&mut bytes).map_err(io)?;
            if !all_finite(&bytes, dtype) {
                return Err(self.not_finite(name));
            }
            let halves = bytes.as_chunks().0.iter().zip(&mut row);
            match dtype {
                FileDtype::F16 => halves.for_each(|(x, y)| *y = f16::from_le_bytes(*x).to_f32()),
                FileDtype::BF16 => halves.for_each(|(x, y)| *y = bf16::from_le_bytes(*x).to_f32()),
                _ => bytes.as_chunks().0.iter().zip(&mut row).for_each(|(x, y)| *y = f32::from_le_bytes(*x)),
            }
            visit(r, &row)?;
        }
        Ok(())
    }

    /// First byte and type of the tensor `name`, if it can be read into `region`.
    ///
    /// # Errors
    /// As [`TensorFile::read_into`].
    pub fn find(&self, name: &str, region: &Region) -> Result<(u64, FileDtype), TensorFileError> {
        let damaged = |what: String| TensorFileError::Damaged { path: self.path.clone(), what };
        let Some(info) = self.header.info(name) else {
            return Err(damaged(format!("it has no tensor {name}; it is of another model")));
        };
        let shape: Vec<_> = file_shape(region).iter().map(|&n| n as usize).collect();
        if info.shape != shape {
            return Err(damaged(format!(
                "{name} is {:?} there and {shape:?} in this run; it is of another shape",
                info.shape
            )));
        }
        let turns = match info.dtype {
            FileDtype::F32 | FileDtype::F16 | FileDtype::BF16 => region.dtype != Dtype::U32,
            // Ids and bytes are not converted to any other type.
            FileDtype::U32 => region.dtype == Dtype::U32,
            FileDtype::I8 => region.dtype == Dtype::I8,
            _ => false,
        };
        if !turns {
            return Err(damaged(format!("{name} is {:?} there and {} in this run", info.dtype, region.dtype.name())));
        }
        Ok((self.data + info.data_offsets.0 as u64, info.dtype))
    }

    /// Fills `bytes` with bytes of the tensor `name`, from byte `at` on.
    ///
    /// # Errors
    /// A tensor that is missing or shorter; a file that cannot be read.
    pub fn read_part(&mut self, name: &str, at: u64, bytes: &mut [u8]) -> Result<(), TensorFileError> {
        let io = |source| TensorFileError::Io { path: self.path.clone(), source };
        let Some(info) = self.header.info(name).filter(|_| at.saturating_add(bytes.len() as u64) <= self.bytes(name))
        else {
            return Err(io(io::ErrorKind::UnexpectedEof.into()));
        };
        self.file.seek(SeekFrom::Start(self.data + info.data_offsets.0 as u64 + at)).map_err(io)?;
        self.file.read_exact(bytes).map_err(io)
    }

    /// Passes the bytes of the tensor `name` in pieces to `visit`.
    ///
    /// # Errors
    /// A file that cannot be read, numbers that are not finite, or errors of `visit`.
    pub fn read_bytes(
        &mut self,
        name: &str,
        staging: &mut [u8],
        visit: &mut dyn FnMut(&[u8]) -> Result<(), TensorFileError>,
    ) -> Result<(), TensorFileError> {
        let Some((dtype, _)) = self.describe(name) else { return Ok(()) };
        let (mut at, end) = (0, self.bytes(name));
        while at < end {
            let count = (end - at).min(staging.len() as u64 / 4 * 4) as usize;
            self.read_part(name, at, &mut staging[..count])?;
            if !all_finite(&staging[..count], dtype) {
                return Err(self.not_finite(name));
            }
            visit(&staging[..count])?;
            at += count as u64;
        }
        Ok(())
    }

    /// Fills a region of another type than the tensor's; returns whether all numbers are finite.
    fn convert(
        &mut self,
        start: u64,
        from: FileDtype,
        region: Region,
        device: &mut dyn Storage,
        staging: &mut [u8],
    ) -> Result<bool, TensorFileError> {
        let (path, file, mut finite) = (&self.path, &mut self.file, true);
        let io = |source| TensorFileError::Io { path: path.clone(), source };
        let width = if from == FileDtype::F32 { 4 } else { 2 };
        // Both forms of a piece are in the staging buffer: at most eight bytes for each element.
        in_pieces(region, staging.len() / 8 * region.dtype.size() as usize, |at, piece| {
            let count = piece.elements() as usize;
            let (read, written) = staging.split_at_mut(count * width);
            let written = &mut written[..count * region.dtype.size() as usize];
            file.seek(SeekFrom::Start(start + at / region.dtype.size() * width as u64)).map_err(io)?;
            file.read_exact(read).map_err(io)?;
            finite &= all_finite(read, from);
            // No loop contains a match, so that each loop is vectorised.
            match from {
                FileDtype::F32 => put(read.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)), region, written),
                FileDtype::F16 => {
                    put(read.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).to_f32()), region, written)
                }
                _ => put(read.as_chunks().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32()), region, written),
            }
            Ok(device.write(piece, written)?)
        })?;
        Ok(finite)
    }

    /// Fills a region of the tensor's type; returns whether all numbers are finite.
    fn copy(
        &mut self,
        start: u64,
        region: Region,
        device: &mut dyn Storage,
        staging: &mut [u8],
    ) -> Result<bool, TensorFileError> {
        let (path, file, mut finite) = (&self.path, &mut self.file, true);
        let io = |source| TensorFileError::Io { path: path.clone(), source };
        in_pieces(region, staging.len(), |from, piece| {
            let staging = &mut staging[..piece.bytes() as usize];
            file.seek(SeekFrom::Start(start + from)).map_err(io)?;
            file.read_exact(staging).map_err(io)?;
            finite &= all_finite(staging, file_type(region.dtype));
            Ok(device.write(piece, staging)?)
        })?;
        Ok(finite)
    }
}

/// Writes the numbers in the type of `region`: unchanged, as remainders, or as bf16, rounded to nearest.
fn put(numbers: impl Iterator<Item = f32>, region: Region, written: &mut [u8]) {
    match region.dtype {
        Dtype::F32 => numbers.zip(written.as_chunks_mut().0).for_each(|(x, y)| *y = x.to_le_bytes()),
        Dtype::Remainder => {
            numbers.zip(written.as_chunks_mut().0).for_each(|(x, y)| *y = remainder::split(x).1.to_le_bytes())
        }
        Dtype::Remainder8 => numbers.zip(written).for_each(|(x, y)| *y = remainder::split8(x).1 as u8),
        _ => numbers.zip(written.as_chunks_mut().0).for_each(|(x, y)| *y = bf16::from_f32(x).to_le_bytes()),
    }
}

/// Whether little-endian numbers of type `dtype` are finite: not all bits of an exponent are set. For types other than
/// f32, f16 and bf16 the result is true.
pub(super) fn all_finite(bytes: &[u8], dtype: FileDtype) -> bool {
    // Without an early exit, so that the loop is vectorised.
    let halves = |mask: u16| {
        let words = bytes.as_chunks().0.iter().map(|x| u16::from_le_bytes(*x) & mask);
        !words.fold(false, |any, exponent| any | (exponent == mask))
    };
    match dtype {
        FileDtype::F32 => {
            let words = bytes.as_chunks().0.iter().map(|x| u32::from_le_bytes(*x) & 0x7f80_0000);
            !words.fold(false, |any, exponent| any | (exponent == 0x7f80_0000))
        }
        FileDtype::BF16 => halves(0x7f80),
        FileDtype::F16 => halves(0x7c00),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_finite_as_their_types_say() {
        for bits in (0..=u32::MAX).step_by(65_521).chain([0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7f7f_ffff, 1]) {
            let number = f32::from_bits(bits);
            assert_eq!(all_finite(&bits.to_le_bytes(), FileDtype::F32), number.is_finite(), "{number}");
            assert!(all_finite(&bits.to_le_bytes(), FileDtype::U32));
        }
        for bits in 0..=u16::MAX {
            let number = bf16::from_bits(bits);
            assert_eq!(all_finite(&bits.to_le_bytes(), FileDtype::BF16), number.is_finite(), "{number}");
            let number = f16::from_bits(bits);
            assert_eq!(all_finite(&bits.to_le_bytes(), FileDtype::F16), number.is_finite(), "{number}");
        }
        let mut many = vec![0; 4096];
        assert!(all_finite(&many, FileDtype::F32));
        many[2051] = 0xff;
        many[2050] = 0x80;
        assert!(!all_finite(&many, FileDtype::F32));
    }
}
