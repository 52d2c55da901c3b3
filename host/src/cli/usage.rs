//! The resources that a run used, next to its plan.

use crate::plan::{Plan, memory};
use crate::run::Session;
use crate::run::outcome::Outcome;
use capful_base::human_bytes;

/// The memory of a run's device, and the load of a GPU.
#[derive(Debug)]
pub(super) struct Usage {
    /// The planned bytes in use at the same time until training ends: of the GPU if the run is on one, else of main
    /// memory.
    pub planned: u64,
    /// The most main memory until then, if the system tells. The baselines that follow use free memory.
    pub resident: Option<u64>,
    /// Bytes of the GPU in use by any process, according to its driver at the end of training; `None` without a GPU.
    pub device: Option<u64>,
    /// Share of the run's time in which the GPU had a step under way.
    pub busy: Option<f64>,
}

impl Usage {
    /// The usage of a run with this `outcome` that still has its arena.
    pub fn of(plan: &Plan, outcome: &Outcome, session: &mut Session) -> Usage {
        let gpu = session.device.gpu();
        let planned = if gpu.is_some() { plan.needed_bytes } else { plan.until_trained() };
        let device = gpu.and_then(|gpu| gpu.used().ok());
        Usage { planned, resident: memory::most_resident(), device, busy: outcome.gpu }
    }

    /// The usage as a line for people.
    pub fn line(&self) -> String {
        let planned = format!("{} planned", human_bytes(self.planned));
        if let Some(busy) = self.busy {
            let used = self.device.map_or("not known".to_owned(), human_bytes);
            return format!("memory in use on the GPU {used}, {planned}; busy {:.0} % of the time", 100.0 * busy);
        }
        let used = self.resident.map_or("not known".to_owned(), human_bytes);
        format!("memory in use at most {used}, {planned}")
    }
}
