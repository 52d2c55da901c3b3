//! A trained model as an image: the bits of its run, on the host and on an emulated chip, and damage that always
//! results in an error.

use std::path::Path;
use std::sync::OnceLock;

use capful_core::device::Reference;
use capful_core::image::{
    DecodeError, Decoder, Described, Description, Image, ImageError, SpikingImage, TextError, Unknown, crc32,
};
use capful_core::vocab::bpe::Node;
use capful_host::config::Weights;
use capful_host::run::directory;
use capful_tests::binary::host;
use capful_tests::emulated::{self, BOARDS, Board, Flash, Said, line, said_by, start};

/// The tale model that the documentation measures: 260,032 parameters.
const TALES: &str = "--preset llama-tiny --set layers=5 --set d_model=64 --set heads=8 --set kv_heads=4 --set d_ff=172 \
                     --set context=80 --tokenizer bpe --vocab-size 512 --seq-len 80";
const PROMPT: &str = "Once upon a time";
/// The number of tokens that the chip generates.
const TOKENS: usize = 64;

/// A run of `steps` steps in `dir`.
fn train(dir: &Path, model: &str, steps: u32) {
    let flags = format!(
        "train {model} --device cpu --batch-size 8 --steps {steps} --eval-tokens 500 --baseline-tokens 0 --out run"
    );
    host(dir, &flags).ok();
}

/// The image of the run in `dir`, written to a file named after the weights' type.
fn image(dir: &Path, weights: Weights) -> Flash {
    let name = name(weights);
    host(dir, &format!("export --run run --to firmware --weights {name} {name}.img")).ok();
    Flash::of(&std::fs::read(dir.join(format!("{name}.img"))).unwrap())
}

/// The types of weights on a chip.
const WEIGHTS: [Weights; 3] = [Weights::F32, Weights::Int8, Weights::Int4];

fn name(weights: Weights) -> &'static str {
    weights.integer().map_or("f32", |integer| integer.name())
}

fn said_by_the_run(dir: &Path, weights: Weights, tokens: usize) -> Said {
    said_behind(PROMPT, dir, weights, tokens)
}

fn said_behind(prompt: &str, dir: &Path, weights: Weights, tokens: usize) -> Said {
    let run = dir.join("run");
    let context = directory::read_config(&run).unwrap().context();
    emulated::said_by_the_run(&run, weights.integer(), (prompt, tokens, context))
}

#[test]
fn an_image_says_what_the_run_says_bit_by_bit() {
    let words = "--preset yxanul-tiny --set softcap=2 --set context=80 --tokenizer word --vocab-size 300 --seq-len 80";
    let bytes = "--preset pythia-tiny --set context=80 --tokenizer byte --seq-len 80 --attention mixed --block 16";
    for (model, steps) in [(TALES, 20), (words, 5), (bytes, 5)] {
        let dir = tempfile::tempdir().unwrap();
        train(dir.path(), model, steps);
        let mut checksums = vec![];
        for weights in WEIGHTS {
            let flash = image(dir.path(), weights);
            let image = Image::open(flash.bytes()).unwrap();
            let (found, mut expected) =
                (said_by(&image, (PROMPT, TOKENS, 80)), said_by_the_run(dir.path(), weights, TOKENS));
            if model == words {
                expected.text.insert(0, ' ');
            }
            assert_eq!(found, expected, "{model} {weights:?}");
            assert!(!checksums.contains(&found.checksum), "{model}: {weights:?} are others' weights");
            checksums.push(found.checksum);
        }
    }
}

/// The sizes in docs/firmware.md, and the program's constants: those that are written next to the image in integers,
/// which needs the most storage.
#[test]
fn images_are_as_large_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), TALES, 1);
    let bytes = WEIGHTS.map(|weights| image(dir.path(), weights).bytes().len());
    assert_eq!(bytes, IMAGE_BYTES);
    assert!(bytes[1] <= 290 << 10 && bytes[2] <= 170 << 10, "{bytes:?}");
    let constants = |weights: &str| std::fs::read_to_string(dir.path().join(format!("{weights}.rs"))).unwrap();
    assert_eq!(constants("int8"), SIZES, "tests/firmware/src/model.rs is of another model");
    let words = |weights| {
        let text = constants(weights);
        let line = text.lines().find_map(|line| line.strip_prefix("pub const ARENA_WORDS: usize = ")).unwrap();
        line.trim_end_matches(';').parse::<u64>().unwrap()
    };
    assert_eq!(["f32", "int8", "int4"].map(words), [14208, 14304, 14304]);
}

/// Bytes of the tale-teller's images.
const IMAGE_BYTES: [usize; 3] = [1_053_972, 284_692, 163_348];

const SIZES: &str = include_str!("../../../firmware/src/model.rs");

/// A small image, of each kind of vocabulary.
fn small(dir: &Path, tokenizer: &str, weights: Weights) -> Flash {
    let model = format!(
        "--preset llama-tiny --set layers=1 --set d_model=16 --set heads=2 --set kv_heads=2 --set d_ff=16 \
         --set context=16 --seq-len 16 --tokenizer {tokenizer}"
    );
    train(dir, &model, 1);
    image(dir, weights)
}

#[test]
fn no_damage_passes_and_none_panics() {
    let dir = tempfile::tempdir().unwrap();
    let mut flash = small(dir.path(), "bpe --vocab-size 300", Weights::F32);
    for weights in WEIGHTS {
        if weights != Weights::F32 {
            flash = image(dir.path(), weights);
        }
        assert!(Image::open(flash.bytes()).is_ok());
        // Every byte in turn, with a different bit each time.
        for at in 0..flash.bytes().len() {
            let bit = 1 << (at % 8);
            flash.bytes_mut()[at] ^= bit;
            assert!(Image::open(flash.bytes()).is_err(), "{weights:?}: bit {} of byte {at}", at % 8);
            flash.bytes_mut()[at] ^= bit;
        }
    }
    for end in (0..flash.bytes().len()).step_by(61).chain(flash.bytes().len() - 20..flash.bytes().len()) {
        assert!(Image::open(&flash.bytes()[..end]).is_err(), "cut off at {end}");
    }
    let moved = [vec![0; 4], flash.bytes().to_vec()].concat();
    let moved = Flash::of(&moved);
    assert_eq!(Image::open(&moved.bytes()[4..]).unwrap_err(), ImageError::Alignment);
    assert_eq!(SpikingImage::open(flash.bytes()).unwrap_err(), ImageError::Family(1));
    // Bytes after the image do not matter.
    let longer = Flash::of(&[flash.bytes().to_vec(), vec![7; 99]].concat());
    assert!(Image::open(longer.bytes()).is_ok());
}

/// Damage with a recomputed checksum: checks of lengths, sizes and ids detect it, or it is harmless: the image then
/// generates different text, and nothing panics.
#[test]
fn images_made_to_deceive_are_refused_or_harmless() {
    let tokenizers = ["byte", "word --vocab-size 300", "bpe --vocab-size 300"];
    for (tokenizer, weights) in tokenizers.into_iter().zip(WEIGHTS) {
        let dir = tempfile::tempdir().unwrap();
        let whole = small(dir.path(), tokenizer, weights);
        let words = whole.bytes().len() / 4;
        let vocabulary = u32::from_le_bytes(whole.bytes()[32..36].try_into().unwrap()) as usize / 4;
        let frame = (0..16 + <Description as Described>::WORDS).chain(vocabulary..words - 1);
        let (mut refused, mut harmless) = (0, 0);
        for word in frame {
            for value in [0, 1, 2, 3, 7, 255, 1 << 16, 1 << 30, u32::MAX - 1, u32::MAX] {
                let mut flash = Flash::of(whole.bytes());
                flash.bytes_mut()[word * 4..][..4].copy_from_slice(&value.to_le_bytes());
                let end = whole.bytes().len() - 4;
                let sum = crc32(&flash.bytes()[..end]);
                flash.bytes_mut()[end..].copy_from_slice(&sum.to_le_bytes());
                let Ok(image) = Image::open(flash.bytes()) else {
                    refused += 1;
                    continue;
                };
                harmless += 1;
                use_all(&image);
            }
        }
        assert!(refused > 300 && harmless > 0, "{tokenizer}: {refused} refused, {harmless} harmless");
    }
}

/// Uses text, ids and a token of an image, whatever the results are.
fn use_all(image: &Image<'_>) {
    let vocabulary = image.vocabulary();
    let mut ids = [0; 40];
    let _ = vocabulary.encode("A cat, 42 İΣ— <unk> x", Unknown::Mark, &mut [Node::EMPTY; 24], &mut ids);
    for id in (0..400).chain([u32::MAX - 1, u32::MAX]) {
        let _ = vocabulary.bytes(id);
    }
    let mut decoder = Decoder::new(image, image.description().model.context.min(16));
    let Ok(bytes) = decoder.bytes() else { return };
    if bytes > 1 << 24 {
        return;
    }
    let mut storage = vec![0; bytes as usize / 8];
    let Ok(arena) = decoder.arena(&mut storage, image) else { return };
    let mut device = Reference { arena };
    for id in ids.into_iter().take(3) {
        let _ = decoder.feed(&mut device, id);
    }
}

#[test]
fn what_a_caller_may_do_wrong_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let flash = small(dir.path(), "bpe --vocab-size 300", Weights::Int4);
    let image = Image::open(flash.bytes()).unwrap();
    let most = image.description().model.context;
    for context in [0, most + 1] {
        let refused = DecodeError::Context { asked: context, most };
        assert_eq!(Decoder::new(&image, context).bytes(), Err(refused));
    }
    let mut decoder = Decoder::new(&image, 3);
    let needed = decoder.bytes().unwrap();
    let mut storage = vec![0; needed as usize / 8];
    let short = storage.len() - 1;
    let error = decoder.arena(&mut storage[..short], &image).unwrap_err();
    assert_eq!(error, DecodeError::Storage { found: needed - 8, needed });
    let mut device = Reference { arena: decoder.arena(&mut storage, &image).unwrap() };
    let ids = image.description().model.vocab_size;
    assert_eq!(decoder.feed(&mut device, ids).unwrap_err(), DecodeError::Id { id: ids, ids });
    for _ in 0..3 {
        assert_eq!(decoder.feed(&mut device, 5).unwrap().len(), ids as usize);
    }
    assert_eq!(decoder.feed(&mut device, 5).unwrap_err(), DecodeError::Full(3));
    assert_eq!((decoder.position(), decoder.room()), (3, 0));
    let (vocabulary, mut places) = (image.vocabulary(), [0; 4]);
    let mut encode =
        |text, nodes: usize| vocabulary.encode(text, Unknown::Refuse, &mut vec![Node::EMPTY; nodes], &mut places);
    assert_eq!(encode("\u{1}\u{2} \u{3} \u{4} \u{5}", 8), Err(TextError::Full { places: 4 }));
    assert_eq!(encode("abc", 2), Err(TextError::Scratch(3)));
}

/// Runs the program on a board; returns its exit status and its output.
fn run((_, board, address): Board, image: &Path, bytes: u64, prompt: &str) -> (i32, String) {
    let words = [format!("{address:#x}"), bytes.to_string(), TOKENS.to_string(), prompt.to_owned()];
    start("speak", board, &words, &[(image, address)])
}

#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn sums_by_a_chips_instructions_are_those_of_plain_code() {
    for (chip, board, _) in BOARDS {
        let (status, text) = start("sums", board, &[], &[]);
        // Two sets of codes, 158 lengths, 4 offsets: 9 numbers of rows with two codes in each byte, and, except for
        // length 0, 4 in pairs.
        assert_eq!((status, line(&text, "sums")), (0, "16400"), "{chip}\n{text}");
    }
}

/// A factorised model of 28,911,104 parameters, whose int4 image fits 16 MiB with the program.
const LARGE: &str = "--preset yxanul-tiny --set layers=9 --set d_model=512 --set heads=8 --set kv_heads=4 --set d_ff=1536 \
                     --set rank=128 --set context=128 --tokenizer bpe --vocab-size 4096 --seq-len 16";

#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn a_model_of_29_million_parameters_speaks_from_external_memory_with_the_bits_of_the_run() {
    const TOKENS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    // A batch size of one: training this many weights takes half a gigabyte.
    let train =
        format!("train {LARGE} --device cpu --batch-size 1 --steps 2 --eval-tokens 100 --baseline-tokens 0 --out run");
    host(dir.path(), &train).ok();
    let bytes = image(dir.path(), Weights::Int4).bytes().len();
    let planned = host(dir.path(), &format!("plan {LARGE} --weights int4 --json")).ok().json();
    assert_eq!(planned["params"], 28_911_104);
    // Vocabulary and frame are not in the planned size.
    let frame = bytes as u64 - planned["image_bytes"].as_u64().unwrap();
    assert!(bytes + FLASH <= 16 << 20 && frame < 40_000, "{bytes} bytes, {frame} of them frame");
    let storage = planned["arena_bytes"].as_u64().unwrap();
    let said = said_by_the_run(dir.path(), Weights::Int4, TOKENS);
    let path = dir.path().join("int4.img");
    let speak = |storage: u64| {
        let words = ["0x60000000", &bytes.to_string(), "0x21000000", &storage.to_string(), &TOKENS.to_string(), PROMPT];
        start("large", BOARDS[2].1, &words.map(str::to_owned), &[(&path, 0x6000_0000)])
    };
    let (status, text) = speak(storage);
    println!("28,911,104 parameters in int4, image {bytes}, storage {storage}:\n{text}");
    assert_eq!((status, line(&text, "checksum")), (0, &*format!("{:016x}", said.checksum)), "{text}");
    assert_eq!(line(&text, "tokens"), said.tokens.to_string());
    // The plan is exact to the word.
    let (status, text) = speak(storage - 8);
    assert!(status == 3 && text.contains(&format!("{storage} bytes of storage are needed")), "{status}\n{text}");
}

/// A quick preset's parts: a norm of queries and keys, value tables, scalars on the residual stream, a softcap.
#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn a_model_by_the_quick_recipe_speaks_with_the_bits_of_the_run() {
    const TOKENS: usize = 16;
    // All of its words occur in the tales.
    const PROMPT: &str = "once there was a";
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), "--preset quick-tiny --set layers=3 --set d_model=64 --set d_ff=96 --warmup 0 --lr 1e-3", 20);
    for weights in WEIGHTS {
        let bytes = image(dir.path(), weights).bytes().len();
        let said = said_behind(PROMPT, dir.path(), weights, TOKENS);
        let path = dir.path().join(format!("{}.img", name(weights)));
        for board in BOARDS {
            // After the image, in the same memory.
            let storage = (board.2 + bytes as u64).next_multiple_of(4096);
            let [address, storage] = [board.2, storage].map(|address| format!("{address:#x}"));
            let words = [&*address, &bytes.to_string(), &storage, "1048576", &TOKENS.to_string(), PROMPT];
            let (status, text) = start("quick", board.1, &words.map(str::to_owned), &[(&path, board.2)]);
            println!("{}, {}:\n{text}", board.0, name(weights));
            let checksum = format!("{:016x}", said.checksum);
            assert_eq!((status, line(&text, "checksum")), (0, &*checksum), "{board:?}\n{text}");
            let stack: Vec<u64> = line(&text, "stack").split(" of ").map(|n| n.parse().unwrap()).collect();
            assert!(stack[0] < stack[1], "{board:?}: the stack was full");
        }
    }
}

/// The limit on the program's code and constants.
const FLASH: usize = 96 << 10;

/// The run and the image for all chips.
fn tales() -> &'static (tempfile::TempDir, [(Weights, Said); 3]) {
    static TALE: OnceLock<(tempfile::TempDir, [(Weights, Said); 3])> = OnceLock::new();
    TALE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        // So few steps that no end mark is generated: all positions are compared. The weights stay small while the
        // learning rate warms up. With larger ones exponentials take more instructions.
        train(dir.path(), &format!("{TALES} --warmup 50"), 20);
        let said = WEIGHTS.map(|weights| {
            image(dir.path(), weights);
            let said = said_by_the_run(dir.path(), weights, TOKENS);
            assert!(said.tokens > TOKENS, "{said:?}");
            (weights, said)
        });
        (dir, said)
    })
}

/// The limit on a token's instructions, as the mean over positions 0 to 63. In integers of 8 bits less than 60 % of
/// those in f32.
const INSTRUCTIONS: [u64; 3] = [1_250_000, 720_000, 1_080_000];

#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn chips_say_what_the_run_says_bit_by_bit() {
    let (dir, said) = tales();
    let all = said.iter().zip(IMAGE_BYTES).zip(INSTRUCTIONS).flat_map(|said| BOARDS.map(|chip| (chip, said)));
    for (chip, (((weights, said), bytes), most)) in all {
        let image = dir.path().join(format!("{}.img", name(*weights)));
        let (status, text) = run(chip, &image, bytes as u64, PROMPT);
        assert_eq!(status, 0, "{chip:?}\n{text}");
        println!("{}, {}:\n{text}", chip.0, name(*weights));
        let (_, told) = text.split_once(&format!("{PROMPT}|")).expect("the prompt");
        let told = told.split_once("\nchecksum").expect("a checksum").0;
        // The chip writes the bytes of an unfinished character as they are.
        assert_eq!(told.trim_end_matches('\u{fffd}'), said.text.trim_end_matches('\u{fffd}'), "{chip:?}");
        assert_eq!(line(&text, "checksum"), format!("{:016x}", said.checksum), "{chip:?}");
        assert_eq!(line(&text, "tokens"), said.tokens.to_string(), "{chip:?}");
        // Checks the measurement itself: two million instructions, and some around them.
        let known = line(&text, "counter").split(", ").nth(1).expect("a known loop");
        let known: u64 = known.split(' ').next().expect("a number").parse().unwrap();
        assert!((2_000_000..2_000_200).contains(&known), "{chip:?}: {known} instructions in a loop of two million");
        let each: u64 = line(&text, "instructions").split(' ').next().expect("a number").parse().unwrap();
        assert!(each <= most, "{chip:?}, {weights:?}: {each} instructions a token");
        let stack: Vec<u64> = line(&text, "stack").split(" of ").map(|n| n.parse().unwrap()).collect();
        assert!(stack[0] < stack[1], "{chip:?}: the stack was full");
    }
}

#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn a_chip_refuses_what_is_wrong() {
    let ((dir, _), bytes) = (tales(), IMAGE_BYTES[0] as u64);
    let whole = std::fs::read(dir.path().join("f32.img")).unwrap();
    let refused = |name: &str, image: &[u8], chip: Board, bytes: u64, prompt: &str, says: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, image).unwrap();
        let (status, text) = run(chip, &path, bytes, prompt);
        assert!(status == 3 && text.contains(says), "{name}: {status}\n{text}");
    };
    let chip = BOARDS[0];
    let mut flipped = whole.clone();
    flipped[700_000] ^= 4;
    refused("flipped", &flipped, chip, bytes, PROMPT, "its checksum is another");
    refused("cut", &whole[..whole.len() - 1], chip, bytes - 1, PROMPT, "was cut off");
    refused("nothing", &[0; 64], chip, bytes, PROMPT, "the first bytes are others");
    refused("short", &whole, chip, 12, PROMPT, "was cut off");
    let odd = (chip.0, chip.1, chip.2 + 8);
    refused("odd", &whole, odd, bytes, PROMPT, "multiple of 16 bytes");
    refused("long", &whole, chip, bytes, &"a z 1 ".repeat(25), "more than 79 tokens");
    refused("piece", &whole, chip, bytes, &"a".repeat(25), "needs 25 nodes");
}

/// Words outside the vocabulary, where text is split into words: an error and no panic. Known words work.
#[test]
#[ignore = "needs the program for the chip: tests/firmware/run.sh builds it and runs this, as CI does"]
fn a_chip_refuses_a_word_that_it_does_not_know() {
    let dir = tempfile::tempdir().unwrap();
    // As many positions as the program has.
    let model = "--preset llama-tiny --set layers=1 --set d_model=16 --set heads=2 --set kv_heads=2 --set d_ff=16 \
                 --set context=80 --seq-len 80 --tokenizer word --vocab-size 300";
    train(dir.path(), model, 1);
    let bytes = image(dir.path(), Weights::Int8).bytes().len() as u64;
    let path = dir.path().join("int8.img");
    let endless = format!("the {}", "A".repeat(80));
    // Combining marks, letters with a longer lower case, and a word beyond all limits.
    let unknown = [("Zwölfter", 0), ("the Zwölfter", 4), ("the  and Σ\u{307}ß the", 9), ("the İ", 4), (&endless, 4)];
    for board in BOARDS {
        for (prompt, at) in unknown {
            let (status, text) = run(board, &path, bytes, prompt);
            let said = format!(": the word at byte {at} is not in the vocabulary");
            assert_eq!((status, line(&text, "refused")), (3, &*said), "{board:?} {prompt}\n{text}");
        }
        // The mark itself is a known word.
        for prompt in ["the", "THE <unk> the"] {
            let (status, text) = run(board, &path, bytes, prompt);
            assert!(status == 0 && text.contains(&format!("{prompt}|")), "{board:?} {prompt}: {status}\n{text}");
        }
    }
}
