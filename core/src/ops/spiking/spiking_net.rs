//! A small net of spiking modules, twice: on the bench, and in f64 with a tangent for each number. For the tests of the
//! operations of neurons, forward and backward.

extern crate std;

use super::spike::{Cell, LOWEST_POTENTIAL, OFFSET_LIMIT, Outputs, Spike};
use crate::memory::Region;
use crate::ops::testing::Bench;
use crate::random::Random;
use crate::wiring::{POOLS, Pool, Wiring};
use core::ops::{Add, Mul, Sub};
use std::vec;
use std::vec::Vec;

/// No constant is 1, nor a power of another, so that a forgotten or misplaced one is detected.
pub const CELL: Cell = Cell {
    leak: 0.85,
    threshold: 0.9,
    fatigue: 0.96,
    adaptation: 0.2,
    filter: 0.6,
    rate: 0.1,
    homeostasis: 0.02,
    block: 5,
    winners: 2,
};

/// A number and its tangent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dual {
    pub x: f64,
    pub d: f64,
}

impl Dual {
    fn constant(x: f64) -> Self {
        Self { x, d: 0.0 }
    }
}

impl Add for Dual {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { x: self.x + other.x, d: self.d + other.d }
    }
}

impl Sub for Dual {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + other * -1.0
    }
}

impl Mul for Dual {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self { x: self.x * other.x, d: self.x * other.d + self.d * other.x }
    }
}

impl Mul<f64> for Dual {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        self * Self::constant(factor)
    }
}

/// The sources of the modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Taps, earlier modules' outputs, all signals of the token before, own neurons.
    All,
    /// Taps only, of this token.
    Taps,
}

/// The sizes of a module.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub neurons: u32,
    pub outputs: u32,
    pub fan_in: u32,
}

/// A module's state before the first token.
#[derive(Debug, Clone)]
pub struct Module {
    pub size: Size,
    pub outputs: Outputs,
    /// [N, F].
    pub sources: Vec<u32>,
    /// [N, F].
    pub weights: Vec<f32>,
    /// [N, B].
    pub potential: Vec<f32>,
    /// [N, B].
    pub fatigue: Vec<f32>,
    /// `[N]`.
    pub offset: Vec<f32>,
    /// [N, B]: the spikes of the token before the chunk.
    pub spikes: Vec<f32>,
}

/// Modules, the taps they read, and the beginnings of documents.
#[derive(Debug, Clone)]
pub struct Net {
    pub cell: Cell,
    pub taps: usize,
    pub tokens: usize,
    pub streams: usize,
    /// H: taps, then all modules' outputs.
    pub rows: usize,
    /// [T, B].
    pub keep: Vec<f32>,
    /// [T + 1, H, B]: the signals before the first token; NaN for outputs that are not computed yet.
    pub signals: Vec<f32>,
    pub modules: Vec<Module>,
}

/// The input that a tangent starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nudge {
    None,
    /// A module's synapse.
    Weight(usize, usize),
    /// An element of the signals.
    Signal(usize),
}

/// The trace of a module: a vector of [N, B] for each token; spikes include the token before the chunk.
#[derive(Debug, Clone, Default)]
pub struct Played {
    pub spikes: Vec<Vec<Dual>>,
    pub above: Vec<Vec<f64>>,
    pub slope: Vec<Vec<f64>>,
    pub potential: Vec<Vec<Dual>>,
    pub fatigue: Vec<Vec<Dual>>,
    /// `[N]`.
    pub offset: Vec<Vec<f64>>,
}

/// The trace of the net.
#[derive(Debug, Clone)]
pub struct Play {
    /// [T + 1, H, B].
    pub signals: Vec<Dual>,
    pub modules: Vec<Played>,
    /// The closest decision: the least distance to a threshold, or between the last winner and the first loser.
    pub nearest: f64,
}

impl Net {
    /// A net of three streams; `seed` determines every number.
    pub fn new(seed: u64, cell: Cell, taps: u32, tokens: usize, sizes: &[Size], links: Links) -> Self {
        let streams = 3;
        let rows = taps + sizes.iter().map(|s| s.outputs).sum::<u32>();
        let normal = |stream: u64, n: usize, scale: f32| -> Vec<f32> {
            (0..n as u64).map(|i| Random::new(seed, stream).normal(i) * scale).collect()
        };
        let keep: Vec<f32> =
            (0..(tokens * streams) as u64).map(|i| Random::new(seed, 1).below(i, 4).min(1) as f32).collect();
        let mut signals = normal(2, (tokens + 1) * rows as usize * streams, 1.0);
        let of_module = |i: usize| i / streams % rows as usize >= taps as usize;
        for (i, x) in signals.iter_mut().enumerate().skip(rows as usize * streams) {
            *x = if of_module(i) { f32::NAN } else { *x };
        }
        let mut first = taps;
        let mut modules = Vec::new();
        for (m, &size) in sizes.iter().enumerate() {
            let Size { neurons, outputs, fan_in } = size;
            let mut pools = [Pool { first: 0, count: 0 }; POOLS];
            pools[0] = Pool { first: taps, count: first - taps };
            pools[1] = Pool { first: rows, count: rows };
            pools[2] = Pool { first: 2 * rows, count: neurons };
            let reserved = if links == Links::Taps { fan_in } else { fan_in / 4 };
            let wiring = Wiring {
                seed,
                stream: 10 + m as u64,
                front: Pool { first: 0, count: taps },
                reserved,
                pools,
                own: 2 * rows,
            };
            let mut sources = vec![0; (neurons * fan_in) as usize];
            sources.chunks_exact_mut(fan_in as usize).zip(0..).for_each(|(row, j)| wiring.draw(j, row));
            let (stream, states) = (20 + 10 * m as u64, neurons as usize * streams);
            modules.push(Module {
                size,
                outputs: Outputs { first, count: outputs },
                weights: normal(stream, sources.len(), 1.6 / libm::sqrtf(fan_in as f32)),
                sources,
                potential: normal(stream + 1, states, 0.5),
                fatigue: normal(stream + 2, states, 1.0).iter().map(|a| a.abs()).collect(),
                offset: normal(stream + 3, neurons as usize, 0.2),
                spikes: normal(stream + 4, states, 1.0).iter().map(|x| (x.abs() > 1.0).into()).collect(),
            });
            first += outputs;
        }
        Self { cell, taps: taps as usize, tokens, streams, rows: rows as usize, keep, signals, modules }
    }

    pub fn keep(&self, t: usize, b: usize) -> f64 {
        f64::from(self.keep[t * self.streams + b])
    }

    /// The input of a synapse with source `s` at token `t`.
    pub fn read(&self, s: u32, t: usize, b: usize, signals: &[Dual], spikes: &[Vec<Dual>]) -> Dual {
        let (s, rows) = (s as usize, self.rows);
        let signal = |slot: usize, row: usize| signals[(slot * rows + row) * self.streams + b];
        match s / rows {
            0 => signal(t + 1, s),
            1 => signal(t, s - rows) * self.keep(t, b),
            _ => spikes[t][(s - 2 * rows) * self.streams + b] * self.keep(t, b),
        }
    }

    /// Runs the whole chunk in f64, with the tangent of everything with respect to `nudge`. A spike's tangent is the
    /// pseudo-derivative times that of v − θ; reset and homeostasis have none.
    pub fn play(&self, nudge: Nudge) -> Play {
        let dual = |x: &f32| Dual::constant(f64::from(*x));
        let all = |x: &[f32]| x.iter().map(dual).collect::<Vec<_>>();
        let mut signals = all(&self.signals);
        if let Nudge::Signal(i) = nudge {
            signals[i].d = 1.0;
        }
        let first = |m: &Module| Played { spikes: vec![all(&m.spikes)], ..Played::default() };
        let mut play = Play { signals, modules: self.modules.iter().map(first).collect(), nearest: f64::MAX };
        for t in 0..self.tokens {
            for m in 0..self.modules.len() {
                self.step(m, t, nudge, &mut play);
            }
        }
        play
    }

    fn step(&self, m: usize, t: usize, nudge: Nudge, play: &mut Play) {
        let (module, streams) = (&self.modules[m], self.streams);
        let Size { neurons, fan_in, .. } = module.size;
        let (neurons, fan_in) = (neurons as usize, fan_in as usize);
        let [leak, threshold, fatigue, adaptation, filter, rate, homeostasis] = [
            self.cell.leak,
            self.cell.threshold,
            self.cell.fatigue,
            self.cell.adaptation,
            self.cell.filter,
            self.cell.rate,
            self.cell.homeostasis,
        ]
        .map(f64::from);
        let all = |x: &[f32]| x.iter().map(|x| Dual::constant(f64::from(*x))).collect::<Vec<_>>();
        let played = &play.modules[m];
        let mut v = played.potential.last().cloned().unwrap_or_else(|| all(&module.potential));
        let mut a = played.fatigue.last().cloned().unwrap_or_else(|| all(&module.fatigue));
        let mut offset =
            played.offset.last().cloned().unwrap_or_else(|| module.offset.iter().map(|x| f64::from(*x)).collect());
        let mut above = vec![Dual::default(); neurons * streams];
        let mut z = above.clone();
        for (i, above) in above.iter_mut().enumerate() {
            let (j, b) = (i / streams, i % streams);
            let mut input = Dual::default();
            for f in j * fan_in..(j + 1) * fan_in {
                let d = f64::from(nudge == Nudge::Weight(m, f));
                let x = self.read(module.sources[f], t, b, &play.signals, &played.spikes);
                input = input + Dual { x: f64::from(module.weights[f]), d } * x;
            }
            let reset = Dual::constant(threshold * played.spikes[t][i].x);
            v[i] = (v[i] * leak - reset) * self.keep(t, b) + input;
            // Tangents ignore the lower bound of the potential, as the gradients do.
            v[i].x = v[i].x.max(f64::from(LOWEST_POTENTIAL));
            a[i] = a[i] * self.keep(t, b);
            let raised = a[i] * if j.is_multiple_of(2) { adaptation } else { 0.0 };
            *above = v[i] - raised - Dual::constant(threshold + offset[j]);
        }
        let slope: Vec<f64> = above.iter().map(|u| 0.3 * (1.0 - u.x.abs() / threshold).max(0.0)).collect();
        for (z, (u, h)) in z.iter_mut().zip(above.iter().zip(&slope)) {
            z.d = h * u.d;
        }
        for b in 0..streams {
            for first in (0..neurons).step_by(self.cell.block as usize) {
                let distance = |j: usize| above[j * streams + b].x;
                let mut block: Vec<usize> = (first..neurons.min(first + self.cell.block as usize)).collect();
                play.nearest = block.iter().map(|j| distance(*j).abs()).fold(play.nearest, f64::min);
                // A stable sort: the lower index of equals comes first.
                block.sort_by(|i, j| distance(*j).total_cmp(&distance(*i)));
                block.retain(|j| distance(*j) > 0.0);
                let (winners, losers) = block.split_at(block.len().min(self.cell.winners as usize));
                if let Some(loser) = losers.first() {
                    play.nearest = play.nearest.min(distance(winners[winners.len() - 1]) - distance(*loser));
                }
                winners.iter().for_each(|j| z[j * streams + b].x = 1.0);
            }
        }
        for (i, z) in z.iter().enumerate() {
            a[i] = a[i] * fatigue + *z;
        }
        for (j, offset) in offset.iter_mut().enumerate() {
            let fired: f64 = z[j * streams..(j + 1) * streams].iter().map(|z| z.x).sum();
            let limit = if homeostasis > 0.0 { f64::from(OFFSET_LIMIT) } else { f64::MAX };
            *offset = (*offset + homeostasis * (fired / streams as f64 - rate)).max(-limit).min(limit);
        }
        for o in 0..module.size.outputs as usize {
            let begin = o * neurons / module.size.outputs as usize;
            let end = (o + 1) * neurons / module.size.outputs as usize;
            for b in 0..streams {
                let at = |slot: usize| (slot * self.rows + module.outputs.first as usize + o) * streams + b;
                let fired = (begin..end).fold(Dual::default(), |sum, j| sum + z[j * streams + b]);
                play.signals[at(t + 1)] =
                    play.signals[at(t)] * (self.keep(t, b) * filter) + fired * (1.0 / ((end - begin) as f64).sqrt());
            }
        }
        let played = &mut play.modules[m];
        played.spikes.push(z);
        played.above.push(above.iter().map(|u| u.x).collect());
        played.slope.push(slope);
        played.potential.push(v);
        played.fatigue.push(a);
        played.offset.push(offset);
    }
}

/// The regions of a module on the bench.
#[derive(Debug, Clone, Copy)]
pub struct ModuleRegions {
    pub spikes: Region,
    pub sources: Region,
    pub weights: Region,
    pub potential: Region,
    pub fatigue: Region,
    pub offset: Region,
    pub slope: Region,
}

/// A net on the bench.
pub struct Stage {
    pub bench: Bench<{ 1 << 14 }>,
    pub signals: Region,
    pub keep: Region,
    pub places: Vec<ModuleRegions>,
}

impl Stage {
    pub fn new(net: &Net) -> Self {
        let mut bench = Bench::new();
        let (tokens, streams) = (net.tokens as u32, net.streams as u32);
        let signals = bench.values([1, tokens + 1, net.rows as u32, streams], &net.signals);
        let keep = bench.values([1, 1, tokens, streams], &net.keep);
        let mut places = Vec::new();
        for m in &net.modules {
            let Size { neurons, fan_in, .. } = m.size;
            let spikes = bench.poison([1, tokens + 1, neurons, streams]);
            bench.set(Spike::slot(spikes, 0), &m.spikes);
            places.push(ModuleRegions {
                spikes,
                sources: bench.ids(&m.sources).reshaped([1, 1, neurons, fan_in]),
                weights: bench.values([1, 1, neurons, fan_in], &m.weights),
                potential: bench.values([1, 1, neurons, streams], &m.potential),
                fatigue: bench.values([1, 1, neurons, streams], &m.fatigue),
                offset: bench.values([1, 1, 1, neurons], &m.offset),
                slope: bench.poison([1, tokens, neurons, streams]),
            });
        }
        Self { bench, signals, keep, places }
    }

    /// Runs token `t` of module `m`.
    pub fn step(&mut self, net: &Net, m: usize, t: usize) {
        let ModuleRegions { spikes, sources, weights, potential, fatigue, offset, slope } = self.places[m];
        self.bench.run(Spike {
            token: t as u32,
            signals: self.signals,
            spikes,
            keep: self.keep,
            sources,
            weights,
            potential,
            fatigue,
            offset,
            slope: Some(slope),
            outputs: net.modules[m].outputs,
            cell: net.cell,
        });
    }

    /// Runs the whole chunk.
    pub fn play(net: &Net) -> Self {
        let mut stage = Self::new(net);
        for (t, m) in (0..net.tokens).flat_map(|t| (0..net.modules.len()).map(move |m| (t, m))) {
            stage.step(net, m, t);
        }
        stage
    }
}
