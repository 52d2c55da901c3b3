//! Programs for a Cortex-M on QEMU's boards, an image as a chip has it, and the text that was generated.

use std::path::{Path, PathBuf};
use std::process::Command;

use capful_core::device::Reference;
use capful_core::generate::most_likely;
use capful_core::image::{Decoder, Described, ImageOf, Unknown};
use capful_core::vocab::bpe::Node;
use capful_core::vocab::{FINGERPRINT, fingerprint};
use capful_host::plan::Sections;
use capful_host::run::checkpoint::Weights;
use capful_host::run::directory::{self, Trained};

/// A board: its chip, its name in QEMU, and the address of a memory of some megabytes.
pub type Board = (&'static str, &'static str, u64);

/// The boards. All run the same binaries, which are built for the first one.
pub const BOARDS: [Board; 3] = [
    ("Cortex-M4F", "mps2-an386", 0x2100_0000),
    ("Cortex-M7", "mps2-an500", 0x6000_0000),
    ("Cortex-M55", "mps3-an547", 0x2100_0000),
];

/// The program of this name, next to the one that `tests/firmware/run.sh` names.
///
/// # Panics
/// Without that name.
pub fn program(name: &str) -> PathBuf {
    let speak = std::env::var_os("CAPFUL_FIRMWARE").expect("CAPFUL_FIRMWARE names the program");
    Path::new(&speak).with_file_name(name)
}

/// Starts a program on a board, with the words of its command, the last of which may have spaces, and with files in
/// memory. Returns its exit status and its output.
///
/// # Panics
/// Without QEMU.
pub fn start(name: &str, board: &str, command: &[String], files: &[(&Path, u64)]) -> (i32, String) {
    let words =
        [name.to_owned()].iter().chain(command).map(|a| format!(",arg={}", a.replace(',', ",,"))).collect::<String>();
    let mut qemu = Command::new("timeout");
    qemu.args(["120", "qemu-system-arm", "-M", board, "-nographic", "-monitor", "none", "-serial", "none"]);
    // An instruction is a nanosecond, so that the board's timer counts them.
    qemu.args(["-icount", "shift=0", "-semihosting-config"]).arg(format!("enable=on,target=native{words}"));
    for (file, address) in files {
        qemu.arg("-device").arg(format!("loader,file={},addr={address:#x},force-raw=on", file.display()));
    }
    let output = qemu.arg("-kernel").arg(program(name)).output().expect("QEMU runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code().unwrap_or(-1), text + &String::from_utf8_lossy(&output.stderr))
}

/// The text after `name` on a line of its own.
///
/// # Panics
/// Without such a line.
pub fn line<'t>(text: &'t str, name: &str) -> &'t str {
    let found = text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    found.unwrap_or_else(|| panic!("no {name} in:\n{text}"))
}

/// An image at an aligned address.
#[derive(Debug)]
pub struct Flash {
    words: Vec<u128>,
    bytes: usize,
}

impl Flash {
    /// A copy of `bytes`.
    pub fn of(bytes: &[u8]) -> Flash {
        let mut words = vec![0u128; bytes.len().div_ceil(16) + 1];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Flash { words, bytes: bytes.len() }
    }

    /// The image.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// The image, to be damaged.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

/// The generated text, and a checksum of all logits' bits.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    /// The continuation of the prompt.
    pub text: String,
    /// Over the bits of all logits.
    pub checksum: u64,
    /// Tokens read.
    pub tokens: usize,
}

fn add(checksum: u64, logits: &[f32]) -> u64 {
    logits.iter().fold(checksum, |sum, x| fingerprint(sum, &x.to_bits().to_le_bytes()))
}

/// The continuation of `prompt` by the run in `dir`, on the reference device, with weights in the arena, in `integer`
/// if any, and with the host's tokenizer.
///
/// # Panics
/// Without such a run.
pub fn said_by_the_run(
    dir: &Path,
    integer: Option<capful_core::integer::Integer>,
    (prompt, tokens, context): (&str, usize, u32),
) -> Said {
    let config = directory::read_config(dir).unwrap().on(Some("reference".to_owned())).unwrap();
    let config = config.in_integers(integer).unwrap();
    let sections = Sections { decoding: Some(context), ..Sections::none(&config) };
    let Trained { mut session, tokenizer } = Trained::load(dir, Weights::Last, &config, &sections).unwrap();
    let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
    tokenizer.encode(prompt, &mut ids).unwrap();
    let (begun, mut checksum, mut fed) = (ids.len(), FINGERPRINT, 0);
    while fed < (begun + tokens).min(context as usize) {
        let logits = session.decode(ids[fed], fed as u32).unwrap();
        checksum = add(checksum, logits);
        fed += 1;
        if fed == ids.len() {
            let chosen = most_likely(&logits[..tokenizer.vocab_size() as usize]).unwrap();
            if Some(chosen) == tokenizer.eos() {
                break;
            }
            ids.push(chosen);
        }
    }
    Said { text: tokenizer.decode(&ids[begun..]), checksum, tokens: fed }
}

/// The continuation from the image alone, as the program on a chip computes it. The initial content of the storage does
/// not matter.
///
/// # Panics
/// If the image cannot continue the prompt.
pub fn said_by<M: Described>(image: &ImageOf<'_, M>, (prompt, tokens, context): (&str, usize, u32)) -> Said {
    let vocabulary = image.vocabulary();
    let mut decoder = Decoder::new(image, context);
    let mut storage = vec![u64::MAX; decoder.bytes().unwrap() as usize / 8];
    let mut device = Reference { arena: decoder.arena(&mut storage, image).unwrap() };
    let [begin, end] = vocabulary.marks().unwrap();
    let mut ids = vec![begin; context as usize];
    let count = vocabulary.encode(prompt, Unknown::Mark, &mut [Node::EMPTY; 24], &mut ids[1..]).unwrap();
    ids.truncate(1 + count);
    let (begun, mut checksum, mut text) = (ids.len(), FINGERPRINT, Vec::new());
    for at in 0..(begun + tokens).min(context as usize) {
        let logits = decoder.feed(&mut device, ids[at]).unwrap();
        checksum = add(checksum, logits);
        if at + 1 < ids.len() {
            continue;
        }
        let chosen = most_likely(&logits[..vocabulary.size() as usize]).unwrap();
        if chosen == end {
            break;
        }
        text.extend_from_slice(vocabulary.separator());
        text.extend_from_slice(vocabulary.bytes(chosen).unwrap_or_default());
        ids.push(chosen);
    }
    Said { text: String::from_utf8_lossy(&text).into_owned(), checksum, tokens: decoder.position() as usize }
}
