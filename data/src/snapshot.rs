//! The state of a source's files when a run began: the run reads the same bytes whenever it reads the files again.
//!
//! A snapshot stores each file's length, its modification time and a digest of a sample. A file with the same length
//! and time counts as unchanged. Any other file is compared by the digest of the sample: 16 blocks of 64 KiB, the
//! first, the last and others evenly between them; a file of at most 1 MiB is compared whole. A change between the
//! blocks that preserves the length is not detected.

use std::fs::{File, Metadata};
use std::hash::Hasher;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use capful_core::random::stream;
use serde::{Deserialize, Serialize};
use twox_hash::xxhash3_64::Hasher as Digest;

use super::error::SourceError;
use capful_base::regular;

/// Bytes of a block of the sample, and most blocks of a sample.
const BLOCK: u64 = 64 << 10;
const BLOCKS: u64 = 16;

/// The files of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The source's name as the user gave it.
    pub name: String,
    files: Vec<FileSnapshot>,
}

impl Snapshot {
    /// Takes a snapshot of files whose lengths and times are already known.
    pub(super) fn take(name: &str, files: Vec<(PathBuf, FileSnapshot)>) -> Result<Self, SourceError> {
        let digested = files.into_iter().map(|(path, file)| {
            let digest = sample(&path, file.length).map_err(|e| SourceError::io(&path, e))?;
            Ok(FileSnapshot { digest: Some(digest), ..file })
        });
        Ok(Self { name: name.to_owned(), files: digested.collect::<Result<_, _>>()? })
    }

    /// The files in the order of the source, each with its path. A run reads these files, whatever else the directory
    /// contains now.
    pub(super) fn files(&self) -> impl Iterator<Item = (PathBuf, FileSnapshot)> {
        self.files.iter().map(|file| (found(&file.path), file.clone()))
    }

    /// Whether all files are at their paths and still begin with the same bytes.
    pub fn is_there(&self) -> bool {
        self.files().all(|(path, file)| file.check(&path, true).is_ok())
    }

    /// The snapshot with the same files in the source `to`: each must have the same name within the source, the same
    /// length and the same digest.
    ///
    /// # Errors
    /// The first file that is missing or different.
    pub fn moved(&self, to: &str) -> Result<Self, SourceError> {
        let moved = self.files.iter().map(|file| {
            let path = file.within(Path::new(&self.name), Path::new(to))?;
            file.require_same(&path)?;
            Ok(FileSnapshot { path: shown(&path), ..file.clone() })
        });
        Ok(Self { name: to.to_owned(), files: moved.collect::<Result<_, _>>()? })
    }

    /// A hash of the files' names, lengths and samples.
    pub fn fingerprint(&self) -> u64 {
        self.files.iter().fold(0, |hash, file| stream(&format!("{}/{:x?}", file.described(hash), file.digest)))
    }

    /// The fingerprint that earlier versions saved: a hash of names and lengths.
    pub fn former_fingerprint(&self) -> u64 {
        self.files.iter().fold(0, |hash, file| stream(&file.described(hash)))
    }
}

/// The files of a run when it began, as far as snapshots were taken then.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    /// The files of its data; for a mixture, of the first source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Snapshot>,
    /// The files of its separate validation source; for a mixture, of the first source's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Snapshot>,
    /// The files of the other sources of a mixture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Began>,
}

impl Began {
    /// The files of source `number`.
    pub fn of(&self, number: usize) -> Option<&Began> {
        number.checked_sub(1).map_or(Some(self), |number| self.beside.get(number))
    }

    /// The files of source `number`, mutable.
    pub fn of_mut(&mut self, number: usize) -> &mut Began {
        let Some(number) = number.checked_sub(1) else { return self };
        if self.beside.len() <= number {
            self.beside.resize_with(number + 1, Began::default);
        }
        &mut self.beside[number]
    }

    /// Takes the files of source `number` out.
    pub(super) fn take(&mut self, number: usize) -> Began {
        let Began { source, validation, .. } = self.of_mut(number);
        Began { source: source.take(), validation: validation.take(), beside: Vec::new() }
    }
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSnapshot {
    path: String,
    /// Length in bytes.
    pub(super) length: u64,
    /// Modification time since 1970, where the file system stores it.
    pub(super) modified: Option<Duration>,
    /// The format in which it is read, where earlier versions read it as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) format: Option<String>,
    /// The digest of its sample; `None` until it is needed.
    digest: Option<u64>,
}

impl FileSnapshot {
    /// The snapshot of the file at `path` by its `metadata`.
    pub(super) fn look(path: &Path, metadata: &Metadata) -> Self {
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Self { path: shown(path), length: metadata.len(), modified, format: None, digest: None }
    }

    /// The path of this file in a source that has moved from `from` to `to`.
    fn within(&self, from: &Path, to: &Path) -> Result<PathBuf, SourceError> {
        let path = Path::new(&self.path);
        match path.strip_prefix(from) {
            Ok(inner) if !inner.as_os_str().is_empty() => Ok(to.join(inner)),
            Ok(_) if path.file_name() == to.file_name() => Ok(to.to_path_buf()),
            _ => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                Err(SourceError::Altered { path: to.to_path_buf(), what: format!("the file was named {name}") })
            }
        }
    }

    /// Refuses the file at `path` where its content differs, whatever its modification time.
    fn require_same(&self, path: &Path) -> Result<(), SourceError> {
        let length = std::fs::metadata(path).map_err(|e| SourceError::io(path, e))?.len();
        let what = match self.digest {
            _ if length != self.length => format!("it has {length} bytes and had {}", self.length),
            Some(digest) if digest == sample(path, length).map_err(|e| SourceError::io(path, e))? => return Ok(()),
            _ => "its text is another".to_owned(),
        };
        Err(SourceError::Altered { path: path.to_path_buf(), what })
    }

    /// `hash` followed by the file's name, its length and its format, as the text to hash next.
    pub(super) fn described(&self, hash: u64) -> String {
        let name = Path::new(&self.path).file_name().unwrap_or_default().to_string_lossy();
        let format = self.format.iter().map(|format| format!("/{format}")).collect::<String>();
        format!("{hash:x}/{name}/{}{format}", self.length)
    }

    /// Refuses the file at `path` where it has changed. A file of a format that `grows` may have become longer: only
    /// its original bytes are read.
    pub(super) fn check(&self, path: &Path, grows: bool) -> Result<(), SourceError> {
        let io = |e| SourceError::io(path, e);
        let now = Self::look(path, &std::fs::metadata(path).map_err(io)?);
        if (now.length, now.modified) == (self.length, self.modified) {
            return Ok(());
        }
        let altered = |what: String| Err(SourceError::Altered { path: path.to_path_buf(), what });
        if now.length < self.length {
            return altered(format!("{} bytes are left of {}", now.length, self.length));
        }
        if now.length > self.length && !grows {
            return altered(format!(
                "it has {} bytes and had {}; only text and JSON lines may grow",
                now.length, self.length
            ));
        }
        match self.digest {
            Some(digest) if digest != sample(path, self.length).map_err(io)? => {
                altered("its text is another".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The form in which a path is saved and compared.
fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// The path that is saved as `saved`: for a name that is not Unicode, the path that is displayed as `saved`.
fn found(saved: &str) -> PathBuf {
    let path = PathBuf::from(saved);
    if !saved.contains(char::REPLACEMENT_CHARACTER) {
        return path;
    }
    let entries = path.parent().and_then(|parent| parent.read_dir().ok()).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find(|path| shown(path) == saved).unwrap_or(path)
}

/// The digest of a sample of the first `length` bytes.
fn sample(path: &Path, length: u64) -> io::Result<u64> {
    let mut file = regular::open(path)?;
    let mut digest = Digest::new();
    if length <= BLOCK * BLOCKS {
        block(&mut file, 0, length, &mut digest)?;
        return Ok(digest.finish());
    }
    for number in 0..BLOCKS {
        let place = u128::from(length - BLOCK) * u128::from(number) / u128::from(BLOCKS - 1);
        block(&mut file, place as u64, BLOCK, &mut digest)?;
    }
    Ok(digest.finish())
}

fn block(file: &mut File, place: u64, length: u64, digest: &mut Digest) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(length as usize);
    file.seek(SeekFrom::Start(place))?;
    file.take(length).read_to_end(&mut bytes)?;
    Hasher::write(digest, &bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn taken(path: &Path) -> FileSnapshot {
        let file = FileSnapshot::look(path, &fs::metadata(path).unwrap());
        let mut snapshot = Snapshot::take("it", vec![(path.to_path_buf(), file)]).unwrap();
        snapshot.files.remove(0)
    }

    #[test]
    fn what_is_noticed_and_what_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        // 16 blocks, and 15 gaps of one block between them.
        let good: Vec<u8> = (0..31 * BLOCK).map(|i| (i * i % 251) as u8).collect();
        fs::write(&path, &good).unwrap();
        let file = taken(&path);
        let later = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
        };
        for (number, block) in good.chunks(BLOCK as usize).enumerate() {
            for at in [0, block.len() - 1] {
                let mut other = good.clone();
                other[number * BLOCK as usize + at] ^= 1;
                later(&other);
                assert_eq!(file.check(&path, true).is_err(), number % 2 == 0, "block {number}");
            }
        }
        later(&good);
        file.check(&path, false).unwrap();
        // A longer file: accepted where the format may grow and the original bytes are the same.
        let mut longer = good.clone();
        longer.extend(b"more");
        later(&longer);
        file.check(&path, true).unwrap();
        let refused = file.check(&path, false).unwrap_err().to_string();
        assert!(refused.contains("a.txt") && refused.contains("may grow"), "{refused}");
        longer[5] ^= 1;
        later(&longer);
        let refused = file.check(&path, true).unwrap_err().to_string();
        assert!(refused.contains("a.txt") && refused.contains("text is another"), "{refused}");
        later(&good[..100]);
        let refused = file.check(&path, true).unwrap_err().to_string();
        assert!(refused.contains("100 bytes are left of 2031616"), "{refused}");
    }

    #[test]
    fn files_are_known_again_in_another_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let name = |path: &str| at(path).display().to_string();
        for place in ["old", "new"] {
            fs::create_dir(at(place)).unwrap();
            for file in ["a.txt", "b.txt"] {
                fs::write(at(place).join(file), format!("the text of {file}")).unwrap();
            }
        }
        let snapshot = |source: &str, files: &[&str]| {
            let look = |file: &&str| {
                let path = at(file);
                let found = FileSnapshot::look(&path, &fs::metadata(&path).unwrap());
                (path, found)
            };
            Snapshot::take(&name(source), files.iter().map(look).collect()).unwrap()
        };
        let began = snapshot("old", &["old/a.txt", "old/b.txt"]);
        fs::write(at("new/c.txt"), "one more").unwrap();
        let moved = began.moved(&name("new")).unwrap();
        assert_eq!((moved.name.as_str(), moved.fingerprint()), (name("new").as_str(), began.fingerprint()));
        assert_eq!(moved.moved(&name("old")).unwrap(), began);
        assert!(began.is_there() && moved.is_there());
        // A file that is named directly may change its name too.
        let one = snapshot("old/a.txt", &["old/a.txt"]);
        assert_eq!(one.moved(&name("new/a.txt")).unwrap().files[0].path, name("new/a.txt"));
        assert!(one.moved(&name("new/b.txt")).unwrap_err().to_string().contains("was named a.txt"));
        // Another text with the same length and time.
        let time = fs::metadata(at("new/b.txt")).unwrap().modified().unwrap();
        for (text, says) in [("the text of c.txt", "its text is another"), ("the text", "8 bytes and had 17")] {
            fs::write(at("new/b.txt"), text).unwrap();
            File::options().write(true).open(at("new/b.txt")).unwrap().set_modified(time).unwrap();
            let refused = began.moved(&name("new")).unwrap_err().to_string();
            assert!(refused.contains("b.txt") && refused.contains(says), "{refused}");
        }
        fs::remove_file(at("new/b.txt")).unwrap();
        assert!(matches!(began.moved(&name("new")), Err(SourceError::Missing { .. })));
        assert!(began.is_there() && !moved.is_there());
    }

    #[test]
    fn a_small_file_is_compared_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        for length in [1, 1000, (BLOCK * BLOCKS) as usize] {
            let digest = |at: Option<usize>| {
                let mut bytes = vec![b'a'; length];
                at.into_iter().for_each(|at| bytes[at] = b'b');
                fs::write(&path, &bytes).unwrap();
                sample(&path, length as u64).unwrap()
            };
            let good = digest(None);
            for at in (0..length).step_by(1 + length / 7).chain([length - 1]) {
                assert_ne!(digest(Some(at)), good, "{at} of {length}");
            }
        }
    }
}
