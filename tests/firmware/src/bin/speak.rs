//! Continues a prompt from an image in flash: `speak ADDRESS BYTES TOKENS PROMPT…`.
//!
//! Prints the text, a checksum of all logits' bits, instructions a token and the depth of the stack. Ends with 0; with 3
//! where the image, the prompt or the storage is refused, by a line that says why.
#![no_std]
#![no_main]

use core::fmt::Write as _;

use capful_core::generate::most_likely;
use capful_core::image::{DecodeError, Decoder, Image, ImageError, TextError, Unknown};
use capful_core::vocab::bpe::Node;
use capful_core::vocab::{FINGERPRINT, fingerprint};
use capful_firmware::semihosting::command_line;
use capful_firmware::{Counter, Line, Once, Speaker, exit, stack_used};

#[allow(dead_code, reason = "as exported")]
mod model {
    include!("../model.rs");
}

static STORAGE: Once<[u64; model::ARENA_WORDS]> = Once::new([0; model::ARENA_WORDS]);
static COMMAND: Once<[u8; 256]> = Once::new([0; 256]);

/// The longest piece of a prompt, in bytes.
const PIECE: usize = 24;
/// Positions whose instructions are counted.
const COUNTED: usize = 64;

/// Why nothing was said.
#[derive(Clone, Copy)]
enum Refused {
    Command,
    Image(ImageError),
    Text(TextError),
    Decode(DecodeError),
}

impl From<ImageError> for Refused {
    fn from(error: ImageError) -> Refused {
        Refused::Image(error)
    }
}

impl From<TextError> for Refused {
    fn from(error: TextError) -> Refused {
        Refused::Text(error)
    }
}

impl From<DecodeError> for Refused {
    fn from(error: DecodeError) -> Refused {
        Refused::Decode(error)
    }
}

fn number(text: &str) -> Option<usize> {
    match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The flash that the command names.
fn flash(address: usize, bytes: usize) -> &'static [u8] {
    // Safety: whoever starts the program has put that many bytes there, which nobody writes.
    unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(address), bytes) }
}

#[derive(Default)]
struct Tally {
    all: u64,
    most: u64,
    fed: usize,
}

#[inline(never)]
fn speak(line: &mut Line, command: &str) -> Result<(), Refused> {
    let mut words = command.splitn(5, ' ').skip(1);
    let mut next = || words.next().ok_or(Refused::Command);
    let [address, bytes, tokens] = [number(next()?), number(next()?), number(next()?)];
    let (Some(address), Some(bytes), Some(tokens)) = (address, bytes, tokens) else { return Err(Refused::Command) };
    let prompt = next()?;
    let counter = Counter::start();
    let (image, opening) = counter.count(|| Image::open(flash(address, bytes)));
    let _ = writeln!(line, "opening {opening}");
    tell(line, &image?, &counter, prompt, tokens)
}

/// The rest in a function of its own, so that the stack is as deep as opening or speaking and not as both.
#[inline(never)]
fn tell(line: &mut Line, image: &Image<'_>, counter: &Counter, prompt: &str, tokens: usize) -> Result<(), Refused> {
    let Some(storage) = STORAGE.take() else { return Err(Refused::Command) };
    let vocabulary = image.vocabulary();
    let mut decoder = Decoder::new(image, image.description().model.context);
    let arena = decoder.arena(storage, image)?;
    let mut device = Speaker { arena };
    let mut ids = [0; model::CONTEXT];
    // A document begins with its mark.
    let [begin, end] = vocabulary.marks().ok_or(TextError::None)?;
    let (first, rest) = ids.split_at_mut(1);
    first.fill(begin);
    let count = 1 + vocabulary.encode(prompt, Unknown::Refuse, &mut [Node::EMPTY; PIECE], rest)?;

    let (mut checksum, mut tally) = (FINGERPRINT, Tally::default());
    line.write(prompt.as_bytes());
    let _ = write!(line, "|");
    for at in 0..count + tokens {
        let Some(&id) = ids.get(at).filter(|_| at < decoder.position() as usize + 1) else { break };
        let (logits, instructions) = counter.count(|| decoder.feed(&mut device, id));
        let logits = logits?;
        if tally.fed < COUNTED {
            tally.all += instructions;
            tally.most = tally.most.max(instructions);
            tally.fed += 1;
        }
        for logit in &*logits {
            checksum = fingerprint(checksum, &logit.to_bits().to_le_bytes());
        }
        if at + 1 < count {
            continue;
        }
        let size = vocabulary.size() as usize;
        let Some(chosen) = logits.get(..size).and_then(most_likely) else { break };
        if chosen == end {
            break;
        }
        line.write(vocabulary.separator());
        line.write(vocabulary.bytes(chosen).unwrap_or_default());
        match ids.get_mut(at + 1) {
            Some(place) => *place = chosen,
            None => break,
        }
    }
    let (deep, whole) = stack_used();
    let _ = writeln!(line);
    let _ = writeln!(line, "checksum {checksum:016x}");
    let _ = writeln!(line, "tokens {}", decoder.position());
    let _ = writeln!(line, "instructions {} a token, at most {}", tally.all / tally.fed.max(1) as u64, tally.most);
    let (tick, known) = (counter.tick(), counter.known(1_000_000));
    let _ = writeln!(line, "counter {tick} a thousand ticks, {known} in a loop of 2000000");
    let _ = writeln!(line, "stack {deep} of {whole}");
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let mut line = Line::open();
    let Some(buffer) = COMMAND.take() else { exit(1) };
    let refused = match speak(&mut line, command_line(buffer)) {
        Ok(()) => exit(0),
        Err(refused) => refused,
    };
    let _ = match refused {
        Refused::Command => line.write_str("speak ADDRESS BYTES TOKENS PROMPT\n"),
        Refused::Image(error) => writeln!(line, "refused: {}", error.reason()),
        Refused::Text(error) => writeln!(line, "refused: {error}"),
        Refused::Decode(error) => writeln!(line, "refused: {error}"),
    };
    exit(3)
}
