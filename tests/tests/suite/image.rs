//! Decoding with weights and tables in a read-only image gives the bits of decoding with everything in the arena.

use capful_core::device::{Device as _, InIntegers, Meter, Op, OperationError, Rates, Reference, Single};
use capful_core::integer::Integer;
use capful_core::memory::{Arena, ArenaError, Dtype, Entry, Layout, Region, Role, Space};
use capful_core::model::{Family, Purpose, Transformer};
use capful_core::ops::{Linear, Pattern};
use capful_host::config::{AnyFamily, Config, RawConfig};
use capful_tests::model::{Peer as _, tokens};
use capful_tests::oracle::transformer::mixtures;

const LENGTH: u32 = 12;

/// The layout of a model's decoding.
struct Laid<F: Family> {
    lasting: F::Lasting,
    decoding: F::Decoding,
    entries: Vec<Entry>,
    arena: u64,
    image: u64,
}

fn lay<F: Family>(model: &F, image: bool, weights: Option<Integer>) -> Laid<F> {
    let profile = InIntegers { profile: &Single, weights };
    let mut entries = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = if image { Layout::with_image(&mut visit) } else { Layout::new(&mut visit) };
    let lasting = model.lay_lasting(&profile, Purpose::Decoding, &mut layout);
    let decoding = model.lay_decoding(LENGTH, &profile, &mut layout);
    let (arena, image) = (layout.high_water().expect("it fits"), layout.image_bytes());
    Laid { lasting, decoding, entries, arena, image }
}

/// The regions that the image would contain.
fn constants<F: Family>(laid: &Laid<F>) -> impl Iterator<Item = &Entry> {
    laid.entries.iter().filter(|e| matches!(e.slot.role, Role::Weight | Role::Scale | Role::Constant))
}

/// The bytes of tensor number `n`.
fn bytes(region: &Region, n: usize) -> Vec<u8> {
    let all = |of: &dyn Fn(u64) -> Vec<u8>, count: u64| (0..count).flat_map(of).collect();
    let number = |i: u64| 0.4 * (0.37 * (i * i) as f64 + n as f64).sin();
    match region.dtype {
        Dtype::U32 => all(&|i| ((i % 8) as u32).to_le_bytes().to_vec(), region.elements()),
        // 2⁻⁷ and a little more.
        Dtype::F16 => all(&|i| (0x2000 | (i * 7 + n as u64) as u16 & 0x3ff).to_le_bytes().to_vec(), region.elements()),
        Dtype::I8 | Dtype::I4 => all(&|i| vec![(i * i * 37 + n as u64) as u8], region.bytes()),
        _ => all(&|i| (number(i) as f32).to_le_bytes().to_vec(), region.elements()),
    }
}

/// The logits of every position, as bits.
fn decode<F: Family>(model: &F, vocab: u32, image: bool, weights: Option<Integer>) -> Vec<u32> {
    let laid = lay(model, image, weights);
    let mut storage = vec![0u64; laid.arena as usize / 8];
    let mut flash = vec![0u128; laid.image.div_ceil(16) as usize];
    for (n, entry) in constants(&laid).enumerate() {
        for region in (0..entry.slot.layers).map(|l| entry.place.at(l)) {
            let bytes = bytes(&region, n);
            let place = match region.space {
                Space::Arena | Space::Shared => bytemuck::cast_slice_mut(&mut storage),
                Space::Image => bytemuck::cast_slice_mut::<_, u8>(&mut flash),
            };
            place[region.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }
    let arena = Arena::with_image(&mut storage, bytemuck::cast_slice(&flash)).expect("words are aligned");
    let mut device = Reference { arena };
    let (id, cursor, logits) = F::decoding_io(&laid.decoding);
    let mut all = Vec::new();
    for (position, token) in tokens(LENGTH as usize, vocab).0.into_iter().enumerate() {
        let [mut id, mut cursor] = device.arena.views([Some(id), Some(cursor)]).expect("in the arena");
        id.u32_mut().expect("ids")[0] = token;
        cursor.u32_mut().expect("a position")[0] = position as u32;
        model.decode(&mut device, &laid.lasting, &laid.decoding, Pattern::DENSE).expect("a token");
        all.extend(device.arena.f32(logits).expect("logits").iter().map(|x| x.to_bits()));
    }
    all
}

fn agree<F: Family>(model: &F, vocab: u32, weights: Option<Integer>, what: &str) {
    let expected = decode(model, vocab, false, weights);
    assert!(expected.iter().any(|bits| *bits != expected[0]), "{what}: all logits are alike");
    assert!(decode(model, vocab, true, weights) == expected, "{what}");
    let (whole, apart) = (lay(model, false, weights), lay(model, true, weights));
    assert_eq!(apart.arena + apart.image, whole.arena, "{what}");
    assert_eq!(constants(&apart).map(|e| e.bytes + e.padding).sum::<u64>(), apart.image, "{what}");
}

#[test]
fn weights_in_a_read_only_image_give_the_same_bits() {
    for config in mixtures() {
        let AnyFamily::Transformer(model) = config.family(LENGTH) else { panic!("another family") };
        for weights in [None, Some(Integer::Int8), Some(Integer::Int4)] {
            agree(&model, model.vocab_size, weights, &format!("{config:?}, {weights:?}"));
        }
    }
    let raw = RawConfig { preset: Some("neurogen-tiny".to_owned()), ..RawConfig::default() };
    let AnyFamily::NeuroGen(model) = Config::resolve(raw).expect("a preset").family() else { panic!("another family") };
    agree(&model, model.vocab_size, None, "neurogen-tiny");
}

#[test]
fn an_image_is_not_written_and_a_device_without_one_says_so() {
    let AnyFamily::Transformer(model) = mixtures()[0].family(LENGTH) else { panic!("another family") };
    let laid: Laid<Transformer> = lay(&model, true, None);
    let mut storage = vec![0u64; laid.arena as usize / 8];
    let mut device = Reference { arena: Arena::new(&mut storage) };
    let error = model.decode(&mut device, &laid.lasting, &laid.decoding, Pattern::DENSE).unwrap_err();
    assert!(matches!(error, OperationError::Arena(ArenaError::NoImage(_))), "{error}");
    // A matrix multiplication that writes to a weight.
    let weight = laid.lasting.network.weights.out.weight.at(0);
    let square = Region { offset: 0, space: Space::Arena, ..weight };
    let op: Op = Linear::new(square, Region { offset: square.end(), ..square }, None, weight).into();
    let flash = vec![0u128; laid.image.div_ceil(16) as usize];
    let mut storage = vec![0u64; square.bytes() as usize];
    let arena = Arena::with_image(&mut storage, bytemuck::cast_slice(&flash)).expect("words are aligned");
    let error = Reference { arena }.run(&op).unwrap_err();
    assert!(matches!(error, OperationError::Arena(ArenaError::ReadOnly(_))), "{error}");
    // Operations that write only to the arena pass the meter.
    let mut meter = Meter::new(&Single, Rates::ONE);
    model.decode(&mut meter, &laid.lasting, &laid.decoding, Pattern::DENSE).expect("a token");
}
