//! A trained NeuroGen as an image: the bits of the run, on the host and on an emulated chip, and damage that always
//! results in an error.

use std::path::Path;

use capful_core::device::Reference;
use capful_core::image::{
    DecodeError, Decoder, Described, Image, ImageError, SpikingDescription, SpikingImage, TextError, Unknown, crc32,
};
use capful_core::vocab::bpe::Node;
use capful_tests::binary::host;
use capful_tests::emulated::{BOARDS, Flash, line, said_by, said_by_the_run, start};

/// Six modules of 416 neurons with 13,312 synapses.
const SMALL: &str = "--preset neurogen-tiny --set embedding=24 --set thalamus_neurons=64 --set wernicke_neurons=96 \
                     --set broca_neurons=64 --set hippocampus_neurons=64 --set pfc_neurons=96 \
                     --set basal_ganglia_neurons=32 --set thalamus_outputs=64 --set wernicke_outputs=96 \
                     --set broca_outputs=64 --set hippocampus_outputs=64 --set pfc_outputs=96 \
                     --set basal_ganglia_outputs=32 --set thalamus_fan_in=32 --set wernicke_fan_in=32 \
                     --set broca_fan_in=32 --set hippocampus_fan_in=32 --set pfc_fan_in=32 --set basal_ganglia_fan_in=32";
const PROMPT: &str = "Once upon a time";
/// The number of tokens that the chip generates, and its positions.
const TOKENS: usize = 64;
const CONTEXT: u32 = 128;

/// The image of a run of `steps` steps in `dir`.
fn image(dir: &Path, flags: &str, steps: u32) -> Flash {
    let train = format!(
        "train {SMALL} {flags} --device cpu --batch-size 4 --steps {steps} --eval-tokens 200 --baseline-tokens 0 --out run"
    );
    host(dir, &train).ok();
    host(dir, &format!("export --run run --to firmware --context {CONTEXT} spiking.img")).ok();
    Flash::of(&std::fs::read(dir.join("spiking.img")).unwrap())
}

fn constant(dir: &Path, name: &str) -> u64 {
    let text = std::fs::read_to_string(dir.join("spiking.rs")).unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(&format!("pub const {name}: usize = ")));
    found.unwrap().trim_end_matches(';').parse().unwrap()
}

/// All optional parts, and as few as possible.
const PARTS: [&str; 3] = [
    "--set gate=true --set feedback=true",
    "--tokenizer word --vocab-size 300 --set memory=0 --set skip=0 --set mode=pipelined",
    "--tokenizer bpe --vocab-size 300 --set winners=4 --set block=16",
];

#[test]
fn a_neurogens_image_says_what_the_run_says_bit_by_bit() {
    for parts in PARTS {
        let dir = tempfile::tempdir().unwrap();
        let flash = image(dir.path(), parts, 10);
        let image = SpikingImage::open(flash.bytes()).unwrap();
        let (found, mut expected) = (
            said_by(&image, (PROMPT, TOKENS, CONTEXT)),
            said_by_the_run(&dir.path().join("run"), None, (PROMPT, TOKENS, CONTEXT)),
        );
        if parts.contains("word") {
            expected.text.insert(0, ' ');
        }
        assert_eq!(found, expected, "{parts}");
        assert!(found.tokens > 20, "{parts}: {found:?}");
        // The description is the run's model.
        let mut words = Vec::new();
        image.description().words(&mut |word| words.push(word));
        assert_eq!(SpikingDescription::of(&words), Ok(*image.description()));
        assert_eq!((words.len(), constant(dir.path(), "CONTEXT")), (SpikingDescription::WORDS, CONTEXT.into()));
    }
}

#[test]
fn what_was_read_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let flash = image(dir.path(), "", 5);
    let image = SpikingImage::open(flash.bytes()).unwrap();
    let mut decoder = Decoder::new(&image, CONTEXT);
    let mut storage = vec![0; decoder.bytes().unwrap() as usize / 8];
    assert_eq!(storage.len() as u64, constant(dir.path(), "ARENA_WORDS"));
    let mut device = Reference { arena: decoder.arena(&mut storage, &image).unwrap() };
    let mut read = |decoder: &mut Decoder<SpikingDescription>| {
        let mut logits = vec![];
        for id in [5, 90, 17, 5, 200] {
            logits = decoder.feed(&mut device, id).unwrap().to_vec();
        }
        logits
    };
    let first = read(&mut decoder);
    // Without clearing, the logits differ.
    assert_ne!(read(&mut decoder), first);
    decoder.clear();
    assert_eq!(read(&mut decoder), first);
}

/// The image with a changed word and a recomputed checksum.
fn changed(flash: &Flash, word: usize, value: u32) -> Flash {
    let mut flash = Flash::of(flash.bytes());
    flash.bytes_mut()[word * 4..][..4].copy_from_slice(&value.to_le_bytes());
    let end = flash.bytes().len() - 4;
    let sum = crc32(&flash.bytes()[..end]);
    flash.bytes_mut()[end..].copy_from_slice(&sum.to_le_bytes());
    flash
}

#[test]
fn no_damage_of_a_neurogens_image_passes_and_none_panics() {
    let dir = tempfile::tempdir().unwrap();
    let mut flash = image(dir.path(), "", 1);
    assert!(SpikingImage::open(flash.bytes()).is_ok());
    let length = flash.bytes().len();
    for at in (0..length).step_by(97).chain(0..512) {
        flash.bytes_mut()[at] ^= 1 << (at % 8);
        assert!(SpikingImage::open(flash.bytes()).is_err(), "bit {} of byte {at}", at % 8);
        flash.bytes_mut()[at] ^= 1 << (at % 8);
    }
    for end in (0..length).step_by(911) {
        assert!(SpikingImage::open(&flash.bytes()[..end]).is_err(), "cut off at {end}");
    }
    // A program of another family.
    assert_eq!(Image::open(flash.bytes()).unwrap_err(), ImageError::Family(2));
    // Each word of the description, with a correct checksum: refused, or another model that can be decoded.
    let (mut refused, mut harmless) = (0, 0);
    for word in 16..16 + SpikingDescription::WORDS {
        for value in [0, 1, 2, 3, 7, 255, 1 << 16, 1 << 30, u32::MAX - 1, u32::MAX] {
            let flash = changed(&flash, word, value);
            let Ok(image) = SpikingImage::open(flash.bytes()) else {
                refused += 1;
                continue;
            };
            harmless += 1;
            let mut decoder = Decoder::new(&image, image.description().context().min(16));
            let mut storage = vec![0; decoder.bytes().unwrap() as usize / 8];
            let mut device = Reference { arena: decoder.arena(&mut storage, &image).unwrap() };
            for id in [0, 99, 250] {
                let _ = decoder.feed(&mut device, id);
            }
        }
    }
    assert!(refused > 250 && harmless > 20, "{refused} refused, {harmless} harmless");
}

#[test]
fn a_synapse_that_reads_what_is_not_there_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let flash = image(dir.path(), "", 1);
    let image = SpikingImage::open(flash.bytes()).unwrap();
    let mut sources = vec![];
    let mut visit = |entry: &capful_core::memory::Entry| {
        if entry.slot.name.ends_with("synapses.sources") {
            sources.push(entry.place.at(0));
        }
    };
    image.description().lay_network(&mut capful_core::memory::Layout::with_image(&mut visit));
    assert_eq!(sources.len(), 6);
    let weights = u32::from_le_bytes(flash.bytes()[24..28].try_into().unwrap()) as usize / 4;
    let connectome = image.description().model.connectome;
    for (region, neurons) in sources.iter().zip(connectome.neurons) {
        let last = weights + region.end() as usize / 4 - 1;
        let most = 2 * connectome.signals() + neurons;
        assert!(SpikingImage::open(changed(&flash, last, most - 1).bytes()).is_ok());
        let error = SpikingImage::open(changed(&flash, last, most).bytes()).unwrap_err();
        assert_eq!(error, ImageError::Part("wiring"));
    }
}

#[test]
fn what_a_caller_may_do_wrong_with_a_neurogen_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let flash = image(dir.path(), "--tokenizer word --vocab-size 300", 1);
    let image = SpikingImage::open(flash.bytes()).unwrap();
    let mut decoder = Decoder::new(&image, 2);
    let needed = decoder.bytes().unwrap();
    let mut storage = vec![0; needed as usize / 8];
    let short = storage.len() - 1;
    let error = decoder.arena(&mut storage[..short], &image).unwrap_err();
    assert_eq!(error, DecodeError::Storage { found: needed - 8, needed });
    let mut device = Reference { arena: decoder.arena(&mut storage, &image).unwrap() };
    let ids = image.description().ids();
    assert_eq!(decoder.feed(&mut device, ids).unwrap_err(), DecodeError::Id { id: ids, ids });
    decoder.feed(&mut device, 5).unwrap();
    decoder.feed(&mut device, 5).unwrap();
    assert_eq!(decoder.feed(&mut device, 5).unwrap_err(), DecodeError::Full(2));
    let mut places = [0; 4];
    let unknown = image.vocabulary().encode("zyxomma", Unknown::Refuse, &mut [Node::EMPTY; 8], &mut places);
    assert!(matches!(unknown, Err(TextError::Unknown { .. })), "{unknown:?}");
    for (flags, says) in [
        ("--context 0", "--context 0: the model has 1 to"),
        ("--weights int8", "--weights int8: a NeuroGen has no weights in integers"),
    ] {
        host(dir.path(), &format!("export --run run --to firmware {flags} other.img")).refused(2, &[says]);
        assert!(!dir.path().join("other.img").exists());
    }
}

#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn chips_say_what_a_neurogen_says_bit_by_bit() {
    for parts in PARTS {
        // Words in the vocabulary.
        let prompt = if parts.contains("word") { "the and" } else { PROMPT };
        let dir = tempfile::tempdir().unwrap();
        let flash = image(dir.path(), parts, 10);
        let (path, bytes) = (dir.path().join("spiking.img"), flash.bytes().len());
        let storage = 8 * constant(dir.path(), "ARENA_WORDS");
        let said = said_by_the_run(&dir.path().join("run"), None, (prompt, TOKENS, 1024));
        for (chip, board, memory) in BOARDS {
            let place = memory + (2 << 20);
            let speak = |image: &Path, bytes: usize, storage: u64, prompt: &str| {
                let numbers = format!("{memory:#x} {bytes} {place:#x} {storage} {TOKENS}");
                let words: Vec<String> = numbers.split(' ').chain([prompt]).map(str::to_owned).collect();
                start("speak_spiking", board, &words, &[(image, memory)])
            };
            let (status, text) = speak(&path, bytes, storage, prompt);
            println!("{chip}, image {bytes}, storage {storage}:\n{text}");
            assert_eq!((status, line(&text, "checksum")), (0, &*format!("{:016x}", said.checksum)), "{chip}\n{text}");
            assert_eq!(line(&text, "tokens"), said.tokens.to_string());
            // The chip writes the bytes of an unfinished character as they are.
            let (_, told) = text.split_once(&format!("{prompt}|")).expect("the prompt");
            let told = told.split_once("\nchecksum").expect("a checksum").0;
            let trimmed = |text: &str| text.trim_end_matches('\u{fffd}').trim_start().to_owned();
            assert_eq!(trimmed(told), trimmed(&said.text), "{chip}");
            let stack: Vec<u64> = line(&text, "stack").split(" of ").map(|n| n.parse().unwrap()).collect();
            assert!(stack[0] < stack[1], "{chip}: the stack was full");
            // The plan is exact to the word.
            let refused = |image: &Path, bytes, storage, prompt: &str, says: &str| {
                let (status, text) = speak(image, bytes, storage, prompt);
                assert!(status == 3 && text.contains(says), "{chip}: {status}\n{text}");
            };
            refused(&path, bytes, storage - 8, prompt, &format!("{storage} bytes of storage are needed"));
            if board != BOARDS[0].1 {
                continue;
            }
            let mut damaged = flash.bytes().to_vec();
            damaged[bytes / 2] ^= 16;
            let other = dir.path().join("damaged");
            std::fs::write(&other, &damaged).unwrap();
            refused(&other, bytes, storage, prompt, "its checksum is another");
            refused(&path, bytes - 1, storage, prompt, "was cut off");
            if parts.contains("word") {
                refused(&path, bytes, storage, "the zyxomma", "the word at byte 4 is not in the vocabulary");
            }
        }
    }
}
