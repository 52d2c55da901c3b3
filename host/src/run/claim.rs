//! A run's directory belongs to one process at a time.
//!
//! A locked file in it says so. The system releases the lock when the process dies, however it dies.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::directory::{self, DirectoryError};
use crate::lock::Lock;

/// The file that is locked. It is there while a process has the directory.
pub const LOCK: &str = "lock";

/// A run's directory, which no other process has. Dropping it gives the directory back, and removes it again where it was
/// made for the claim and nothing was put into it.
#[derive(Debug)]
pub struct Claim {
    dir: PathBuf,
    // Before the directory, which must be empty to be removed.
    _lock: Lock,
    _made: Made,
}

impl Claim {
    /// Claims `dir`, and makes it where it is not there.
    ///
    /// # Errors
    /// Another process has it; it cannot be made.
    pub fn of(dir: &Path) -> Result<Claim, DirectoryError> {
        let busy = || DirectoryError::Refused(format!("{}: {BUSY}", dir.display()));
        Claim::free(dir)?.ok_or_else(busy)
    }

    /// Claims the next free directory runs/PRESET-NNN. One that holds nothing but tokens, of a run that was stopped before
    /// it began, is free.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn next(preset: &str) -> Result<Claim, DirectoryError> {
        let mut numbers = 1..;
        loop {
            let number = numbers.next().unwrap_or(u32::MAX);
            let dir = Path::new("runs").join(format!("{preset}-{number:03}"));
            if directory::require_free(&dir).is_err() {
                continue;
            }
            // Another process may have taken it meanwhile, and may have put a run into it.
            if let Some(claim) = Claim::free(&dir)?
                && directory::require_free(&dir).is_ok()
            {
                return Ok(claim);
            }
        }
    }

    /// Claims `dir` unless another process has it.
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

/// Whether a process has `dir`, as far as the file system can say it.
pub fn is_claimed(dir: &Path) -> bool {
    // A lock that nobody holds is what a process left that died.
    Lock::is_taken(&dir.join(LOCK))
}

const BUSY: &str = "another process trains in this directory; wait for it or stop it, or name another with --out";

/// Directories that were made, the deepest first. Dropping it removes those that are empty.
#[derive(Debug)]
struct Made(Vec<PathBuf>);

impl Made {
    /// Makes `dir` and what is missing above it.
    fn directories(dir: &Path) -> io::Result<Made> {
        let missing = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
        let made = Made(missing.map(Path::to_owned).collect());
        fs::create_dir_all(dir).map(|()| made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for dir in &self.0 {
            // Only what is empty is removed.
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

        // What a process that died left is no claim.
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
                        // It may be removed while it is claimed.
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
