//! Runs a module's neurons for one token: lanes are streams, so every stream's sum equals the reference's to the bit.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Cell, FAINT, LOWEST_POTENTIAL, OFFSET_LIMIT, Outputs, Spike};
use capful_core::views;

use super::lanes::{lanes, pick, pick_mut, whole};
use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

/// Multiplications in a task, synapses times streams, that are worth waking another thread for.
const WORK: usize = 1 << 16;
/// Up to this number of winners the best candidates of a block are stored in a list; with more winners, the potential
/// of the last winner is searched for.
const LIST: usize = 8;

impl OnCpu for Spike {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let t = self.token;
        views!(arena;
            before = Some(Spike::slot(self.signals, t)),
            mut now = Some(Spike::slot(self.signals, t + 1)),
            spiked = Some(Spike::slot(self.spikes, t)),
            mut spikes = Some(Spike::slot(self.spikes, t + 1)),
            keep = Some(self.keep.slice_rows(t, 1)),
            sources = Some(self.sources),
            weights = Some(self.weights),
            mut potential = Some(self.potential),
            mut fatigue = Some(self.fatigue),
            mut offset = Some(self.offset),
            mut slope = self.slope.map(|s| Spike::slot(s, t)),
        );
        let [_, _, rows, streams] = self.signals.shape.map(|n| n as usize);
        let (neurons, fan_in) = (self.weights.rows() as usize, self.weights.columns() as usize);
        let (block, winners) = (self.cell.block as usize, self.cell.winners as usize);
        let module = Module {
            now: now.f32()?,
            before: before.f32()?,
            spiked: spiked.f32()?,
            keep: keep.f32()?,
            sources: sources.u32()?,
            weights: weights.f32()?,
            rows,
            streams,
            fan_in,
            cell: self.cell,
        };
        // A task has whole blocks, since the neurons of a block compete.
        let together = WORK.div_ceil((fan_in * streams * block).max(1)) * block;
        let bands = [
            (spikes.f32_mut()?, together * streams),
            (potential.f32_mut()?, together * streams),
            (fatigue.f32_mut()?, together * streams),
            (slope.f32_mut()?, together * streams),
            (offset.f32_mut()?, together),
        ];
        cpu.pool.bands(bands, |_, band, [spikes, potential, fatigue, slope, offset]| {
            let first = band * together;
            let offset_now = &*offset;
            vectorise!(lanes!(streams, at, L => {
                for (j, &offset) in offset_now.iter().enumerate() {
                    module.integrate::<L>(first + j, j, at, spikes, potential, fatigue, offset);
                }
                let blocks = spikes.chunks_mut(block * streams).zip(fatigue.chunks_mut(block * streams));
                for (number, (spikes, fatigue)) in blocks.enumerate() {
                    let slope = slope.get_mut(number * block * streams..).unwrap_or_default();
                    module.fire::<L>(winners, at, spikes, fatigue, slope);
                }
            }));
            if self.cell.homeostasis > 0.0 {
                for (offset, spikes) in offset.iter_mut().zip(spikes.chunks_exact(streams)) {
                    let fired = spikes.iter().filter(|z| **z > 0.0).count();
                    let moved = *offset + self.cell.homeostasis * (fired as f32 / streams as f32 - self.cell.rate);
                    *offset = moved.clamp(-OFFSET_LIMIT, OFFSET_LIMIT);
                }
            }
        });
        let (before, keep, spikes, now) = (before.f32()?, keep.f32()?, spikes.f32()?, now.f32_mut()?);
        vectorise!(lanes!(streams, at, L => {
            // Most groups have the same size.
            let (mut size, mut share) = (0, 0.0);
            for o in 0..self.outputs.count {
                let group = self.outputs.group(o, neurons as u32);
                if group.len() != size {
                    size = group.len();
                    share = Outputs::share(size);
                }
                let mut fired = [0.0f32; L];
                for j in group {
                    fired.iter_mut().zip(pick::<L>(spikes, j * streams + at)).for_each(|(n, z)| *n += z);
                }
                let i = (self.outputs.first + o) as usize * streams + at;
                let (keep, before, now) = (pick::<L>(keep, at), pick::<L>(before, i), pick_mut::<L>(now, i));
                for b in 0..L {
                    let kept = if keep[b] > 0.0 { self.cell.filter * before[b] } else { 0.0 };
                    now[b] = (if kept.abs() > FAINT { kept } else { 0.0 }) + share * fired[b];
                }
            }
        }));
        Ok(())
    }
}

/// The inputs of all neurons of a module.
struct Module<'a> {
    now: &'a [f32],
    before: &'a [f32],
    spiked: &'a [f32],
    keep: &'a [f32],
    sources: &'a [u32],
    weights: &'a [f32],
    rows: usize,
    streams: usize,
    fan_in: usize,
    cell: Cell,
}

impl Module<'_> {
    /// Computes the potential and the distance to the threshold of neuron `j`, row `own` of the slices; the distance is
    /// stored in the slot of the spikes.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "the state of a neuron, slice by slice")]
    fn integrate<const L: usize>(
        &self,
        j: usize,
        own: usize,
        at: usize,
        spikes: &mut [f32],
        potential: &mut [f32],
        fatigue: &[f32],
        offset: f32,
    ) {
        let (cell, streams) = (&self.cell, self.streams);
        let row = j * self.fan_in..(j + 1) * self.fan_in;
        let (sources, weights) = (&self.sources[row.clone()], &self.weights[row]);
        // Sources are in ascending order, so sources of this token, of the token before and of the module's own neurons
        // follow each other.
        let old = sources.partition_point(|&s| (s as usize) < self.rows);
        let inner = old + sources[old..].partition_point(|&s| (s as usize) < 2 * self.rows);
        let current = weighted::<L>([0.0; L], &sources[..old], &weights[..old], 0, self.now, streams, at);
        let (part, rest) = (&sources[old..inner], &weights[old..inner]);
        let previous = weighted::<L>([0.0; L], part, rest, self.rows, self.before, streams, at);
        let (part, rest) = (&sources[inner..], &weights[inner..]);
        let previous = weighted::<L>(previous, part, rest, 2 * self.rows, self.spiked, streams, at);
        let i = own * streams + at;
        // Read before any write, since the compiler cannot see that the slices do not overlap.
        let (keep, spiked) = (*pick::<L>(self.keep, at), *pick::<L>(self.spiked, j * streams + at));
        let (mut v, fatigue, mut above) = (*pick::<L>(potential, i), *pick::<L>(fatigue, i), [0.0; L]);
        let adaptation = cell.adaptation_of(j);
        for b in 0..L {
            // State from before a document is ignored, even if it is not a number.
            let kept = (cell.leak * v[b] - cell.threshold * spiked[b]) + previous[b];
            let moved = if keep[b] > 0.0 { kept + current[b] } else { current[b] };
            v[b] = if moved < LOWEST_POTENTIAL { LOWEST_POTENTIAL } else { moved };
            let tired = if keep[b] > 0.0 { fatigue[b] } else { 0.0 };
            let threshold = (cell.threshold + offset) + adaptation * tired;
            above[b] = v[b] - threshold;
        }
        *pick_mut::<L>(potential, i) = v;
        *pick_mut::<L>(spikes, i) = above;
    }

    /// Converts a block's distances to the threshold into its spikes, and updates the states that depend on the spikes.
    #[inline(always)]
    fn fire<const L: usize>(
        &self,
        winners: usize,
        at: usize,
        spikes: &mut [f32],
        fatigue: &mut [f32],
        slope: &mut [f32],
    ) {
        let (cell, streams) = (&self.cell, self.streams);
        let neurons = spikes.len() / streams;
        if !slope.is_empty() {
            for j in 0..neurons {
                let i = j * streams + at;
                let (above, slope) = (*pick::<L>(spikes, i), pick_mut::<L>(slope, i));
                for b in 0..L {
                    slope[b] = cell.slope(above[b]);
                }
            }
        }
        // The distance of the last winner; of the neurons with exactly that distance the first `room` fire.
        let (mut last, mut room) = ([0.0; L], [0u32; L]);
        if winners < neurons {
            let mut candidates = [0u32; L];
            for j in 0..neurons {
                let above = pick::<L>(spikes, j * streams + at);
                candidates.iter_mut().zip(above).for_each(|(n, &x)| *n += u32::from(x > 0.0));
            }
            if candidates.iter().any(|&n| n as usize > winners) {
                last = self.last_winner::<L>(winners, at, spikes);
                room = [winners as u32; L];
                for j in 0..neurons {
                    let above = pick::<L>(spikes, j * streams + at);
                    for b in 0..L {
                        room[b] -= u32::from(above[b] > last[b]);
                    }
                }
            }
        }
        let keep = pick::<L>(self.keep, at);
        for j in 0..neurons {
            let i = j * streams + at;
            let (above, mut a, mut z) = (*pick::<L>(spikes, i), *pick::<L>(fatigue, i), [0.0; L]);
            for b in 0..L {
                let tied = above[b] > 0.0 && above[b] == last[b] && room[b] > 0;
                room[b] -= u32::from(tied);
                z[b] = if above[b] > last[b] || tied { 1.0 } else { 0.0 };
                let kept = if keep[b] > 0.0 { cell.fatigue * a[b] } else { 0.0 };
                a[b] = kept + z[b];
            }
            *pick_mut::<L>(spikes, i) = z;
            *pick_mut::<L>(fatigue, i) = a;
        }
    }

    /// The distance of the block's `winners`-th best candidate in each lane, 0 where there are fewer candidates.
    #[inline(always)]
    fn last_winner<const L: usize>(&self, winners: usize, at: usize, spikes: &[f32]) -> [f32; L] {
        let neurons = spikes.len() / self.streams;
        if winners <= LIST {
            let mut best = [[0.0f32; L]; LIST];
            for j in 0..neurons {
                let mut x = *pick::<L>(spikes, j * self.streams + at);
                for best in &mut best[..winners] {
                    for b in 0..L {
                        let larger = x[b] > best[b];
                        (best[b], x[b]) = if larger { (x[b], best[b]) } else { (best[b], x[b]) };
                    }
                }
            }
            return best[winners - 1];
        }
        // Positive floats have the order of their bits: finds the largest bits that enough candidates reach, from the
        // top bit down.
        let mut bits = [0u32; L];
        for bit in (0..31).rev() {
            let mut reaching = [0u32; L];
            for j in 0..neurons {
                let above = pick::<L>(spikes, j * self.streams + at);
                for b in 0..L {
                    let reaches = above[b] > 0.0 && above[b].to_bits() >= bits[b] | 1 << bit;
                    reaching[b] += u32::from(reaches);
                }
            }
            for b in 0..L {
                bits[b] |= u32::from(reaching[b] as usize >= winners) << bit;
            }
        }
        bits.map(f32::from_bits)
    }
}

/// `sum + Σ w · x` in each lane, source by source; multiplication and addition are rounded separately.
#[inline(always)]
fn weighted<const L: usize>(
    mut sum: [f32; L],
    sources: &[u32],
    weights: &[f32],
    base: usize,
    x: &[f32],
    streams: usize,
    at: usize,
) -> [f32; L] {
    for (&s, &w) in sources.iter().zip(weights) {
        let x = pick::<L>(x, (s as usize - base) * streams + at);
        for b in 0..L {
            sum[b] += w * x[b];
        }
    }
    whole(sum)
}
