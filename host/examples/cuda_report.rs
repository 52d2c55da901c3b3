//! What a CUDA machine gives: its description, each operation's time beside its roofline, and the training speed of
//! Pythia-70M. Runs without cargo: `cuda_report [quick]`.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use capful_core::device::{Meter, Operation, OperationError, Profile, Rates, Run};
use capful_core::memory::{Dtype, Entry, Init, Layout, Ledger, Region, Role, Slot, Space};
use capful_core::model::{Family, Optimizer, Pythia, Recompute, Stage, State, Steps, Training};
use capful_core::ops::{Linear, Pattern, Rotary};
use capful_core::random::Random;
use capful_core::train::results;
use capful_host::device::cuda::{Cuda, CudaError, CudaProfile, Precision, Products, Room, describe};

const OPTIMIZER: Optimizer = Optimizer { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 };

/// What products and copies reach on an H200, for the roofline column.
const H200: [Rates; 2] =
    [Rates { flops_per_s: 50e12, bytes_per_s: 4.2e12 }, Rates { flops_per_s: 700e12, bytes_per_s: 4.2e12 }];

fn pythia_70m(vocab_size: u32) -> Pythia {
    Pythia {
        layers: 6,
        d_model: 512,
        heads: 8,
        d_ff: 2048,
        vocab_size,
        context: 2048,
        rotary_dims: 16,
        rotary_base: 10_000.0,
        norm_eps: 1e-5,
    }
}

struct Plan {
    entries: Vec<Entry>,
    state: State,
    training: Training,
    scratch: Region,
    bytes: u64,
}

fn plan(model: &Pythia, stage: &Stage, profile: &dyn Profile, scratch: u64) -> Plan {
    let mut entries = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = Layout::new(&mut visit);
    let state = model.lay_state(profile, true, &mut layout);
    let training = model.lay_training(stage, profile, &mut layout);
    let words = (scratch / 4).max(1) as u32;
    let scratch = layout.region(Slot::new("scratch", Role::Work, Dtype::F32, [1, 1, 1, words])).first;
    let bytes = layout.high_water();
    Plan { entries, state, training, scratch, bytes }
}

fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::Bf16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

fn first_values(slot: &Slot, layer: u32) -> Vec<f32> {
    let count = slot.shape.iter().map(|n| u64::from(*n)).product::<u64>();
    let name: u64 = slot.name.bytes().fold(7, |hash, b| hash.wrapping_mul(31).wrapping_add(b.into()));
    let random = Random::new(name, layer.into());
    match slot.init {
        Init::Zero => vec![0.0; count as usize],
        Init::One => vec![1.0; count as usize],
        Init::Normal(deviation) => (0..count).map(|i| random.normal(i) * deviation).collect(),
        Init::Rotary { base } => {
            let [_, positions, pairs, _] = slot.shape;
            let each = (0..positions).flat_map(|p| (0..pairs).map(move |j| (p, j)));
            each.flat_map(|(p, j)| Rotary::angle(base, 2 * pairs, p, j)).collect()
        }
    }
}

/// A model on the card, with first values and one batch of random tokens.
struct Run70 {
    model: Pythia,
    stage: Stage,
    profile: CudaProfile,
    plan: Plan,
    cuda: Cuda,
}

impl Run70 {
    fn open(model: Pythia, stage: Stage, precision: Precision, products: Products) -> Result<Run70, Box<dyn Error>> {
        let profile = CudaProfile { precision };
        let draft = plan(&model, &stage, &profile, 0);
        let mut meter = Meter::new(&profile, H200[0]);
        model.micro_batch(&mut meter, &draft.state, &draft.training, &stage, true)?;
        model.update(&mut meter, &draft.state, &OPTIMIZER)?;
        let plan = plan(&model, &stage, &profile, meter.scratch);
        let staging = u64::from(stage.tokens()) * 8 + 4096;
        let mut cuda = Cuda::open(0, Room { arena: plan.bytes, scratch: plan.scratch, staging }, products)?;
        let since = Instant::now();
        cuda.tune(|c| {
            model.micro_batch(c, &plan.state, &plan.training, &stage, true)?;
            model.update(c, &plan.state, &OPTIMIZER)
        })?;
        let choices = cuda.choices();
        println!("\n{} products tuned in {:.2} s", choices.len(), since.elapsed().as_secs_f64());
        for choice in choices {
            let milliseconds = choice.milliseconds.unwrap_or(f32::NAN);
            println!("  {:<50} {milliseconds:>9.4} ms  {}", choice.product, choice.algorithm.unwrap_or_default());
        }
        for entry in &plan.entries {
            if matches!(entry.slot.role, Role::Weight | Role::Master | Role::Constant) {
                for layer in 0..entry.slot.layers {
                    cuda.write(entry.place.at(layer), &encode(entry.slot.dtype, &first_values(&entry.slot, layer)))?;
                }
            }
        }
        cuda.warnings.iter().for_each(|warning| println!("warning: {warning}"));
        Ok(Run70 { model, stage, profile, plan, cuda })
    }

    /// Steps on random tokens: seconds a step after the first ones, and the losses.
    fn train(&mut self, steps: u64) -> Result<(f64, Vec<f32>), CudaError> {
        let Run70 { model, stage, plan, cuda, .. } = self;
        let random = Random::new(1, 2);
        let tokens: Vec<u8> = (0..u64::from(stage.tokens()) + 1)
            .flat_map(|i| (random.below(i, model.vocab_size.into()) as u32).to_le_bytes())
            .collect();
        let batch = Pythia::training_batch(&plan.training);
        let (mut losses, mut pending, mut since) = (Vec::new(), None, Instant::now());
        let loss = |cuda: &mut Cuda, p| -> Result<f32, CudaError> {
            let bytes = cuda.results(p)?;
            Ok(f32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[4 * results::LOSS + i])))
        };
        for step in 0..steps {
            if step == 3 {
                cuda.synchronise()?;
                since = Instant::now();
            }
            let t = step as i32 + 1;
            let settings = [1e-3, 1.0 - 0.9f32.powi(t), 1.0 - 0.95f32.powi(t), 1.0, 1.0 / stage.tokens() as f32];
            cuda.next_step()?;
            cuda.queue_write(plan.state.control.settings, &encode(Dtype::F32, &settings))?;
            cuda.queue_write(batch.ids, &tokens[..tokens.len() - 4])?;
            cuda.queue_write(batch.targets, &tokens[4..])?;
            cuda.replay(0, |c| model.micro_batch(c, &plan.state, &plan.training, stage, true))?;
            cuda.replay(1, |c| model.update(c, &plan.state, &OPTIMIZER))?;
            let next = cuda.queue_read(plan.state.control.results)?;
            if let Some(last) = pending.replace(next) {
                losses.push(loss(cuda, last)?);
            }
        }
        cuda.synchronise()?;
        let seconds = since.elapsed().as_secs_f64() / (steps - 3) as f64;
        if let Some(last) = pending {
            losses.push(loss(cuda, last)?);
        }
        Ok((seconds, losses))
    }

    /// Each operation of a step by itself.
    fn profile(&mut self) -> Result<(), Box<dyn Error>> {
        let Run70 { model, stage, profile, plan, cuda } = self;
        let rates = H200[usize::from(profile.precision == Precision::Bf16)];
        let mut timed = Timed { cuda, profile: *profile, rates, rows: BTreeMap::new(), failure: None };
        let ran = model
            .micro_batch(&mut timed, &plan.state, &plan.training, stage, true)
            .and_then(|()| model.update(&mut timed, &plan.state, &OPTIMIZER));
        if let Err(error) = ran {
            return Err(timed.failure.map_or_else(|| error.into(), Into::into));
        }
        let total: f64 = timed.rows.values().map(|r| r.seconds).sum();
        println!("  {:<34} {:>5} {:>10} {:>10} {:>8} {:>7}", "operation", "calls", "ms", "roofline", "TFLOP/s", "GB/s");
        for (name, row) in &timed.rows {
            println!(
                "  {name:<34} {:>5} {:>10.4} {:>10.4} {:>8.1} {:>7.0}",
                row.calls,
                row.seconds * 1e3,
                row.roofline * 1e3,
                row.flops / row.seconds / 1e12,
                row.bytes / row.seconds / 1e9
            );
        }
        let roofline: f64 = timed.rows.values().map(|r| r.roofline).sum();
        println!("  {:<34} {:>5} {:>10.4} {:>10.4}", "all", "", total * 1e3, roofline * 1e3);
        Ok(())
    }
}

#[derive(Default)]
struct Row {
    calls: u32,
    seconds: f64,
    roofline: f64,
    flops: f64,
    bytes: f64,
}

/// Runs each operation several times by the card's clock.
struct Timed<'a> {
    cuda: &'a mut Cuda,
    profile: CudaProfile,
    rates: Rates,
    rows: BTreeMap<String, Row>,
    failure: Option<CudaError>,
}

impl<O: Operation> Run<O> for Timed<'_>
where
    Cuda: Run<O>,
    CudaProfile: capful_core::device::Scratch<O>,
{
    fn run(&mut self, operation: O) -> Result<(), OperationError> {
        let mut meter = Meter::new(&self.profile, self.rates);
        meter.run(operation)?;
        let seconds = self.cuda.time(5, |cuda| cuda.run(operation)).map_err(|e| {
            self.failure = Some(e);
            OperationError::Device
        })?;
        let mut largest = (0, [0; 4]);
        operation.operands(&mut |r, _| largest = largest.max((r.elements(), r.shape)));
        let row = self.rows.entry(format!("{} {:?}", O::NAME, &largest.1[1..])).or_default();
        row.calls += 1;
        row.seconds += seconds;
        row.roofline += meter.seconds;
        row.flops += meter.flops as f64;
        row.bytes += meter.bytes as f64;
        Ok(())
    }
}

/// TFLOP/s of one square product; by the naive kernel where no other is named.
fn square(n: u32, dtype: Dtype, products: Option<Products>) -> Result<f64, Box<dyn Error>> {
    let bytes = u64::from(n) * u64::from(n) * dtype.size();
    let at = |i: u64| Region { space: Space::Arena, dtype, offset: i * bytes, shape: [1, 1, n, n] };
    let scratch = Region { dtype: Dtype::F32, shape: [1, 1, 1, 8 << 20], ..at(3) };
    let room = Room { arena: scratch.end(), scratch, staging: 0 };
    let mut cuda = Cuda::open(0, room, products.unwrap_or(Products::Own))?;
    cuda.tune(|c| c.run(Linear::new(at(0), at(1), None, at(2))))?;
    let values: Vec<f32> = (0..n * n).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
    for operand in [at(0), at(1)] {
        cuda.write(operand, &encode(dtype, &values))?;
    }
    let seconds = match products {
        None => cuda.time(5, |c| c.naive_product(at(0), at(1), at(2)))?,
        Some(_) => cuda.time(5, |c| c.run(Linear::new(at(0), at(1), None, at(2))))?,
    };
    Ok(2.0 * f64::from(n).powi(3) / seconds / 1e12)
}

/// The naive kernel, our own and the library's beside each other.
fn squares(n: u32) -> Result<(), Box<dyn Error>> {
    println!("products {n}^3, TFLOP/s");
    println!("  {:<6} {:>9} {:>9} {:>9} {:>11} {:>13}", "", "naive", "own", "cublasLt", "own/naive", "own/cublasLt");
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let [naive, own, library] =
            [None, Some(Products::Own), Some(Products::Library)].map(|products| square(n, dtype, products));
        let (naive, own, library) = (naive?, own?, library?);
        println!(
            "  {:<6} {naive:>9.2} {own:>9.2} {library:>9.2} {:>11.1} {:>12.0}%",
            dtype.name(),
            own / naive,
            own / library * 100.0
        );
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    match report() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn report() -> Result<(), Box<dyn Error>> {
    let quick = std::env::args().any(|a| a == "quick");
    let description = describe();
    println!("{description:#?}");
    description.driver?;

    squares(if quick { 64 } else { 4096 })?;

    // Vocabulary, tokens of a sequence, sequences, rows of logits.
    let shapes: &[[u32; 4]] =
        if quick { &[[50, 16, 2, 16]] } else { &[[10_000, 128, 32, 4096], [50_304, 2048, 32, 4096]] };
    for [vocabulary, seq_len, batch, chunk] in shapes.iter().copied() {
        for (precision, products) in [
            (Precision::F32, Products::Own),
            (Precision::F32, Products::Library),
            (Precision::Bf16, Products::Own),
            (Precision::Bf16, Products::Library),
        ] {
            let stage = Stage { batch, seq_len, chunk, recompute: Recompute::None, pattern: Pattern::DENSE };
            let model = Pythia { layers: if quick { 1 } else { 6 }, ..pythia_70m(vocabulary) };
            let model = if quick { Pythia { d_model: 32, heads: 2, d_ff: 64, ..model } } else { model };
            let mut run = Run70::open(model, stage, precision, products)?;
            let steps = if quick { 5 } else { 23 };
            let (seconds, losses) = run.train(steps)?;
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            println!(
                "\nPythia-70M V {vocabulary} T {seq_len} B {batch} {precision:?} {products:?}: {:.0} tokens/s, {:.3} ms a step, {:.1} TFLOP/s, arena {:.1} MiB, outside it {:.1} MiB, losses {:?} ... {:?}",
                f64::from(stage.tokens()) / seconds,
                seconds * 1e3,
                model.flops_per_token(seq_len) as f64 * f64::from(stage.tokens()) / seconds / 1e12,
                mib(run.plan.bytes),
                mib(run.cuda.used()? - run.plan.bytes),
                &losses[..3],
                losses.last(),
            );
            run.profile()?;
        }
    }
    Ok(())
}
