//! Opens regular files only: opening a pipe or a device could wait forever.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::words::human_bytes;

/// The most bytes of a settings file: config.toml, config.json. The parsed form takes many times that.
pub const SETTINGS: u64 = 1 << 20;
/// The most bytes of a file that lists special tokens; a few models list thousands.
pub const MARKS: u64 = 16 << 20;
/// The most bytes of a run's own files: a plan, or a state with a line for each data file.
pub const STATE: u64 = 64 << 20;
/// The most bytes of a tokenizer.json. The largest in use have 2^18 tokens and 35 MB.
pub const TOKENIZER: u64 = 256 << 20;

/// Refuses a path that exists and is no regular file.
///
/// # Errors
/// A path that is no regular file, or that cannot be examined.
pub fn require(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Opens a file for reading.
///
/// # Errors
/// A path that does not exist, is no regular file or cannot be read.
pub fn open(path: &Path) -> io::Result<File> {
    require(path)?;
    File::open(path)
}

/// Reads a whole file of at most `most` bytes.
///
/// # Errors
/// As [`open`]; a longer file.
pub fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > most { Err(too_long(most)) } else { bounded(file, most) }
}

/// Reads a whole file of text, of at most `most` bytes.
///
/// # Errors
/// As [`read_at_most`]; bytes that are no UTF-8.
pub fn text_at_most(path: &Path, most: u64) -> io::Result<String> {
    text(read_at_most(path, most)?)
}

/// Reads all of `from`, at most `most` bytes, as text.
///
/// # Errors
/// More than `most` bytes; bytes that are no UTF-8.
pub fn bounded_text(from: impl Read, most: u64) -> io::Result<String> {
    text(bounded(from, most)?)
}

fn bounded(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_long(most)) } else { Ok(bytes) }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8"))
}

fn too_long(most: u64) -> io::Error {
    let what = format!("it is longer than the {} that a file of this kind has at most", human_bytes(most));
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads a whole file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a whole file of text.
///
/// # Errors
/// As [`open`]; bytes that are no UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_a_file_of_its_kind_has() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "four").unwrap();
        assert_eq!(text_at_most(&path, 4).unwrap(), "four");
        assert!(text_at_most(&path, 3).unwrap_err().to_string().contains("than the 3 B"));
        // A source without a length, such as a pipe, is not read to its end either.
        assert!(bounded_text(io::repeat(b'['), 1000).unwrap_err().to_string().contains("than the 1000 B"));
        assert_eq!(bounded_text(&b"text"[..], 4).unwrap(), "text");
        fs::write(&path, [0xff]).unwrap();
        assert!(text_at_most(&path, 4).unwrap_err().to_string().contains("UTF-8"));
    }
}
