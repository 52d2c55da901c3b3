//! Sizes computed by hand, steps of every mixture on the meter, and sizes from small to absurd.

use super::*;
use crate::device::{Device, Meter, Op, OperationError, Profile, Rates, Single};
use crate::memory::{Dtype, Entry, Layout, Ledger as _, Region, Role, Space, Stacked};
use crate::model::testing::{Half, metered};
use crate::model::{Activation, Family, MicroBatch, Parameter, Parameters, Products, Purpose, Recompute};
use crate::ops::{Chance, Pattern};
use crate::optimizer::{Group, Learns, Optimizer};
use crate::random::Random;
use crate::train::Ranks;

pub(super) const PUBLISHED: Transformer = Transformer {
    layers: 28,
    d_model: 768,
    heads: 12,
    kv_heads: 2,
    head_size: 64,
    d_ff: 2048,
    vocab_size: 200_005,
    context: 4096,
    rank: Some(128),
    rotary_dims: 64,
    ..Transformer::LLAMA
};

/// A random mixture of parts, with dimensions that fp8 can multiply.
pub(super) fn mixture(random: &Random, i: u64) -> Transformer {
    let draw = |which: u64| random.below(16 * i + which, 2) == 0;
    let (rank, tied) = [(Some(16), true), (None, true), (None, false)][random.below(16 * i, 3) as usize];
    Transformer {
        layers: 1 + random.below(16 * i + 1, 3) as u32,
        d_model: 32,
        heads: 4,
        kv_heads: if draw(2) { 2 } else { 4 },
        // In half of the cases not a quarter of the width.
        head_size: if draw(9) { 8 } else { 12 },
        d_ff: 48,
        vocab_size: 77,
        context: 9,
        rank,
        tied,
        norm: if draw(3) { NormKind::Rms } else { NormKind::Layer },
        residual: if draw(4) { Residual::Sequential } else { Residual::Parallel },
        feed: if draw(5) { Feed::SwiGlu } else { Feed::Gelu },
        bias: Biases { qkv: draw(6), out: draw(10), feed: draw(11) },
        norm_gains: !draw(14),
        qk_norm: draw(13),
        softcap: if draw(15) { 15.0 } else { 0.0 },
        rotary_dims: if draw(7) { 8 } else { 4 },
        rotary_scaling: match random.below(16 * i + 12, 3) {
            0 => RotaryScaling::None,
            1 => RotaryScaling::Linear { factor: 4.0 },
            _ => RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64 },
        },
        dialect: if draw(8) { Dialect::Llama } else { Dialect::GptNeox },
        ..PUBLISHED
    }
}

fn parameters(model: &Transformer) -> u64 {
    let mut sum = 0;
    let mut visit = |e: &Entry| {
        sum += e.slot.elements() * u64::from(e.slot.layers) * u64::from(e.slot.role == Role::Weight);
    };
    model.lay_lasting(&Single, Purpose::Evaluation, &mut Layout::new(&mut visit));
    sum
}

#[test]
fn the_published_model_has_its_parameters() {
    assert_eq!(parameters(&PUBLISHED), 196_398_464);
    assert_eq!(PUBLISHED.vocabulary_rows(), 200_064);
    // A whole tied table, and a second one for the head.
    let plain = Transformer { rank: None, ..PUBLISHED };
    assert_eq!(parameters(&plain), 196_398_464 - 200_005 * 128 - 768 * 128 + 200_005 * 768);
    assert_eq!(parameters(&Transformer { tied: false, ..plain }), parameters(&plain) + 200_005 * 768);
}

const SEQUENCE: MicroBatch = MicroBatch {
    batch: 1,
    seq_len: 128,
    chunk: 8,
    recompute: Recompute::NONE,
    pattern: Pattern::DENSE,
    products: Products::Wide,
    dropout: Chance::NONE,
    documents: false,
};

#[test]
fn a_layer_keeps_the_bytes_a_token_that_were_worked_out_by_hand() {
    let kept = |recompute| {
        let mut bytes = 0;
        let mut visit = |e: &Entry| bytes += if e.slot.layers > 1 { e.bytes / u64::from(e.slot.layers) } else { 0 };
        PUBLISHED.lay_training(&MicroBatch { recompute, ..SEQUENCE }, &Half, &mut Layout::new(&mut visit));
        bytes / u64::from(SEQUENCE.tokens())
    };
    assert_eq!(kept(Recompute::NONE), 22_072);
    assert_eq!(kept(Recompute::CHEAP), 14_904);
    // x and the scale of its norm.
    assert_eq!(kept(Recompute::FULL), 2 * 768 + 4);
    // Two bytes for each number in bf16: 12 heads and twice 2 of 64, 12 logarithms in f32, 2 · 2048 and 2048 of the
    // feed-forward.
    for (kind, bytes) in [
        (Activation::Norm1, 2 * 768),
        (Activation::Qkv, 2 * 16 * 64),
        (Activation::Mixed, 2 * 768 + 4 * 12),
        (Activation::Mid, 2 * 768),
        (Activation::Norm2, 2 * 768),
        (Activation::GateUp, 2 * 2 * 2048),
        (Activation::Activated, 2 * 2048),
    ] {
        assert_eq!(kept(Recompute::NONE.with(kind)), 22_072 - bytes, "{kind:?}");
    }
    // norm₂'s scale is saved only where mid or norm₂ is.
    assert_eq!(kept(Recompute::NONE.with(Activation::Mid).with(Activation::Norm2)), 22_072 - 4 * 768 - 4);
}

#[test]
fn layers_that_keep_an_activation_have_slots_of_their_own_and_one_is_shared() {
    let bytes = |recompute| {
        let mut ignore = |_: &Entry| ();
        let mut layout = Layout::new(&mut ignore);
        PUBLISHED.lay_training(&MicroBatch { recompute, ..SEQUENCE }, &Half, &mut layout);
        layout.high_water().unwrap()
    };
    let (all, gate_up) = (bytes(Recompute::NONE), 128 * 2 * 2 * 2048);
    for (layers, saved) in [(0, 0), (1, 1), (3, 3), (26, 26), (27, 27), (28, 27), (40, 27), (Recompute::ALL_LAYERS, 27)]
    {
        let some = Recompute::NONE.with_layers(Activation::GateUp, layers);
        assert_eq!(all - bytes(some), saved * gate_up, "{layers} layers");
    }
    // norm₂'s scale is recomputed in as many layers as the one of mid and norm₂ that fewer layers recompute.
    let both = Recompute::NONE.with_layers(Activation::Mid, 5).with_layers(Activation::Norm2, 7);
    assert_eq!(all - bytes(both), 128 * (12 * 2 * 768 + 5 * 4));
}

#[test]
fn parts_of_their_own_take_what_was_worked_out_by_hand() {
    // Qwen3 of 0.6 billion parameters: 16 heads of 128 in a width of 1024, 8 key heads; q and k have a gain of 128
    // each.
    let qwen3 = Transformer {
        layers: 28,
        d_model: 1024,
        heads: 16,
        kv_heads: 8,
        head_size: 128,
        d_ff: 3072,
        vocab_size: 151_936,
        rank: None,
        qk_norm: true,
        rotary_dims: 128,
        ..PUBLISHED
    };
    qwen3.validate().unwrap();
    let layer = 1024 * (2048 + 1024 + 1024) + 2048 * 1024 + 3 * 1024 * 3072 + 2 * 1024 + 2 * 128;
    assert_eq!(parameters(&qwen3), 596_049_920);
    assert_eq!(parameters(&qwen3), 28 * layer + 151_936 * 1024 + 1024);
    // A multiply-add counts as two operations, and twice that for the gradients; scores and mixing have 16 · 128
    // columns.
    let products = 28 * (1024 * 4096 + 2048 * 1024 + 3 * 1024 * 3072) + 151_936 * 1024;
    assert_eq!(qwen3.flops_per_token(512), 6 * products + 12 * 28 * 2048 * 512);
    // Biases: 4096 of q, k and v; 1024 of attention's output; 2 · 3072 + 1024 of the feed-forward.
    for (bias, more) in [
        (Biases::QKV, 4096),
        (Biases::ATTENTION, 4096 + 1024),
        (Biases::FEED, 2 * 3072 + 1024),
        (Biases::ALL, 4096 + 1024 + 2 * 3072 + 1024),
    ] {
        assert_eq!(parameters(&Transformer { bias, ..qwen3 }), 596_049_920 + 28 * more);
    }
    // Training saves q and k before the norm, 24 heads of 128 in two bytes, and 24 scales of four; an evaluation
    // nothing.
    let micro = MicroBatch {
        batch: 1,
        seq_len: 64,
        chunk: 8,
        recompute: Recompute::NONE,
        pattern: Pattern::DENSE,
        products: Products::Wide,
        dropout: Chance::NONE,
        documents: false,
    };
    for (recompute, slots) in [(Recompute::NONE, 28), (Recompute::CHEAP, 28), (Recompute::FULL, 1)] {
        let mut bytes = [0; 2];
        for (qk_norm, bytes) in [false, true].into_iter().zip(&mut bytes) {
            let mut visit = |e: &Entry| *bytes += e.bytes;
            let model = Transformer { qk_norm, ..qwen3 };
            model.lay_training(&MicroBatch { recompute, ..micro }, &Half, &mut Layout::new(&mut visit));
        }
        assert_eq!(bytes[1] - bytes[0], slots * 64 * (24 * 128 * 2 + 24 * 4), "{recompute:?}");
    }
    let mut visit = |e: &Entry| assert!(!e.slot.name.contains("qk_"), "{}", e.slot.name);
    let mut layout = Layout::new(&mut visit);
    qwen3.lay_evaluation(&micro, &Half, &mut layout);
    qwen3.lay_decoding(9, &Half, &mut layout);
}

/// [`Half`] with copies in 8 bits.
struct Eighths;

impl Profile for Eighths {
    fn dtype(&self, role: Role) -> Dtype {
        Half.dtype(role)
    }

    fn computes(&self, dtype: Dtype) -> bool {
        Half.computes(dtype)
    }

    fn quantises(&self) -> bool {
        true
    }
}

/// Random adapters of some projections.
fn adapters(random: &Random, i: u64) -> Adapters {
    let on = |which: u64| random.below(5000 + 8 * i + which, 2) == 0;
    let rank = 1 + random.below(5004 + 8 * i, 8) as u32;
    let base = [BaseType::Same, BaseType::Bf16, BaseType::Int8][random.below(5005 + 8 * i, 3) as usize];
    Adapters { rank, alpha: 16.0, qkv: on(0), out: on(1), up: on(2), down: on(3) || !(on(0) || on(1) || on(2)), base }
}

#[test]
fn every_step_of_every_mixture_passes_the_meter() {
    let random = Random::new(7, 0);
    for i in 0..90 {
        let mut model = mixture(&random, i);
        if i >= 60 {
            let drawn = adapters(&random, i);
            model.adapters = Some(drawn);
            model.adapters = Some(Adapters { rank: drawn.rank.min(model.smallest_adapted_side()), ..drawn });
        }
        let adapters = model.adapters;
        model.validate().unwrap();
        let sets = Recompute::FULL.subsets().skip(i as usize % 8).step_by(8);
        // Up to three layers of each kind.
        let some = (0..4).map(|set| {
            let layers = |a: Activation| random.below(1000 + 32 * i + 8 * set + a as u64, 4) as u16;
            Activation::ALL.into_iter().fold(Recompute::NONE, |all, a| all.with_layers(a, layers(a)))
        });
        for (recompute, products) in [Recompute::NONE, Recompute::CHEAP, Recompute::FULL]
            .into_iter()
            .chain(sets)
            .chain(some)
            .flat_map(|r| [Products::Wide, Products::Warming, Products::Quantised].map(|p| (r, p)))
        {
            let dropout = if i % 2 == 0 { Chance::NONE } else { Chance::nearest(0.1).unwrap() };
            let documents = i % 3 == 0;
            let micro =
                MicroBatch { batch: 2, seq_len: 7, chunk: 4, recompute, dropout, documents, products, ..SEQUENCE };
            if products != Products::Wide && adapters.is_some_and(|a| a.base == BaseType::Int8) {
                assert!(matches!(model.validate_micro_batch(&micro), Err(ModelError::Adapters(_))));
                continue;
            }
            model.validate_micro_batch(&micro).unwrap();
            metered(&model, &micro, if products == Products::Wide { &Half } else { &Eighths });
            if products == Products::Wide && adapters.is_some() {
                metered(&model, &micro, &Single);
            }
        }
    }
}

/// Records each dropout and its region: of the forward pass, and after the head's loss.
#[derive(Default)]
struct Dropped {
    forward: heapless::Vec<(u32, Region), 64>,
    backward: heapless::Vec<(u32, Region), 64>,
    behind: bool,
}

impl Device for Dropped {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        match op {
            Op::HeadLoss(_) => self.behind = true,
            Op::Dropout(o) => {
                let of = if self.behind { &mut self.backward } else { &mut self.forward };
                of.push((o.place, o.x)).expect("room for 64");
            }
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn every_mask_is_drawn_forward_and_for_its_gradient_and_again_with_what_is_computed_again() {
    let dropout = Chance::nearest(0.1).unwrap();
    for (residual, recompute) in [Residual::Sequential, Residual::Parallel]
        .into_iter()
        .flat_map(|residual| [Recompute::NONE, Recompute::FULL].map(|recompute| (residual, recompute)))
    {
        let model = Transformer { layers: 3, residual, ..PUBLISHED };
        let recompute = if residual == Residual::Parallel { recompute.without(Activation::Mid) } else { recompute };
        let mut ignore = |_: &Entry| ();
        let mut layout = Layout::new(&mut ignore);
        let optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);
        let lasting = model.lay_lasting(&Half, Purpose::Training(Ranks::ALONE, optimizer), &mut layout);
        let micro = MicroBatch { recompute, ..SEQUENCE };
        let mark = layout.mark();
        model.lay_training(&micro, &Half, &mut layout);
        let plain = layout.high_water().unwrap();
        layout.rewind(mark);
        let micro = MicroBatch { dropout, ..micro };
        let training = model.lay_training(&micro, &Half, &mut layout);
        // The key and its padding.
        assert_eq!(layout.high_water().unwrap() - plain, 4 * Layout::GRAIN);
        let evaluation = model.lay_evaluation(&micro, &Half, &mut layout);
        let mut seen = Dropped::default();
        model.micro_batch(&mut seen, &lasting, &training, &micro, true).unwrap();
        let places = |of: &[(u32, Region)]| {
            let mut places: heapless::Vec<u32, 64> = of.iter().map(|(place, _)| *place).collect();
            places.sort_unstable();
            places
        };
        assert_eq!(places(&seen.forward), [0, 1, 2, 3, 4, 5, 6]);
        // The last layer's activations still exist.
        let again = if recompute == Recompute::NONE { &[][..] } else { &[1, 2, 3, 4] };
        let mut expected: heapless::Vec<u32, 64> =
            [0, 1, 2, 3, 4, 5, 6].into_iter().chain(again.iter().copied()).collect();
        expected.sort_unstable();
        assert_eq!(places(&seen.backward), expected, "{residual:?} {recompute:?}");
        // Dropout is repeated in the slot whose content was overwritten.
        let lies = |place| seen.forward.iter().find(|(other, _)| *other == place);
        assert!(again.iter().all(|place| lies(*place).is_some_and(|dropped| seen.backward.contains(dropped))));
        let mut seen = Dropped::default();
        model.evaluate(&mut seen, &lasting, &evaluation, &micro).unwrap();
        assert!(seen.forward.is_empty() && seen.backward.is_empty());
    }
}

#[test]
fn parameters_have_names_of_their_own_and_those_that_decay_come_first() {
    let random = Random::new(8, 0);
    for i in 0..60 {
        let model = mixture(&random, i);
        let mut seen = heapless::Vec::<Parameter, 32>::new();
        model.parameters(&mut |p| {
            assert!(seen.iter().all(|other| other.name != p.name), "{}", p.name);
            seen.push(*p).expect("room for 32");
            Stacked::NOTHING
        });
        let vectors = seen.iter().skip_while(|p| p.group.decays());
        assert!(vectors.clone().count() > 2 && vectors.into_iter().all(|p| p.group == Group::Vector));
        assert!(seen.iter().all(|p| p.learns == Learns::FromGradient || !model.norm_gains && p.group == Group::Vector));
    }
}

/// A Llama of 1.1 B parameters, with the sizes of TinyLlama.
const TINY_LLAMA: Transformer = Transformer {
    layers: 22,
    d_model: 2048,
    heads: 32,
    kv_heads: 4,
    head_size: 64,
    d_ff: 5632,
    vocab_size: 32_000,
    context: 2048,
    tied: false,
    rotary_dims: 64,
    ..Transformer::LLAMA
};

#[test]
fn adapters_learn_alone_and_take_what_was_worked_out_by_hand() {
    let all = Adapters { rank: 8, alpha: 16.0, qkv: true, out: true, up: true, down: true, base: BaseType::Same };
    let model = Transformer { adapters: Some(all), ..TINY_LLAMA };
    model.validate().unwrap();
    // The count of PEFT with rank 8 on all seven matrices of a layer.
    let layer = 8 * (3 * 2048 + 2048 + 256 + 256 + 2 * 2048 + 2 * (2048 + 5632) + 5632 + 2048);
    assert_eq!(parameters(&model) - parameters(&TINY_LLAMA), 22 * layer);
    assert_eq!(22 * layer, 6_307_840);
    // A frozen weight has no gradient.
    let products = 22 * (2048 * (2560 + 2048 + 2 * 5632) + 2048 * 5632) + 32_000 * 2048;
    assert_eq!(model.flops_per_token(512), 4 * products + 6 * 22 * layer + 12 * 22 * 2048 * 512);
    let mut bytes = [0; 4];
    let mut visit = |e: &Entry| {
        let role = [Role::Gradient, Role::Moment, Role::Master, Role::Weight].iter().position(|r| *r == e.slot.role);
        if let Some(role) = role {
            bytes[role] += e.bytes;
            assert!(e.slot.role == Role::Weight || e.slot.name.contains(".lora_"), "{}", e.slot.name);
        }
    };
    let optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);
    model.lay_lasting(&Half, Purpose::Training(Ranks::ALONE, optimizer), &mut Layout::new(&mut visit));
    let own = 22 * layer;
    assert_eq!(bytes, [4 * own, 8 * own, 2 * own, 2 * parameters(&model)]);
    for (targets, elements) in [
        (Adapters { out: false, up: false, down: false, ..all }, 8 * (3 * 2048 + 2048 + 256 + 256)),
        (Adapters { qkv: false, up: false, down: false, ..all }, 8 * 2 * 2048),
        (Adapters { qkv: false, out: false, down: false, ..all }, 8 * (2 * 2048 + 2 * 5632)),
        (Adapters { qkv: false, out: false, up: false, ..all }, 8 * (2048 + 5632)),
    ] {
        let model = Transformer { adapters: Some(targets), ..TINY_LLAMA };
        assert_eq!(parameters(&model) - parameters(&TINY_LLAMA), 22 * elements);
    }
    // In 8 bits, a byte for each weight and two for each row, and the slot for the expanded numbers of the head.
    let eight = Transformer { adapters: Some(Adapters { base: BaseType::Int8, ..all }), ..TINY_LLAMA };
    let mut bytes = [0; 3];
    let mut visit = |e: &Entry| {
        let kept = e.slot.role == Role::Weight && e.slot.dtype == Dtype::I8;
        let which = [kept, e.slot.role == Role::Scale, e.slot.name == "base.numbers"].iter().position(|is| *is);
        which.into_iter().for_each(|i| bytes[i] += e.bytes);
    };
    let mut layout = Layout::new(&mut visit);
    eight.lay_lasting(&Half, Purpose::Training(Ranks::ALONE, optimizer), &mut layout);
    eight.lay_training(&MicroBatch { batch: 4, seq_len: 512, chunk: 256, ..SEQUENCE }, &Half, &mut layout);
    let rows = 22 * (2560 + 2048 + 2 * 5632 + 2048) + 2 * 32_000;
    assert_eq!(bytes, [products + 32_000 * 2048, 2 * rows, 2 * 32_000 * 2048]);
    let refused = |adapters| Transformer { adapters: Some(adapters), ..TINY_LLAMA }.validate().unwrap_err();
    assert_eq!(refused(Adapters { rank: 0, ..all }), ModelError::Zero("lora_rank"));
    // Keys and values have 256 rows.
    assert_eq!(refused(Adapters { rank: 257, ..all }), ModelError::AdapterRank { rank: 257, most: 256 });
    let others = Adapters { rank: 2048, qkv: false, ..all };
    assert_eq!(Transformer { adapters: Some(others), ..TINY_LLAMA }.validate(), Ok(()));
    assert!(matches!(refused(Adapters { alpha: 0.0, ..all }), ModelError::Constant { name: "lora_alpha", .. }));
    let none = Adapters { qkv: false, out: false, up: false, down: false, ..all };
    assert!(matches!(refused(none), ModelError::Adapters(_)));
    assert!(matches!(Transformer { value_tables: 1, ..model }.validate(), Err(ModelError::Adapters(_))));
}

#[test]
fn copies_take_two_bytes_a_weight_and_a_byte_a_token_and_column() {
    let model = Transformer {
        layers: 3,
        d_model: 32,
        heads: 4,
        kv_heads: 2,
        head_size: 8,
        d_ff: 48,
        vocab_size: 77,
        rotary_dims: 8,
        ..PUBLISHED
    };
    let model = Transformer { rank: Some(16), context: 9, ..model };
    let micro = MicroBatch {
        batch: 2,
        seq_len: 7,
        chunk: 4,
        recompute: Recompute::NONE,
        pattern: Pattern::DENSE,
        products: Products::Wide,
        dropout: Chance::NONE,
        documents: false,
    };
    for (recompute, products) in [Recompute::NONE, Recompute::CHEAP, Recompute::FULL]
        .into_iter()
        .flat_map(|r| [Products::Wide, Products::Warming, Products::Quantised].map(|p| (r, p)))
    {
        let micro = MicroBatch { recompute, products, ..micro };
        model.validate_micro_batch(&micro).unwrap();
        let seen = metered(&model, &micro, &Eighths);
        let bytes = |role: Role| -> u64 {
            let copied = |e: &&Entry| e.slot.role == role && (e.slot.name.contains("fp8") || role == Role::State);
            seen.iter().filter(copied).map(|e| e.bytes).sum()
        };
        let weights = 3 * (64 * 32 + 32 * 32 + 96 * 32 + 32 * 48);
        assert_eq!(bytes(Role::Work), 2 * weights + 14 * 48 + 14 * 96);
        // 8 values and 4 gradients in each layer: 16 steps, the largest value, a scale, and its inverse four times.
        assert_eq!(bytes(Role::State), 3 * 12 * (16 + 1 + 1 + 4) * 4);
    }
    let odd = |model: Transformer| {
        model.validate_micro_batch(&MicroBatch { products: Products::Quantised, ..micro }).unwrap_err()
    };
    assert_eq!(odd(Transformer { d_ff: 40, ..model }), ModelError::Sixteens { name: "d_ff", size: 40 });
    assert_eq!(odd(Transformer { d_model: 24, ..model }), ModelError::Sixteens { name: "d_model", size: 24 });
    let heads = Transformer { heads: 3, kv_heads: 3, head_size: 8, ..model };
    assert_eq!(odd(heads), ModelError::Sixteens { name: "the width of qkv", size: 72 });
    let heads = Transformer { heads: 3, kv_heads: 1, head_size: 16, ..model };
    assert!(heads.validate_micro_batch(&MicroBatch { products: Products::Quantised, ..micro }).is_ok());
    // 16 columns of qkv, 12 of them for queries.
    let heads = Transformer { heads: 6, kv_heads: 1, head_size: 2, rotary_dims: 2, ..model };
    assert_eq!(odd(heads), ModelError::Sixteens { name: "heads * head_size", size: 12 });
    assert!(model.validate_micro_batch(&micro).is_ok());
}

#[test]
fn sizes_that_do_not_belong_together_are_refused() {
    let refused = |model: Transformer| model.validate().unwrap_err();
    assert_eq!(refused(Transformer { kv_heads: 5, ..PUBLISHED }), ModelError::Groups { heads: 12, kv_heads: 5 });
    let seven = Transformer { heads: 7, head_size: 0, kv_heads: 7, ..PUBLISHED };
    assert_eq!(refused(seven), ModelError::Heads { d_model: 768, heads: 7 });
    assert!(Transformer { head_size: 64, ..seven }.validate().is_ok());
    assert_eq!(refused(Transformer { head_size: 0, ..PUBLISHED }), ModelError::Zero("head_size"));
    let wide = Transformer { heads: 1 << 14, head_size: 1 << 14, kv_heads: 1, ..PUBLISHED };
    assert_eq!(refused(wide), ModelError::TooLarge("heads * head_size"));
    let scaled = |factor, low, high, original| Transformer {
        rotary_scaling: RotaryScaling::Llama3 { factor, low, high, original },
        ..PUBLISHED
    };
    assert!(scaled(8.0, 1.0, 4.0, 8192).validate().is_ok());
    assert_eq!(refused(scaled(8.0, 4.0, 4.0, 8192)), ModelError::Scaling { low: 4.0, high: 4.0 });
    assert_eq!(refused(scaled(8.0, 1.0, 4.0, 0)), ModelError::Zero("rotary_original"));
    for (factor, low, high) in [(0.0, 1.0, 4.0), (f32::INFINITY, 1.0, 4.0), (8.0, 0.0, 4.0), (8.0, 1.0, f32::INFINITY)]
    {
        assert!(matches!(refused(scaled(factor, low, high, 8192)), ModelError::Constant { must: "above 0", .. }));
    }
    for softcap in [-1.0, -0.0, f32::INFINITY, f32::NAN] {
        let error = refused(Transformer { softcap, ..PUBLISHED });
        assert!(matches!(error, ModelError::Constant { name: "softcap", must: "at least 0", .. }));
    }
    assert_eq!(refused(Transformer { rank: Some(769), ..PUBLISHED }), ModelError::Rank { rank: 769, d_model: 768 });
    assert_eq!(refused(Transformer { rank: Some(0), ..PUBLISHED }), ModelError::Zero("rank"));
    assert_eq!(refused(Transformer { tied: false, ..PUBLISHED }), ModelError::Untied);
    assert_eq!(refused(Transformer { rotary_dims: 3, ..PUBLISHED }), ModelError::Rotary { dims: 3, size: 64 });
}

/// Sizes from small to absurd.
const SIZES: [u32; 10] = [1, 2, 16, 48, 256, 1 << 16, (1 << 20) + 16, (1 << 28) - 16, (1 << 28) - 1, u32::MAX];

fn micro(draw: &mut impl FnMut() -> u32) -> MicroBatch {
    let (batch, seq_len, chunk) = (draw(), draw(), draw());
    let recompute = [Recompute::NONE, Recompute::CHEAP, Recompute::FULL][draw() as usize % 3];
    MicroBatch {
        batch,
        seq_len,
        chunk,
        recompute,
        pattern: Pattern::DENSE,
        products: Products::Wide,
        dropout: Chance::NONE,
        documents: false,
    }
}

/// Lays and meters `family` if it is valid; returns whether it could be laid. Checks that the arena is at least as
/// large as its largest region, computed in 128-bit numbers, which would be larger if the layout's arithmetic wrapped.
fn lays(family: &Transformer, micro: &MicroBatch, ranks: Ranks) -> Option<bool> {
    family.validate().ok()?;
    family.validate_micro_batch(micro).ok()?;
    let mut largest = 0;
    let mut visit = |e: &Entry| {
        let layers = if e.place.is_shared() { 1 } else { e.slot.layers };
        let bytes: u128 = e.slot.shape.iter().map(|n| u128::from(*n)).product::<u128>()
            * u128::from(e.slot.dtype.size())
            * u128::from(layers);
        largest = if e.place.first.space == Space::Shared { largest } else { bytes.max(largest) };
    };
    let mut layout = Layout::new(&mut visit);
    let optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);
    let lasting = family.lay_lasting(&Single, Purpose::Training(ranks, optimizer), &mut layout);
    let training = family.lay_training(micro, &Single, &mut layout);
    family.lay_evaluation(micro, &Single, &mut layout);
    family.lay_decoding(micro.seq_len, &Single, &mut layout);
    let Ok(bytes) = layout.high_water() else { return Some(false) };
    family.flops_per_token(micro.seq_len);
    if family.layers <= 2 {
        let mut meter = Meter::new(&Single, Rates::ONE);
        let done = family.micro_batch(&mut meter, &lasting, &training, micro, true);
        match done.and_then(|()| family.update(&mut meter, &lasting, None)) {
            Ok(()) | Err(OperationError::TooLarge { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(u128::from(bytes) >= largest);
    Some(true)
}

#[test]
fn absurd_sizes_are_refused_or_laid_and_nothing_wraps() {
    let random = Random::new(5, 0);
    let (mut laid, mut too_large) = (0, 0);
    for i in 0..8_000 {
        let mut at = 100 * i;
        let mut draw = || {
            at += 1;
            SIZES[random.below(at, SIZES.len() as u64) as usize]
        };
        let (layers, d_model, d_ff, vocab_size) = (draw(), draw(), draw(), draw());
        let (context, heads, kv_heads, head_size, rotary_dims) = (u32::MAX >> 4, 1, 1, d_model, 2);
        let drawn = mixture(&random, i);
        let rank = drawn.rank.map(|_| 1);
        let model = Transformer {
            layers,
            d_model,
            heads,
            kv_heads,
            head_size,
            d_ff,
            vocab_size,
            context,
            rank,
            rotary_dims,
            ..drawn
        };
        let micro = micro(&mut draw);
        let exact = Ranks { rank: 1, count: 3, exact: true, gradients: false };
        let thin = Ranks { rank: 0, count: 1 << 20, exact: false, gradients: true };
        let found = lays(&model, &micro, [Ranks::ALONE, exact, thin][i as usize % 3]);
        laid += u32::from(found == Some(true));
        too_large += u32::from(found == Some(false));
    }
    assert!(laid > 100 && too_large > 100, "{laid} laid, {too_large} too large");
}
