//! The operations of a spiking model on a GPU, each by itself beside its roofline, `cuda_neurogen 4gb|39k [STREAMS
//! [BLOCK]]`: 32 streams of 64 tokens, or one of one token; 128 neurons compete. bf16.
//! Runs without cargo.

use std::error::Error;

use capful_core::device::{Device as _, Meter, Operation, Rates};
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{
    Cell, FactoredUpdate, HeadGrad, HeadLoss, Linear, Memory, MemoryGrad, Outputs, Readout, ReadoutGrad, ReadoutLayout,
    Spike, SpikeGrad, Stored, SynapseGrad,
};
use capful_core::random::Random;
use capful_core::train::{Results, Settings};
use capful_core::wiring::{POOLS, Pool, Wiring};
use capful_host::device::cuda::{Cuda, CudaProfile, Precision, Products, Room, describe};

const T: u32 = 64;
const VOCABULARY: u32 = 32_000;
const PROFILE: CudaProfile = CudaProfile::new(Precision::Bf16);
/// What an H200 reaches; products in TF32.
const RATES: Rates = Rates { flops_per_s: 350e12, flops_8bit_per_s: 1100e12, bytes_per_s: 4.2e12 };
/// Neurons, synapses of each, outputs: of neurogen-4gb and of neurogen-39k.
const LARGE: [[u32; 3]; 6] = [
    [4096, 64, 1024],
    [40_960, 96, 8192],
    [40_960, 96, 8192],
    [20_480, 96, 4096],
    [40_960, 128, 8192],
    [10_240, 96, 2048],
];
const SMALL: [[u32; 3]; 6] =
    [[1024, 48, 512], [10_240, 64, 2560], [10_240, 64, 2560], [5120, 64, 1280], [10_240, 96, 2560], [2560, 64, 640]];

/// Regions one after the other.
#[derive(Default)]
struct Layout {
    end: u64,
}

impl Layout {
    fn lay(&mut self, dtype: Dtype, shape: [u32; 4]) -> Region {
        let region = Region { space: Space::Arena, dtype, offset: self.end.next_multiple_of(256), shape };
        self.end = region.end();
        region
    }

    fn f32(&mut self, shape: [u32; 4]) -> Region {
        self.lay(Dtype::F32, shape)
    }

    fn bf16(&mut self, shape: [u32; 4]) -> Region {
        self.lay(Dtype::Bf16, shape)
    }
}

fn fill(cuda: &mut Cuda, region: Region, value: impl Fn(u64) -> f32) -> Result<(), Box<dyn Error>> {
    let bytes: Vec<u8> = match region.dtype {
        Dtype::Bf16 => (0..region.elements()).flat_map(|i| half::bf16::from_f32(value(i)).to_le_bytes()).collect(),
        _ => (0..region.elements()).flat_map(|i| value(i).to_le_bytes()).collect(),
    };
    Ok(cuda.write(region, &bytes)?)
}

/// One line, for a token of all streams; gives the seconds of `o`.
fn time<O: Operation + Copy>(cuda: &mut Cuda, what: &str, o: O, tokens: u32) -> Result<f64, Box<dyn Error>> {
    let mut meter = Meter::new(&PROFILE, RATES);
    meter.run(&o.into())?;
    let seconds = cuda.time(10, |c| c.run(&o.into()))?;
    let bound = RATES.seconds(meter.flops, o.flops_8bit(), meter.bytes);
    let each = 1e6 / f64::from(tokens);
    println!(
        "  {what:<34} {:>9.2} us a token, roofline {:>8.2}, {:>6.0} GB/s",
        seconds * each,
        bound * each,
        meter.bytes as f64 / seconds / 1e9
    );
    Ok(seconds)
}

struct Sizes {
    small: bool,
    streams: u32,
    /// Tokens of a step.
    tokens: u32,
    block: u32,
}

fn report(&Sizes { small, streams, tokens, block }: &Sizes) -> Result<(), Box<dyn Error>> {
    let description = describe();
    description.driver?;
    let names: Vec<_> = description.gpus.iter().take(1).map(|gpu| gpu.name.as_str()).collect();
    let (taps, modules) = if small { (2048, SMALL) } else { (4096, LARGE) };
    let outputs: u32 = modules.iter().map(|m| m[2]).sum();
    let (rows, dims, most) = (taps + outputs, modules[1][2], modules[1][0]);
    let widest = modules.iter().map(|m| m[1]).max().unwrap_or(1);

    let mut l = Layout::default();
    let (signals, spikes) = (l.bf16([1, tokens + 1, rows, streams]), l.bf16([1, tokens + 1, most, streams]));
    let (signals_grad, slope) = (l.f32([1, tokens, rows, streams]), l.bf16([1, tokens, most, streams]));
    let keep = l.f32([1, 1, tokens, streams]);
    let sources = l.lay(Dtype::U32, [1, 1, most, widest]);
    let (weights, weight_grad) = (l.f32([1, 1, most, widest]), l.f32([1, 1, most, widest]));
    let state = [1, 1, most, streams];
    let (potential, fatigue, fatigue_grad, offset) = (l.f32(state), l.f32(state), l.f32(state), l.f32([1, 1, 1, most]));
    let projected = outputs - dims;
    let (project, project_grad) = (l.f32([1, 1, 4, projected]), l.f32([1, 1, 4, projected]));
    let (x, x_grad) = (l.f32([1, streams, tokens, dims]), l.f32([1, streams, tokens, dims]));
    let (decoder, bias) = (l.f32([1, 1, VOCABULARY, dims]), l.f32([1, 1, 1, VOCABULARY]));
    let logits = l.f32([1, 1, streams * tokens, VOCABULARY]);
    let (targets, losses) = (l.lay(Dtype::U32, [1, 1, 1, streams * tokens]), l.f32([1, 1, 1, streams * tokens]));
    let (settings, results) = (l.f32([1, 1, 1, Settings::LEN as u32]), l.f32([1, 1, 1, Results::LEN as u32]));
    let (row_moment, column_moment) = (l.f32([1, 1, 2, VOCABULARY]), l.f32([1, 1, 2, dims]));
    let tile = l.f32([1, 1, 4000, dims]);
    let (keys, values) =
        ([(); 4].map(|()| l.f32([1, streams, tokens, 128])), [(); 2].map(|()| l.f32([1, streams, tokens, 256])));
    let stored = [(); 3].map(|()| Stored { matrix: l.f32([1, streams, 256, 128]), key: l.f32([1, 1, streams, 128]) });
    let scratch = l.f32([1, 1, 1, 64 << 20]);
    let mut cuda = Cuda::open(0, Room { arena: l.end, scratch, staging: 0 }, Products::Library)?;
    cuda.allow_tf32(true);
    cuda.warnings().iter().for_each(|w| eprintln!("{w}"));
    let c = &mut cuda;

    let head = HeadLoss {
        x,
        weight: decoder,
        bias: Some(bias),
        ids: VOCABULARY,
        targets,
        logits,
        losses,
        settings,
        results,
        add_loss: false,
        integer: None,
        gradient: Some(HeadGrad { x_grad, weight_grad: None, accumulate: false }),
    };
    let update = FactoredUpdate {
        x,
        out_grad: logits,
        weight: decoder,
        bias,
        row_moment,
        column_moment,
        tile,
        settings,
        results,
        beta2: 0.99,
        rate: 0.5,
    };
    let one = Linear::new(x.slice_rows(0, streams), decoder, Some(bias), logits.slice_rows(0, streams));
    c.tune(|c| {
        c.run(&head.into())?;
        c.run(&update.into())?;
        c.run(&one.into())
    })?;
    let random = Random::new(1, 1);
    fill(c, signals, |i| (random.normal(i) * 0.3).abs())?;
    fill(c, spikes, |i| if random.below(i, 10) == 0 { 1.0 } else { 0.0 })?;
    fill(c, keep, |_| 1.0)?;
    fill(c, weights, |i| random.normal(i) * 0.1)?;
    for region in [x, decoder, keys[0], keys[1], values[0]] {
        fill(c, region, |i| (i * 7919 % 251) as f32 / 12_500.0 - 0.01)?;
    }
    fill(c, settings, |_| 1e-3)?;

    println!("{streams} streams, {tokens} tokens, {rows} signals, on {}", names.concat());
    let (mut forward, mut backward) = (0.0, 0.0);
    for (i, &[neurons, fan_in, count]) in modules.iter().enumerate() {
        let first = taps + modules[..i].iter().map(|m| m[2]).sum::<u32>();
        // A third from the taps; of the others as many as there are of signals of the token before and of own neurons.
        let mut pools = [Pool { first: 0, count: 0 }; POOLS];
        pools[0] = Pool { first: rows + taps, count: dims };
        pools[1] = Pool { first: 2 * rows, count: neurons };
        let front = Pool { first: 0, count: taps };
        let wiring = Wiring { seed: 1, stream: 1, front, reserved: fan_in / 3, pools, own: 2 * rows };
        let mut drawn = vec![0u32; (neurons * fan_in) as usize];
        for (row, drawn) in drawn.chunks_exact_mut(fan_in as usize).enumerate() {
            wiring.draw(row as u32, drawn);
        }
        let synapses = |r: Region| r.reshaped([1, 1, neurons, fan_in]);
        let of = |r: Region| r.reshaped([1, r.shape[1], neurons, streams]);
        c.write(synapses(sources), bytemuck::cast_slice(&drawn))?;
        let (outputs, rate) = (Outputs { first, count }, 0.1);
        let cell = Cell {
            leak: 0.85,
            threshold: 1.0,
            fatigue: 0.96,
            adaptation: 0.2,
            filter: 0.6,
            rate,
            homeostasis: if tokens > 1 { 0.02 } else { 0.0 },
            block,
            winners: block / 10,
        };
        let spike = Spike {
            token: 0,
            signals,
            spikes: of(spikes),
            keep,
            sources: synapses(sources),
            weights: synapses(weights),
            potential: of(potential),
            fatigue: of(fatigue),
            offset: offset.reshaped([1, 1, 1, neurons]),
            slope: (tokens > 1).then(|| of(slope)),
            outputs,
            cell,
        };
        forward += time(c, &format!("spike {neurons} x {fan_in}"), spike, 1)?;
        if tokens == 1 {
            continue;
        }
        fill(c, of(slope), |i| (i % 30) as f32 * 0.01)?;
        let grad = SpikeGrad {
            first: 0,
            count: tokens,
            signals_grad,
            slope: of(slope),
            keep,
            fatigue_grad: Some(of(fatigue_grad)),
            spikes_grad: None,
            outputs,
            cell,
        };
        backward += time(c, "  spike_grad", grad, tokens)?;
        fill(c, of(spikes), |i| if random.below(i, 10) == 0 { 1.0 } else { 0.0 })?;
        let synapse_grad = SynapseGrad {
            grad: of(slope),
            signals,
            spikes: of(spikes),
            keep,
            sources: synapses(sources),
            weight_grad: synapses(weight_grad),
        };
        backward += time(c, "  synapse_grad", synapse_grad, tokens)?;
    }
    println!("  all modules: {:.1} us forward, {:.1} us backward", forward * 1e6, backward * 1e6 / f64::from(tokens));
    let layout = ReadoutLayout { first: taps, direct: taps + projected };
    time(c, "readout", Readout { signals, layout, weights: project, gate: None, out: x }, tokens)?;
    let [keys, queries, keys_grad, queries_grad] = keys;
    let ([values, out], [before, after, work], decay) = (values, stored, 0.995);
    time(c, "memory", Memory { keys, queries, values, keep, before, after, decay, out }, tokens)?;
    if tokens == 1 {
        time(c, "logits", one, 1)?;
        return Ok(());
    }
    let readout_grad = ReadoutGrad {
        signals,
        layout,
        weights: project,
        gate: None,
        feedback: None,
        out_grad: x_grad,
        signals_grad,
        weight_grad: project_grad,
        gate_grad: None,
    };
    time(c, "readout_grad", readout_grad, tokens)?;
    let memory_grad = MemoryGrad {
        keys,
        queries,
        values,
        keep,
        before,
        decay,
        out_grad: out,
        work: work.matrix,
        keys_grad,
        queries_grad,
        values_grad: x.reshaped([1, streams, tokens, 256]),
    };
    time(c, "memory_grad", memory_grad, tokens)?;
    time(c, "head_loss", head, tokens)?;
    time(c, "factored_update", update, tokens)?;
    Ok(())
}

fn main() -> std::process::ExitCode {
    let number = |i: usize, otherwise: u32| {
        std::env::args().nth(i).and_then(|n| n.parse().ok()).filter(|n| *n > 0).unwrap_or(otherwise)
    };
    let streams = number(2, 32);
    let sizes = Sizes {
        small: std::env::args().nth(1).is_some_and(|a| a == "39k"),
        streams,
        tokens: if streams == 1 { 1 } else { T },
        block: number(3, 128),
    };
    let Err(error) = report(&sizes) else { return std::process::ExitCode::SUCCESS };
    eprintln!("cuda_neurogen: {error}");
    std::process::ExitCode::FAILURE
}
