//! Compares the operations of a token in one launch with the Reference and with the same operations one by one.

use capful_core::device::{Device as _, Meter, Op, OperationError, Rates, Reference, Single};
use capful_core::memory::{Arena, Dtype, Entry, Layout, Ledger, Region, Role, Slot};
use capful_core::model::transformer::{Biases, Decoding, Lasting};
use capful_core::model::{Family as _, Purpose, Transformer};
use capful_core::ops::{MostLikely, Pattern, PatternKind};

use super::bench::open_with;
use super::step::{PYTHIA, QWEN, YXANUL, first_values};
use crate::decoding::token::ordered;
use crate::{Cuda, CudaProfile, Precision, Products};
use capful_witness::lay::{decode, distance, encode};

struct Plan {
    entries: Vec<Entry>,
    lasting: Lasting,
    decoding: Decoding,
    choice: MostLikely,
    scratch: Region,
    bytes: u64,
}

fn plan(model: &Transformer, profile: &dyn capful_core::device::Profile, scratch: u64) -> Plan {
    let mut entries = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = Layout::new(&mut visit);
    let lasting = model.lay_lasting(profile, Purpose::Decoding, &mut layout);
    let decoding = model.lay_decoding(model.context, profile, &mut layout);
    let (id, cursor, logits) = Transformer::decoding_io(&decoding);
    let mut words = |name, count| layout.region(Slot::new(name, Role::Batch, Dtype::U32, [1, 1, 1, count])).first;
    let choice = MostLikely { logits, limit: words("limit", 1), id, cursor, chosen: words("chosen", PLACES) };
    let words = scratch.div_ceil(4).max(1) as u32;
    let scratch = layout.region(Slot::new("scratch", Role::Work, Dtype::F32, [1, 1, 1, words])).first;
    let bytes = layout.high_water().expect("it fits");
    Plan { entries, lasting, decoding, choice, scratch, bytes }
}

/// Slots of chosen tokens.
const PLACES: u32 = 64;

/// Records the operations that a device receives.
#[derive(Default)]
struct Recorder(Vec<Op>);

impl capful_core::device::Device for Recorder {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        self.0.push(*op);
        Ok(())
    }
}

fn program(model: &Transformer, plan: &Plan, pattern: Pattern) -> Vec<Op> {
    let mut recorder = Recorder::default();
    model.decode(&mut recorder, &plan.lasting, &plan.decoding, pattern).expect("a program");
    recorder.0
}

/// First values; the biases and gains are not all zeros and ones.
fn values(entry: &Entry, layer: u32) -> Vec<f32> {
    let drawn = first_values(&entry.slot, layer).into_iter().zip(0u32..);
    drawn.map(|(x, i)| if entry.slot.role == Role::Weight { x + 0.01 * (i % 13) as f32 - 0.06 } else { x }).collect()
}

fn id(position: u32) -> u32 {
    (position * 17 + 5) % 61
}

/// A Reference with the weights of a plan.
fn reference<'a>(plan: &Plan, storage: &'a mut [u64]) -> Reference<'a> {
    let mut device = Reference { arena: Arena::new(storage) };
    for entry in plan.entries.iter().filter(|e| matches!(e.slot.role, Role::Weight | Role::Constant)) {
        for layer in 0..entry.slot.layers {
            let [mut view] = device.arena.views([Some(entry.place.at(layer))]).expect("in the arena");
            view.f32_mut().expect("of this type").copy_from_slice(&values(entry, layer));
        }
    }
    device
}

fn by_reference(model: &Transformer, pattern: Pattern) -> Vec<f32> {
    let plan = plan(model, &Single, 0);
    let mut storage = vec![0u64; (plan.bytes / 8) as usize];
    let mut device = reference(&plan, &mut storage);
    let (ids, cursor, logits) = Transformer::decoding_io(&plan.decoding);
    let mut all = Vec::new();
    for position in 0..model.context {
        for (region, word) in [(ids, id(position)), (cursor, position)] {
            let [mut view] = device.arena.views([Some(region)]).expect("in the arena");
            view.u32_mut().expect("of this type").fill(word);
        }
        model.decode(&mut device, &plan.lasting, &plan.decoding, pattern).expect("a token");
        all.extend_from_slice(device.arena.f32(logits).expect("in the arena"));
    }
    all
}

/// A GPU with the weights of a plan.
fn gpu(model: &Transformer, pattern: Pattern, precision: Precision) -> (Plan, Cuda) {
    let profile = CudaProfile::new(precision);
    let mut meter = Meter::new(&profile, Rates::ONE);
    let draft = plan(model, &profile, 0);
    model.decode(&mut meter, &draft.lasting, &draft.decoding, pattern).expect("a plan");
    let plan = plan(model, &profile, meter.scratch);
    let mut cuda = open_with(plan.bytes, plan.scratch, 4096, Products::Own);
    for entry in plan.entries.iter().filter(|e| matches!(e.slot.role, Role::Weight | Role::Constant)) {
        for layer in 0..entry.slot.layers {
            cuda.write(entry.place.at(layer), &encode(entry.slot.dtype, &values(entry, layer))).expect("in the arena");
        }
    }
    (plan, cuda)
}

/// The logits of all tokens; each token's operations in one launch, or one by one.
fn on_gpu(model: &Transformer, pattern: Pattern, precision: Precision, whole: bool) -> Vec<f32> {
    let (plan, mut cuda) = gpu(model, pattern, precision);
    let ops = program(model, &plan, pattern);
    let (ids, cursor, logits) = Transformer::decoding_io(&plan.decoding);
    let mut all = Vec::new();
    for position in 0..model.context {
        cuda.write(ids, &id(position).to_le_bytes()).expect("in the arena");
        cuda.write(cursor, &position.to_le_bytes()).expect("in the arena");
        let ran = if whole { cuda.run_program(&ops) } else { ops.iter().try_for_each(|op| cuda.run(op)) };
        if ran.is_err() {
            panic!("{:?}", Cuda::take_failure(&mut cuda));
        }
        let mut bytes = vec![0; logits.bytes() as usize];
        cuda.read(logits, &mut bytes).expect("in the arena");
        all.extend(decode(logits.dtype, &bytes));
    }
    all
}

fn agree(model: &Transformer, pattern: Pattern) {
    let expected = by_reference(model, pattern);
    for (precision, tolerance) in [(Precision::F32, 1e-5), (Precision::Bf16, 2e-2)] {
        let off = distance(&on_gpu(model, pattern, precision, true), &expected);
        println!("parity token {precision:?} {off:.1e}");
        assert!(off < tolerance, "{precision:?}: off by {off}");
    }
}

#[test]
fn a_token_in_one_launch_agrees_with_the_reference() {
    // Enough positions for two pieces of attention.
    agree(&Transformer { context: 70, ..YXANUL }, Pattern::DENSE);
    agree(&PYTHIA, Pattern::DENSE);
    agree(&YXANUL, Pattern { kind: PatternKind::Mixed, block: 4, window: 1, stride: 3 });
    agree(&Transformer { rank: None, bias: Biases::QKV, ..YXANUL }, Pattern::DENSE);
    // Operations that cannot be steps, between others that can.
    agree(&QWEN, Pattern::DENSE);
    agree(&Transformer { softcap: 0.5, ..PYTHIA }, Pattern::DENSE);
    // Rows at any alignment.
    agree(
        &Transformer { head_size: 7, rotary_dims: 6, d_model: 35, d_ff: 51, heads: 3, kv_heads: 3, ..PYTHIA },
        Pattern::DENSE,
    );
}

/// The matrix multiplications that add to the residual stream, in order: whether each reads attention's output.
fn added(model: &Transformer) -> Vec<bool> {
    let plan = plan(model, &Single, 0);
    let ops = program(model, &plan, Pattern::DENSE);
    let attention = |x: Region| ops.iter().any(|op| matches!(op, Op::CachedAttention(o) if o.out == x));
    let added = ordered(&ops).into_iter().filter_map(|op| match op {
        Op::Linear(o) if o.epilogue.adds() => Some(attention(o.x)),
        _ => None,
    });
    added.collect()
}

#[test]
fn the_feed_forward_s_branch_is_added_beside_attention_where_it_is_parallel() {
    assert_eq!(added(&PYTHIA), [false, true, false, true]);
    assert_eq!(added(&YXANUL), [true, false, true, false]);
}

#[test]
fn one_launch_gives_the_same_bits_again_and_what_one_by_one_gives() {
    let once = || on_gpu(&YXANUL, Pattern::DENSE, Precision::F32, true);
    let whole = once();
    assert!(whole == once());
    let off = distance(&on_gpu(&YXANUL, Pattern::DENSE, Precision::F32, false), &whole);
    assert!(off < 1e-6, "off by {off}");
}

/// The tokens that the Reference chooses one after the other, after token 5, among ids below `limit`.
fn chosen_by_reference(model: &Transformer, limit: u32) -> Vec<u32> {
    let plan = plan(model, &Single, 0);
    let mut storage = vec![0u64; (plan.bytes / 8) as usize];
    let mut device = reference(&plan, &mut storage);
    let word = |device: &mut Reference<'_>, region, word: Option<u32>| {
        let [mut view] = device.arena.views([Some(region)]).expect("in the arena");
        let place = &mut view.u32_mut().expect("of this type")[0];
        *place = word.unwrap_or(*place);
        *place
    };
    for (region, value) in [(plan.choice.id, 5), (plan.choice.cursor, 0), (plan.choice.limit, limit)] {
        word(&mut device, region, Some(value));
    }
    let next = |_| {
        model.decode(&mut device, &plan.lasting, &plan.decoding, Pattern::DENSE).expect("a token");
        device.run(&plan.choice.into()).expect("a choice");
        word(&mut device, plan.choice.id, None)
    };
    (0..model.context).map(next).collect()
}

/// The tokens that a GPU chooses, `together` tokens at a time, and the logits after the last one.
fn chosen(model: &Transformer, precision: Precision, limit: u32, together: usize) -> (Vec<u32>, Vec<u8>) {
    let (plan, mut cuda) = gpu(model, Pattern::DENSE, precision);
    let mut ops = program(model, &plan, Pattern::DENSE);
    ops.push(plan.choice.into());
    for (region, value) in [(plan.choice.id, 5), (plan.choice.cursor, 0), (plan.choice.limit, limit)] {
        cuda.write(region, &value.to_le_bytes()).expect("in the arena");
    }
    let mut all = Vec::new();
    while all.len() < model.context as usize {
        let count = together.min(model.context as usize - all.len());
        if cuda.run_program(&ops.repeat(count)).is_err() {
            panic!("{:?}", Cuda::take_failure(&mut cuda));
        }
        let mut bytes = [0; 4 * PLACES as usize];
        cuda.read(plan.choice.chosen, &mut bytes).expect("in the arena");
        let kept: &[u32] = bytemuck::cast_slice(&bytes);
        all.extend((all.len()..all.len() + count).map(|position| kept[position % kept.len()]));
        for (region, expected) in [(plan.choice.id, all[all.len() - 1]), (plan.choice.cursor, all.len() as u32)] {
            let mut word = [0; 4];
            cuda.read(region, &mut word).expect("in the arena");
            assert_eq!(u32::from_le_bytes(word), expected);
        }
    }
    let mut logits = vec![0; plan.choice.logits.bytes() as usize];
    cuda.read(plan.choice.logits, &mut logits).expect("in the arena");
    (all, logits)
}

#[test]
fn tokens_that_follow_each_other_in_one_launch_are_those_of_the_reference() {
    let odd = Transformer { head_size: 7, rotary_dims: 6, d_model: 35, d_ff: 51, heads: 3, kv_heads: 3, ..PYTHIA };
    // Rows for fewer warps than exist, and four rows for each of all blocks' sixteen warps, twice; a multiplication
    // that cannot be a step; rows at any alignment.
    let rows = 2 * 4 * 16 * gpu(&PYTHIA, Pattern::DENSE, Precision::F32).1.hardware.together + 100;
    let wide = Transformer { vocab_size: rows, ..PYTHIA };
    let cases: [(Transformer, u32, &[usize]); 5] = [
        (Transformer { context: 70, ..YXANUL }, 59, &[16, 5, 1, 40]),
        (Transformer { softcap: 2.0, ..YXANUL }, 59, &[16, 5]),
        (wide, rows - 10, &[16]),
        (QWEN, 61, &[16]),
        (odd, 61, &[16]),
    ];
    for (model, limit, counts) in cases {
        let expected = chosen_by_reference(&model, limit);
        assert!(expected.iter().any(|id| *id != expected[0]), "{expected:?}");
        for &together in counts {
            assert_eq!(chosen(&model, Precision::F32, limit, together).0, expected, "{together} of {model:?}");
        }
        let [once, many] = [1, 16].map(|together| chosen(&model, Precision::Bf16, limit, together));
        assert!(once == many, "{once:?} {many:?}");
    }
}
