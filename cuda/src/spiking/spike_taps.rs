//! The inputs of a module's neurons from taps, for many tokens at once, stored where the module's steps read them:
//! `spike_taps.cu`.

use capful_core::device::OperationError;
use capful_core::ops::{Spike, Taps};

use crate::arguments::SpikeTapsArgs;
use crate::device::Cuda;

// The same constants as in spike_taps.cu.
const THREADS: u32 = 768;
const TOKENS: u32 = 8;
/// Neurons of a thread block at a time.
const NEURONS: u32 = THREADS / TOKENS;
/// Bytes of shared memory in addition to the taps and their masks: a word and the synapse positions of each warp.
const FIXED: u64 = THREADS as u64 / 32 * (4 + 2048);
/// The limit of positions, which are stored in as many bits.
const PLACES: u64 = 1 << 18;

/// Bytes of shared memory, if a thread block has room for them in `shared` bytes and its counters suffice.
fn room(o: &Taps, shared: u64) -> Option<u64> {
    let (width, taps) = (u64::from(o.x.shape[3]), u64::from(o.taps));
    let window = taps.checked_add(u64::from(TOKENS) - 1)?;
    let taken = width.checked_mul(window)?.checked_add(u64::from(TOKENS) * (1 + taps))?.checked_mul(16)?;
    let bytes = taken.checked_add(FIXED)?;
    // The division of a source by the width is computed as a multiplication.
    let divides = || u32::try_from(width * width * taps).is_ok();
    (bytes <= shared && taken <= PLACES && taps <= 1 << 13 && divides()).then_some(bytes)
}

/// Whether the sums of a module's taps can be computed for all tokens before its steps. The sums are stored in the
/// slots of its slopes and spikes.
pub(crate) fn sums(o: &Taps, module: &Spike, shared: u64) -> bool {
    let quads = module.weights.columns().is_multiple_of(4)
        && [module.sources, module.weights].iter().all(|r| r.offset.is_multiple_of(16));
    let front = u64::from(o.taps) * u64::from(o.x.shape[3]);
    quads
        && module.slope.is_some()
        && front > 0
        && u64::from(module.outputs.first) >= front
        && room(o, shared).is_some()
}

impl Cuda {
    /// Queues the sums of a module's first `tokens`; `taken` receives the number of synapses in each sum.
    pub(crate) fn spike_taps(
        &mut self,
        o: &Taps,
        module: &Spike,
        tokens: u32,
        taken: u64,
    ) -> Result<(), OperationError> {
        let (neurons, streams, dtype) = (module.weights.rows(), module.signals.columns(), module.signals.dtype);
        let bytes = room(o, self.hardware.shared).unwrap_or(u64::MAX) as u32;
        let groups = u64::from(streams) * dtype.size() / 16 * u64::from(tokens.div_ceil(TOKENS));
        // Whole rounds of all multiprocessors, but with enough neurons in each block that loading the taps takes little
        // time in comparison.
        let parts = |turns: u64| (turns * u64::from(self.hardware.multiprocessors) / groups).max(1);
        let enough = |turns: &u64| u64::from(neurons) / parts(*turns) >= 8 * u64::from(NEURONS);
        let parts = parts((2..=5).rev().find(enough).unwrap_or(1));
        let block = u64::from(neurons).div_ceil(parts).next_multiple_of(NEURONS.into()) as u32;
        let arguments = SpikeTapsArgs {
            signals: self.address(module.signals)?,
            offsets: self.address(o.offsets)?,
            sources: self.address(module.sources)?,
            weights: self.address(module.weights)?,
            slope: self.address_or_null(module.slope)?,
            spikes: self.address(module.spikes)?,
            taken,
            rows: module.signals.shape[2],
            streams,
            neurons,
            fan_in: module.weights.columns(),
            length: o.x.shape[2],
            tokens,
            width: o.x.shape[3],
            taps: o.taps,
            fresh: o.fresh.into(),
            block,
        };
        let grid = [u32::try_from(groups).unwrap_or(u32::MAX), neurons.div_ceil(block), 1];
        let kernel = format!("spike_taps_{}", dtype.name());
        self.launch_with("spike_taps", &kernel, grid, THREADS, bytes, &arguments)
    }
}
