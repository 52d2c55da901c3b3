//! Digests of files: XXH3-64, and lists of them as `xxhsum --check` reads them.
//!
//! Digests detect changes by a disk, a copy or a person. They do not protect against somebody who also changes the
//! list.

use std::fmt;
use std::fs::File;
use std::hash::Hasher as _;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use twox_hash::xxhash3_64::Hasher;

use crate::regular;

/// Bytes read at once when a file is read only for its digest.
pub const PIECE: usize = 1 << 20;
/// The longest list that is read.
const LONGEST: u64 = 1 << 20;

/// Computes the digest of the bytes written to it.
#[derive(Clone, Default)]
pub struct Digest(Hasher);

impl Digest {
    /// Adds `bytes`.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The digest of all bytes added.
    pub fn value(&self) -> u64 {
        self.0.finish()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({:016x})", self.value())
    }
}

/// The digest of `bytes`.
pub fn of(bytes: &[u8]) -> u64 {
    let mut digest = Digest::default();
    digest.add(bytes);
    digest.value()
}

/// The digest of `value` as JSON, in hexadecimal digits.
///
/// # Errors
/// A value that JSON cannot represent.
pub fn of_json(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_vec(value).map(|bytes| format!("{:016x}", of(&bytes)))
}

/// The digest of the file at `path`, read through `piece`.
///
/// # Errors
/// A file that cannot be read.
pub fn of_file(path: &Path, piece: &mut [u8]) -> io::Result<u64> {
    of_rest(&regular::open(path)?, piece)
}

/// The digest of an open file from its current position on, read through `piece`.
///
/// # Errors
/// A file that cannot be read.
pub fn of_rest(mut file: &File, piece: &mut [u8]) -> io::Result<u64> {
    let mut digest = Digest::default();
    loop {
        match file.read(piece) {
            Ok(0) => return Ok(digest.value()),
            Ok(count) => digest.add(&piece[..count]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Why files are not what their list says.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// An error of the file system.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The list does not parse.
    #[error("{path} is damaged: line {line} is no line of digests", path = .path.display())]
    List {
        /// The list.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// A file of the list is missing.
    #[error("{path} is missing, and {list} lists it", path = .path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The list's name.
        list: String,
    },
    /// A file differs from the one that was written.
    #[error("{path} is damaged: its content is not what was written, by its digest in {list}", path = .path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// The list's name.
        list: String,
    },
}

/// The digests of files of one directory, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Digests(Vec<(String, u64)>);

impl Digests {
    /// Adds the digest of the file `name`.
    pub fn add(&mut self, name: &str, digest: u64) {
        self.0.push((name.to_owned(), digest));
    }

    /// Reads a list; `None` if the list is empty or missing, as earlier versions left it.
    ///
    /// # Errors
    /// A list that cannot be read or does not parse.
    pub fn read(path: &Path) -> Result<Option<Digests>, DigestError> {
        let io = |source| DigestError::Io { path: path.to_owned(), source };
        let mut text = Vec::new();
        match regular::open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(io)?.take(LONGEST).read_to_end(&mut text).map_err(io)?,
        };
        if text.is_empty() {
            return Ok(None);
        }
        let damaged = |line| DigestError::List { path: path.to_owned(), line };
        let lines = text.split_inclusive(|byte| *byte == b'\n').enumerate();
        let lines = lines.map(|(i, line)| line_of(line).ok_or_else(|| damaged(i + 1)));
        lines.collect::<Result<Vec<_>, _>>().map(|files| Some(Digests(files)))
    }

    /// The names of the files in the list.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Compares the files of `dir` that `wanted` selects with this list, whose file in `dir` is named `list`.
    ///
    /// # Errors
    /// The first file that cannot be read or differs.
    pub fn check(&self, dir: &Path, list: &str, wanted: impl Fn(&str) -> bool) -> Result<(), DigestError> {
        let mut piece = Vec::new();
        for (name, digest) in self.0.iter().filter(|(name, _)| wanted(name)) {
            let path = dir.join(name);
            piece.resize(PIECE, 0);
            match of_file(&path, &mut piece) {
                Ok(found) if found == *digest => {}
                Ok(_) => return Err(DigestError::Differs { path, list: list.to_owned() }),
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Err(DigestError::Missing { path, list: list.to_owned() });
                }
                Err(source) => return Err(DigestError::Io { path, source }),
            }
        }
        Ok(())
    }
}

/// The lines of a list.
impl fmt::Display for Digests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, digest)| writeln!(f, "XXH3 ({name}) = {digest:016x}"))
    }
}

/// The name and digest of a line, which includes its end. Only a line as [`Digests`] itself writes it is accepted, so
/// that no changed bit of a list is overlooked.
fn line_of(line: &[u8]) -> Option<(String, u64)> {
    let text = std::str::from_utf8(line).ok()?;
    let (name, digits) = text.strip_prefix("XXH3 (")?.strip_suffix('\n')?.rsplit_once(") = ")?;
    // A name in a list may have been changed: only plain file names are accepted.
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']);
    let digest = u64::from_str_radix(digits, 16).ok()?;
    (plain && format!("{digest:016x}") == digits).then(|| (name.to_owned(), digest))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// `printf 'hello world\n' | xxhsum -H3` and `seq 1 100000 | xxhsum -H3`.
    #[test]
    fn digests_are_those_of_xxhsum() {
        assert_eq!(of(b"hello world\n"), 0xd42f_7ed4_b73c_6bde);
        let numbers: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
        assert_eq!(of(numbers.as_bytes()), 0x2881_c599_0722_9fa4);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("numbers");
        fs::write(&path, &numbers).unwrap();
        for piece in [1, 63, PIECE] {
            assert_eq!(of_file(&path, &mut vec![0; piece]).unwrap(), 0x2881_c599_0722_9fa4);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_file_or_of_the_list_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut digests = Digests::default();
        for (name, content) in [("a.bin", &b"some bytes"[..]), ("empty", b""), ("odd (name) = x", b"1")] {
            fs::write(at(name), content).unwrap();
            digests.add(name, of(content));
        }
        let list = at("LIST");
        fs::write(&list, digests.to_string()).unwrap();
        let check = || match Digests::read(&list)? {
            Some(digests) => digests.check(dir.path(), "LIST", |_| true),
            None => Ok(()),
        };
        check().unwrap();
        assert_eq!(Digests::read(&list).unwrap().unwrap(), digests);
        for name in ["a.bin", "odd (name) = x", "LIST"] {
            let good = fs::read(at(name)).unwrap();
            for bit in 0..8 * good.len() {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                fs::write(at(name), bad).unwrap();
                let refused = check().expect_err(name).to_string();
                // A changed bit may have made another file's name.
                assert!(refused.contains(name) && refused.lines().count() == 1, "{name} {bit}: {refused}");
            }
            fs::write(at(name), good).unwrap();
        }
        fs::write(at("empty"), "x").unwrap();
        assert!(check().unwrap_err().to_string().contains("empty is damaged"));
        fs::remove_file(at("empty")).unwrap();
        assert!(check().unwrap_err().to_string().contains("empty is missing, and LIST lists it"));
        // What earlier versions wrote.
        fs::write(&list, "").unwrap();
        check().unwrap();
        fs::remove_file(&list).unwrap();
        check().unwrap();
    }
}
