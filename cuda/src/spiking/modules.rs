//! Spiking modules of one stream, token after token, in one launch, which `modules.cu` describes. A pass over a
//! program's operations finds such modules.

use capful_core::device::{Op, OperationError};
use capful_core::ops::Spike;

use super::spike::countable;
use crate::arguments::ModulesArgs;
use crate::device::Cuda;
use crate::room::spiking::BitRoom;

// The same constants as in modules.cu.
const MOST_MODULES: usize = 8;
const WARPS: u32 = 20;
const THREADS: u32 = 32 * WARPS;
/// Bytes of the struct Products of all warps.
const PRODUCTS: u32 = WARPS * 16 * (4 * 36 + 8);
// The scratch has room for this number of modules.
const _: () = assert!(MOST_MODULES as u64 == BitRoom::MODULES);

/// Operations of one launch: the modules at a first token, and the number of tokens that they process.
pub(crate) struct Modules {
    at_first: Vec<Spike>,
    tokens: u32,
    /// Neurons of a thread block, for each module.
    shares: Vec<u32>,
    /// Bytes of shared memory for the bits of a module's neurons, for the bits of a block's neurons, and in all.
    bits: u32,
    fired: u32,
    shared: u64,
}

/// Whether the neurons have a single stream and do not compete.
fn alone(o: &Spike) -> bool {
    o.signals.columns() == 1 && o.cell.winners >= o.cell.block.min(o.weights.rows())
}

/// Whether the second module can be in one launch with the first.
pub(crate) fn follows(a: &Spike, b: &Spike) -> bool {
    alone(a) && alone(b) && a.signals == b.signals && a.keep == b.keep
}

/// The first operations of `ops` that are modules at the same token: at most as many as one launch supports, each of
/// which `may` be in one launch with the first.
pub(crate) fn at_one_token(ops: &[Op], may: impl Fn(&Spike, &Spike) -> bool) -> Vec<Spike> {
    let spike = |op: &Op| if let Op::Spike(o) = op { Some(*o) } else { None };
    let Some(first) = ops.first().and_then(spike) else { return Vec::new() };
    let own = |o: &Spike| o.token == first.token && may(&first, o);
    ops.iter().map_while(spike).take(MOST_MODULES).take_while(own).collect()
}

/// The number of consecutive tokens that `ops` process with these modules.
pub(crate) fn tokens_of(ops: &[Op], modules: &[Spike]) -> u32 {
    let at = |t: u32, o: &Spike| Op::Spike(Spike { token: o.token + t, ..*o });
    let again = |(t, ops): &(u32, &[Op])| ops.iter().zip(modules).all(|(op, o)| *op == at(*t, o));
    (0u32..).zip(ops.chunks_exact(modules.len().max(1))).take_while(again).count() as u32
}

/// Neurons of one of `blocks` thread blocks: whole groups of outputs, and whole bytes of bits.
fn share(o: &Spike, blocks: u32) -> Option<u32> {
    let neurons = o.weights.rows();
    let group = neurons / o.outputs.count.max(1);
    if group == 0 || group * o.outputs.count != neurons {
        return None;
    }
    let unit = group * (8 >> group.trailing_zeros().min(3));
    Some(neurons.div_ceil(unit).div_ceil(blocks) * unit)
}

impl Modules {
    /// The launch of the first operations of `ops`; `None` if the first is no such operation, or needs more than
    /// `shared` bytes in each of `blocks` thread blocks.
    pub(crate) fn of(ops: &[Op], blocks: u32, shared: u64) -> Option<Modules> {
        let mut at_first = at_one_token(ops, follows);
        let found = loop {
            match Modules::room(&at_first, blocks) {
                Some(found) if found.shared <= shared => break found,
                _ => at_first.pop().filter(|_| !at_first.is_empty())?,
            };
        };
        Some(Modules { tokens: tokens_of(ops, &found.at_first), ..found })
    }

    /// The shared memory that modules need in a thread block.
    fn room(modules: &[Spike], blocks: u32) -> Option<Modules> {
        if blocks < 2 {
            return None;
        }
        let mut found =
            Modules { at_first: modules.to_vec(), tokens: 1, shares: Vec::new(), bits: 0, fired: 0, shared: 0 };
        for o in modules {
            let (neurons, fan_in) = (o.weights.rows(), o.weights.columns());
            let [_, _, rows, streams] = o.signals.shape;
            let own = share(o, blocks)?;
            let alike = [Some(o.spikes), o.slope].into_iter().flatten().all(|r| r.dtype == o.signals.dtype);
            // A lane reads four synapses at a time.
            let quads = fan_in > 0
                && fan_in.is_multiple_of(4)
                && [o.sources, o.weights].iter().all(|r| r.offset.is_multiple_of(16));
            if !alike || !quads || !countable([rows, streams, neurons, fan_in], own) {
                return None;
            }
            found.bits = found.bits.max(BitRoom::words(neurons).checked_mul(4)?.next_multiple_of(16));
            found.fired = found.fired.max(own.div_ceil(8).next_multiple_of(16));
            found.shares.push(own);
        }
        let signals = modules.first()?.signals;
        let table = 2 * u64::from(signals.shape[2]) * signals.dtype.size();
        found.shared = u64::from(PRODUCTS) + u64::from(found.bits) + u64::from(found.fired) + table;
        Some(found)
    }

    /// The number of operations in the launch.
    pub(crate) fn count(&self) -> usize {
        self.at_first.len() * self.tokens as usize
    }
}

impl Cuda {
    /// The launch of the first operations of `ops`.
    pub(crate) fn modules(&self, ops: &[Op]) -> Option<Modules> {
        Modules::of(ops, self.hardware.together, self.hardware.shared)
    }

    /// Queues a launch; returns the number of its operations.
    pub(crate) fn run_modules(&mut self, modules: &Modules) -> Result<usize, OperationError> {
        let mut all = Vec::with_capacity(MOST_MODULES);
        let mut bits = BitRoom::FIRST;
        for (o, share) in modules.at_first.iter().zip(&modules.shares) {
            let bytes = BitRoom::of_one(o.weights.rows());
            let at = self.scratch_at(bits, bytes)?;
            let mut own = self.spike_arguments(o)?;
            (own.bits, own.block) = (at, *share);
            all.push(own);
            bits += bytes;
        }
        let Some((&first, o)) = all.first().zip(modules.at_first.first()) else { return Ok(0) };
        let kernel = format!("modules_{}", o.signals.dtype.name());
        let arrivals = self.scratch_at(0, 4)?;
        self.fill(arrivals, 0, 1)?;
        let (count, tokens) = (all.len() as u32, modules.tokens);
        let (bits_room, fired_room) = (modules.bits, modules.fired);
        let mut arguments =
            ModulesArgs { module: [first; MOST_MODULES], arrivals, modules: count, tokens, bits_room, fired_room };
        arguments.module[..all.len()].copy_from_slice(&all);
        self.launch_together("modules", &kernel, THREADS, modules.shared as u32, &arguments)?;
        Ok(modules.count())
    }
}
