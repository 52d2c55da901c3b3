//! Replaces files as a whole, and recognises a full disk.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Error, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Whether the error means that there was no room to write: a failure during work, not a wrong request.
pub fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// The name of a file while [`replace`] writes it.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".tmp");
    name.into()
}

/// Writes `bytes` to the file at `path`. A reader finds either the previous content or all of `bytes`, even after a
/// crash.
///
/// # Errors
/// An error of the file system; the previous content stays, and no other file is left.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Syncs the directory `dir`: after that its file names are on the disk.
///
/// # Errors
/// An error of the file system.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all())
}
