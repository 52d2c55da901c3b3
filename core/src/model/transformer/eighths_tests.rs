//! Gradients with activations saved in 8 bits, compared with a backward pass whose saved activations the test rounded.

extern crate std;

use std::vec;
use std::vec::Vec;

use super::tests::{PUBLISHED, mixture};
use super::*;
use crate::compressed::{BLOCK, BYTES, Code};
use crate::device::{Op, Profile, Reference, Single};
use crate::fp8::Format;
use crate::memory::{Arena, Dtype, Entry, Layout, Role};
use crate::model::testing::{Half, metered};
use crate::model::{Activation, EightBits, Family, FirstValues, MicroBatch, Products, Purpose, Recompute};
use crate::ops::{Chance, Dropout, Pattern};
use crate::optimizer::Optimizer;
use crate::random::Random;
use crate::train::{Ranks, Settings};

/// Parallel branches, with biases.
const PARALLEL: Transformer = Transformer {
    layers: 4,
    d_model: 24,
    heads: 2,
    kv_heads: 2,
    head_size: 12,
    d_ff: 40,
    vocab_size: 77,
    context: 8,
    rotary_dims: 4,
    ..Transformer::GPT_NEOX
};
const SEQUENTIAL: Transformer = Transformer { residual: Residual::Sequential, ..PARALLEL };
const GATED: Transformer = Transformer {
    feed: Feed::SwiGlu,
    norm: NormKind::Rms,
    kv_heads: 1,
    rank: Some(10),
    tied: true,
    qk_norm: true,
    bias: Biases::NONE,
    ..SEQUENTIAL
};
/// A model that blends the first layer's input into the others.
const MIXED: Transformer = Transformer { stream_scalars: true, value_tables: 2, ..SEQUENTIAL };
const MIXED_PARALLEL: Transformer = Transformer { stream_scalars: true, ..PARALLEL };
const ADAPTED: Transformer = Transformer {
    adapters: Some(Adapters { rank: 3, alpha: 6.0, qkv: true, out: true, up: true, down: true, base: BaseType::Same }),
    ..GATED
};
/// A model whose dimensions fp8 can multiply.
const COPIED: Transformer = Transformer {
    d_model: 32,
    heads: 4,
    kv_heads: 2,
    head_size: 8,
    d_ff: 48,
    rank: None,
    tied: false,
    qk_norm: false,
    ..GATED
};

/// A number of rows that is not a multiple of a block's 128.
const MICRO: MicroBatch = MicroBatch {
    batch: 2,
    seq_len: 7,
    chunk: 5,
    recompute: Recompute::NONE,
    pattern: Pattern::DENSE,
    products: Products::Wide,
    dropout: Chance::NONE,
    documents: false,
};
const ALL: u16 = Recompute::ALL_LAYERS;
const NONE: Recompute = Recompute::NONE;
const X8: Recompute = NONE.with_eight_bits(EightBits::Input, ALL);

/// f32, with copies in 8 bits.
struct Copying;

impl Profile for Copying {
    fn dtype(&self, role: Role) -> Dtype {
        Single.dtype(role)
    }

    fn computes(&self, dtype: Dtype) -> bool {
        Single.computes(dtype)
    }

    fn quantises(&self) -> bool {
        true
    }
}

/// A device that rounds regions when the forward pass ends.
struct Rounding {
    device: Reference<'static>,
    rounded: Vec<(Region, bool)>,
}

impl Device for Rounding {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        if matches!(op, Op::HeadLoss(_)) {
            for (region, e4m3) in self.rounded.drain(..) {
                let [mut view] = self.device.arena.views([Some(region)])?;
                for numbers in view.f32_mut()?.chunks_mut(BLOCK) {
                    if e4m3 {
                        numbers.iter_mut().for_each(|x| *x = Format::E4m3.decode(Format::E4m3.encode(*x)));
                        continue;
                    }
                    let (mut all, mut block) = ([0.0; BLOCK], [0; BYTES]);
                    all[..numbers.len()].copy_from_slice(numbers);
                    Code::Moment.pack(&all, &mut block);
                    Code::Moment.unpack(&block, &mut all);
                    numbers.copy_from_slice(&all[..numbers.len()]);
                }
            }
        }
        self.device.run(op)
    }
}

/// The loss of a micro-batch, and the gradient of every parameter. In a step that saves no activation in 8 bits, the
/// test rounds the activations that `rounded` would.
fn gradients(model: &Transformer, micro: &MicroBatch, rounded: Recompute) -> (f32, Vec<f32>) {
    let profile: &dyn Profile = if micro.products == Products::Wide { &Single } else { &Copying };
    model.validate().unwrap();
    model.validate_micro_batch(micro).unwrap();
    let mut entries = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = Layout::new(&mut visit);
    let optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);
    let lasting = model.lay_lasting(profile, Purpose::Training(Ranks::ALONE, optimizer), &mut layout);
    let training = model.lay_training(micro, profile, &mut layout);
    let bytes = layout.high_water().expect("a small model");
    // Storage filled with NaN, so that reading a value that was never written shows.
    let storage = vec![u64::MAX; bytes as usize / 8].leak();
    let mut arena = Arena::new(storage);
    let mut fill = |region: Region, value: &dyn Fn(u64) -> f32| {
        let [mut view] = arena.views([Some(region)]).unwrap();
        (0..).zip(view.f32_mut().unwrap()).for_each(|(i, x)| *x = value(i));
    };
    let f32s =
        |e: &&Entry| e.slot.dtype == Dtype::F32 && ![Role::Saved, Role::Work, Role::Gradient].contains(&e.slot.role);
    for entry in entries.iter().filter(f32s) {
        for layer in 0..entry.slot.layers {
            let values = FirstValues::new(&entry.slot, layer, 3);
            let noise = Random::new(7, entry.slot.name.len() as u64 + 100 * u64::from(layer));
            let own = entry.slot.role == Role::Weight;
            fill(entry.place.at(layer), &|i| values.at(i) + if own { 0.1 * noise.normal(i) } else { 0.0 });
        }
    }
    let settings = <[f32; 16]>::from(Settings::of(0, 1e-2, &optimizer, 0.0, 14));
    fill(lasting.control.settings, &|i| settings[i as usize]);
    for (region, stream) in [(training.batch.ids, 1), (training.batch.targets, 2)] {
        let [mut ids] = arena.views([Some(region)]).unwrap();
        let random = Random::new(5, stream);
        (0..).zip(ids.u32_mut().unwrap()).for_each(|(i, id)| *id = random.below(i, 77) as u32);
    }
    if let Some(key) = training.batch.key {
        let [mut words] = arena.views([Some(key)]).unwrap();
        words.u32_mut().unwrap().copy_from_slice(&Dropout::key(9, 3));
    }
    let f = &training.forward;
    let layers = |kind| u32::from(rounded.eight_bits(kind)).min(model.layers - 1);
    let inputs = u32::from(model.stream_scalars)..layers(EightBits::Input);
    let rounded = inputs.map(|l| (f.x.at(l), false)).chain((0..layers(EightBits::Mid)).map(|l| (f.mid(l), false)));
    let rounded = rounded.chain((0..layers(EightBits::GateUp)).map(|l| (f.up.at(l), model.feed.gated()))).collect();
    let mut device = Rounding { device: Reference { arena }, rounded };
    model.micro_batch(&mut device, &lasting, &training, micro, true).unwrap();
    let arena = &device.device.arena;
    let loss = arena.f32(lasting.control.results).unwrap()[0];
    let gradients = entries.iter().filter(|e| e.slot.role == Role::Gradient && e.slot.dtype == Dtype::F32);
    let places = gradients.flat_map(|e| (0..e.slot.layers).map(|l| e.place.at(l)));
    (loss, places.filter(|r| r.elements() > 0).flat_map(|r| arena.f32(r).unwrap().to_vec()).collect())
}

fn bits((loss, gradients): &(f32, Vec<f32>)) -> (u32, Vec<u32>) {
    (loss.to_bits(), gradients.iter().map(|x| x.to_bits()).collect())
}

/// The recomputations to combine with each choice of 8-bit activations, where they can be combined.
fn beside(eighths: Recompute) -> impl Iterator<Item = Recompute> {
    let first = |kinds: &[Activation]| kinds.iter().fold(NONE, |set, kind| set.with(*kind));
    let sets = [
        NONE,
        Recompute::CHEAP,
        first(&[Activation::Norm1, Activation::Qkv]),
        Recompute::CHEAP.with_layers(Activation::Mixed, 1).with_layers(Activation::Qkv, 2),
        Recompute::CHEAP.with(Activation::GateUp),
        Recompute::FULL,
    ];
    sets.into_iter().map(move |set| {
        eighths.rounded().filter_map(EightBits::activation).fold(set, |set, kind| set.without(kind)).union(eighths)
    })
}

#[test]
fn gradients_are_those_of_a_backward_pass_whose_kept_numbers_were_rounded() {
    let dropout = Chance::nearest(0.2).unwrap();
    for (model, products, dropout) in [
        (PARALLEL, Products::Wide, Chance::NONE),
        (PARALLEL, Products::Wide, dropout),
        (SEQUENTIAL, Products::Wide, Chance::NONE),
        (GATED, Products::Wide, dropout),
        (MIXED, Products::Wide, Chance::NONE),
        (MIXED_PARALLEL, Products::Wide, Chance::NONE),
        (ADAPTED, Products::Wide, Chance::NONE),
        (COPIED, Products::Quantised, Chance::NONE),
    ] {
        let micro = MicroBatch { products, dropout, ..MICRO };
        for counts in [[ALL, 0, 0], [1, 0, 0], [2, 0, 0], [0, ALL, 0], [0, 0, ALL], [2, 1, ALL], [ALL, ALL, ALL]] {
            let eighths =
                EightBits::ALL.into_iter().zip(counts).fold(NONE, |set, (kind, n)| set.with_eight_bits(kind, n));
            for recompute in beside(eighths) {
                let kept = MicroBatch { recompute, ..micro };
                if model.validate_micro_batch(&kept).is_err() {
                    continue;
                }
                let exact = MicroBatch { recompute: recompute.exact(), ..micro };
                let (found, expected) = (gradients(&model, &kept, NONE), gradients(&model, &exact, recompute));
                assert!(found.1.iter().all(|x| x.is_finite()) && found.1.len() > 100);
                assert!(bits(&found) == bits(&expected), "{model:?} {recompute:?}");
                let plain = gradients(&model, &exact, NONE);
                assert_eq!(found.0.to_bits(), plain.0.to_bits(), "{recompute:?}: the forward pass is exact");
            }
        }
    }
}

#[test]
fn gradients_are_as_near_the_exact_ones_as_the_codes_are_to_numbers() {
    for model in [PARALLEL, SEQUENTIAL, GATED, MIXED] {
        let (_, exact) = gradients(&model, &MICRO, NONE);
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let all = EightBits::ALL.into_iter().filter(|kind| *kind != EightBits::Mid || !model.parallel());
        for kind in all {
            let recompute = NONE.with_eight_bits(kind, ALL);
            let (_, found) = gradients(&model, &MicroBatch { recompute, ..MICRO }, NONE);
            let off = norm(&mut found.iter().zip(&exact).map(|(a, b)| f64::from(*a) - f64::from(*b)));
            let off = off / norm(&mut exact.iter().map(|x| f64::from(*x)));
            // For normal numbers blocks are off by 0.6 %, E4M3 by 2.6 %; each of four layers adds its own error.
            let code = if kind == EightBits::GateUp && model.feed.gated() { 0.026 } else { 0.006 };
            assert!(off > 0.0 && off < 4.0 * code, "{kind:?}: {off}");
        }
    }
}

#[test]
fn what_is_computed_again_of_exact_numbers_changes_no_bit_beside_rounded_ones() {
    let kinds = |kinds: &[Activation], set: Recompute| kinds.iter().fold(set, |set, kind| set.with(*kind));
    let mid8 = NONE.with_eight_bits(EightBits::Mid, ALL);
    let up8 = NONE.with_eight_bits(EightBits::GateUp, ALL);
    use Activation::{Activated, GateUp, Mid, Mixed, Norm1, Norm2, Qkv};
    for (kept, again) in [
        // Recomputation from queries, keys and values, from mid, and from gate and up, which are saved unrounded.
        (X8, vec![Mixed]),
        (X8, vec![Norm2, GateUp, Activated]),
        (kinds(&[Norm1], X8), vec![Mixed, Norm2, Activated]),
        (kinds(&[Norm1, Qkv, Mixed, Mid], X8), vec![]),
        (mid8, vec![Norm1, Qkv, Mixed]),
        (mid8, vec![Activated]),
        (up8, vec![Norm1, Qkv, Mixed, Mid, Norm2]),
    ] {
        let of = |recompute| bits(&gradients(&SEQUENTIAL, &MicroBatch { recompute, ..MICRO }, NONE));
        assert!(of(kept) == of(kinds(&again, kept)), "{kept:?} {again:?}");
    }
    // When every layer recomputes its norm and projection, everything follows from the rounded inputs.
    let of = |recompute| bits(&gradients(&SEQUENTIAL, &MicroBatch { recompute, ..MICRO }, NONE));
    assert!(of(kinds(&[Norm1], X8)) != of(X8));
}

#[test]
fn what_is_kept_takes_the_bytes_that_were_worked_out_by_hand() {
    let bytes = |model: &Transformer, recompute| {
        let mut ignore = |_: &Entry| ();
        let mut layout = Layout::new(&mut ignore);
        model.lay_training(&MicroBatch { batch: 1, seq_len: 128, chunk: 8, recompute, ..MICRO }, &Half, &mut layout);
        layout.high_water().unwrap()
    };
    // 128 tokens in bf16, and as many codes, 128 of them with a scale of four bytes; regions end on lines of 256 bytes.
    let (wide, codes) = (
        |columns: u64| 128 * columns * 2,
        |layers: u64, columns: u64| (layers * 128 * columns / 128 * 132).next_multiple_of(256),
    );
    let parallel = Transformer { residual: Residual::Parallel, ..PUBLISHED };
    let gelu = Transformer { feed: Feed::Gelu, ..PUBLISHED };
    let mixed = Transformer { stream_scalars: true, ..PUBLISHED };
    for count in [1, 3, 26, 27, 28, ALL] {
        let layers = u64::from(count.min(27));
        let x8 = |set: Recompute| set.with_eight_bits(EightBits::Input, count);
        for (model, set) in [(&PUBLISHED, NONE), (&PUBLISHED, Recompute::FULL), (&parallel, Recompute::CHEAP)] {
            let saved = bytes(model, set) - bytes(model, x8(set));
            assert_eq!(saved, layers * wide(768) - codes(layers, 768), "{count}");
        }
        // The first layer's input is saved unrounded.
        let saved = bytes(&mixed, NONE) - bytes(&mixed, x8(NONE));
        assert_eq!(saved, (layers - 1) * wide(768) - codes(layers - 1, 768), "{count}");
        let saved = |model, kind| bytes(model, NONE) - bytes(model, NONE.with_eight_bits(kind, count));
        // If norm₂ were recomputed as well, the slots of its scale would also go; here it is not.
        assert_eq!(saved(&PUBLISHED, EightBits::Mid), layers * wide(768) - codes(layers, 768));
        assert_eq!(saved(&gelu, EightBits::GateUp), layers * wide(2048) - codes(layers, 2048));
        assert_eq!(saved(&PUBLISHED, EightBits::GateUp), layers * (wide(4096) - 128 * 4096));
    }
}

#[test]
fn every_step_of_every_mixture_passes_the_meter_in_8_bits() {
    let random = Random::new(8, 0);
    let mut passed = 0;
    for i in 0..60 {
        let model = Transformer { stream_scalars: i % 4 == 3, ..mixture(&random, i) };
        for (set, products) in [NONE, Recompute::CHEAP, Recompute::FULL]
            .into_iter()
            .flat_map(|r| [Products::Wide, Products::Quantised].map(|p| (r, p)))
        {
            let draw = |kind: EightBits| random.below(1000 + 8 * i + kind as u64, 5) as u16;
            let eighths = EightBits::ALL.into_iter().fold(NONE, |all, kind| all.with_eight_bits(kind, draw(kind)));
            for recompute in [set.union(eighths), set.union(X8), set.without(Activation::Mid).union(eighths)] {
                let micro = MicroBatch { products, recompute, chunk: 4, ..MICRO };
                if model.validate_micro_batch(&micro).is_ok() {
                    metered(&model, &micro, if products == Products::Wide { &Half } else { &Copying });
                    passed += 1;
                }
            }
        }
    }
    assert!(passed > 400, "{passed}");
}

#[test]
fn what_cannot_be_kept_is_refused_by_name() {
    let refused = |model: &Transformer, recompute, products| {
        let micro = MicroBatch { recompute, products, ..MICRO };
        match model.validate_micro_batch(&micro) {
            Err(ModelError::EightBits { kind, .. }) => Some(kind.name()),
            _ => None,
        }
    };
    let of = |kind| NONE.with_eight_bits(kind, 1);
    let wide = Products::Wide;
    assert_eq!(refused(&PARALLEL, of(EightBits::Mid), wide), Some("mid8"));
    assert_eq!(refused(&SEQUENTIAL, of(EightBits::Mid).with(Activation::Mid), wide), Some("mid8"));
    assert_eq!(refused(&SEQUENTIAL, of(EightBits::GateUp).union(Recompute::FULL), wide), Some("gate_up8"));
    assert_eq!(refused(&COPIED, of(EightBits::GateUp), Products::Quantised), Some("gate_up8"));
    let plain = Transformer { feed: Feed::Gelu, ..COPIED };
    assert_eq!(refused(&plain, of(EightBits::GateUp), Products::Quantised), None);
    assert_eq!(refused(&PARALLEL, Recompute::FULL.union(X8), wide), None);
}
