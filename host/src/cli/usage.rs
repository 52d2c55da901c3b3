//! What a run took, beside what was planned for it.

use crate::plan::{Plan, memory};
use crate::run::Session;
use crate::run::outcome::Outcome;
use capful_base::human_bytes;

/// Memory of the device that a run was on, and how busy a GPU was.
#[derive(Debug)]
pub(super) struct Usage {
    /// What the plan says is needed at once until training ends: of the GPU where the run was on one, else of main memory.
    pub planned: u64,
    /// The most main memory until then, where the system says. The baselines that follow use what is free.
    pub resident: Option<u64>,
    /// Bytes of the GPU in use by whomever, as its driver reports them at the end of training; nothing without a GPU.
    pub device: Option<u64>,
    /// Share of the run's time in which the GPU had a step under way.
    pub busy: Option<f64>,
}

impl Usage {
    /// Of a run that went as `outcome` says and still holds its arena.
    pub fn of(plan: &Plan, outcome: &Outcome, session: &mut Session) -> Usage {
        let gpu = session.device.gpu();
        let planned = if gpu.is_some() { plan.needed_bytes } else { plan.until_trained() };
        let device = gpu.and_then(|gpu| gpu.used().ok());
        Usage { planned, resident: memory::most_resident(), device, busy: outcome.gpu }
    }

    /// For people.
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
