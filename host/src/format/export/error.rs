//! The errors of an export.

use std::path::Path;

use crate::device::DeviceError;
use crate::disk;
use crate::format::safetensors::TensorFileError;

/// Why nothing was exported. Partial output is removed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A wrong request.
    #[error("{0}")]
    Refused(String),
    /// A failure during the work.
    #[error("{0}")]
    Failed(String),
    /// A signal arrived.
    #[error("interrupted; nothing was exported")]
    Interrupted,
}

impl ExportError {
    /// An error of the file system when `path` was created.
    pub fn create(path: &Path, error: &std::io::Error) -> ExportError {
        let text = format!("{}: {error}", path.display());
        if disk::is_full(error) { ExportError::Failed(text) } else { ExportError::Refused(text) }
    }

    /// An error of the file system when a file was written.
    pub fn write(path: &Path, error: &std::io::Error) -> ExportError {
        ExportError::Failed(format!("{}: {error}", path.display()))
    }
}

impl From<TensorFileError> for ExportError {
    fn from(error: TensorFileError) -> Self {
        match error {
            error @ TensorFileError::NotFinite { .. } => ExportError::Failed(error.to_string()),
            error => ExportError::Refused(error.to_string()),
        }
    }
}

impl From<ExportError> for DeviceError {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Refused(what) => DeviceError::Refused(what),
            error => DeviceError::Failed(error.to_string()),
        }
    }
}
