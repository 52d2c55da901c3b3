//! The ranks of a command that several processes run together.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::output::{tell, urgent};
use super::{Failure, raise, request, shown, work};
use crate::config::{Config, RawConfig};
use crate::plan::Plan;
use crate::ranks::agreement::{Disagreement, Report, agree, share_text};
use crate::ranks::watch::Watch;
use crate::ranks::{self, PeerError, Rank, SharedPeers, Transport, environment, share_numbers};
use crate::regular;

/// This process as one of the ranks. Only rank 0 prints, claims the run's directory and writes files other than
/// tensors.
pub(super) struct Team {
    rank: Rank,
    /// Whether each rank trains on a GPU.
    gpus: bool,
    /// Set by a signal, once the run listens to signals.
    stop: Arc<AtomicBool>,
    peers: Option<SharedPeers>,
    /// Whether all ranks know this rank's failure, or it has none.
    known: Cell<bool>,
}

/// Whether, according to a launcher, another rank prints for this one.
pub(super) fn follows() -> bool {
    environment::rank(&variable).is_ok_and(|rank| rank.is_some_and(|rank| rank.rank > 0))
}

/// Whether a launcher started several processes.
pub(super) fn launched() -> bool {
    environment::rank(&variable).is_ok_and(|rank| rank.is_some_and(|rank| rank.count > 1))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Team {
    /// Joins the ranks that a launcher started, if one did, to train on GPUs if `gpus` returns true, or else on CPUs.
    pub fn join(gpus: impl FnOnce() -> bool) -> Result<Team, Failure> {
        let found = environment::rank(&variable).map_err(request)?;
        let rank = found.unwrap_or(Rank { rank: 0, count: 1, local: 0 });
        let gpus = found.is_some() && gpus();
        let stop = Arc::new(AtomicBool::new(false));
        let transport = if gpus { Transport::Nccl } else { Transport::Mpi };
        let watch = Watch::new(rank.rank, Arc::clone(&stop));
        let peers = found.map(|rank| ranks::join(rank, transport, watch)).transpose().map_err(request)?;
        Ok(Team { rank, gpus, stop, peers, known: Cell::new(false) })
    }

    /// Starts to limit waits, and checks that all ranks run the same program.
    pub fn begin(&self) -> Result<(), Failure> {
        let Some(peers) = &self.peers else { return Ok(()) };
        let watch = peers.borrow().watch();
        let begun = watch.map_or(Ok(()), |watch| watch.begin(&variable)).map_err(request).and_then(|()| own_digest());
        let program = begun.as_ref().copied().unwrap_or_default();
        self.agree(begun.map(drop), &[("program", program)])
    }

    /// Whether this rank prints and writes for all.
    pub fn leads(&self) -> bool {
        self.rank.rank == 0
    }

    /// The other ranks.
    pub fn peers(&self) -> Option<SharedPeers> {
        self.peers.clone()
    }

    /// Writes this rank into a configuration.
    pub fn write(&self, written: RawConfig) -> Result<RawConfig, Failure> {
        let mut device = written.device;
        if self.gpus && self.peers.is_some() {
            if let Some(one) = device.filter(|device| device != "cuda") {
                return Err(request(format!(
                    "--device {one}: several ranks were started, and each uses the GPU of its number on its machine; use \
                     --device cuda"
                )));
            }
            device = Some(format!("cuda:{}", environment::gpu(self.rank, &variable)));
        }
        Ok(RawConfig { rank: Some(self.rank.rank), ranks: Some(self.rank.count), device, ..written })
    }

    /// The result of a piece of work, if it succeeded on all ranks and their `digests` are equal.
    pub fn agree<T>(&self, done: Result<T, Failure>, digests: &[(&'static str, u64)]) -> Result<T, Failure> {
        let Some(peers) = &self.peers else { return done };
        let line = done.as_ref().err().map(|failure| (failure.status(), failure.to_string()));
        let report = Report { failure: line.as_ref().map(|(status, line)| (*status, line.as_str())), digests };
        let found = agree(&mut *peers.borrow_mut(), &report).map_err(|PeerError(what)| work(what))?;
        let Some(found) = found else { return done };
        self.known.set(true);
        let (rank, status, what) = match found {
            Disagreement::Failed { rank, status, what } => (rank, status, what),
            Disagreement::Differs { rank, what } => {
                let what = format!("its {what} is another than that of rank 0; start all ranks alike");
                (rank, 2, what)
            }
        };
        match done {
            Err(own) if self.leads() && rank == 0 => Err(own),
            _ if !self.leads() => Err(Failure::Elsewhere(status)),
            _ => Err(Failure::of(status, format!("rank {rank}: {what}"))),
        }
    }

    /// Does work on rank 0 only; the other ranks get `None`.
    pub fn led<T>(&self, do_it: impl FnOnce() -> Result<T, Failure>) -> Result<Option<T>, Failure> {
        let done = if self.leads() { do_it().map(Some) } else { Ok(None) };
        self.agree(done, &[])
    }

    /// Does work on rank 0 before the others: files that it writes then exist for them.
    pub fn led_by_first<T>(&self, do_it: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let mut do_it = Some(do_it);
        let mut run = || do_it.take().map(|do_it| do_it()).transpose();
        self.waits_for_led_work(true);
        let first = self.agree(if self.leads() { run() } else { Ok(None) }, &[]);
        self.waits_for_led_work(false);
        let first = first?;
        let done = self.agree(if self.leads() { Ok(first) } else { run() }, &[])?;
        done.ok_or_else(|| work("nothing was done"))
    }

    fn waits_for_led_work(&self, led: bool) {
        if let Some(watch) = self.peers.as_ref().and_then(|peers| peers.borrow().watch()) {
            watch.led(led);
        }
    }

    /// The configuration with the steps of rank 0's, and the warm-up for these steps unless the user set it.
    pub fn steps(&self, config: Config, warmup: bool) -> Result<Config, Failure> {
        let mut steps = [config.steps];
        share_numbers(self.peers.as_ref(), &mut steps).map_err(work)?;
        let config = Config { steps: steps[0], ..config };
        let warmup = if warmup || config.time.is_none() { config.warmup } else { config.default_warmup() };
        Ok(Config { warmup, ..config })
    }

    /// Rank 0's path, on all ranks.
    pub fn path(&self, own: Option<PathBuf>) -> Result<PathBuf, Failure> {
        let Some(peers) = &self.peers else { return Ok(own.unwrap_or_default()) };
        let text = own.as_ref().and_then(|path| path.to_str()).unwrap_or_default();
        let text = share_text(&mut *peers.borrow_mut(), text).map_err(work)?;
        if text.is_empty() {
            return self.agree(Err(request("several ranks need a run's directory whose name is UTF-8")), &[]);
        }
        Ok(text.into())
    }

    /// Records that all ranks know the failure that ended the run.
    pub fn all_know(&self, failure: Failure) -> Failure {
        self.known.set(true);
        failure
    }

    /// A flag that signals set from here on.
    pub fn stop(&self) -> Result<Arc<AtomicBool>, Failure> {
        raise(&self.stop)?;
        Ok(Arc::clone(&self.stop))
    }

    /// Ends the command. A failure that the other ranks do not know ends them too.
    pub fn end(self, done: Result<(), Failure>) -> Result<(), Failure> {
        let Some(peers) = &self.peers else { return done };
        match done {
            Err(failure) if !self.known.get() => {
                urgent(format_args!(
                    "{}: rank {}: {}",
                    crate::name::called(),
                    self.rank.rank,
                    shown(&failure.to_string())
                ));
                peers.borrow_mut().abort(failure.status().into());
                Err(Failure::Elsewhere(failure.status()))
            }
            Err(failure) => {
                // Printed before any rank ends: a launcher that sees a failure kills the other ranks.
                if self.leads() {
                    tell!("{}: {}", crate::name::called(), shown(&failure.to_string()));
                }
                let _ = share_text(&mut *peers.borrow_mut(), "");
                Err(Failure::Elsewhere(failure.status()))
            }
            done => done,
        }
    }
}

/// The digest of this program.
fn own_digest() -> Result<u64, Failure> {
    let path = std::env::current_exe().map_err(work)?;
    let bytes = regular::read(&path).map_err(|e| work(format_args!("{}: {e}", path.display())))?;
    Ok(digest(&bytes))
}

/// The digest of bytes.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// The digest of all settings that determine a run's numbers: threads, budgets, directories and a GPU's number are
/// specific to a machine.
pub(super) fn digest_of(config: &Config) -> Result<u64, Failure> {
    let device = config.device.split(':').next().unwrap_or_default().to_owned();
    let config = Config { threads: 1, budget: None, device, ..config.clone() };
    let written = config.as_written()?.without_directories();
    let written = RawConfig { epochs: config.epochs, rank: None, ranks: None, link: None, ..written };
    Ok(digest(toml::to_string(&written).map_err(work)?.as_bytes()))
}

/// The digest of a plan's layout.
pub(super) fn digest_of_plan(plan: &Plan) -> u64 {
    // With whole matrices, one rank may update more than another in a step.
    let numbers = [plan.params, plan.arena_bytes, plan.flops_per_token, plan.regions.len() as u64];
    digest(bytemuck::cast_slice(&numbers))
}

/// Reports the number of ranks, and its effect on the bits.
pub(super) fn tell_of_ranks(config: &Config) {
    if config.ranks > 1 {
        let bits = match (config.exact_ranks, config.zero) {
            (true, _) => "their number changes no bit",
            (false, 2) => "with another number of ranks, but one, no bit differs",
            _ => "with another number of ranks the last bits differ",
        };
        tell!("{} ranks; {bits}", config.ranks);
    }
}
