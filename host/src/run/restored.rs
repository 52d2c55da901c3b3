//! The initial state of a run that continues.

use std::path::Path;

use super::Session;
use super::averages::AverageKind;
use super::base::Base;
use super::checkpoint::{self, TrainerState, Wanted};
use crate::config::Config;
use crate::data::snapshot::Snapshot;
use crate::device::DeviceError;

/// Reads the checkpoint `from` into the session. Returns the run's state in place of `fresh`: the state that was
/// `saved` there.
pub(super) fn restore(
    from: &Path,
    saved: TrainerState,
    fresh: TrainerState,
    config: &Config,
    session: &mut Session,
) -> Result<TrainerState, DeviceError> {
    // Versions that did not read the files' content saved another fingerprint of them.
    let former = fresh.source.as_ref().filter(|_| saved.source.is_none()).map(Snapshot::former_fingerprint);
    let data = saved.data == fresh.data || former == Some(saved.data);
    for (what, same) in [("tokenizer", saved.tokenizer == fresh.tokenizer), ("data", data)] {
        if !same {
            return Err(DeviceError::Refused(format!(
                "{} was made with another {what} than is there now; restore the {what} or start a new run",
                from.display()
            )));
        }
    }
    let lasting = session.laid.lasting.clone();
    // Another kind of average starts anew.
    let kind = config.averaging().map(|averaging| AverageKind::of(&averaging));
    let averaged = saved.averaged.filter(|averaged| Some(averaged.kind) == kind);
    let wanted = Wanted::Run { averages: averaged.is_some() };
    if let Some(base) = Base::named(config, Some(&saved))? {
        base.restore(&lasting, &config.family(), &mut session.storage())?;
    }
    checkpoint::restore(from, &lasting, wanted, &mut session.storage())?;
    session.count_history()?;
    let TrainerState { device, version, data, source, validation, beside, evaluations, .. } = fresh;
    let evaluations = evaluations.map(|none| saved.evaluations.unwrap_or(none));
    Ok(TrainerState { device, version, data, source, validation, beside, evaluations, averaged, ..saved })
}
