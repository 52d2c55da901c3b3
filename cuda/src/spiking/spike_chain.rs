//! Spiking modules of many streams, token after token, following the taps that they read: a chain of steps. The input
//! of a neuron from taps does not depend on the previous token, so it is summed for all tokens first (`spike_taps.rs`);
//! and each step stores which neurons fired, packed, for the next token's step. A pass over a program's operations
//! finds such chains.
//!
//! ```text
//!  taps    sums of all tokens    token 0: module, module, ...    token 1: module, module, ...
//!            |                              |  ^     |                       ^
//!            +-- in the place of what ------+--|-----+--- who fired, a bit --+
//!                a step will write             |          each
//!                                           packed from spikes
//! ```

use capful_core::device::{Op, OperationError};
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{Spike, Taps};

use super::modules::{at_one_token, tokens_of};
use super::spike::{Links, wide};
use super::spike_taps::sums;
use crate::OnCuda;
use crate::device::Cuda;
use crate::room::spiking::ChainRoom;

/// Operations of a chain: taps, then the modules at token 0, and the number of tokens that they process.
pub(crate) struct Chain {
    taps: Taps,
    at_first: Vec<Spike>,
    tokens: u32,
}

/// Whether a module reads these taps and has many streams.
pub(crate) fn begins(taps: &Taps, o: &Spike) -> bool {
    let alike = [Some(o.spikes), o.slope].into_iter().flatten().all(|r| r.dtype == o.signals.dtype);
    taps.signals == o.signals && taps.keep == o.keep && o.signals.columns() > 1 && alike && wide(o).is_some()
}

/// Whether two steps can belong to one chain.
pub(crate) fn linked(a: &Spike, b: &Spike) -> bool {
    a.signals == b.signals && a.keep == b.keep && a.signals.columns() > 1 && wide(a).is_some() && wide(b).is_some()
}

/// Whether no two regions have a byte in common.
fn apart(regions: &[Region]) -> bool {
    let meet = |a: &Region, b: &Region| a.space == b.space && a.offset < b.end() && b.offset < a.end();
    regions.iter().enumerate().all(|(i, a)| regions[..i].iter().all(|b| !meet(a, b)))
}

impl Chain {
    /// The chain of the first operations of `ops`.
    pub(crate) fn of(ops: &[Op]) -> Option<Chain> {
        let (Op::Taps(taps), behind) = ops.split_first()? else { return None };
        let at_first = at_one_token(behind, |_, o| begins(taps, o));
        // Each module writes its own spikes and slopes.
        let written: Vec<Region> = at_first.iter().flat_map(|o| [Some(o.spikes), o.slope]).flatten().collect();
        let own = at_first.first().is_some_and(|o| o.token == 0 && begins(taps, o)) && apart(&written);
        own.then(|| Chain { taps: *taps, tokens: tokens_of(behind, &at_first), at_first })
    }

    /// The number of operations in the chain.
    pub(crate) fn count(&self) -> usize {
        1 + self.at_first.len() * self.tokens as usize
    }

    /// For each module whether its taps are summed beforehand, with this amount of shared memory.
    pub(crate) fn summed(&self, shared: u64) -> Vec<bool> {
        // Taps keep their values as long as no module writes to their rows.
        let stay =
            |o: &Spike| u64::from(o.outputs.first) >= u64::from(self.taps.taps) * u64::from(self.taps.x.shape[3]);
        let all = self.at_first.iter().all(stay);
        self.at_first.iter().map(|o| all && sums(&self.taps, o, shared)).collect()
    }
}

impl Cuda {
    /// The chain at the beginning of `ops`.
    pub(crate) fn chain(&self, ops: &[Op]) -> Option<Chain> {
        Chain::of(ops)
    }

    /// Queues a chain; returns the number of its operations.
    pub(crate) fn run_chain(&mut self, chain: &Chain) -> Result<usize, OperationError> {
        OnCuda::run(chain.taps, self)?;
        let mut places = Vec::with_capacity(chain.at_first.len());
        let mut end = 0;
        for (o, summed) in chain.at_first.iter().zip(chain.summed(self.hardware.shared)) {
            let room = ChainRoom::of(o);
            let at = self.scratch_at(end, room.bytes())?;
            end += room.bytes();
            let taken = if summed { at + 2 * room.bits } else { 0 };
            if summed {
                self.spike_taps(&chain.taps, o, chain.tokens, taken)?;
            }
            places.push((at, room.bits, taken));
        }
        for t in 0..chain.tokens {
            for (o, (at, bytes, taken)) in chain.at_first.iter().zip(&places) {
                // In f32 a thread has fewer streams than a byte has bits.
                let leaves = o.signals.dtype == Dtype::Bf16;
                let [bits, after] = [u64::from(t % 2), u64::from((t + 1) % 2)].map(|i| at + i * bytes);
                let packed = leaves && t > 0;
                let after = if leaves && t + 1 < chain.tokens { after } else { 0 };
                self.spike(&Spike { token: t, ..*o }, Some(Links { bits, packed, after, taken: *taken }))?;
            }
        }
        Ok(chain.count())
    }
}
