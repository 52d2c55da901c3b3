//! A file that one process at a time has locked. The system releases the lock when the process dies, however it dies.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A locked file. Dropping it removes the file.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// Locked while it is open; none where the file system has no locks.
    file: Option<File>,
}

impl Lock {
    /// Makes and locks the file at `path`; nothing where another process has locked it.
    ///
    /// # Errors
    /// The file system.
    pub fn take(path: &Path) -> io::Result<Option<Lock>> {
        loop {
            let file = File::create(path)?;
            let file = match file.try_lock() {
                // Whoever had it may have removed it between the two.
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
        // Removed before it is unlocked, so that nobody else's file is removed.
        let _ = fs::remove_file(&self.path);
        self.file = None;
    }
}

/// Whether `file` is still what lies at `path`.
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
