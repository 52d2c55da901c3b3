//! Opens regular files only: a pipe or a device of a file's name would be waited for, perhaps for ever.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// Refuses what is there and is no regular file.
///
/// # Errors
/// It is none, or cannot be looked at.
pub fn require(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Opens a file to read it.
///
/// # Errors
/// It is not there, no regular file or cannot be read.
pub fn open(path: &Path) -> io::Result<File> {
    require(path)?;
    File::open(path)
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
