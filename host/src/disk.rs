//! What a disk without room says.

use std::io::{Error, ErrorKind};

/// Whether there was no room to write: a failure while working, and no wrong request.
pub fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}
