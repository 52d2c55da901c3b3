//! Copies in 8 bits and their products against the Reference, and steps of a small Yxanul that is made of them.

use capful_core::device::{Device, Meter, Op, Operation, OperationError, Profile, Rates, Reference, Single};
use capful_core::fp8::Format;
use capful_core::memory::{Arena, Dtype, Entry, Init, Layout, Ledger, Region, Role, Slot};
use capful_core::model::transformer::{Biases, Feed, Lasting, Residual, Training};
use capful_core::model::{Family, MicroBatch, Products as Kind, Purpose, Recompute, Transformer};
use capful_core::ops::{
    Affine, AffineGrad, Epilogue, Linear, LinearGrad, Norm, NormGrad, NormKind, Pattern, Quantise, Quantised,
    QuantisedProduct, Rescale, Rotary, Scaling, SwiGlu, SwiGluGrad, TransposedCopies,
};
use capful_core::optimizer::Optimizer;
use capful_core::random::Random;
use capful_core::train::{Ranks, Results, Settings};

use super::bench::{Bench, Lay, apart, decode, encode, open_with, share};
use crate::device::cuda::{Cuda, CudaError, CudaProfile, Precision, Products, Room, require};

fn scaling(l: &mut Lay, scale: f32) -> Scaling {
    let mut one = |x| l.values([1; 4], vec![x]).offset;
    Scaling::at(one(0.5), one(scale), one(1.0 / scale))
}

/// A copy of normal numbers.
fn copy(l: &mut Lay, dtype: Dtype, rows: u32, columns: u32, scale: f32) -> Quantised {
    Quantised { codes: l.codes(dtype, [1, 1, rows, columns], scale), scaling: scaling(l, scale) }
}

#[test]
fn copies_are_the_reference_s_to_the_bit() {
    let mut bench = Bench::new();
    for [rows, columns] in [[1, 1], [16, 16], [33, 48], [64, 64], [80, 144], [65, 7], [3, 1000], [700, 304]] {
        for (dtype, scale) in [(Dtype::E4m3, 32.0), (Dtype::E5m2, 1024.0)] {
            let forms = [(true, false), (true, true), (false, true)];
            for (precision, (straight, turned)) in
                [Precision::F32, Precision::Bf16].into_iter().flat_map(|p| forms.map(|form| (p, form)))
            {
                bench.agree_in(precision, 0.0, &|l: &mut Lay| Quantise {
                    x: l.normal([1, 1, rows, columns], 3.0),
                    scaling: scaling(l, scale),
                    codes: straight.then(|| l.poison_codes(dtype, [1, 1, rows, columns])),
                    transposed: turned.then(|| l.poison_codes(dtype, [1, 1, columns, rows])),
                });
            }
        }
    }
}

#[test]
fn every_kind_of_number_has_the_reference_s_code() {
    let mut bench = Bench::new();
    for (dtype, format) in [(Dtype::E4m3, Format::E4m3), (Dtype::E5m2, Format::E5m2)] {
        let mut values = vec![0.0, f32::MAX, f32::INFINITY, f32::NAN, 1e-45, 1e-30, 448.01, 57_345.0, 464.0, 61_440.0];
        for code in 0..0x7cu8 {
            let (low, high) = (format.decode(code), format.decode(code + 1));
            let middle = low / 2.0 + high / 2.0;
            let near = [middle.to_bits() - u32::from(middle > 0.0), middle.to_bits() + 1].map(f32::from_bits);
            values.extend([low, middle, near[0], near[1]]);
        }
        values.extend(values.clone().iter().map(|x| -x));
        for wide in [false, true] {
            // Beside the values that are converted 16 at a time those that are not.
            let count = values.len() / 16 * 16 + usize::from(!wide);
            let shape = [1, 1, 1, count as u32];
            bench.agree_in(Precision::F32, 0.0, &|l: &mut Lay| Quantise {
                x: l.values(shape, values.iter().copied().cycle().take(count).collect()),
                scaling: scaling(l, 1.0),
                codes: Some(l.poison_codes(dtype, shape)),
                transposed: None,
            });
        }
    }
}

/// The copy that an operation makes is what `Quantise` makes of what it stored, to the bit, on the GPU. What it stored
/// is held against the Reference, if that `computes` the same. `build` lays the copy that it is given, and gives beside
/// the operation which operand it is of.
fn copies_as_quantise<O: Operation>(
    bench: &mut Bench,
    dtype: Dtype,
    shape: [u32; 4],
    (amax, computes): (f32, bool),
    build: &impl Fn(&mut Lay, Quantised) -> (O, usize),
) {
    let out = |l: &mut Lay| {
        let codes = l.left(shape, Some(dtype));
        let mut one = |x| l.values([1; 4], vec![x]).offset;
        Quantised { codes, scaling: Scaling::at(one(amax), one(16.0), one(1.0 / 16.0)) }
    };
    let bits = |of: &[Vec<f32>]| of[..4].iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (precision, tolerance) in [(Precision::F32, 1e-5), (Precision::Bf16, 1e-2)] {
        let whole = |l: &mut Lay| {
            let copy = out(l);
            build(l, copy).0
        };
        if computes {
            bench.agree_in(precision, tolerance, &whole);
        }
        let stored = std::cell::Cell::new(0);
        let found = bench.left(precision, &|l: &mut Lay| {
            let copy = out(l);
            let (operation, operand) = build(l, copy);
            stored.set(operand);
            operation
        });
        let expected = bench.left::<Quantise>(precision, &|l: &mut Lay| {
            let out = out(l);
            Quantise::new(l.kept(shape, found[stored.get()].clone()), out)
        });
        assert!(bits(&found) == bits(&expected), "{} {shape:?} {precision:?}: another copy than Quantise's", O::NAME);
    }
}

#[test]
fn operations_copy_what_they_store() {
    let mut bench = Bench::new();
    let shapes = [[1, 1], [3, 8], [5, 24], [130, 12], [33, 48], [7, 2056], [9, 1304], [301, 16], [65, 31]];
    for ([rows, d], amax) in share(shapes.to_vec()).into_iter().flat_map(|s| [0.5, 1e4].map(|amax| (s, amax))) {
        let matrix = |columns| [1, 1, rows, columns];
        copies_as_quantise(&mut bench, Dtype::E4m3, matrix(d), (amax, true), &|l, copy| {
            let (gate_up, out) = (l.normal(matrix(2 * d), 2.0), l.poison(matrix(d)));
            (SwiGlu { gate_up, out, copy: Some(copy) }, 5)
        });
        copies_as_quantise(&mut bench, Dtype::E5m2, matrix(2 * d), (amax, true), &|l, copy| {
            let (gate_up, out_grad) = (l.normal(matrix(2 * d), 2.0), l.normal(matrix(d), 1.0));
            (SwiGluGrad { gate_up, out_grad, out: None, copy: Some(copy), transposed: None }, 4)
        });
        let (kind, eps) = (NormKind::Rms, 1e-5);
        copies_as_quantise(&mut bench, Dtype::E4m3, matrix(d), (amax, true), &|l, copy| {
            let (out, x) = (l.poison(matrix(d)), l.normal(matrix(d), 3.0));
            let first = Affine { gain: l.normal([1, 1, 1, d], 1.0), bias: None, out };
            let stats = l.poison_exact(matrix(1));
            (Norm { kind, x, eps, stats, first, second: None, copy: Some(copy) }, 4)
        });
        for add in [false, true] {
            copies_as_quantise(&mut bench, Dtype::E5m2, matrix(d), (amax, d > 1), &|l, copy| {
                let x_grad = if add { l.normal(matrix(d), 4.0) } else { l.poison(matrix(d)) };
                let x = l.normal(matrix(d), 3.0);
                let stats = l.values(matrix(1), (0..rows).map(|i| 0.3 + 0.01 * (i % 7) as f32).collect());
                let first = AffineGrad {
                    gain: l.normal([1, 1, 1, d], 1.0),
                    out_grad: l.normal(matrix(d), 1.0),
                    gain_grad: l.poison_exact([1, 1, 1, d]),
                    bias_grad: None,
                };
                let grad =
                    NormGrad { kind, x, stats, x_grad, first, second: None, add, accumulate: false, copy: Some(copy) };
                (grad, 4)
            });
        }
    }
}

#[test]
fn swiglus_gradient_makes_the_copies_that_quantise_makes() {
    let mut bench = Bench::new();
    let shapes = share(vec![[16, 16], [16, 48], [48, 16], [64, 64], [80, 96], [144, 208], [272, 64]]);
    for (precision, [rows, d]) in shapes.iter().flat_map(|s| [(Precision::F32, *s), (Precision::Bf16, *s)]) {
        let matrix = |columns| [1, 1, rows, columns];
        let turned = |columns| [1, 1, columns, rows];
        let given = |l: &mut Lay| [l.normal(matrix(2 * d), 2.0), l.normal(matrix(d), 1.0)];
        let scales = |l: &mut Lay| [scaling(l, 16.0), scaling(l, 64.0)];
        let found = bench.left(precision, &|l: &mut Lay| {
            let ([gate_up, out_grad], [scaling, out_scaling]) = (given(l), scales(l));
            let copy = Quantised { codes: l.poison_codes(Dtype::E5m2, matrix(2 * d)), scaling };
            let transposed = TransposedCopies {
                gate_up: l.poison_codes(Dtype::E5m2, turned(2 * d)),
                out: Quantised { codes: l.poison_codes(Dtype::E4m3, turned(d)), scaling: out_scaling },
            };
            SwiGluGrad { gate_up, out_grad, out: None, copy: Some(copy), transposed: Some(transposed) }
        });
        let stored = bench.left(precision, &|l: &mut Lay| {
            let [gate_up, out_grad] = given(l);
            SwiGluGrad { gate_up, out_grad, out: Some(l.poison(matrix(d))), copy: None, transposed: None }
        });
        let gradients = bench.left(precision, &|l: &mut Lay| {
            let (x, [scaling, _]) = (l.kept(matrix(2 * d), stored[0].clone()), scales(l));
            let codes = Some(l.poison_codes(Dtype::E5m2, matrix(2 * d)));
            Quantise { x, scaling, codes, transposed: Some(l.poison_codes(Dtype::E5m2, turned(2 * d))) }
        });
        let out = bench.left(precision, &|l: &mut Lay| {
            let (x, [_, scaling]) = (l.kept(matrix(d), stored[2].clone()), scales(l));
            Quantise::transposed(x, Quantised { codes: l.poison_codes(Dtype::E4m3, turned(d)), scaling })
        });
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let [largest, codes, both, single] = [2, 8, 9, 10].map(|i| bits(&found[i]));
        let expected = [&gradients[1], &gradients[7], &gradients[8], &out[7]].map(|x| bits(x));
        assert!([largest, codes, both, single] == expected, "[{rows}, {d}] {precision:?}: other copies");
        let unwritten = found[8..].iter().flatten().any(|x| x.is_nan());
        assert!(!unwritten && (found[0] != stored[0]), "gate and up stay");
    }
}

#[test]
fn operations_copy_what_is_not_finite_as_quantise_does() {
    let mut bench = Bench::new();
    for d in [5, 16] {
        let odd = [f32::INFINITY, 1.0, f32::NAN, -3.0, f32::NEG_INFINITY, 1e30, 0.0];
        let values = || odd.iter().copied().cycle().take(6 * d as usize).collect::<Vec<_>>();
        let matrix = |columns| [1, 1, 3, columns];
        copies_as_quantise(&mut bench, Dtype::E4m3, matrix(d), (0.5, false), &|l, copy| {
            let (gate_up, out) = (l.kept(matrix(2 * d), values()), l.poison(matrix(d)));
            (SwiGlu { gate_up, out, copy: Some(copy) }, 5)
        });
        copies_as_quantise(&mut bench, Dtype::E5m2, matrix(2 * d), (0.5, false), &|l, copy| {
            let (gate_up, out_grad) = (l.kept(matrix(2 * d), values()), l.normal(matrix(d), 1.0));
            (SwiGluGrad { gate_up, out_grad, out: None, copy: Some(copy), transposed: None }, 4)
        });
    }
}

#[test]
fn copies_that_no_kernel_makes_are_refused() {
    let mut cuda = open_with(8192, Region { shape: [1; 4], ..WORD }, 0, Products::Own);
    let at = |offset, dtype, columns| Region { offset, dtype, shape: [1, 1, 1, columns], ..WORD };
    let scaling = Scaling::at(64, 128, 192);
    let copy = |dtype, columns| Some(Quantised { codes: at(256, dtype, columns), scaling });
    let (gate_up, out) = (at(512, Dtype::F32, 32), at(1024, Dtype::F32, 16));
    let mut refused = |run: &mut dyn FnMut(&mut Cuda) -> Result<(), OperationError>| {
        assert!(run(&mut cuda).is_err());
        assert!(matches!(cuda.take_failure(), Some(CudaError::Unsupported { .. })));
    };
    refused(&mut |c| c.run(&SwiGlu { gate_up, out, copy: copy(Dtype::E5m2, 16) }.into()));
    refused(&mut |c| {
        c.run(&SwiGluGrad { gate_up, out_grad: out, out: None, copy: copy(Dtype::E4m3, 32), transposed: None }.into())
    });
    let first = Affine { gain: at(2048, Dtype::F32, 16), bias: Some(at(2560, Dtype::F32, 16)), out };
    let (kind, x, stats) = (NormKind::Layer, at(3072, Dtype::F32, 16), at(3584, Dtype::F32, 2));
    let copy = copy(Dtype::E4m3, 16);
    refused(&mut |c| c.run(&Norm { kind, x, eps: 1e-5, stats, first, second: None, copy }.into()));
}

const WORD: Region = Region { space: capful_core::memory::Space::Arena, dtype: Dtype::F32, offset: 0, shape: [1; 4] };

#[test]
fn scales_follow_the_history() {
    let mut bench = Bench::new();
    for (dtype, count) in [(Dtype::E4m3, 1), (Dtype::E5m2, 12), (Dtype::E4m3, 336)] {
        bench.agree_in(Precision::F32, 0.0, &|l: &mut Lay| {
            // Tensors of all sizes, and every fifth never seen.
            let tiny =
                |i: u32| if i % 5 == 4 { 0.0 } else { 2.0f32.powi((i % 60) as i32 - 30) * (1.0 + i as f32 / 400.0) };
            Rescale {
                dtype,
                amax: l.values([1, 1, 1, count], (0..count).map(tiny).collect()),
                history: l.values(
                    [1, 1, 16, count],
                    (0..16 * count).map(|i| tiny(i % count) * [1.0, 3.0, 0.25][(i / count % 3) as usize]).collect(),
                ),
                scale: l.poison_exact([1, 1, 1, count]),
                inverse: l.poison_exact([1, 1, count, 4]),
            }
        });
    }
}

#[test]
fn products_of_copies() {
    let Some(mut bench) = Bench::of_eighths() else { return };
    for [rows, inputs, outputs] in [[1, 16, 16], [5, 48, 32], [33, 112, 80], [70, 256, 144]] {
        for form in 0..4 {
            bench.agree_in_eighths(|l| {
                let (x, weight) = (l.normal([1, 1, rows, inputs], 1.0), l.normal([1, 1, outputs, inputs], 1.0));
                let like_out = [1, 1, rows, outputs];
                let out = if form == 1 { l.normal(like_out, 1.0) } else { l.poison(like_out) };
                let plain = Linear {
                    quantised: Some(QuantisedProduct {
                        a: copy(l, Dtype::E4m3, rows, inputs, 64.0),
                        b: copy(l, Dtype::E4m3, outputs, inputs, 256.0),
                    }),
                    ..Linear::new(x, weight, None, out)
                };
                match form {
                    1 => Linear { epilogue: Epilogue::Add, ..plain },
                    2 => Linear { epilogue: Epilogue::Residual(l.normal(like_out, 1.0)), ..plain },
                    // An evaluation's logits, say.
                    3 => Linear { out: l.poison_exact(like_out), ..plain },
                    _ => plain,
                }
            });
        }
        for (accumulate, rows) in [(false, rows.next_multiple_of(16)), (true, 208)] {
            bench.agree_in_eighths(|l| {
                let (sides, x) = ([1, 1, outputs, inputs], l.normal([1, 1, rows, inputs], 1.0));
                let (weight, out_grad) = (l.normal(sides, 1.0), l.normal([1, 1, rows, outputs], 1.0));
                let weight_grad = if accumulate { l.exact(sides, 1.0) } else { l.poison_exact(sides) };
                let product = QuantisedProduct {
                    a: copy(l, Dtype::E5m2, outputs, rows, 4096.0),
                    b: copy(l, Dtype::E4m3, inputs, rows, 64.0),
                };
                // It has no gradient of the input.
                let both = LinearGrad::new([x, weight], out_grad, [x, weight_grad]);
                LinearGrad { x_grad: None, accumulate, quantised: Some(product), ..both }
            });
        }
        for accumulate in [false, true] {
            bench.agree_in_eighths(|l| {
                let sides = [1, 1, outputs, inputs];
                LinearGrad {
                    transposed: false,
                    x: l.normal([1, 1, rows, inputs], 1.0),
                    weight: l.normal(sides, 1.0),
                    out_grad: l.normal([1, 1, rows, outputs], 1.0),
                    x_grad: Some(l.poison([1, 1, rows, inputs])),
                    before_gelu: None,
                    weight_grad: Some(if accumulate { l.exact(sides, 1.0) } else { l.poison_exact(sides) }),
                    bias_grad: None,
                    x_bias_grad: None,
                    accumulate,
                    quantised: Some(QuantisedProduct {
                        a: copy(l, Dtype::E5m2, rows, outputs, 4096.0),
                        b: copy(l, Dtype::E4m3, inputs, outputs, 256.0),
                    }),
                }
            });
        }
    }
}

#[test]
fn what_cannot_multiply_eighths_says_so() {
    let environments: &[&[(&str, &str)]] = &[
        &[("CAPFUL_STAND_IN_CAPABILITY", "86")],
        &[("CAPFUL_STAND_IN_CAPABILITY", "89")],
        &[("CAPFUL_STAND_IN_BLAS", "0")],
    ];
    apart("fp8::what_cannot_multiply_eighths_says_so", environments, || {
        let words = [1, 1, 1, 64];
        let scratch = Region { space: capful_core::memory::Space::Arena, dtype: Dtype::F32, offset: 0, shape: words };
        let opened = || Cuda::open(0, Room { arena: 512, scratch, staging: 0 }, Products::Library);
        require(0, Precision::Bf16).expect("old enough for bf16");
        let error = match std::env::var("CAPFUL_STAND_IN_CAPABILITY").as_deref() {
            Ok("86") => require(0, Precision::Fp8).expect_err("8.6 is too old"),
            Ok(_) => return require(0, Precision::Fp8).expect("8.9 has 8-bit units"),
            _ => {
                require(0, Precision::Fp8).expect("a library is there, and does not start");
                opened().expect("our own kernels are enough for the rest").require_library().expect_err("none")
            }
        };
        assert!(matches!(error, CudaError::NoFp8 { .. } | CudaError::NoFp8Library(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("--precision bf16") && text.lines().count() == 1 && error.refuses(), "{text}");
    });
}

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
    products: Kind::Quantised,
};

const OPTIMIZER: Optimizer = Optimizer { beta1: 0.9, beta2: 0.95, eps: 1e-6, decay: 0.1 };

/// Steps that the history fills in.
const FILLS: u64 = 16;

/// The Reference's numbers, with copies in 8 bits.
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
    /// As large as SwiGLU's output.
    spare: Region,
    bytes: u64,
}

fn plan(model: Transformer, profile: &dyn Profile, scratch: u64, stage: &MicroBatch) -> Plan {
    let mut entries = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = Layout::new(&mut visit);
    let state = model.lay_lasting(profile, Purpose::Training(Ranks::ALONE), &mut layout);
    let training = model.lay_training(stage, profile, &mut layout);
    let words = scratch.div_ceil(4).max(1) as u32;
    let scratch = layout.region(Slot::new("scratch", Role::Work, Dtype::F32, [1, 1, 1, words])).first;
    let saved = profile.dtype(Role::Saved);
    let shape = [1, 1, stage.batch * stage.seq_len, model.d_ff];
    let spare = layout.region(Slot::new("spare", Role::Work, saved, shape)).first;
    let bytes = layout.high_water().expect("it fits");
    Plan { model, entries, state, training, scratch, spare, bytes }
}

fn first_values(slot: &Slot, layer: u32) -> Vec<f32> {
    let count = slot.shape.iter().product::<u32>();
    let name: u64 = slot.name.bytes().fold(7, |hash, b| hash.wrapping_mul(31).wrapping_add(b.into()));
    let random = Random::new(name, layer.into());
    match slot.init {
        Init::Zero | Init::Wiring { .. } => vec![0.0; count as usize],
        Init::One => vec![1.0; count as usize],
        Init::Normal(deviation) => (0..count).map(|i| random.normal(i.into()) * deviation * 4.0).collect(),
        Init::Rotary { base, scaling } => {
            let [_, positions, pairs, _] = slot.shape;
            let each = (0..positions).flat_map(|p| (0..pairs).map(move |j| (p, j)));
            each.flat_map(|(p, j)| Rotary::angle(base, scaling, 2 * pairs, p, j)).collect()
        }
    }
}

/// Ids and targets of a micro-batch: each id is mostly decided by the one before.
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

/// A device whose regions can be written and read.
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

/// The state's regions and their bytes: what a checkpoint holds.
type Saved = Vec<(Region, Vec<u8>)>;

/// Losses of steps `from` … `to`, each of two micro-batches, then what lasts. They go on from `saved`, if there is any.
fn train<M: Machine>(
    machine: &mut M,
    plan: &Plan,
    stage: &MicroBatch,
    (from, to): (u64, u64),
    saved: Option<&Saved>,
    products: impl Fn(u64) -> Kind,
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
        plan.model.update(machine, &plan.state, &OPTIMIZER).expect("an update");
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
    products: impl Fn(u64) -> Kind,
) -> (Vec<f32>, Saved) {
    let plan = plan(model, profile, 0, &STAGE);
    let mut storage = vec![0u64; (plan.bytes / 8) as usize];
    train(&mut Reference { arena: Arena::new(&mut storage) }, &plan, &STAGE, (0, steps), None, products)
}

/// As a run chooses them.
fn chosen(step: u64) -> Kind {
    if step < FILLS { Kind::Warming } else { Kind::Quantised }
}

/// Two runs learn, and come as far as each other at every step, within `tolerance`.
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
        let (wide, _) = on_reference(model, &Single, steps, |_| Kind::Wide);
        let (eighths, saved) = on_reference(model, &SingleFp8, steps, chosen);
        assert_eq!(wide[..FILLS as usize], eighths[..FILLS as usize], "while the history fills nothing differs");
        learn_alike(&wide, &eighths, 0.05);
        assert!(saved.iter().flat_map(|(r, bytes)| decode(r.dtype, bytes)).all(f32::is_finite));
    }
}

/// A GPU with the plan of a run in `precision`, and the plan.
fn gpu(precision: Precision, stage: &MicroBatch) -> (Cuda, Plan) {
    let profile = CudaProfile { precision };
    let draft = plan(MODEL, &profile, 0, stage);
    let mut meter = Meter::new(&profile, Rates::ONE);
    let mut all = || -> Result<(), OperationError> {
        for products in [Kind::Wide, Kind::Warming, Kind::Quantised] {
            MODEL.micro_batch(&mut meter, &draft.state, &draft.training, &MicroBatch { products, ..*stage }, true)?;
        }
        MODEL.update(&mut meter, &draft.state, &OPTIMIZER)
    };
    all().expect("a plan");
    let plan = plan(MODEL, &profile, meter.scratch, stage);
    (open_with(plan.bytes, plan.scratch, 0, Products::Library), plan)
}

fn on_gpu(precision: Precision, stage: &MicroBatch, steps: u64, products: impl Fn(u64) -> Kind) -> (Vec<f32>, Saved) {
    let (mut cuda, plan) = gpu(precision, stage);
    train(&mut cuda, &plan, stage, (0, steps), None, products)
}

#[test]
fn a_gpu_learns_as_well_in_fp8_as_in_bf16() {
    if Bench::of_eighths().is_none() {
        return;
    }
    let (wide, _) = on_gpu(Precision::Bf16, &STAGE, 28, |_| Kind::Wide);
    let (eighths, _) = on_gpu(Precision::Fp8, &STAGE, 28, chosen);
    assert_eq!(wide[..FILLS as usize], eighths[..FILLS as usize], "while the history fills nothing differs");
    learn_alike(&wide, &eighths, 0.05);
    // And as the Reference, whose numbers are wider.
    let (expected, _) = on_reference(MODEL, &SingleFp8, 28, chosen);
    learn_alike(&expected, &eighths, 0.05);
}

#[test]
fn steps_in_fp8_go_on_with_the_same_bits() {
    if Bench::of_eighths().is_none() {
        return;
    }
    // The history need not be full for that.
    let soon = |step| if step < 2 { Kind::Warming } else { Kind::Quantised };
    let whole = on_gpu(Precision::Fp8, &STAGE, 5, soon);
    assert_eq!(on_gpu(Precision::Fp8, &STAGE, 5, soon), whole, "twice");
    let singles = Recompute::FULL.iter().map(|kind| Recompute::NONE.with(kind));
    for recompute in singles.chain([Recompute::CHEAP, Recompute::FULL]) {
        let (losses, _) = on_gpu(Precision::Fp8, &MicroBatch { recompute, ..STAGE }, 5, soon);
        assert_eq!(losses, whole.0, "{recompute:?}");
    }
    // Saved while the history fills, and when products read the copies.
    for at in [1, 3] {
        let (_, saved) = on_gpu(Precision::Fp8, &STAGE, at, soon);
        let (mut cuda, plan) = gpu(Precision::Fp8, &STAGE);
        let (losses, left) = train(&mut cuda, &plan, &STAGE, (at, 5), Some(&saved), soon);
        assert!(losses == whole.0[at as usize..] && left == whole.1, "resumed after {at} steps");
    }
}

/// Makes every copy by a `Quantise` of its own, as if no operation copied what it writes.
struct Apart<M> {
    machine: M,
    /// Where SwiGLU's output is before it is copied transposed.
    spare: Region,
    /// Copies that operations were asked for.
    fused: u64,
    /// `Quantise` operations of the step itself.
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
    let soon = |step| if step < 2 { Kind::Warming } else { Kind::Quantised };
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
}

#[test]
fn a_step_whose_operations_copy_has_the_bits_of_one_whose_copies_are_apart() {
    let soon = |step| if step < 2 { Kind::Warming } else { Kind::Quantised };
    let able = Bench::of_eighths().is_some();
    for recompute in [Recompute::NONE, Recompute::CHEAP, Recompute::FULL] {
        let stage = MicroBatch { recompute, ..STAGE };
        // Of each of two micro-batches of four steps, in two layers: both norms, SwiGLU, its gradient, both norms'
        // gradients less the first, and that of the final norm. What is computed again is copied for products only.
        let fused = 4 * 2 * (12 + if recompute == Recompute::FULL { 2 } else { 0 });
        // Attention's output and the gradient of qkv; in the two steps whose products read copies, transposed ones of the
        // gradient behind the feed-forward and of its norm; the weights once a step.
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
