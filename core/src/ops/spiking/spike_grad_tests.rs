extern crate std;

use super::*;
use crate::ops::spiking::spiking_net::{CELL, Links, Module, Net, Nudge, Play, Size, Stage};
use crate::random::Random;
use std::vec;
use std::vec::Vec;

const SIZES: [Size; 3] = [
    Size { neurons: 7, outputs: 3, fan_in: 8 },
    Size { neurons: 8, outputs: 3, fan_in: 9 },
    Size { neurons: 5, outputs: 2, fan_in: 10 },
];
const TOKENS: usize = 6;
const TAPS: u32 = 5;

fn net(seed: u64, cell: Cell) -> Net {
    Net::new(seed, cell, TAPS, TOKENS, &SIZES, Links::All)
}

/// One layer that reads only its input.
fn layer(seed: u64, cell: Cell) -> Net {
    let size = Size { neurons: 11, outputs: 4, fan_in: 3 };
    Net::new(seed, cell, TAPS, TOKENS, &[size], Links::Taps)
}

/// [T, H, B]: the loss's direct gradient with respect to each signal, without effects through other signals.
fn direct(net: &Net) -> Vec<f32> {
    (0..(net.tokens * net.rows * net.streams) as u64).map(|i| Random::new(5, 9).normal(i)).collect()
}

/// The results of a backward pass.
#[derive(Debug, Clone, PartialEq)]
struct Found {
    /// [N, F] for each module.
    weights: Vec<Vec<f32>>,
    /// [T, H, B].
    signals: Vec<f32>,
}

/// A backward pass's regions, after those of the forward pass.
struct Back {
    stage: Stage,
    signals_grad: Region,
    /// A, for each module.
    fatigue: Vec<Region>,
}

impl Back {
    fn new(net: &Net) -> Self {
        let mut stage = Stage::play(net);
        let shape = [1, net.tokens as u32, net.rows as u32, net.streams as u32];
        let signals_grad = stage.bench.values(shape, &direct(net));
        let fatigue = stage.places.clone().iter().map(|p| stage.bench.poison(p.fatigue.shape)).collect();
        Self { stage, signals_grad, fatigue }
    }

    fn cells(&self, net: &Net, m: usize, tokens: core::ops::Range<usize>) -> SpikeGrad {
        SpikeGrad {
            first: tokens.start as u32,
            count: tokens.len() as u32,
            signals_grad: self.signals_grad,
            slope: self.stage.places[m].slope,
            keep: self.stage.keep,
            fatigue_grad: Some(self.fatigue[m]),
            spikes_grad: None,
            outputs: net.modules[m].outputs,
            cell: net.cell,
        }
    }

    fn synapses(&mut self) -> Found {
        let mut weights = Vec::new();
        for p in self.stage.places.clone() {
            let weight_grad = self.stage.bench.poison(p.weights.shape);
            self.stage.bench.run(SynapseGrad {
                grad: p.slope,
                signals: self.stage.signals,
                spikes: p.spikes,
                keep: self.stage.keep,
                sources: p.sources,
                weight_grad,
            });
            weights.push(self.stage.bench.get(weight_grad).to_vec());
        }
        Found { weights, signals: self.stage.bench.get(self.signals_grad).to_vec() }
    }
}

/// e-prop, including adaptation if `fatigue`, in calls of `count` tokens.
fn eprop(net: &Net, fatigue: bool, count: usize) -> Found {
    let mut back = Back::new(net);
    for m in 0..net.modules.len() {
        for first in (0..net.tokens).step_by(count).rev() {
            let whole = back.cells(net, m, first..net.tokens.min(first + count));
            back.stage.bench.run(SpikeGrad { fatigue_grad: whole.fatigue_grad.filter(|_| fatigue), ..whole });
        }
    }
    back.synapses()
}

/// Backpropagation through time: tokens from the last to the first, and the modules within each token.
fn bptt(net: &Net) -> Found {
    let mut back = Back::new(net);
    let mut index = Vec::new();
    for (module, place) in net.modules.iter().zip(back.stage.places.clone()) {
        // Counting sort: first where each source's synapses begin, then the synapses.
        let mut starts = vec![0u32; 2 * net.rows + module.size.neurons as usize + 1];
        module.sources.iter().for_each(|s| starts[*s as usize + 1] += 1);
        (1..starts.len()).for_each(|s| starts[s] += starts[s - 1]);
        let (mut next, mut synapses) = (starts.clone(), vec![0u32; module.sources.len()]);
        for (i, s) in module.sources.iter().enumerate() {
            synapses[next[*s as usize] as usize] = i as u32;
            next[*s as usize] += 1;
        }
        let bench = &mut back.stage.bench;
        let synapses = bench.ids(&synapses).reshaped(place.sources.shape);
        index.push((bench.ids(&starts), synapses, bench.poison(place.potential.shape)));
    }
    for (t, m) in (0..net.tokens).rev().flat_map(|t| (0..net.modules.len()).rev().map(move |m| (t, m))) {
        let (starts, synapses, spikes_grad) = index[m];
        let cells = back.cells(net, m, t..t + 1);
        back.stage.bench.run(SpikeGrad { spikes_grad: (t + 1 < net.tokens).then_some(spikes_grad), ..cells });
        back.stage.bench.run(SynapseInputGrad {
            token: t as u32,
            grad: cells.slope,
            weights: back.stage.places[m].weights,
            starts,
            synapses,
            keep: cells.keep,
            signals_grad: cells.signals_grad,
            spikes_grad,
        });
    }
    back.synapses()
}

/// e-prop as in the papers, forward in time: an eligibility for each synapse and stream, times the learning signal.
fn eligibilities(net: &Net, play: &Play, fatigue: bool) -> Vec<Vec<f64>> {
    let direct = direct(net);
    let cell = net.cell;
    let [leak, rho, filter] = [cell.leak, cell.fatigue, cell.filter].map(f64::from);
    let of_module = |(m, module): (usize, &Module)| {
        let (neurons, outputs) = (module.size.neurons as usize, module.outputs.count as usize);
        let synapse = |(i, s): (usize, &u32)| {
            let j = i / module.size.fan_in as usize;
            let beta = if fatigue && j.is_multiple_of(2) { f64::from(cell.adaptation) } else { 0.0 };
            let o = (0..outputs).find(|o| j < (o + 1) * neurons / outputs).unwrap();
            let pooled = (o + 1) * neurons / outputs - o * neurons / outputs;
            let mut sum = 0.0;
            for b in 0..net.streams {
                // ε of the potential and of the adaptation; the eligibility filtered like the output.
                let (mut of_v, mut of_a, mut filtered) = (0.0, 0.0, 0.0);
                for t in 0..net.tokens {
                    let keep = net.keep(t, b);
                    of_v = keep * leak * of_v + net.read(*s, t, b, &play.signals, &play.modules[m].spikes).x;
                    let eligibility = play.modules[m].slope[t][j * net.streams + b] * (of_v - beta * keep * of_a);
                    of_a = keep * rho * of_a + eligibility;
                    filtered = keep * filter * filtered + eligibility;
                    let signal = direct[(t * net.rows + module.outputs.first as usize + o) * net.streams + b];
                    sum += f64::from(signal) / (pooled as f64).sqrt() * filtered;
                }
            }
            sum
        };
        module.sources.iter().enumerate().map(synapse).collect()
    };
    net.modules.iter().enumerate().map(of_module).collect()
}

/// dL / d of the nudged input, where L is the sum of all signals of the segment times their direct gradients.
fn tangent(net: &Net, direct: &[f32], nudge: Nudge) -> f64 {
    let play = net.play(nudge);
    let signals = &play.signals[net.rows * net.streams..];
    direct.iter().zip(signals).map(|(g, y)| f64::from(*g) * y.d).sum()
}

fn tangents(net: &Net) -> Vec<Vec<f64>> {
    let direct = direct(net);
    let of_module = |m: usize| {
        (0..net.modules[m].weights.len()).map(|i| tangent(net, &direct, Nudge::Weight(m, i))).collect::<Vec<_>>()
    };
    (0..net.modules.len()).map(of_module).collect()
}

/// The largest relative difference, or difference to a hundredth of the largest number where the number is smaller:
/// sums of many terms may cancel.
fn distance(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let apart = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() / b.abs().max(0.01 * largest);
    // A separate check, since f64::max ignores NaN.
    assert!(largest > 0.1 && found.iter().all(|x| x.is_finite()));
    found.iter().zip(expected).map(apart).fold(0.0, f64::max)
}

#[track_caller]
fn agree(found: &[Vec<f32>], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len());
    for (m, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = distance(found, expected);
        assert!(distance < 1e-4, "module {m}: {distance}");
    }
}

#[track_caller]
fn differ(found: &[Vec<f32>], expected: &[Vec<f64>]) {
    assert!(found.iter().zip(expected).all(|(a, b)| distance(a, b) > 1e-2));
}

#[test]
fn eprop_is_each_synapse_s_eligibility_times_the_learning_signal_summed_forward_in_time() {
    for seed in 1..=5 {
        let net = net(seed, CELL);
        let play = net.play(Nudge::None);
        assert!(play.nearest > 1e-5, "seed {seed}: {}", play.nearest);
        for fatigue in [false, true] {
            agree(&eprop(&net, fatigue, TOKENS).weights, &eligibilities(&net, &play, fatigue));
            differ(&eprop(&net, fatigue, TOKENS).weights, &eligibilities(&net, &play, !fatigue));
        }
    }
}

#[test]
fn a_segment_in_pieces_gives_the_bits_of_the_whole() {
    let net = net(2, CELL);
    for fatigue in [false, true] {
        let whole = eprop(&net, fatigue, TOKENS);
        for count in 1..TOKENS {
            assert_eq!(eprop(&net, fatigue, count), whole, "{count} tokens a call");
        }
    }
}

#[test]
fn backpropagation_through_time_is_what_tangents_of_the_whole_net_give() {
    for seed in 1..=5 {
        let net = net(seed, CELL);
        let (play, found, direct) = (net.play(Nudge::None), bptt(&net), direct(&net));
        assert!(play.nearest > 1e-5, "seed {seed}: {}", play.nearest);
        agree(&found.weights, &tangents(&net));
        // The effects that e-prop leaves out are visible here.
        differ(&found.weights, &eligibilities(&net, &play, true));
        let (mut taps, mut expected) = (Vec::new(), Vec::new());
        let tap = |i: &usize| i / net.streams % net.rows < net.taps;
        for i in (0..net.tokens * net.rows * net.streams).filter(tap) {
            taps.push(found.signals[i]);
            expected.push(tangent(&net, &direct, Nudge::Signal(net.rows * net.streams + i)));
        }
        assert_eq!(taps.len(), net.tokens * net.taps * net.streams);
        agree(&[taps], &[expected]);
    }
}

#[test]
fn eprop_is_backpropagation_where_nothing_recurs() {
    for seed in 1..=5 {
        let net = layer(seed, CELL);
        let full = eprop(&net, true, TOKENS);
        assert_eq!(full.weights, bptt(&net).weights);
        agree(&full.weights, &tangents(&net));
        differ(&eprop(&net, false, TOKENS).weights, &tangents(&net));
        // Without adaptation the short form leaves nothing out.
        let plain = layer(seed, Cell { adaptation: 0.0, ..CELL });
        assert_eq!(eprop(&plain, false, TOKENS).weights, bptt(&plain).weights);
    }
}
