//! Decoding from an image allocates nothing, as counted by the allocator itself.

use capful_core::device::Reference;
use capful_core::generate::most_likely;
use capful_core::image::{Decoder, Described, Description, ImageOf, SpikingDescription, Unknown};
use capful_core::vocab::bpe::Node;
use capful_host::allocations::{Activity, Count, Counting, count, during, since};
use capful_tests::binary::host;
use capful_tests::emulated::{Flash, Said, said_by};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PROMPT: &str = "the cat";
/// The number of generated tokens.
const TOKENS: usize = 20;
/// The positions of the cache, more than a block of sparse attention.
const CONTEXT: usize = 32;

/// Bytes of the generated text, and tokens read.
type Lengths = (usize, usize);

/// The allocations of `work`. No other thread is in this activity.
fn allocated<T>(work: impl FnOnce() -> T) -> (Count, T) {
    let before = count(Activity::Save);
    let result = during(Activity::Save, work);
    (since(Activity::Save, before), result)
}

/// Opens an image, reads the prompt and generates some tokens, as [`said_by`] does, in existing storage.
fn says<M: Described>(flash: &[u8], storage: &mut [u64], text: &mut [u8]) -> Option<Lengths> {
    let image = ImageOf::<M>::open(flash).ok()?;
    let vocabulary = image.vocabulary();
    let mut decoder = Decoder::new(&image, CONTEXT as u32);
    let mut device = Reference { arena: decoder.arena(storage, &image).ok()? };
    let [begin, end] = vocabulary.marks()?;
    let mut ids = [begin; CONTEXT];
    let count = 1 + vocabulary.encode(PROMPT, Unknown::Mark, &mut [Node::EMPTY; 24], &mut ids[1..]).ok()?;
    let mut said = 0;
    for at in 0..(count + TOKENS).min(CONTEXT) {
        let logits = decoder.feed(&mut device, ids[at]).ok()?;
        if at + 1 < count {
            continue;
        }
        let chosen = most_likely(&logits[..vocabulary.size() as usize])?;
        if chosen == end {
            break;
        }
        for bytes in [vocabulary.separator(), vocabulary.bytes(chosen).unwrap_or_default()] {
            text[said..][..bytes.len()].copy_from_slice(bytes);
            said += bytes.len();
        }
        ids.iter_mut().skip(at + 1).take(1).for_each(|place| *place = chosen);
    }
    Some((said, decoder.position() as usize))
}

/// Tests the image of a run of `model`, exported with `flags`.
fn look<M: Described>(model: &str, flags: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let train =
        format!("train {model} --device cpu --batch-size 4 --steps 3 --eval-tokens 200 --baseline-tokens 0 --out run");
    host(dir.path(), &train).ok();
    for (n, flags) in flags.iter().enumerate() {
        let name = format!("{n}.img");
        host(dir.path(), &format!("export --run run --to firmware --context {CONTEXT} {flags} {name}")).ok();
        let flash = Flash::of(&std::fs::read(dir.path().join(name)).unwrap());
        let image = ImageOf::<M>::open(flash.bytes()).unwrap();
        let expected: Said = said_by(&image, (PROMPT, TOKENS, CONTEXT as u32));
        let mut storage = vec![u64::MAX; Decoder::new(&image, CONTEXT as u32).bytes().unwrap() as usize / 8];
        let mut text = [0; 1024];
        let (found, said) = allocated(|| says::<M>(flash.bytes(), &mut storage, &mut text));
        assert_eq!(found, Count::default(), "{model} {flags}");
        // It did decode, with the same result as others for this image.
        let (bytes, tokens) = said.expect("nothing fails");
        let text = String::from_utf8_lossy(&text[..bytes]);
        assert_eq!((&*text, tokens), (&*expected.text, expected.tokens), "{model} {flags}");
        assert!(tokens > 3, "{model} {flags}: {tokens}");
    }
}

// One test, so that no other thread is in the counted activity.
#[test]
fn a_token_from_an_image_allocates_nothing() {
    // The control: the allocation of one vector is detected.
    let (found, _) = allocated(|| std::hint::black_box(Vec::<u64>::with_capacity(std::hint::black_box(64))));
    assert_eq!(found, Count { allocations: 1, bytes: 512 });
    let weights = ["--weights f32", "--weights int8", "--weights int4"];
    let transformer = |preset: &str, tokenizer: &str| {
        format!("--preset {preset} --set context={CONTEXT} --seq-len {CONTEXT} --tokenizer {tokenizer}")
    };
    look::<Description>(&transformer("llama-tiny", "bpe --vocab-size 300"), &weights);
    look::<Description>(&transformer("yxanul-tiny", "word --vocab-size 300"), &weights);
    look::<Description>(&transformer("pythia-tiny", "byte --attention mixed --block 16"), &weights);
    look::<SpikingDescription>("--preset neurogen-tiny --tokenizer bpe --vocab-size 300", &[""]);
}
