//! Decoding with weights and tables in a read-only image: the bits of decoding with everything in the arena.

use capful_core::device::{Device as _, Meter, Op, OperationError, Rates, Reference, Single};
use capful_core::memory::{Arena, ArenaError, Dtype, Entry, Layout, Region, Role, Space};
use capful_core::model::{Family, Purpose, Transformer};
use capful_core::ops::{Linear, Pattern};
use capful_host::config::{AnyFamily, Config, RawConfig};
use capful_tests::model::{Peer as _, tokens};
use capful_tests::oracle::transformer::mixtures;

const LENGTH: u32 = 12;

/// Where a model's decoding lies.
struct Laid<F: Family> {
    lasting: F::Lasting,
    decoding: F::Decoding,
    entries: Vec<Entry>,
    arena: u64,
    image: u64,
}

fn lay<F: Family>(model: &F, image: bool) -> Laid<F> {
    let mut entries = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = if image { Layout::with_image(&mut visit) } else { Layout::new(&mut visit) };
    let lasting = model.lay_lasting(&Single, Purpose::Decoding, &mut layout);
    let decoding = model.lay_decoding(LENGTH, &Single, &mut layout);
    let (arena, image) = (layout.high_water().expect("it fits"), layout.image_bytes());
    Laid { lasting, decoding, entries, arena, image }
}

/// What the image would hold.
fn constants<F: Family>(laid: &Laid<F>) -> impl Iterator<Item = &Entry> {
    laid.entries.iter().filter(|e| matches!(e.slot.role, Role::Weight | Role::Constant))
}

/// Element `i` of tensor number `n`.
fn value(dtype: Dtype, n: usize, i: u64) -> [u8; 4] {
    match dtype {
        Dtype::U32 => ((i % 8) as u32).to_le_bytes(),
        _ => ((0.4 * (0.37 * (i * i) as f64 + n as f64).sin()) as f32).to_le_bytes(),
    }
}

/// The logits of every position, as bits.
fn decode<F: Family>(model: &F, vocab: u32, image: bool) -> Vec<u32> {
    let laid = lay(model, image);
    let mut storage = vec![0u64; laid.arena as usize / 8];
    let mut flash = vec![0u128; laid.image.div_ceil(16) as usize];
    for (n, entry) in constants(&laid).enumerate() {
        for region in (0..entry.slot.layers).map(|l| entry.place.at(l)) {
            let bytes: Vec<u8> = (0..region.elements()).flat_map(|i| value(region.dtype, n, i)).collect();
            let place = match region.space {
                Space::Arena => bytemuck::cast_slice_mut(&mut storage),
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

fn agree<F: Family>(model: &F, vocab: u32, what: &str) {
    let expected = decode(model, vocab, false);
    assert!(expected.iter().any(|bits| *bits != expected[0]), "{what}: all logits are alike");
    assert!(decode(model, vocab, true) == expected, "{what}");
    let (whole, apart) = (lay(model, false), lay(model, true));
    assert_eq!(apart.arena + apart.image, whole.arena, "{what}");
    assert_eq!(constants(&apart).map(|e| e.bytes + e.padding).sum::<u64>(), apart.image, "{what}");
}

#[test]
fn weights_in_a_read_only_image_give_the_same_bits() {
    for config in mixtures() {
        let AnyFamily::Transformer(model) = config.family(LENGTH) else { panic!("another family") };
        agree(&model, model.vocab_size, &format!("{config:?}"));
    }
    let raw = RawConfig { preset: Some("neurogen-tiny".to_owned()), ..RawConfig::default() };
    let AnyFamily::NeuroGen(model) = Config::resolve(raw).expect("a preset").family() else { panic!("another family") };
    agree(&model, model.vocab_size, "neurogen-tiny");
}

#[test]
fn an_image_is_not_written_and_a_device_without_one_says_so() {
    let AnyFamily::Transformer(model) = mixtures()[0].family(LENGTH) else { panic!("another family") };
    let laid: Laid<Transformer> = lay(&model, true);
    let mut storage = vec![0u64; laid.arena as usize / 8];
    let mut device = Reference { arena: Arena::new(&mut storage) };
    let error = model.decode(&mut device, &laid.lasting, &laid.decoding, Pattern::DENSE).unwrap_err();
    assert!(matches!(error, OperationError::Arena(ArenaError::NoImage(_))), "{error}");
    // A product into a weight.
    let weight = laid.lasting.weights.out.weight.at(0);
    let square = Region { offset: 0, space: Space::Arena, ..weight };
    let op: Op = Linear::new(square, Region { offset: square.end(), ..square }, None, weight).into();
    let flash = vec![0u128; laid.image.div_ceil(16) as usize];
    let mut storage = vec![0u64; square.bytes() as usize];
    let arena = Arena::with_image(&mut storage, bytemuck::cast_slice(&flash)).expect("words are aligned");
    let error = Reference { arena }.run(&op).unwrap_err();
    assert!(matches!(error, OperationError::Arena(ArenaError::ReadOnly(_))), "{error}");
    // What writes to nothing but the arena passes the meter.
    let mut meter = Meter::new(&Single, Rates::ONE);
    model.decode(&mut meter, &laid.lasting, &laid.decoding, Pattern::DENSE).expect("a token");
}
