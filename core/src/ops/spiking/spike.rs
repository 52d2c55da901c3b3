//! One token's step of a module of spiking neurons: synapses, adaptive leaky integrate-and-fire, k-winner-take-all, and
//! the filtered rates that other modules read (Bellec et al. 2020; k-winner-take-all after Maass 2000).
//!
//! Sums go over a row's synapses in their order, with each product and each sum rounded separately, so that every
//! device computes the same spikes, bit for bit.

use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::views;

/// The constants of a module's neurons.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cell {
    /// α: the factor of the potential from token to token.
    pub leak: f32,
    /// θ₀: the threshold at rest, which a spike also subtracts from the potential.
    pub threshold: f32,
    /// ρ: the factor of the adaptation from token to token.
    pub fatigue: f32,
    /// β: how much the adaptation raises the threshold of every other neuron.
    pub adaptation: f32,
    /// κ: the factor of an output from token to token.
    pub filter: f32,
    /// The firing rate that homeostasis maintains.
    pub rate: f32,
    /// The change of a threshold by homeostasis for each token; 0 for none.
    pub homeostasis: f32,
    /// The number of neurons that compete with each other; the last block may have fewer.
    pub block: u32,
    /// The number of neurons of a block that may fire at once; `block` for no competition.
    pub winners: u32,
}

/// A decayed output below this counts as 0: otherwise outputs would become subnormal numbers, which are slow.
pub const FAINT: f32 = 1e-12;

/// The largest change of a threshold by homeostasis.
pub const OFFSET_LIMIT: f32 = 3.0;

/// The lower bound of potentials: as far below the lowest threshold as the pseudo-derivative reaches. A neuron that is
/// inhibited further would be beyond the reach of homeostasis and of its gradient.
pub const LOWEST_POTENTIAL: f32 = -OFFSET_LIMIT;

impl Cell {
    /// β of neuron `j`.
    pub const fn adaptation_of(&self, j: usize) -> f32 {
        if j.is_multiple_of(2) { self.adaptation } else { 0.0 }
    }

    /// The pseudo-derivative of a spike with respect to the potential: 0.3 max(0, 1 − |v − θ| / θ₀).
    pub fn slope(&self, above: f32) -> f32 {
        let distance = if above < 0.0 { -above } else { above };
        let slope = 1.0 - distance / self.threshold;
        if slope > 0.0 { 0.3 * slope } else { 0.0 }
    }

    /// The potential v of a neuron after a token with input `current`, and input `previous` from the token before.
    #[inline(always)]
    pub fn potential(&self, v: f32, spiked: f32, keep: f32, previous: f32, current: f32) -> f32 {
        // State from before a document has no effect, even if it is NaN.
        let kept = (self.leak * v - self.threshold * spiked) + previous;
        let moved = if keep > 0.0 { kept + current } else { current };
        // NaN stays NaN.
        if moved < LOWEST_POTENTIAL { LOWEST_POTENTIAL } else { moved }
    }

    /// The distance of `v` above the threshold of a neuron with this offset, adaptation β and fatigue.
    #[inline(always)]
    pub fn above(&self, v: f32, offset: f32, adaptation: f32, fatigue: f32, keep: f32) -> f32 {
        let tired = if keep > 0.0 { fatigue } else { 0.0 };
        v - ((self.threshold + offset) + adaptation * tired)
    }

    /// The fatigue after z = 0 or 1 spikes.
    #[inline(always)]
    pub fn tire(&self, fatigue: f32, keep: f32, z: f32) -> f32 {
        (if keep > 0.0 { self.fatigue * fatigue } else { 0.0 }) + z
    }

    /// The decayed output.
    #[inline(always)]
    pub fn fade(&self, output: f32, keep: f32) -> f32 {
        let kept = if keep > 0.0 { self.filter * output } else { 0.0 };
        if kept.abs() > FAINT { kept } else { 0.0 }
    }

    /// Homeostasis: adjusts each neuron's offset after its spikes in all streams.
    pub fn hold_rate(&self, offsets: &mut [f32], spikes: &[f32], streams: usize) {
        if self.homeostasis > 0.0 {
            for (offset, spikes) in offsets.iter_mut().zip(spikes.chunks_exact(streams)) {
                let fired = spikes.iter().filter(|z| **z > 0.0).count();
                let moved = *offset + self.homeostasis * (fired as f32 / streams as f32 - self.rate);
                *offset = moved.clamp(-OFFSET_LIMIT, OFFSET_LIMIT);
            }
        }
    }
}

/// Rows of the signals that are a module's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outputs {
    /// The first row.
    pub first: u32,
    /// The number of rows.
    pub count: u32,
}

impl Outputs {
    /// The neurons pooled in output `o` of a module of `neurons`: groups are as equal as possible.
    pub fn group(&self, o: u32, neurons: u32) -> core::ops::Range<usize> {
        let at = |o: u32| (o as u64 * neurons as u64 / self.count as u64) as usize;
        at(o)..at(o + 1)
    }

    /// The output that neuron `j` of `neurons` is pooled in.
    pub const fn of(&self, j: u32, neurons: u32) -> u32 {
        // The largest o whose group begins at or before j.
        (((j as u64 + 1) * self.count as u64 - 1) / neurons as u64) as u32
    }

    /// The contribution of a spike to the output of a group of `n`: 1 / √n.
    pub fn share(n: usize) -> f32 {
        1.0 / libm::sqrtf(n as f32)
    }
}

/// Neuron j of stream b reads `c = Σ w x` over sources of this token and `p` over sources of the token before, in the
/// order of its row: source s < H is signal s of this token, s < 2 H signal s − H of the token before, and any higher s
/// neuron s − 2 H of the module itself at the token before. With k = `keep`: `v ← max(k (α v − θ₀ z + p) + c, −3)`, `θ
/// = θ₀ + offset + β k a`, `z = 1` where v > θ and v − θ is among its block's largest, `a ← k ρ a + z`, output `← k κ
/// output + Σ z / √n` over its group of n. Homeostasis: `offset ← offset + η (mean of z over the streams − rate)`,
/// within [`OFFSET_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spike {
    /// The token, 0 … T − 1.
    pub token: u32,
    /// [T + 1, H, B]: slot t + 1 belongs to token t. Writes the module's outputs there.
    pub signals: Region,
    /// [T + 1, N, B]: the module's spikes, in the same slots.
    pub spikes: Region,
    /// [T, B]: 0 where a document begins.
    pub keep: Region,
    /// [N, F] u32: ascending. No source is an output of the module itself at this token.
    pub sources: Region,
    /// [N, F].
    pub weights: Region,
    /// [N, B]: v.
    pub potential: Region,
    /// [N, B]: a.
    pub fatigue: Region,
    /// `[N]`: the amount that homeostasis adds to the threshold.
    pub offset: Region,
    /// [T, N, B]: the pseudo-derivative, for the backward pass.
    pub slope: Option<Region>,
    /// The rows of the outputs.
    pub outputs: Outputs,
    /// Constants.
    pub cell: Cell,
}

impl Spike {
    /// Slot `slot` of a region of slots.
    pub const fn slot(region: Region, slot: u32) -> Region {
        region.slice_rows(slot * region.shape[2], region.shape[2])
    }
}

impl Operation for Spike {
    const NAME: &'static str = "spike";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("signals before", Spike::slot(self.signals, self.token)));
        visit(Operand::update("signals", Spike::slot(self.signals, self.token + 1)));
        visit(Operand::read("spikes before", Spike::slot(self.spikes, self.token)));
        visit(Operand::write("spikes", Spike::slot(self.spikes, self.token + 1)));
        visit(Operand::read("keep", self.keep.slice_rows(self.token, 1)).exact());
        visit(Operand::read("sources", self.sources).ids());
        visit(Operand::read("weights", self.weights).exact());
        visit(Operand::update("potential", self.potential).exact());
        visit(Operand::update("fatigue", self.fatigue).exact());
        let offset = if self.cell.homeostasis > 0.0 { Operand::update } else { Operand::read };
        visit(offset("offset", self.offset).exact());
        self.slope.into_iter().for_each(|r| visit(Operand::write("slope", Spike::slot(r, self.token))));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, slots, rows, streams] = self.signals.shape;
        let [_, spike_slots, neurons, spike_streams] = self.spikes.shape;
        let state = |r: &Region| r.rows() == neurons && r.columns() == streams;
        self.expect(self.token + 1 < slots, "token")?;
        self.expect(spike_slots == slots && spike_streams == streams, "spikes")?;
        self.expect(self.keep.rows() + 1 == slots && self.keep.columns() == streams, "keep")?;
        self.expect(self.sources.rows() == neurons && self.sources.shape == self.weights.shape, "sources")?;
        self.expect(state(&self.potential), "potential")?;
        self.expect(state(&self.fatigue), "fatigue")?;
        self.expect(self.offset.elements() == u64::from(neurons), "offset")?;
        let Outputs { first, count } = self.outputs;
        self.expect(count > 0 && count <= neurons && first + count <= rows, "outputs")?;
        self.expect((1..=self.cell.block).contains(&self.cell.winners), "winners")?;
        self.expect(self.slope.is_none_or(|s| s.shape == [1, slots - 1, neurons, streams]), "slope")
    }

    fn flops(&self) -> u64 {
        count(&[2, self.weights.elements(), self.signals.columns().into()])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
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
        let (before, spiked, keep, fan_in) =
            (before.f32()?, spiked.f32()?, keep.f32()?, self.weights.columns() as usize);
        let (now, spikes, fatigue) = (now.f32_mut()?, spikes.f32_mut()?, fatigue.f32_mut()?);
        let (sources, weights, offsets) = (sources.u32()?, weights.f32()?, offset.f32()?);
        // The potentials first; the slots of the spikes hold the distances to the threshold until the spikes are
        // decided.
        let synapses = Synapses { sources, weights, fan_in, now, before, spiked, rows, streams };
        for (i, v) in potential.f32_mut()?.iter_mut().enumerate() {
            let (j, k) = (i / streams, keep[i % streams]);
            let [current, previous] = synapses.bring(j, i % streams);
            *v = self.cell.potential(*v, spiked[i], k, previous, current);
            spikes[i] = self.cell.above(*v, offsets[j], self.cell.adaptation_of(j), fatigue[i], k);
        }
        self.fire(keep, spikes, fatigue, slope.f32_mut()?);
        if self.cell.homeostasis > 0.0 {
            self.cell.hold_rate(offset.f32_mut()?, spikes, streams);
        }
        self.pool(keep, before, spikes, now);
        Ok(())
    }
}

/// A module's synapses and their inputs.
struct Synapses<'a> {
    sources: &'a [u32],
    weights: &'a [f32],
    fan_in: usize,
    now: &'a [f32],
    before: &'a [f32],
    spiked: &'a [f32],
    rows: usize,
    streams: usize,
}

impl Synapses<'_> {
    /// The input of neuron `j` of stream `b`: from this token, and from the token before.
    fn bring(&self, j: usize, b: usize) -> [f32; 2] {
        let (rows, streams, [mut current, mut previous]) = (self.rows, self.streams, [0.0f32; 2]);
        for (&s, &w) in self.sources[j * self.fan_in..][..self.fan_in].iter().zip(&self.weights[j * self.fan_in..]) {
            let s = s as usize;
            if s < rows {
                current += w * self.now[s * streams + b];
            } else if s < 2 * rows {
                previous += w * self.before[(s - rows) * streams + b];
            } else {
                previous += w * self.spiked[(s - 2 * rows) * streams + b];
            }
        }
        [current, previous]
    }
}

impl Spike {
    /// Turns distances to the threshold into spikes, block by block, and updates fatigue and slopes.
    fn fire(&self, keep: &[f32], spikes: &mut [f32], fatigue: &mut [f32], slope: &mut [f32]) {
        let (streams, winners) = (keep.len(), self.cell.winners as usize);
        let (neurons, block) = (spikes.len() / streams, self.cell.block as usize);
        for first in (0..neurons).step_by(block) {
            let end = neurons.min(first + block);
            for (b, &k) in keep.iter().enumerate() {
                // The distances are needed until the whole block is decided: until then a minus sign on the fatigue,
                // which is never negative, marks the neurons that fire.
                for j in first..end {
                    let i = j * streams + b;
                    let above = spikes[i];
                    let beats = |other: usize| {
                        let theirs = spikes[other * streams + b];
                        theirs > above || theirs == above && other < j
                    };
                    let fires = above > 0.0 && (first..end).filter(|&other| beats(other)).count() < winners;
                    let tired = self.cell.tire(fatigue[i], k, if fires { 1.0 } else { 0.0 });
                    fatigue[i] = if fires { -tired } else { tired };
                    if let Some(slope) = slope.get_mut(i) {
                        *slope = self.cell.slope(above);
                    }
                }
                for i in (first..end).map(|j| j * streams + b) {
                    let fires = fatigue[i] < 0.0;
                    spikes[i] = if fires { 1.0 } else { 0.0 };
                    fatigue[i] = if fires { -fatigue[i] } else { fatigue[i] };
                }
            }
        }
    }

    /// Computes the module's outputs.
    fn pool(&self, keep: &[f32], before: &[f32], spikes: &[f32], now: &mut [f32]) {
        for o in 0..self.outputs.count {
            let group = self.outputs.group(o, self.weights.rows());
            let share = Outputs::share(group.len());
            for (b, &k) in keep.iter().enumerate() {
                let fired = group.clone().filter(|j| spikes[j * keep.len() + b] > 0.0).count();
                let i = (self.outputs.first + o) as usize * keep.len() + b;
                now[i] = self.cell.fade(before[i], k) + share * fired as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::ops::spiking::spiking_net::{CELL, Links, Net, Nudge, Size, Stage};
    use std::vec::Vec;

    const SIZES: [Size; 2] =
        [Size { neurons: 13, outputs: 3, fan_in: 9 }, Size { neurons: 11, outputs: 4, fan_in: 12 }];

    /// Two modules, 7 tokens; the first neuron's threshold is about to be raised to the limit, the second's lowered.
    fn net(seed: u64, cell: Cell) -> Net {
        let mut net = Net::new(seed, cell, 6, 7, &SIZES, Links::All);
        let (module, streams) = (&mut net.modules[0], net.streams);
        module.offset[..2].copy_from_slice(&[OFFSET_LIMIT - 0.01, 0.001 - OFFSET_LIMIT]);
        module.potential[..streams].fill(64.0);
        module.potential[streams..2 * streams].fill(-64.0);
        net
    }

    #[track_caller]
    fn near(found: &[f32], expected: impl Iterator<Item = f64>) {
        let expected: Vec<f64> = expected.collect();
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "element {i}: {found} against {expected}");
        }
    }

    #[test]
    fn spikes_states_and_outputs_are_those_of_an_f64_oracle_over_tokens_and_modules() {
        let mut limits = [false; 3];
        let (mut fired, mut silenced) = (0, 0);
        for seed in 1..=8 {
            let net = net(seed, CELL);
            let play = net.play(Nudge::None);
            // Closer decisions would depend on rounding.
            assert!(play.nearest > 1e-5, "seed {seed}: {}", play.nearest);
            let mut stage = Stage::new(&net);
            for (t, m) in (0..net.tokens).flat_map(|t| (0..2).map(move |m| (t, m))) {
                stage.step(&net, m, t);
                let (place, played, outputs) = (stage.places[m], &play.modules[m], net.modules[m].outputs);
                let spikes: Vec<f64> = played.spikes[t + 1].iter().map(|z| z.x).collect();
                let found = stage.bench.get(Spike::slot(place.spikes, t as u32 + 1));
                assert!(found.iter().zip(&spikes).all(|(a, b)| f64::from(*a) == *b), "seed {seed}, token {t}");
                near(stage.bench.get(place.potential), played.potential[t].iter().map(|v| v.x));
                near(stage.bench.get(place.fatigue), played.fatigue[t].iter().map(|a| a.x));
                near(stage.bench.get(place.offset), played.offset[t].iter().copied());
                near(stage.bench.get(Spike::slot(place.slope, t as u32)), played.slope[t].iter().copied());
                let first = ((t + 1) * net.rows + outputs.first as usize) * net.streams;
                let expected = &play.signals[first..first + outputs.count as usize * net.streams];
                near(&stage.bench.get(stage.signals)[first..][..expected.len()], expected.iter().map(|y| y.x));
                limits[0] |= stage.bench.get(place.offset).contains(&OFFSET_LIMIT);
                limits[1] |= stage.bench.get(place.offset).contains(&-OFFSET_LIMIT);
                limits[2] |= stage.bench.get(place.potential).contains(&LOWEST_POTENTIAL);
                fired += spikes.iter().filter(|z| **z > 0.0).count();
                silenced += played.above[t].iter().zip(&spikes).filter(|(u, z)| **u > 0.0 && **z == 0.0).count();
            }
        }
        // Makes sure that the cases under test occurred.
        assert_eq!(limits, [true; 3]);
        assert!(fired > 500 && silenced > 40, "{fired} fired, {silenced} were silenced by others");
    }

    #[test]
    fn without_homeostasis_thresholds_stay_as_they_are() {
        let mut net = net(3, Cell { homeostasis: 0.0, ..CELL });
        // Beyond the limit as well: the region is then only read.
        net.modules[0].offset[0] = 4.0;
        let mut stage = Stage::play(&net);
        assert_eq!(stage.bench.get(stage.places[0].offset), net.modules[0].offset);
    }

    #[test]
    fn groups_are_even_and_in_order_and_every_neuron_knows_its_own() {
        for neurons in 1..=48u32 {
            for count in 1..=neurons {
                let outputs = Outputs { first: 5, count };
                let mut end = 0;
                for o in 0..count {
                    let group = outputs.group(o, neurons);
                    assert_eq!(group.start, end);
                    assert!([neurons / count, neurons.div_ceil(count)].contains(&(group.len() as u32)));
                    end = group.end;
                    assert!(group.clone().all(|j| outputs.of(j as u32, neurons) == o), "{group:?} of {neurons}");
                }
                assert_eq!(end, neurons as usize);
            }
        }
    }

    #[test]
    fn never_more_than_its_winners_fire_in_a_block() {
        let mut full = 0;
        for (seed, winners) in (1..=30).flat_map(|seed| (1..=4).map(move |w| (seed, w))) {
            let net = net(seed, Cell { block: 4, winners, ..CELL });
            let mut stage = Stage::play(&net);
            for (place, size) in stage.places.clone().iter().zip(SIZES) {
                for slot in 1..=net.tokens as u32 {
                    let spikes = stage.bench.get(Spike::slot(place.spikes, slot));
                    for (b, first) in (0..net.streams).flat_map(|b| (0..size.neurons).step_by(4).map(move |j| (b, j))) {
                        let block = first as usize..size.neurons.min(first + 4) as usize;
                        let fired = block.filter(|j| spikes[j * net.streams + b] > 0.0).count();
                        assert!(fired <= winners as usize);
                        full += usize::from(fired == winners as usize);
                    }
                }
            }
        }
        assert!(full > 1000, "{full}");
    }

    #[test]
    fn a_tie_goes_to_the_lower_index() {
        let mut net = Net::new(1, Cell { block: 4, winners: 2, ..CELL }, 2, 1, &SIZES[..1], Links::All);
        // All neurons start anew and read the same sources, so all potentials and thresholds are equal.
        let fan_in = SIZES[0].fan_in as usize;
        let module = &mut net.modules[0];
        net.keep.fill(0.0);
        module.offset.fill(0.0);
        module.sources = [0, 1, 7, 8, 9, 10, 11, 12, 13].repeat(SIZES[0].neurons as usize);
        module.weights = [&[0.7, 0.4][..], &[0.1; 7]].concat().repeat(SIZES[0].neurons as usize);
        net.signals.fill(1.0);
        assert_eq!((module.sources.len(), net.rows), (SIZES[0].neurons as usize * fan_in, 5));
        let mut stage = Stage::play(&net);
        let spikes = stage.bench.get(Spike::slot(stage.places[0].spikes, 1));
        for (j, spikes) in spikes.chunks_exact(net.streams).enumerate() {
            assert!(spikes.iter().all(|z| (*z > 0.0) == (j % 4 < 2)), "neuron {j}");
        }
    }

    #[test]
    fn as_many_winners_as_neurons_in_a_block_are_no_competition() {
        let played = |block, winners| {
            let net = net(4, Cell { block, winners, ..CELL });
            let mut stage = Stage::play(&net);
            stage.places.clone().iter().flat_map(|p| stage.bench.get(p.spikes).to_vec()).collect::<Vec<_>>()
        };
        let alone = played(1, 1);
        assert_eq!(played(5, 5), alone);
        assert_eq!(played(99, 99), alone);
        assert_ne!(played(5, 3), alone);
    }
}
