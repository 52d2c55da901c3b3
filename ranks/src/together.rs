//! Work that succeeds on all ranks or on none.

use super::agreement::{Disagreement, Report, agree};
use super::{PeerError, SharedPeers};

/// Returns this rank's result if the work succeeded on all ranks. `line` formats a failure as one line.
///
/// # Errors
/// This rank's own failure, or else the failure of the first rank that failed, the same on every rank without one of
/// its own.
pub fn together<T, E>(
    peers: Option<&SharedPeers>,
    done: Result<T, E>,
    line: impl Fn(&E) -> String,
    elsewhere: impl Fn(Elsewhere) -> E,
) -> Result<T, E> {
    let Some(peers) = peers else { return done };
    let own = done.as_ref().err().map(line);
    let report = Report { failure: own.as_deref().map(|line| (1, line)), digests: &[] };
    let found = agree(&mut *peers.borrow_mut(), &report);
    match (done, found) {
        (Err(own), _) => Err(own),
        (_, Err(PeerError(what))) => Err(elsewhere(Elsewhere { what })),
        (Ok(done), Ok(None)) => Ok(done),
        (Ok(_), Ok(Some(Disagreement::Failed { rank, what, .. }))) => {
            Err(elsewhere(Elsewhere { what: format!("rank {rank}: {what}") }))
        }
        (Ok(_), Ok(Some(Disagreement::Differs { rank, what }))) => {
            Err(elsewhere(Elsewhere { what: format!("rank {rank} has another {what}") }))
        }
    }
}

/// A failure on another rank, with that rank's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// The failure as one line.
    pub what: String,
}
