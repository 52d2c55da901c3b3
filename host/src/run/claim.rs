//! A run's directory belongs to one process at a time.
//!
//! A locked file in the directory marks it. The system releases the lock when the process dies, however it dies.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::directory::{self, DirectoryError};
use crate::lock::Lock;

/// The file that is locked. It exists while a process owns the directory.
pub const LOCK: &str = "lock";

/// A run's directory, owned by this process alone. Dropping the claim releases the directory, and removes it if it was
/// created for the claim and is still empty.
#[derive(Debug)]
pub struct Claim {
    dir: PathBuf,
    // Dropped before the directory, which must be empty to be removed.
    _lock: Lock,
    _made: Made,
}

impl Claim {
    /// Claims `dir`, and creates it where it does not exist.
    ///
    /// # Errors
    /// Another process owns it; it cannot be created.
    pub fn of(dir: &Path) -> Result<Claim, DirectoryError> {
        let busy = || DirectoryError::Refused(format!("{}: {BUSY}", dir.display()));
        Claim::free(dir)?.ok_or_else(busy)
    }

    /// Claims the next free directory runs/PRESET-NNN. A directory that contains nothing but tokens, from a run that
    /// was stopped before it started, is free.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn next(preset: &str) -> Result<Claim, DirectoryError> {
        let mut numbers = 1..;
        loop {
            let number = numbers.next().unwrap_or(u32::MAX);
            let dir = Path::new("runs").join(format!("{preset}-{number:03}"));
            if directory::require_free(&dir).is_err() {
                continue;
            }
            // Another process may have claimed the directory in the meantime, and started a run in it.
            if let Some(claim) = Claim::free(&dir)?
                && directory::require_free(&dir).is_ok()
            {
                return Ok(claim);
            }
        }
    }

    /// Claims `dir` unless another process owns it.
    fn free(dir: &Path) -> Result<Option<Claim>, DirectoryError> {
        let failed = |e| DirectoryError::io(dir, &e);
        let made = Made::directories(dir).map_err(failed)?;
        let lock = Lock::take(&dir.join(LOCK)).map_err(failed)?;
        Ok(lock.map(|lock| Claim { dir: dir.to_owned(), _lock: lock, _made: made }))
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Whether a process owns `dir`, as far as the file system can tell.
pub fn is_claimed(dir: &Path) -> bool {
    // A lock file without a lock was left by a process that died.
    Lock::is_taken(&dir.join(LOCK))
}

const BUSY: &str = "another process trains in this directory; wait for it or stop it, or name another with --out";

/// Directories that were created, the deepest first. Dropping it removes those that are empty.
#[derive(Debug)]
struct Made(Vec<PathBuf>);

impl Made {
    /// Creates `dir` and its missing parents.
    fn directories(dir: &Path) -> io::Result<Made> {
        let missing = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
        let made = Made(missing.map(Path::to_owned).collect());
        fs::create_dir_all(dir).map(|()| made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for dir in &self.0 {
            // `remove_dir` removes empty directories only.
            let _ = fs::remove_dir(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_one_claims_at_a_time_and_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        let first = Claim::of(&dir).unwrap();
        let refused = Claim::of(&dir).unwrap_err();
        assert!(matches!(&refused, DirectoryError::Refused(text) if text.contains("another process")), "{refused}");
        drop(first);
        assert!(!root.path().join("a").exists());

        // The remains of a process that died are no claim.
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(LOCK), "").unwrap();
        let second = Claim::of(&dir).unwrap();
        fs::write(dir.join("kept"), "").unwrap();
        drop(second);
        assert!(dir.join("kept").exists() && !dir.join(LOCK).exists());
    }

    #[test]
    fn of_many_at_once_one_has_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("run");
        let had = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        // The directory may be removed while it is being claimed.
                        let Ok(claim) = Claim::of(&dir) else { continue };
                        assert_eq!(had.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        had.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(claim);
                    }
                });
            }
        });
        assert!(!dir.join(LOCK).exists());
    }
}
