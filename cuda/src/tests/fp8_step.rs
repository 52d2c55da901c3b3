//! Compares steps of a small Yxanul whose matrix multiplications read 8-bit copies with the Reference.

use capful_core::device::{Device, Meter, Op, OperationError, Profile, Rates, Reference, Single};
use capful_core::memory::{Arena, Dtype, Entry, Init, Region, Role, Slot, Space};
use capful_core::model::transformer::{Adapters, BaseType, Biases, Feed, Lasting, Residual, Training};
use capful_core::model::{Family, MicroBatch, Products, Recompute, Transformer};
use capful_core::ops::{Chance, Norm, NormGrad, NormKind, Pattern, Quantise, Quantised, SwiGlu, SwiGluGrad};
use capful_core::optimizer::Optimizer;
use capful_core::random::Random;
use capful_core::train::{Results, Settings};

use super::bench::{Bench, open_with};
use super::step;
use crate::{Cuda, CudaProfile, Precision};
use capful_witness::lay::{decode, encode};

const MODEL: Transformer = Transformer {
    layers: 2,
    d_model: 32,
    heads: 4,
    kv_heads: 2,
    head_size: 8,
    d_ff: 48,
    vocab_size: 61,
    context: 24,
    rank: Some(16),
    rotary_dims: 8,
    ..Transformer::LLAMA
};

const STAGE: MicroBatch = MicroBatch {
    batch: 2,
    seq_len: 24,
    chunk: 16,
    recompute: Recompute::NONE,
    pattern: Pattern::DENSE,
    products: Products::Quantised,
    dropout: Chance::NONE,
    documents: false,
};

const OPTIMIZER: Optimizer = Optimizer::adamw([0.9, 0.95], 1e-6, 0.1);

/// Number of steps until the history is full.
const FILLS: u64 = 16;

/// The Reference's number format, with 8-bit copies.
struct SingleFp8;

impl Profile for SingleFp8 {
    fn dtype(&self, role: Role) -> Dtype {
        Single.dtype(role)
    }

    fn quantises(&self) -> bool {
        true
    }
}

struct Plan {
    model: Transformer,
    entries: Vec<Entry>,
    state: Lasting,
    training: Training,
    scratch: Region,
    /// A region of the size of SwiGLU's output.
    spare: Region,
    bytes: u64,
}

fn plan(model: Transformer, profile: &dyn Profile, scratch: u64, stage: &MicroBatch) -> Plan {
    let step::Plan { entries, state, training, scratch, bytes } = step::plan(&model, profile, scratch, stage);
    let (dtype, shape) = (profile.dtype(Role::Saved), [1, 1, stage.tokens(), model.d_ff]);
    let spare = Region { space: Space::Arena, dtype, offset: bytes.next_multiple_of(256), shape };
    Plan { model, entries, state, training, scratch, spare, bytes: spare.end().next_multiple_of(256) }
}

/// The first values of other step tests, but weights have four times the deviation.
fn first_values(slot: &Slot, layer: u32) -> Vec<f32> {
    let scale = if matches!(slot.init, Init::Normal(_)) { 4.0 } else { 1.0 };
    step::first_values(slot, layer).into_iter().map(|x| x * scale).collect()
}

/// Ids and targets of a micro-batch: each id mostly depends on the one before it.
fn batch(step: u64, part: u64) -> [Vec<u32>; 2] {
    let random = Random::new(100 + step, part);
    let mut ids = vec![random.below(0, 61) as u32];
    for i in 1..=48 {
        let drawn = random.below(2 * i, 61) as u32;
        let last = ids[i as usize - 1];
        ids.push(if random.below(2 * i + 1, 10) == 0 { drawn } else { (5 * last + 7) % 61 });
    }
    [ids[..48].to_vec(), ids[1..].to_vec()]
}

/// A device with regions that can be written and read.
trait Machine: Device {
    fn put(&mut self, region: Region, bytes: &[u8]);
    fn get(&mut self, region: Region) -> Vec<u8>;
}

impl Machine for Reference<'_> {
    fn put(&mut self, region: Region, bytes: &[u8]) {
        let [mut view] = self.arena.views([Some(region)]).expect("in the arena");
        view.bytes_mut().expect("of this type").copy_from_slice(bytes);
    }

    fn get(&mut self, region: Region) -> Vec<u8> {
        let [view] = self.arena.views([Some(region)]).expect("in the arena");
        view.bytes().to_vec()
    }
}

impl Machine for Cuda {
    fn put(&mut self, region: Region, bytes: &[u8]) {
        self.write(region, bytes).expect("in the arena");
    }

    fn get(&mut self, region: Region) -> Vec<u8> {
        let mut bytes = vec![0; region.bytes() as usize];
        self.read(region, &mut bytes).expect("in the arena");
        bytes
    }
}

/// The state's regions and their bytes, as in a checkpoint.
type Saved = Vec<(Region, Vec<u8>)>;

/// Losses of steps `from` … `to`, with two micro-batches each, then the persistent state. Training continues from
/// `saved`, if it has any entries.
fn train<M: Machine>(
    machine: &mut M,
    plan: &Plan,
    stage: &MicroBatch,
    (from, to): (u64, u64),
    saved: Option<&Saved>,
    products: impl Fn(u64) -> Products,
) -> (Vec<f32>, Saved) {
    let lasting = [Role::Weight, Role::Master, Role::Moment, Role::State, Role::Constant];
    let entries = || plan.entries.iter().filter(|e| lasting.contains(&e.slot.role));
    for entry in entries() {
        for layer in 0..entry.slot.layers {
            machine.put(entry.place.at(layer), &encode(entry.slot.dtype, &first_values(&entry.slot, layer)));
        }
    }
    for (region, bytes) in saved.into_iter().flatten() {
        machine.put(*region, bytes);
    }
    let regions = Transformer::training_batch(&plan.training);
    let bytes_of = |ids: Vec<u32>| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    let mut losses = Vec::new();
    for step in from..to {
        let settings = Settings::of(step, 0.01, &OPTIMIZER, 1.0, 96);
        machine.put(plan.state.control.settings, bytemuck::bytes_of(&settings));
        let stage = MicroBatch { products: products(step), ..*stage };
        for part in 0..2 {
            let [ids, targets] = batch(step, part);
            machine.put(regions.ids, &bytes_of(ids));
            machine.put(regions.targets, &bytes_of(targets));
            plan.model.micro_batch(machine, &plan.state, &plan.training, &stage, part == 0).expect("a micro-batch");
        }
        plan.model.update(machine, &plan.state, None).expect("an update");
        let results = decode(Dtype::F32, &machine.get(plan.state.control.results));
        losses.push(Results::from_slice(&results).expect("both results").loss);
    }
    let left = entries().flat_map(|e| (0..e.slot.layers).map(|l| e.place.at(l)));
    (losses, left.map(|region| (region, machine.get(region))).collect())
}

fn on_reference(
    model: Transformer,
    profile: &dyn Profile,
    steps: u64,
    products: impl Fn(u64) -> Products,
) -> (Vec<f32>, Saved) {
    let plan = plan(model, profile, 0, &STAGE);
    let mut storage = vec![0u64; (plan.bytes / 8) as usize];
    train(&mut Reference { arena: Arena::new(&mut storage) }, &plan, &STAGE, (0, steps), None, products)
}

/// The kind of each step, as a run chooses it.
fn chosen(step: u64) -> Products {
    if step < FILLS { Products::Warming } else { Products::Quantised }
}

/// Both runs learn, and their losses differ by at most `tolerance` at every step.
fn learn_alike(wide: &[f32], eighths: &[f32], tolerance: f32) {
    assert!(wide[0] > 3.8 && wide[wide.len() - 1] < 0.7 * wide[0], "nothing was learnt: {wide:?}");
    for (step, (a, b)) in wide.iter().zip(eighths).enumerate() {
        assert!((a - b).abs() <= tolerance * a, "step {step}: {b} with copies in 8 bits, {a} without");
    }
    let later = FILLS as usize;
    assert_ne!(wide[later..], eighths[later..], "nothing was multiplied in 8 bits");
}

#[test]
fn the_reference_learns_as_well_with_copies_in_8_bits() {
    let heads = Transformer { head_size: 8, rotary_dims: 8, vocab_size: 61, context: 24, ..Transformer::GPT_NEOX };
    let pythia = Transformer { layers: 2, d_model: 32, heads: 4, kv_heads: 4, d_ff: 48, ..heads };
    let parallel = Transformer { residual: Residual::Parallel, bias: Biases::ALL, ..MODEL };
    let layered = Transformer { norm: NormKind::Layer, feed: Feed::Gelu, ..MODEL };
    let normed = Transformer { head_size: 16, qk_norm: true, ..MODEL };
    for (model, steps) in [(MODEL, 60), (pythia, 28), (parallel, 28), (layered, 28), (normed, 28)] {
        let (wide, _) = on_reference(model, &Single, steps, |_| Products::Wide);
        let (eighths, saved) = on_reference(model, &SingleFp8, steps, chosen);
        assert_eq!(wide[..FILLS as usize], eighths[..FILLS as usize], "while the history fills nothing differs");
        learn_alike(&wide, &eighths, 0.05);
        assert!(saved.iter().flat_map(|(r, bytes)| decode(r.dtype, bytes)).all(f32::is_finite));
    }
}

#[test]
fn adapters_learn_beside_copies_in_8_bits() {
    let all = Adapters { rank: 4, alpha: 16.0, qkv: true, out: true, up: true, down: true, base: BaseType::Same };
    for model in [MODEL, Transformer { feed: Feed::Gelu, ..MODEL }] {
        let model = Transformer { adapters: Some(all), ..model };
        let (wide, _) = on_reference(model, &Single, 28, |_| Products::Wide);
        let (eighths, _) = on_reference(model, &SingleFp8, 28, chosen);
        let (before, later) = wide.split_at(FILLS as usize);
        assert_eq!(before, &eighths[..before.len()], "while the history fills nothing differs");
        assert!(later.iter().zip(&eighths[before.len()..]).all(|(a, b)| a != b && (a - b).abs() <= 0.05 * a));
        assert!(wide[27] < 0.97 * wide[0], "nothing was learnt: {wide:?}");
    }
}

/// A GPU with the plan of a run in `precision`, and that plan.
fn gpu(precision: Precision, stage: &MicroBatch) -> (Cuda, Plan) {
    let profile = CudaProfile::new(precision);
    let draft = plan(MODEL, &profile, 0, stage);
    let mut meter = Meter::new(&profile, Rates::ONE);
    let mut all = || -> Result<(), OperationError> {
        for products in [Products::Wide, Products::Warming, Products::Quantised] {
            MODEL.micro_batch(&mut meter, &draft.state, &draft.training, &MicroBatch { products, ..*stage }, true)?;
        }
        MODEL.update(&mut meter, &draft.state, None)
    };
    all().expect("a plan");
    let plan = plan(MODEL, &profile, meter.scratch, stage);
    (open_with(plan.bytes, plan.scratch, 0, crate::Products::Library), plan)
}

fn on_gpu(
    precision: Precision,
    stage: &MicroBatch,
    steps: u64,
    products: impl Fn(u64) -> Products,
) -> (Vec<f32>, Saved) {
    let (mut cuda, plan) = gpu(precision, stage);
    train(&mut cuda, &plan, stage, (0, steps), None, products)
}

#[test]
fn a_gpu_learns_as_well_in_fp8_as_in_bf16() {
    if Bench::of_eighths().is_none() {
        return;
    }
    let (wide, _) = on_gpu(Precision::Bf16, &STAGE, 28, |_| Products::Wide);
    let (eighths, _) = on_gpu(Precision::Fp8, &STAGE, 28, chosen);
    assert_eq!(wide[..FILLS as usize], eighths[..FILLS as usize], "while the history fills nothing differs");
    learn_alike(&wide, &eighths, 0.05);
    // The losses also match the Reference, whose numbers are wider.
    let (expected, _) = on_reference(MODEL, &SingleFp8, 28, chosen);
    learn_alike(&expected, &eighths, 0.05);
}

#[test]
fn steps_in_fp8_go_on_with_the_same_bits() {
    if Bench::of_eighths().is_none() {
        return;
    }
    // The test does not need a full history.
    let soon = |step| if step < 2 { Products::Warming } else { Products::Quantised };
    let whole = on_gpu(Precision::Fp8, &STAGE, 5, soon);
    assert_eq!(on_gpu(Precision::Fp8, &STAGE, 5, soon), whole, "twice");
    let singles = Recompute::FULL.iter().map(|kind| Recompute::NONE.with(kind));
    for recompute in singles.chain([Recompute::CHEAP, Recompute::FULL]) {
        let (losses, _) = on_gpu(Precision::Fp8, &MicroBatch { recompute, ..STAGE }, 5, soon);
        assert_eq!(losses, whole.0, "{recompute:?}");
    }
    // Saved while the history is being filled, and when multiplications read the copies.
    for at in [1, 3] {
        let (_, saved) = on_gpu(Precision::Fp8, &STAGE, at, soon);
        let (mut cuda, plan) = gpu(Precision::Fp8, &STAGE);
        let (losses, left) = train(&mut cuda, &plan, &STAGE, (at, 5), Some(&saved), soon);
        assert!(losses == whole.0[at as usize..] && left == whole.1, "resumed after {at} steps");
    }
}

/// A machine that makes every copy by a separate `Quantise`, as if no operation copied its own output.
struct Apart<M> {
    machine: M,
    /// Where SwiGLU's output is stored before it is copied transposed.
    spare: Region,
    /// Number of copies that operations were to make themselves.
    fused: u64,
    /// Number of `Quantise` operations of the step itself.
    alone: u64,
}

impl<M: Machine> Apart<M> {
    fn new(machine: M, plan: &Plan) -> Self {
        Apart { machine, spare: plan.spare, fused: 0, alone: 0 }
    }

    fn split(&mut self, x: Region, copy: Option<Quantised>) -> Result<(), OperationError> {
        let Some(out) = copy else { return Ok(()) };
        self.fused += 1;
        self.machine.run(&Quantise::new(x, out).into())
    }
}

impl<M: Machine> Device for Apart<M> {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        let (plain, x, copy): (Op, _, _) = match *op {
            Op::Norm(o) => (Norm { copy: None, ..o }.into(), o.first.out, o.copy),
            Op::NormGrad(o) => (NormGrad { copy: None, ..o }.into(), o.x_grad, o.copy),
            Op::SwiGlu(o) => (SwiGlu { copy: None, ..o }.into(), o.out, o.copy),
            Op::SwiGluGrad(o @ SwiGluGrad { transposed: Some(both), copy: Some(copy), .. }) => {
                self.fused += 1;
                let out = Some(self.spare);
                self.machine.run(&SwiGluGrad { out, copy: None, transposed: None, ..o }.into())?;
                self.machine.run(&Quantise::transposed(self.spare, both.out).into())?;
                let transposed = Some(both.gate_up);
                return self.machine.run(&Quantise { transposed, ..Quantise::new(o.gate_up, copy) }.into());
            }
            Op::SwiGluGrad(o) => (SwiGluGrad { copy: None, ..o }.into(), o.gate_up, o.copy),
            other => {
                self.alone += u64::from(matches!(other, Op::Quantise(_)));
                return self.machine.run(&other);
            }
        };
        self.machine.run(&plain)?;
        self.split(x, copy)
    }
}

impl<M: Machine> Machine for Apart<M> {
    fn put(&mut self, region: Region, bytes: &[u8]) {
        self.machine.put(region, bytes);
    }

    fn get(&mut self, region: Region) -> Vec<u8> {
        self.machine.get(region)
    }
}

#[test]
fn whatever_is_computed_again_steps_in_fp8_have_the_same_losses_on_the_reference() {
    let soon = |step| if step < 2 { Products::Warming } else { Products::Quantised };
    let losses = |recompute| {
        let stage = MicroBatch { recompute, ..STAGE };
        let plan = plan(MODEL, &SingleFp8, 0, &stage);
        let mut storage = vec![0u64; (plan.bytes / 8) as usize];
        train(&mut Reference { arena: Arena::new(&mut storage) }, &plan, &stage, (0, 4), None, soon).0
    };
    let kept = losses(Recompute::NONE);
    let pairs = |set: &Recompute| set.iter().count() <= 2 || set.iter().count() >= 6;
    for recompute in Recompute::FULL.subsets().filter(pairs) {
        assert_eq!(losses(recompute), kept, "{recompute:?}");
    }
    // Copies of values with dropout are made after the dropout.
    let dropout = Chance::nearest(0.25).expect("a probability");
    let dropped = |recompute| {
        let stage = MicroBatch { recompute, dropout, ..STAGE };
        let plan = plan(MODEL, &SingleFp8, 0, &stage);
        let mut storage = vec![0u64; (plan.bytes / 8) as usize];
        train(&mut Reference { arena: Arena::new(&mut storage) }, &plan, &stage, (0, 4), None, soon).0
    };
    let less = dropped(Recompute::NONE);
    assert!(less[0] != kept[0] && less[3] != kept[3]);
    for recompute in Recompute::FULL.subsets().filter(|set| set.iter().count() == 1 || set.iter().count() >= 6) {
        assert_eq!(dropped(recompute), less, "{recompute:?}");
    }
    let some = |recompute| {
        let (model, stage) = (Transformer { layers: 3, ..MODEL }, MicroBatch { recompute, ..STAGE });
        let plan = plan(model, &SingleFp8, 0, &stage);
        let mut storage = vec![0u64; (plan.bytes / 8) as usize];
        train(&mut Reference { arena: Arena::new(&mut storage) }, &plan, &stage, (0, 4), None, soon).0
    };
    let kept = some(Recompute::NONE);
    for kind in Recompute::FULL.iter() {
        for others in [Recompute::NONE, Recompute::CHEAP, Recompute::FULL] {
            let recompute = others.with_layers(kind, 1);
            assert_eq!(some(recompute), kept, "{recompute:?}");
        }
    }
}

#[test]
fn a_step_whose_operations_copy_has_the_bits_of_one_whose_copies_are_apart() {
    let soon = |step| if step < 2 { Products::Warming } else { Products::Quantised };
    let able = Bench::of_eighths().is_some();
    for recompute in [Recompute::NONE, Recompute::CHEAP, Recompute::FULL] {
        let stage = MicroBatch { recompute, ..STAGE };
        // For each of two micro-batches of four steps, in two layers: both norms, SwiGLU, its gradient, both norms'
        // gradients except the first, and the gradient of the final norm. Recomputed values are copied for matrix
        // multiplications only.
        let fused = 4 * 2 * (12 + if recompute == Recompute::FULL { 2 } else { 0 });
        // Attention's output and the gradient of qkv; in the two steps whose multiplications read copies, transposed
        // copies of the gradient after the feed-forward and of its norm; the weights once a step.
        let alone = 4 * 2 * (4 + u64::from(recompute == Recompute::FULL)) + 2 * 2 * 4 + 4 * 8;
        let plain = plan(MODEL, &SingleFp8, 0, &stage);
        let on = |machine: &mut Apart<Reference<'_>>| train(machine, &plain, &stage, (0, 4), None, soon);
        let mut storage = [vec![0u64; (plain.bytes / 8) as usize], vec![0u64; (plain.bytes / 8) as usize]];
        let [one, two] = storage.each_mut().map(|s| Reference { arena: Arena::new(s) });
        let mut apart = Apart::new(two, &plain);
        let together = train(&mut { one }, &plain, &stage, (0, 4), None, soon);
        assert!(on(&mut apart) == together, "{recompute:?} on the Reference");
        assert_eq!((apart.fused, apart.alone), (fused, alone), "{recompute:?}");
        if able {
            let (cuda, plan) = gpu(Precision::Fp8, &stage);
            let mut apart = Apart::new(cuda, &plan);
            let (losses, left) = train(&mut apart, &plan, &stage, (0, 4), None, soon);
            let together = on_gpu(Precision::Fp8, &stage, 4, soon);
            assert!(losses == together.0 && left == together.1, "{recompute:?} on the GPU");
        }
    }
}
