//! Compares whole training steps of a small Pythia and a small Yxanul, through recorded graphs, with the Reference.

use capful_core::device::{Meter, Profile, Rates, Reference, Single};
use capful_core::integer::{Integer, quantise_row};
use capful_core::memory::{Arena, Dtype, Entry, Init, Layout, Ledger, Region, Role, Slot};
use capful_core::model::transformer::{Adapters, BaseType, Biases, Lasting, Training, is_adapter};
use capful_core::model::{
    self, Activation, Batch, EightBits, Family as _, MicroBatch, Purpose, Recompute, Transformer, transformer,
};
use capful_core::ops::{Chance, Dropout, Pattern, Rotary};
use capful_core::optimizer::Optimizer;
use capful_core::random::Random;
use capful_core::remainder;
use capful_core::train::{Ranks, Results, Settings};

use super::bench::{open_with, replay};
use crate::{Cuda, CudaProfile, Precision, Products};
use capful_witness::lay::{decode, distance, encode};

pub(super) const PYTHIA: Transformer = Transformer {
    layers: 2,
    d_model: 32,
    heads: 2,
    kv_heads: 2,
    head_size: 16,
    d_ff: 72,
    vocab_size: 61,
    context: 24,
    rotary_dims: 4,
    ..Transformer::GPT_NEOX
};

pub(super) const YXANUL: Transformer = Transformer {
    layers: 2,
    d_model: 32,
    heads: 4,
    kv_heads: 2,
    head_size: 8,
    d_ff: 72,
    vocab_size: 61,
    context: 24,
    rank: Some(12),
    rotary_dims: 8,
    ..Transformer::LLAMA
};

/// Heads that together exceed the width, normalised, with biases before attention only.
pub(super) const QWEN: Transformer =
    Transformer { head_size: 16, qk_norm: true, bias: Biases::QKV, rotary_dims: 16, ..YXANUL };

const STAGE: MicroBatch = MicroBatch {
    batch: 2,
    seq_len: 19,
    chunk: 16,
    recompute: Recompute::NONE,
    pattern: Pattern::DENSE,
    products: model::Products::Wide,
    dropout: Chance::NONE,
    documents: false,
};

/// Sequences that share tiles in attention.
const SHORT: MicroBatch = MicroBatch { batch: 9, seq_len: 8, ..STAGE };

// A large eps: where a gradient is only rounding noise, its sign has no effect.
const OPTIMIZER: Optimizer = Optimizer::adamw([0.9, 0.95], 1e-3, 0.1);

pub(super) struct Plan {
    pub entries: Vec<Entry>,
    pub state: Lasting,
    pub training: Training,
    pub scratch: Region,
    pub bytes: u64,
}

pub(super) fn plan(model: &Transformer, profile: &dyn Profile, scratch: u64, stage: &MicroBatch) -> Plan {
    let mut entries = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = Layout::new(&mut visit);
    let state = model.lay_lasting(profile, Purpose::Training(Ranks::ALONE, OPTIMIZER), &mut layout);
    let training = model.lay_training(stage, profile, &mut layout);
    let words = scratch.div_ceil(4).max(1) as u32;
    let scratch = layout.region(Slot::new("scratch", Role::Work, Dtype::F32, [1, 1, 1, words])).first;
    let bytes = layout.high_water().expect("it fits");
    Plan { entries, state, training, scratch, bytes }
}

/// All parameters that learn, or their remainders: with adapters only the adapters.
fn parameters(plan: &Plan, role: Role) -> impl Iterator<Item = Region> {
    let adapted = plan.entries.iter().any(|e| is_adapter(e.slot.name));
    let entries = plan.entries.iter().filter(move |e| e.slot.role == role && (!adapted || is_adapter(e.slot.name)));
    entries.flat_map(|e| (0..e.slot.layers).map(|layer| e.place.at(layer)))
}

/// The first values of one layer of a slot; equal for a weight and its master.
pub(super) fn first_values(slot: &Slot, layer: u32) -> Vec<f32> {
    let count = slot.shape.iter().product::<u32>();
    let name: u64 = slot.name.bytes().fold(7, |hash, b| hash.wrapping_mul(31).wrapping_add(b.into()));
    let random = Random::new(name, layer.into());
    match slot.init {
        Init::Zero | Init::Wiring { .. } => vec![0.0; count as usize],
        Init::One => vec![1.0; count as usize],
        Init::Half => vec![0.5; count as usize],
        Init::Uniform(bound) => {
            (0..count).map(|i| ((2.0 * random.uniform(i.into()) - 1.0) * f64::from(bound)) as f32).collect()
        }
        Init::Normal(deviation) => (0..count).map(|i| random.normal(i.into()) * deviation).collect(),
        Init::Rotary { base, scaling } => {
            let [_, positions, pairs, _] = slot.shape;
            let each = (0..positions).flat_map(|p| (0..pairs).map(move |j| (p, j)));
            each.flat_map(|(p, j)| Rotary::angle(base, scaling, 2 * pairs, p, j)).collect()
        }
    }
}

/// The initial bytes of one layer of `entry`, one of `all`; for weights in integers their codes and scales.
fn first_bytes(entry: &Entry, all: &[Entry], layer: u32) -> Vec<u8> {
    let weight = |e: &&Entry| e.slot.role == Role::Weight && e.slot.name == entry.slot.name;
    match entry.slot.dtype {
        Dtype::I8 => integers(&entry.slot, layer).0,
        Dtype::F16 => integers(&all.iter().find(weight).expect("a weight of these scales").slot, layer).1,
        dtype => encode(dtype, &first_values(&entry.slot, layer)),
    }
}

/// The first values of one layer of a weight as codes of 8 bits, and the scales of its rows.
fn integers(slot: &Slot, layer: u32) -> (Vec<u8>, Vec<u8>) {
    let [_, _, rows, columns] = slot.shape;
    let values = first_values(slot, layer);
    let (mut codes, mut scales, mut row) = (vec![0; values.len()], Vec::new(), vec![0; columns as usize]);
    for (r, x) in (0..).zip(values.chunks_exact(columns as usize)) {
        let mut scale = [0; 1];
        quantise_row(Integer::Int8, x, Integer::LONGEST, &mut row, &mut scale);
        Integer::Int8.put_row([rows, r], &row, &mut codes);
        scales.extend(scale[0].to_le_bytes());
    }
    (codes, scales)
}

/// The roles that exist before the first step.
const FIRST: [Role; 4] = [Role::Weight, Role::Scale, Role::Master, Role::Constant];

fn batch(stage: &MicroBatch, step: u64, part: u64) -> [Vec<u32>; 2] {
    let random = Random::new(100 + step, part);
    let count = stage.tokens();
    let tokens: Vec<u32> = (0..=u64::from(count)).map(|i| random.below(i, 61) as u32).collect();
    [tokens[..count as usize].to_vec(), tokens[1..].to_vec()]
}

/// The key of a micro-batch's masks, where it has some.
fn key(regions: &Batch, step: u64, part: u64) -> Vec<u32> {
    regions.key.map_or(Vec::new(), |_| Dropout::key(4, 2 * step + part).to_vec())
}

/// The offsets of a micro-batch's tokens where offsets are used: documents of seven tokens, which continue from row to
/// row.
fn offsets(regions: &Batch, stage: &MicroBatch) -> Vec<u32> {
    regions.offsets.map_or(Vec::new(), |_| (3..3 + stage.tokens()).map(|i| i % 7).collect())
}

fn settings(stage: &MicroBatch, step: u64) -> Settings {
    Settings::of(step, 0.01, &OPTIMIZER, 1.0, 2 * u64::from(stage.tokens()))
}

fn loss(results: &[f32]) -> f32 {
    Results::from_slice(results).expect("both results").loss
}

fn bytes_of(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Losses of each step, and the parameters after the last step, by the Reference.
fn reference(model: &Transformer, steps: u64, stage: &MicroBatch) -> (Vec<f32>, Vec<f32>) {
    let plan = plan(model, &Single, 0, stage);
    let mut storage = vec![0u64; (plan.bytes / 8) as usize];
    let mut device = Reference { arena: Arena::new(&mut storage) };
    for entry in plan.entries.iter().filter(|e| FIRST.contains(&e.slot.role)) {
        for layer in 0..entry.slot.layers {
            let [mut view] = device.arena.views([Some(entry.place.at(layer))]).expect("in the arena");
            let bytes = first_bytes(entry, &plan.entries, layer);
            view.bytes_mut().expect("of the arena").copy_from_slice(&bytes);
        }
    }
    let regions = Transformer::training_batch(&plan.training);
    let mut losses = Vec::new();
    for step in 0..steps {
        let [mut view] = device.arena.views([Some(plan.state.control.settings)]).expect("in the arena");
        *Settings::from_slice_mut(view.f32_mut().expect("of this type")).expect("all settings") = settings(stage, step);
        for part in 0..2 {
            for (region, ids) in [regions.ids, regions.targets].into_iter().zip(batch(stage, step, part)) {
                let [mut view] = device.arena.views([Some(region)]).expect("in the arena");
                view.u32_mut().expect("of this type").copy_from_slice(&ids);
            }
            let [mut view] = device.arena.views([regions.key]).expect("in the arena");
            view.u32_mut().expect("of this type").copy_from_slice(key(&regions, step, part).as_slice());
            let [mut view] = device.arena.views([regions.offsets]).expect("in the arena");
            view.u32_mut().expect("of this type").copy_from_slice(&offsets(&regions, stage));
            model.micro_batch(&mut device, &plan.state, &plan.training, stage, part == 0).expect("a micro-batch");
        }
        model.update(&mut device, &plan.state, None).expect("an update");
        losses.push(loss(device.arena.f32(plan.state.control.results).expect("in the arena")));
    }
    (
        losses,
        parameters(&plan, Role::Weight).flat_map(|r| device.arena.f32(r).expect("in the arena").to_vec()).collect(),
    )
}

/// Losses and parameters by the GPU, with each step replayed and its loss read one step later.
fn on_gpu(
    model: &Transformer,
    precision: Precision,
    products: Products,
    steps: u64,
    stage: &MicroBatch,
) -> (Vec<f32>, Vec<f32>) {
    on_gpu_with(model, CudaProfile::new(precision), products, steps, stage)
}

fn on_gpu_with(
    model: &Transformer,
    profile: CudaProfile,
    products: Products,
    steps: u64,
    stage: &MicroBatch,
) -> (Vec<f32>, Vec<f32>) {
    let draft = plan(model, &profile, 0, stage);
    let mut meter = Meter::new(&profile, Rates::ONE);
    model.micro_batch(&mut meter, &draft.state, &draft.training, stage, true).expect("a plan");
    model.micro_batch(&mut meter, &draft.state, &draft.training, stage, false).expect("a plan");
    model.update(&mut meter, &draft.state, None).expect("a plan");
    let plan = plan(model, &profile, meter.scratch, stage);

    let mut cuda = open_with(plan.bytes, plan.scratch, 4096, products);
    let tuned = |c: &mut Cuda| {
        model.micro_batch(c, &plan.state, &plan.training, stage, true)?;
        model.update(c, &plan.state, None)
    };
    cuda.tune(tuned).expect("a step");
    for entry in plan.entries.iter().filter(|e| FIRST.contains(&e.slot.role)) {
        for layer in 0..entry.slot.layers {
            let bytes = first_bytes(entry, &plan.entries, layer);
            cuda.write(entry.place.at(layer), &bytes).expect("in the arena");
        }
    }
    let regions = Transformer::training_batch(&plan.training);
    let (mut losses, mut pending) = (Vec::new(), None);
    let loss = |cuda: &mut Cuda, p| loss(&decode(Dtype::F32, cuda.results(p).expect("a good step")));
    for step in 0..steps {
        cuda.next_step().expect("a good step");
        cuda.queue_write(plan.state.control.settings, bytemuck::bytes_of(&settings(stage, step))).expect("room");
        for part in 0..2 {
            for (region, ids) in [regions.ids, regions.targets].into_iter().zip(batch(stage, step, part)) {
                cuda.queue_write(region, &bytes_of(&ids)).expect("room");
            }
            if let Some(region) = regions.key {
                cuda.queue_write(region, &bytes_of(&key(&regions, step, part))).expect("room");
            }
            if let Some(region) = regions.offsets {
                cuda.queue_write(region, &bytes_of(&offsets(&regions, stage))).expect("room");
            }
            let record = |c: &mut Cuda| model.micro_batch(c, &plan.state, &plan.training, stage, part == 0);
            replay(&mut cuda, part, record).expect("a micro-batch");
        }
        replay(&mut cuda, 2, |c| model.update(c, &plan.state, None)).expect("an update");
        let next = cuda.queue_read(plan.state.control.results).expect("room");
        if let Some(last) = pending.replace(next) {
            losses.push(loss(&mut cuda, last));
        }
    }
    losses.extend(pending.map(|last| loss(&mut cuda, last)));
    let mut read = |role| -> Vec<f32> {
        let read = |region: Region| {
            let mut bytes = vec![0; region.bytes() as usize];
            cuda.read(region, &mut bytes).expect("in the arena");
            decode(region.dtype, &bytes)
        };
        parameters(&plan, role).flat_map(read).collect()
    };
    let (weights, remainders) = (read(Role::Weight), read(Role::Master));
    let masters = weights.iter().zip(&remainders).map(|(w, r)| remainder::join((w.to_bits() >> 16) as u16, *r as i16));
    (losses, if remainders.is_empty() { weights } else { masters.collect() })
}

fn agree(model: &Transformer, stage: &MicroBatch) {
    agree_within(1e-5, model, stage);
}

/// Compares both; `exact` is the tolerance of a step in f32.
fn agree_within(exact: f64, model: &Transformer, stage: &MicroBatch) {
    let (expected, weights) = reference(model, 3, stage);
    let (f32, bf16) = (CudaProfile::new(Precision::F32), CudaProfile::new(Precision::Bf16));
    let reduced = CudaProfile { bf16_gradients: true, ..bf16 };
    for (profile, tolerance) in [(f32, exact), (bf16, 1e-2), (reduced, 1e-2)] {
        for products in [Products::Own, Products::Library] {
            let (losses, found) = on_gpu_with(model, profile, products, 3, stage);
            let off = distance(&found, &weights);
            assert!(distance(&losses, &expected) < tolerance, "{profile:?}: {losses:?} against {expected:?}");
            assert!(off < tolerance, "{profile:?} {products:?}: weights off by {off}");
        }
    }
    assert!(expected[0] > 3.5 && expected.iter().all(|l| l.is_finite()));
}

#[test]
fn steps_agree_with_the_reference_in_both_precisions() {
    agree(&PYTHIA, &STAGE);
}

#[test]
fn steps_of_a_yxanul_agree_with_the_reference_in_both_precisions() {
    agree(&YXANUL, &STAGE);
    agree(&YXANUL, &SHORT);
    agree(&Transformer { rank: None, tied: false, ..YXANUL }, &STAGE);
}

#[test]
fn steps_with_norms_of_queries_and_keys_agree_with_the_reference_in_both_precisions() {
    agree(&QWEN, &STAGE);
    // Interleaved heads of odd sizes, parallel to the feed-forward.
    agree(&Transformer { head_size: 10, qk_norm: true, ..PYTHIA }, &SHORT);
}

/// Adapters for every projection.
const ADAPTERS: Adapters =
    Adapters { rank: 3, alpha: 5.0, qkv: true, out: true, up: true, down: true, base: BaseType::Same };

#[test]
fn steps_of_adapters_agree_with_the_reference_in_both_precisions() {
    for model in [PYTHIA, YXANUL, QWEN, Transformer { kv_heads: 1, feed: transformer::Feed::Gelu, ..YXANUL }] {
        let model = Transformer { adapters: Some(ADAPTERS), ..model };
        agree(&model, &STAGE);
        recomputes(&model, &SHORT);
        repeats(&model, &STAGE);
    }
    agree(&Transformer { adapters: Some(Adapters { qkv: false, up: false, ..ADAPTERS }), ..YXANUL }, &STAGE);
}

#[test]
fn steps_of_adapters_beside_weights_in_fewer_bits_agree_with_the_reference() {
    for base in [BaseType::Int8, BaseType::Bf16] {
        let adapters = Some(Adapters { base, ..ADAPTERS });
        for model in [PYTHIA, YXANUL, Transformer { rank: None, tied: false, ..YXANUL }] {
            let model = Transformer { adapters, ..model };
            agree(&model, &STAGE);
            recomputes(&model, &SHORT);
        }
    }
}

#[test]
fn gate_and_up_in_eight_bits_give_the_steps_of_the_reference() {
    let model = Transformer { layers: 3, ..YXANUL };
    // The last layer's gate and up are always available, for however many layers they are stored.
    for (recompute, layers) in [(Recompute::CHEAP, 2), (Recompute::NONE, 1), (Recompute::CHEAP, Recompute::ALL_LAYERS)]
    {
        agree(&model, &MicroBatch { recompute: recompute.with_eight_bits(EightBits::GateUp, layers), ..STAGE });
    }
    let steps = |layers| {
        let recompute = Recompute::CHEAP.with_eight_bits(EightBits::GateUp, layers);
        on_gpu(&model, Precision::Bf16, Products::Own, 2, &MicroBatch { recompute, ..STAGE })
    };
    assert_eq!(steps(2), steps(Recompute::ALL_LAYERS));
    let (some, all, none) = (steps(1).1, steps(2).1, steps(0).1);
    let [from_some, from_none] = [distance(&all, &some), distance(&all, &none)];
    // The rounding has an effect, but only a small one: with another layer's gate and up the weights would differ by a
    // hundredth.
    assert!(from_some > 0.0 && from_none > from_some && from_none < 4e-3, "{from_some}, {from_none}");
}

#[test]
fn what_is_kept_in_blocks_of_eight_bits_gives_the_steps_of_the_reference() {
    let gelu = Transformer { feed: transformer::Feed::Gelu, ..YXANUL };
    for (model, kinds) in [
        (PYTHIA, &[EightBits::Input, EightBits::GateUp][..]),
        (YXANUL, &[EightBits::Input, EightBits::Mid, EightBits::GateUp]),
        (Transformer { stream_scalars: true, ..gelu }, &EightBits::ALL),
    ] {
        let model = Transformer { layers: 4, ..model };
        // A number between two codes may round to either of them.
        let of = |layers| kinds.iter().fold(Recompute::CHEAP, |set, kind| set.with_eight_bits(*kind, layers));
        for layers in [2, Recompute::ALL_LAYERS] {
            agree_within(1e-4, &model, &MicroBatch { recompute: of(layers), ..STAGE });
        }
        let full = Recompute::FULL.with_eight_bits(EightBits::Input, Recompute::ALL_LAYERS);
        agree_within(1e-4, &model, &MicroBatch { recompute: full, ..STAGE });
        let steps =
            |layers| on_gpu(&model, Precision::Bf16, Products::Own, 2, &MicroBatch { recompute: of(layers), ..STAGE });
        let (rounded, exact) = (steps(3), steps(0));
        assert!(rounded == steps(Recompute::ALL_LAYERS) && rounded.0[0] == exact.0[0]);
        let off = distance(&rounded.1, &exact.1);
        assert!(off > 0.0 && off < 4e-3, "{off}");
    }
}

#[test]
fn steps_that_drop_agree_with_the_reference_and_repeat_whatever_is_computed_again() {
    let stage = MicroBatch { dropout: Chance::nearest(0.25).expect("a probability"), ..STAGE };
    for model in [PYTHIA, YXANUL] {
        agree(&model, &stage);
        let steps = |recompute| on_gpu(&model, Precision::Bf16, Products::Own, 2, &MicroBatch { recompute, ..stage });
        let kept = steps(Recompute::NONE);
        assert!(steps(Recompute::CHEAP) == kept && steps(Recompute::FULL) == kept);
        assert!(on_gpu(&model, Precision::Bf16, Products::Own, 2, &STAGE) != kept, "nothing was dropped");
    }
}

#[test]
fn steps_inside_documents_agree_with_the_reference_and_repeat_whatever_is_computed_again() {
    let stage = MicroBatch { documents: true, ..STAGE };
    for model in [PYTHIA, YXANUL] {
        agree(&model, &stage);
        // Rows of whole sequences share tiles.
        agree(&model, &MicroBatch { documents: true, ..SHORT });
        let steps = |recompute| on_gpu(&model, Precision::Bf16, Products::Own, 2, &MicroBatch { recompute, ..stage });
        let kept = steps(Recompute::NONE);
        assert!(steps(Recompute::CHEAP) == kept && steps(Recompute::FULL) == kept);
        assert!(on_gpu(&model, Precision::Bf16, Products::Own, 2, &STAGE) != kept, "rows were seen whole");
    }
}

fn repeats(model: &Transformer, stage: &MicroBatch) {
    for precision in [Precision::F32, Precision::Bf16] {
        let steps = || on_gpu(model, precision, Products::Own, 2, stage);
        assert_eq!(steps(), steps());
    }
}

#[test]
fn the_same_steps_give_the_same_bits() {
    repeats(&PYTHIA, &STAGE);
    repeats(&YXANUL, &SHORT);
    repeats(&QWEN, &STAGE);
}

fn recomputes(model: &Transformer, stage: &MicroBatch) {
    for precision in [Precision::F32, Precision::Bf16] {
        let kept = on_gpu(model, precision, Products::Own, 2, stage);
        // For single kinds of recomputation one dtype suffices.
        let kinds = if precision == Precision::Bf16 { Recompute::FULL } else { Recompute::NONE };
        let singles = kinds.iter().map(|kind| Recompute::NONE.with(kind));
        for recompute in singles.chain([Recompute::CHEAP, Recompute::FULL]) {
            let again = on_gpu(model, precision, Products::Own, 2, &MicroBatch { recompute, ..*stage });
            assert_eq!(again, kept, "{recompute:?}");
        }
    }
    // Recompute in the first of three layers only, or in the first two.
    let model = Transformer { layers: 3, ..*model };
    let steps = |recompute| on_gpu(&model, Precision::Bf16, Products::Own, 2, &MicroBatch { recompute, ..*stage });
    let some = Recompute::CHEAP.with_layers(Activation::GateUp, 1).with_layers(Activation::Norm2, 1);
    assert_eq!(steps(some.with_layers(Activation::Qkv, 1)), steps(Recompute::NONE));
}

#[test]
fn recomputing_changes_no_bit() {
    recomputes(&PYTHIA, &STAGE);
    recomputes(&QWEN, &STAGE);
    recomputes(&YXANUL, &STAGE);
}
