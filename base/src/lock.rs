//! A file that one process at a time locks. The system releases the lock when the process dies, however it dies.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A locked file. Dropping it removes the file.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// Locked while it is open; `None` if the file system has no locks.
    file: Option<File>,
}

impl Lock {
    /// Creates and locks the file at `path`; `None` if another process has locked it.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn take(path: &Path) -> io::Result<Option<Lock>> {
        loop {
            let file = File::create(path)?;
            let file = match file.try_lock() {
                // The previous owner may have removed the file between opening and locking.
                Ok(()) if !is_at(&file, path) => continue,
                Ok(()) => Some(file),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => None,
                Err(TryLockError::Error(e)) => return Err(e),
            };
            return Ok(Some(Lock { path: path.to_owned(), file }));
        }
    }

    /// Whether a process has locked the file at `path`.
    pub fn is_taken(path: &Path) -> bool {
        File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is removed before it is unlocked, so that another process' file is never removed.
        let _ = fs::remove_file(&self.path);
        self.file = None;
    }
}

/// Whether `file` is still the file at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let numbers = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => numbers(a) == numbers(b),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}
