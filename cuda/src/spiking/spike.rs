//! One token's step of a module of spiking neurons.

use capful_core::device::{Op, OperationError};
use capful_core::ops::Spike;

use crate::OnCuda;
use crate::arguments::SpikeArgs;
use crate::device::{Cuda, blocks, width};
use crate::error::CudaError;
use crate::room::spiking::bit_bytes;

const NAME: &str = "spike";
/// The code module with the kernels for a single stream.
const OF_ONE: &str = "spike_one";

/// ROOM of spike.cu: the product of neurons and streams of a thread block.
const ROOM: u32 = 4096;

/// PLACES and ALONE of spike_one.cu, for a block with one stream: the most products in shared memory, and the most
/// neurons.
const PLACES: u32 = 8448;
const MOST: u32 = 256;

/// THREADS_OF_ONE of spike_one.cu.
const THREADS_OF_ONE: u32 = 512;

/// From this number of neurons on, the spikes of a single stream are packed into bits before they are read.
const PACKED: u32 = 16_384;

/// Neurons of a thread block without competition, with one stream and with many.
const ALONE: u32 = 128;
const FREE: u32 = 64;

/// The links of a module's step to its neighbours in a chain of tokens: existing data, and where the step stores which
/// neurons fire.
#[derive(Clone, Copy)]
pub(crate) struct Links {
    /// The bits of the neurons that fired at the previous token, and whether that token's step has already written
    /// them.
    pub(crate) bits: u64,
    pub(crate) packed: bool,
    /// The address for the bits of this token; 0 if they are not stored.
    pub(crate) after: u64,
    /// The numbers of synapses of each neuron that are summed already; 0 if none are.
    pub(crate) taken: u64,
}

/// The division of a module's neurons and streams among thread blocks.
struct Shares {
    /// Neurons of a thread block, and how many of them may fire.
    block: u32,
    winners: u32,
    /// Whether the neurons compete.
    compete: bool,
    /// Streams of a thread block.
    together: u32,
    /// Whether a thread reads the signals of several streams as 16 bytes.
    wide: bool,
    /// Whether the block's products are in shared memory: it has a single stream.
    one: bool,
    /// Whether spikes are packed.
    packs: bool,
    /// Whether the block has whole groups of outputs and sums their spikes itself.
    pooled: bool,
}

impl Shares {
    /// `vector` is the number of signals in 16 bytes, or 1.
    fn of(o: &Spike, vector: u32) -> Result<Shares, CudaError> {
        let (neurons, fan_in, streams) = (o.weights.rows(), o.weights.columns(), o.signals.columns());
        let compete = o.cell.winners < o.cell.block;
        // The size of an output's group, where all groups have the same size.
        let group = neurons / o.outputs.count.max(1);
        let group = if group > 0 && neurons == group * o.outputs.count { group } else { 0 };
        let shared = |block: u32| {
            let together = streams.next_power_of_two().min(32).min(1 << (ROOM / block).ilog2());
            if vector > 1 && together >= vector { together } else { 1 }
        };
        let alone = |most: u32| if (1..=most).contains(&group) { most / group * group } else { most };
        let block = match compete {
            true => o.cell.block.min(neurons),
            false if shared(FREE) > 1 => alone(FREE),
            // As many neurons as shared memory has room for products of, so that the threads share the reading of a
            // row.
            false => match PLACES / (fan_in | 1) {
                places @ 32.. => alone(places.min(ALONE)),
                _ => alone(ALONE),
            },
        };
        if block > ROOM {
            let why = "a GPU lets no more than 4,096 neurons compete with each other";
            return Err(CudaError::Unsupported { operation: NAME, why });
        }
        let together = shared(block);
        let one = together == 1 && block <= MOST && u64::from(block) * u64::from(fan_in | 1) <= PLACES.into();
        // The spikes of a single stream are packed where they do not fit in the first-level cache.
        let packs = !one || streams == 1 && neurons >= PACKED;
        // Thresholds change with the spikes of all streams.
        let holds = o.cell.homeostasis <= 0.0 || !one && streams <= together;
        Ok(Shares {
            block,
            winners: if compete { o.cell.winners } else { block },
            compete,
            together,
            wide: together > 1,
            one,
            packs,
            pooled: group > 0 && block.is_multiple_of(group) && holds,
        })
    }
}

/// The number of signals in 16 bytes, where the threads of a module process that number of streams each.
pub(crate) fn wide(o: &Spike) -> Option<u32> {
    let regions = [Some(o.signals), Some(o.spikes), Some(o.keep), Some(o.potential), Some(o.fatigue), o.slope];
    let offsets: Vec<u64> = regions.into_iter().flatten().map(|r| r.offset).collect();
    let vector = width(o.signals.dtype, o.signals.columns().into(), &offsets);
    let shares = Shares::of(o, vector).ok()?;
    (shares.wide && shares.packs).then_some(vector)
}

/// Whether 32-bit indices of the kernel suffice: for the signals of a token and of the token before, the words of
/// packed spikes, the synapses of a thread block.
pub(crate) fn countable([rows, streams, neurons, fan_in]: [u32; 4], block: u32) -> bool {
    let product = |a: u64, b: u32| a.checked_mul(b.into()).is_some_and(|n| n <= u32::MAX.into());
    product(2 * u64::from(rows), streams)
        && product(streams.div_ceil(32).into(), neurons)
        && product(block.into(), fan_in)
}

impl OnCuda for Spike {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        if let Some(modules) = cuda.modules(&[Op::Spike(self)]) {
            return cuda.run_modules(&modules).map(drop);
        }
        cuda.spike(&self, None)
    }
}

impl Cuda {
    /// The kernels' arguments without the division among thread blocks; competing neurons are in one block.
    pub(crate) fn spike_arguments(&mut self, o: &Spike) -> Result<SpikeArgs, OperationError> {
        self.exact(NAME, [o.keep, o.weights, o.potential, o.fatigue, o.offset])?;
        let [_, _, rows, streams] = o.signals.shape;
        let (neurons, fan_in) = (o.weights.rows(), o.weights.columns());
        let (sources, weights) = (self.address(o.sources)?, self.address(o.weights)?);
        Ok(SpikeArgs {
            signals: self.address(Spike::slot(o.signals, o.token))?,
            spikes: self.address(Spike::slot(o.spikes, o.token))?,
            keep: self.address(o.keep.slice_rows(o.token, 1))?,
            sources,
            weights,
            potential: self.address(o.potential)?,
            fatigue: self.address(o.fatigue)?,
            offset: self.address(o.offset)?,
            slope: self.address_or_null(o.slope.map(|s| Spike::slot(s, o.token)))?,
            bits: 0,
            bits_after: 0,
            taken: 0,
            rows,
            streams,
            neurons,
            fan_in,
            block: o.cell.block.min(neurons),
            winners: o.cell.winners,
            together: 1,
            pooled: 0,
            wide: 0,
            quads: (width(o.weights.dtype, fan_in.into(), &[sources, weights]) > 1).into(),
            first: o.outputs.first,
            count: o.outputs.count,
            leak: o.cell.leak,
            threshold: o.cell.threshold,
            tiring: o.cell.fatigue,
            adaptation: o.cell.adaptation,
            filter: o.cell.filter,
            rate: o.cell.rate,
            homeostasis: o.cell.homeostasis,
        })
    }

    /// Queues a module's step, with optional links to the steps of the previous and the next token.
    pub(crate) fn spike(&mut self, o: &Spike, links: Option<Links>) -> Result<(), OperationError> {
        let dtype = self.dtype(NAME, [Some(o.signals), Some(o.spikes), o.slope].into_iter().flatten())?;
        let mut arguments = self.spike_arguments(o)?;
        let SpikeArgs { signals, spikes, keep, potential, fatigue, slope, rows, streams, neurons, fan_in, .. } =
            arguments;
        // A thread processes the streams in 16 bytes of signals, or one stream.
        let vector = width(dtype, streams.into(), &[signals, spikes, keep, potential, fatigue, slope]);
        let Shares { block, winners, compete, together, wide, one, packs, pooled } =
            Shares::of(o, vector).map_err(|e| self.fail(e))?;
        if !countable([rows, streams, neurons, fan_in], block) {
            let why = "a token's signals, packed spikes or a block's synapses pass 32 bits; lower --batch-size";
            return Err(self.fail(CudaError::Unsupported { operation: NAME, why }));
        }
        let links = match links {
            Some(links) => links,
            None if packs => {
                let bits = self.scratch_at(0, bit_bytes(neurons, streams, 1))?;
                Links { bits, packed: false, after: 0, taken: 0 }
            }
            None => Links { bits: 0, packed: true, after: 0, taken: 0 },
        };
        let (wide, pooled_here) = (wide.into(), pooled.into());
        arguments = SpikeArgs { block, winners, together, wide, pooled: pooled_here, ..arguments };
        (arguments.bits, arguments.bits_after, arguments.taken) = (links.bits, links.after, links.taken);
        let dtype = dtype.name();
        let (module, kernel, threads) = match (one, compete) {
            (true, _) => (OF_ONE, "one", THREADS_OF_ONE),
            (false, true) => (NAME, "compete", 256),
            (false, false) => (NAME, "fire", 256),
        };
        if !links.packed {
            let (pack, neurons_of_block) = if one { ("pack_one", 256) } else { ("pack", 64) };
            let grid = [blocks(neurons.into(), neurons_of_block), streams.div_ceil(32), 1];
            self.launch(module, &format!("spike_{pack}_{dtype}"), grid, 256, &arguments)?;
        }
        let grid = [neurons.div_ceil(block), streams.div_ceil(together), 1];
        self.launch(module, &format!("spike_{kernel}_{dtype}"), grid, threads, &arguments)?;
        if pooled {
            return Ok(());
        }
        let held = if o.cell.homeostasis > 0.0 { neurons } else { 0 };
        let threads = u64::from(o.outputs.count) * u64::from(streams) + u64::from(held);
        self.launch(NAME, &format!("spike_pool_{dtype}"), [blocks(threads, 256), 1, 1], 256, &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_counts_in_32_bits_is_refused_where_it_would_wrap() {
        // The largest preset with the most streams of a grid.
        assert!(countable([16_000, 65_535, 157_696, 128], ALONE));
        assert!(!countable([33_000, 65_535, 157_696, 128], ALONE));
        assert!(
            countable([1 << 10, 1 << 20, 1 << 16, 64], ALONE) && !countable([1 << 10, 1 << 20, 1 << 17, 64], ALONE)
        );
        assert!(countable([1, 1, 4096, (1 << 20) - 1], ROOM) && !countable([1, 1, 4096, 1 << 20], ROOM));
    }
}
