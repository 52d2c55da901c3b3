//! Files that are replaced whole, and what a disk without room says.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Error, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

/// Whether there was no room to write: a failure while working, and no wrong request.
pub fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// The name that a file has while [`replace`] writes it.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".tmp");
    name.into()
}

/// Writes `bytes` to the file at `path`. Whoever reads it finds what was there before or all of `bytes`, also after a
/// crash.
///
/// # Errors
/// The file system; what was there before stays, and nothing else is left.
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

/// Syncs the directory `dir`: the names in it are then on the disk.
///
/// # Errors
/// The file system.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all())
}
