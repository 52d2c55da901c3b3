//! The tensors of a model directory: one safetensors file, or several with an index.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use capful_core::memory::{Entry, Region};
use safetensors::Dtype as FileDtype;
use serde::Deserialize;

use super::quantise;
use super::safetensors::{TensorFile, TensorFileError, VisitRow};
use crate::device::Storage;
use crate::regular;

/// The name of a single file.
pub const FILE: &str = "model.safetensors";
/// The file that says which of several files contains a tensor.
const INDEX: &str = "model.safetensors.index.json";
/// The longest accepted index: names of a hundred thousand tensors.
const LONGEST_INDEX: u64 = 32 << 20;
/// Bytes copied at once.
const STAGING: usize = 1 << 20;

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// A tensor: its name here, and its file and its name in that file.
struct TensorLocation {
    called: String,
    file: usize,
    name: String,
}

/// Opened and checked files; each tensor is in one of them.
pub struct Tensors {
    files: Vec<TensorFile>,
    /// The tensors, in the order of the files and of their bytes.
    places: Vec<TensorLocation>,
    /// The index in `places` of each name.
    index: HashMap<String, usize>,
}

fn damaged(path: PathBuf, what: String) -> TensorFileError {
    TensorFileError::Damaged { path, what }
}

impl Tensors {
    /// Opens the files of `dir` and checks their headers, and the index if there is one.
    ///
    /// # Errors
    /// No file, a damaged file, an index that names files in other directories or missing tensors.
    pub fn open(dir: &Path) -> Result<Tensors, TensorFileError> {
        let index = dir.join(INDEX);
        if dir.join(FILE).exists() || !index.exists() {
            let other =
                ["pytorch_model.bin", "pytorch_model.bin.index.json"].into_iter().find(|f| dir.join(f).exists());
            if let Some(other) = other.filter(|_| !dir.join(FILE).exists()) {
                let what = format!("it is a pickle, which can run code; save the model as {FILE} with transformers");
                return Err(damaged(dir.join(other), what));
            }
            if !dir.join(FILE).exists() {
                let what = format!("it is missing, and so is {INDEX}; put the weights beside the model's config.json");
                return Err(damaged(dir.join(FILE), what));
            }
            return Ok(Tensors::of(vec![TensorFile::open(&dir.join(FILE))?]));
        }
        let io = |source| TensorFileError::Io { path: index.clone(), source };
        let length = regular::open(&index).and_then(|file| file.metadata()).map_err(io)?.len();
        if length > LONGEST_INDEX {
            return Err(damaged(index, format!("{length} bytes are more than an index has; it is damaged")));
        }
        let text = regular::read(&index).map_err(io)?;
        let Index { weight_map } = serde_json::from_slice(&text)
            .map_err(|e| damaged(index.clone(), format!("it does not parse ({e}); it is damaged")))?;
        let mut names: Vec<&String> = weight_map.values().collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Err(damaged(index, "it names no file; it is damaged".to_owned()));
        }
        let mut files = Vec::new();
        for name in names {
            // A file name in an index is checked for being a plain name.
            let plain = name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0']) && !name.starts_with('.');
            if !plain {
                let what = format!("it names a file {name:?}; it must name .safetensors files beside it");
                return Err(damaged(index, what));
            }
            files.push((name.as_str(), TensorFile::open(&dir.join(name))?));
        }
        let mut seen = HashSet::new();
        for (file, there) in &files {
            for name in there.names() {
                if weight_map.get(&name).map(String::as_str) != Some(file) || !seen.insert(name.clone()) {
                    return Err(damaged(index, format!("it does not say that {name} is in {file}; it is damaged")));
                }
            }
        }
        if let Some(name) = weight_map.keys().find(|name| !seen.contains(*name)) {
            return Err(damaged(index, format!("it says that {name} is in {}, which has none", weight_map[name])));
        }
        Ok(Tensors::of(files.into_iter().map(|(_, file)| file).collect()))
    }

    /// Files without a common tensor.
    fn of(files: Vec<TensorFile>) -> Tensors {
        let of_file = |(file, there): (usize, &TensorFile)| {
            there.names().into_iter().map(move |name| TensorLocation { called: name.clone(), file, name })
        };
        let places: Vec<TensorLocation> = files.iter().enumerate().flat_map(of_file).collect();
        let index = places.iter().enumerate().map(|(i, place)| (place.called.clone(), i)).collect();
        Tensors { files, places, index }
    }

    /// Renames all tensors: each gets the name that `of` returns for its name in the file.
    ///
    /// # Errors
    /// Two tensors would get the same name.
    pub fn call(&mut self, of: impl Fn(&str) -> String) -> Result<(), TensorFileError> {
        self.index.clear();
        for i in 0..self.places.len() {
            let called = of(&self.places[i].name);
            if let Some(other) = self.index.insert(called.clone(), i) {
                let TensorLocation { file, name, .. } = &self.places[i];
                let what = format!("{} and {name} are both {called}; take one of them away", self.places[other].name);
                return Err(damaged(self.files[*file].path().to_owned(), what));
            }
            self.places[i].called = called;
        }
        Ok(())
    }

    /// As [`TensorFile::describe`], by a tensor's name here.
    pub fn describe(&self, name: &str) -> Option<(FileDtype, &[usize])> {
        let place = &self.places[*self.index.get(name)?];
        self.files[place.file].describe(&place.name)
    }

    /// As [`TensorFile::read_numbers`], by a tensor's name here.
    ///
    /// # Errors
    /// As in [`TensorFile::read_numbers`].
    pub fn read_numbers(
        &mut self,
        name: &str,
        first: u64,
        numbers: &mut [f32],
        bytes: &mut Vec<u8>,
    ) -> Result<(), TensorFileError> {
        let (file, there) = self.file(name);
        file.read_numbers(&there, first, numbers, bytes)
    }

    /// The paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(TensorFile::path)
    }

    fn has(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// The file that contains the tensor, and its name there; or the first file, which then reports that it has no such
    /// tensor.
    fn file(&mut self, name: &str) -> (&mut TensorFile, String) {
        let place = self.index.get(name).map(|i| &self.places[*i]);
        let (file, there) = place.map_or((0, name.to_owned()), |place| (place.file, place.name.clone()));
        (&mut self.files[file], there)
    }

    /// Checks that the existing tensors are exactly the parameters of `entries`, except for tensors that `ignored`
    /// accepts and, if `tied` is given, a head that equals the embedding.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape or type, or that belongs to no parameter; the two tensors of `tied`
    /// differ.
    pub fn require(
        &mut self,
        entries: &[Entry],
        tied: Option<[&str; 2]>,
        ignored: impl Fn(&str) -> bool,
    ) -> Result<(), TensorFileError> {
        let mut known = HashSet::new();
        for (name, region) in entries.iter().flat_map(Entry::tensors) {
            let name = name.to_string();
            let (file, there) = self.file(&name);
            file.find(&there, &region)?;
            known.insert(name);
        }
        let head = |name: &str| tied.is_some_and(|[head, _]| head == name);
        let left = |name: &str| !known.contains(name) && !ignored(name) && !head(name);
        if let Some(TensorLocation { file, name, .. }) = self.places.iter().find(|place| left(&place.called)) {
            let what = format!("its tensor {name} is no parameter of the model in config.json");
            return Err(damaged(self.files[*file].path().to_owned(), what));
        }
        match tied {
            Some([head, embedding]) if self.has(head) => {
                if self.same([head, embedding])? {
                    return Ok(());
                }
                let what = format!("{head} differs from {embedding}, and config.json says that they are one");
                Err(damaged(self.file(head).0.path().to_owned(), what))
            }
            _ => Ok(()),
        }
    }

    /// Whether two tensors are equal, bit for bit.
    fn same(&mut self, names: [&str; 2]) -> Result<bool, TensorFileError> {
        let [one, other] = names.map(|name| {
            let (file, there) = self.file(name);
            format!("{:?}", file.describe(&there))
        });
        let (file, there) = self.file(names[0]);
        let bytes = file.bytes(&there);
        let mut pieces = [vec![0; STAGING], vec![0; STAGING]];
        let mut at = 0;
        while one == other && at < bytes {
            let count = (bytes - at).min(STAGING as u64) as usize;
            for (name, piece) in names.into_iter().zip(&mut pieces) {
                let (file, there) = self.file(name);
                file.read_part(&there, at, &mut piece[..count])?;
            }
            if pieces[0][..count] != pieces[1][..count] {
                return Ok(false);
            }
            at += count as u64;
        }
        Ok(one == other)
    }

    /// Reads every region of `entries` from the tensor of its name, as [`TensorFile::read_into`].
    ///
    /// # Errors
    /// As in [`TensorFile::read_into`].
    pub fn read_into(&mut self, entries: &[Entry], device: &mut dyn Storage) -> Result<(), TensorFileError> {
        let tensors = || entries.iter().flat_map(|entry| entry.tensors().map(|tensor| (entry.slot.role, tensor)));
        for (_, (name, region)) in tensors() {
            let (file, there) = self.file(&name.to_string());
            file.find(&there, &region)?;
        }
        let mut staging = vec![0; STAGING];
        tensors().try_for_each(|(role, (name, region))| {
            let (file, there) = self.file(&name.to_string());
            file.read_tensor(&there, region, role, device, &mut staging)
        })
    }

    /// Reads entries in integers, whose scales are among `scales`.
    ///
    /// # Errors
    /// As in [`TensorFile::read_into`].
    pub fn quantise_into(
        &mut self,
        entries: &[Entry],
        scales: &[Entry],
        device: &mut dyn Storage,
    ) -> Result<(), TensorFileError> {
        let mut rows = |name: &str, of: &Region, visit: VisitRow<'_>| {
            let (file, there) = self.file(name);
            file.rows(&there, of, visit)
        };
        quantise::read_into(&mut rows, entries, scales, device)
    }

    /// Writes the tensors of `entries`, unchanged and with their names here, into one file at `path`, and syncs it.
    /// Returns the file's bytes.
    ///
    /// # Errors
    /// A file that cannot be read or written, numbers that are not finite, or a set `stop`.
    pub fn copy(&mut self, entries: &[Entry], path: &Path, stop: &AtomicBool) -> Result<u64, TensorFileError> {
        let io = |source| TensorFileError::Io { path: path.to_owned(), source };
        let names: Vec<_> = entries.iter().flat_map(Entry::tensors).map(|(name, _)| name.to_string()).collect();
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".to_owned(), serde_json::json!({ "format": "pt" }));
        let mut offset = 0;
        for name in &names {
            let (file, there) = self.file(name);
            let Some((dtype, shape)) = file.describe(&there) else { continue };
            let bytes = file.bytes(&there);
            let described = serde_json::json!({
                "dtype": dtype.to_string(), "shape": shape, "data_offsets": [offset, offset + bytes],
            });
            header.insert(name.clone(), described);
            offset += bytes;
        }
        let mut text = serde_json::to_vec(&header).map_err(|e| io(e.into()))?;
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut out = BufWriter::new(File::create(path).map_err(io)?);
        out.write_all(&(text.len() as u64).to_le_bytes()).and_then(|()| out.write_all(&text)).map_err(io)?;
        let mut staging = vec![0; STAGING];
        for name in &names {
            let (file, there) = self.file(name);
            file.read_bytes(&there, &mut staging, &mut |piece| match stop.load(Ordering::Relaxed) {
                true => Err(io(std::io::ErrorKind::Interrupted.into())),
                false => out.write_all(piece).map_err(io),
            })?;
        }
        out.into_inner().map_err(|e| io(e.into_error()))?.sync_all().map_err(io)?;
        Ok(8 + text.len() as u64 + offset)
    }
}
