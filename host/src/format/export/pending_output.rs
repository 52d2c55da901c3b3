//! A file or directory that receives its final name when it is complete.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::error::ExportError;
use crate::disk;
use crate::lock::Lock;

/// An output under construction: next to its final path, under a hidden name. Dropping it removes a partial output;
/// remains of a killed process are removed by the next export.
#[derive(Debug)]
pub struct PendingOutput {
    out: PathBuf,
    temporary: PathBuf,
    done: bool,
    /// Excludes another process with the same output.
    _lock: Lock,
}

impl PendingOutput {
    /// Prepares the path `out`, where nothing may exist yet.
    ///
    /// # Errors
    /// The path exists already; it has no name, or is in a directory that does not exist.
    pub fn new(out: &Path) -> Result<PendingOutput, ExportError> {
        let refused = |what: &str| ExportError::Refused(format!("{}: {what}", out.display()));
        let name = out.file_name().ok_or_else(|| refused("it names no file or directory"))?;
        let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !parent.is_dir() {
            return Err(refused("its directory does not exist; make it first"));
        }
        let hidden = |end: &str| {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(end);
            parent.join(hidden)
        };
        let lock = Lock::take(&hidden(".lock")).map_err(|e| ExportError::create(out, &e))?;
        let lock = lock.ok_or_else(|| refused("another process writes it; wait for it or name another place"))?;
        let place = PendingOutput { out: out.to_owned(), temporary: hidden(".tmp"), done: false, _lock: lock };
        place.remove();
        require_free(out)?;
        Ok(place)
    }

    /// The temporary path of the output.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Gives the output its final name. Its files must be synced before.
    ///
    /// # Errors
    /// The path exists by now; the file system.
    pub fn keep(mut self) -> Result<(), ExportError> {
        require_free(&self.out)?;
        let failed = |e| ExportError::write(&self.out, &e);
        if self.temporary.is_dir() {
            disk::sync_dir(&self.temporary).map_err(failed)?;
        }
        fs::rename(&self.temporary, &self.out).map_err(failed)?;
        self.done = true;
        let parent = self.out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        disk::sync_dir(parent).inspect_err(|_| remove(&self.out)).map_err(failed)
    }

    fn remove(&self) {
        remove(&self.temporary);
    }
}

impl Drop for PendingOutput {
    fn drop(&mut self) {
        if !self.done {
            self.remove();
        }
    }
}

/// Removes a file or a directory.
fn remove(path: &Path) {
    let _ = fs::remove_dir_all(path);
    let _ = fs::remove_file(path);
}

fn require_free(out: &Path) -> Result<(), ExportError> {
    match fs::symlink_metadata(out) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(ExportError::create(out, &e)),
        Ok(_) => Err(ExportError::Refused(format!("{} is there already; name another place", out.display()))),
    }
}

/// A file that is written sequentially, and synced.
pub struct Written {
    path: PathBuf,
    file: BufWriter<File>,
    /// Bytes written so far.
    pub bytes: u64,
}

impl Written {
    /// Creates the file.
    ///
    /// # Errors
    /// The file system.
    pub fn create(path: &Path) -> Result<Written, ExportError> {
        let file = File::create_new(path).map_err(|e| ExportError::create(path, &e))?;
        Ok(Written { path: path.to_owned(), file: BufWriter::with_capacity(64 << 10, file), bytes: 0 })
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// The file system, for example a full disk.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.file.write_all(bytes).map_err(|e| ExportError::write(&self.path, &e))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the file and returns its number of bytes.
    ///
    /// # Errors
    /// As [`Written::write`].
    pub fn finish(mut self) -> Result<u64, ExportError> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|e| ExportError::write(&self.path, &e))?;
        Ok(self.bytes)
    }
}
