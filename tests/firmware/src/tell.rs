//! Continues a prompt and reports on it: the text, a checksum of all logits' bits, instructions per token and the depth
//! of the stack.

use core::fmt::Write as _;

use capful_core::generate::most_likely;
use capful_core::image::{DecodeError, Decoder, Described, ImageError, ImageOf, OnArena, TextError, Unknown};
use capful_core::memory::Arena;
use capful_core::vocab::bpe::Node;
use capful_core::vocab::{FINGERPRINT, fingerprint};

use crate::{Counter, Line, exit, stack_used};

/// The longest piece of a prompt, in bytes.
const PIECE: usize = 24;
/// The number of positions whose instructions are counted.
const COUNTED: usize = 64;

/// The reason why nothing was decoded.
#[derive(Clone, Copy)]
pub enum Refused {
    /// The command is invalid.
    Command,
    /// The image.
    Image(ImageError),
    /// The prompt.
    Text(TextError),
    /// The storage, or a token.
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

impl Refused {
    /// Prints the reason, or the program's `usage`, and exits with 3.
    pub fn end(self, line: &mut Line, usage: &str) -> ! {
        let _ = match self {
            Refused::Command => writeln!(line, "{usage}"),
            Refused::Image(error) => writeln!(line, "refused: {}", error.reason()),
            Refused::Text(error) => writeln!(line, "refused: {error}"),
            Refused::Decode(error) => writeln!(line, "refused: {error}"),
        };
        exit(3)
    }
}

/// A number of a command, decimal, or hexadecimal after `0x`.
///
/// # Errors
/// [`Refused::Command`] for anything else.
pub fn number(text: &str) -> Result<usize, Refused> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| Refused::Command)
}

/// Opens the image at `address`, and prints the number of instructions that this took.
///
/// # Safety
/// That many bytes are at the address, and nothing writes them.
///
/// # Errors
/// As [`ImageOf::open`].
pub unsafe fn open<M: Described>(
    line: &mut Line,
    counter: &Counter,
    address: usize,
    bytes: usize,
) -> Result<ImageOf<'static, M>, Refused> {
    // Safety: the caller guarantees it.
    let flash = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(address), bytes) };
    let (image, instructions) = counter.count(|| ImageOf::open(flash));
    let _ = writeln!(line, "opening {instructions}");
    Ok(image?)
}

#[derive(Default)]
struct Tally {
    all: u64,
    most: u64,
    fed: usize,
}

/// Continues `prompt` by up to `tokens` tokens on a device `D`. The regions of the model are in `storage`, its ids in
/// `ids`, one for each position.
///
/// # Errors
/// The reason why the image, the prompt or the storage is refused.
// In a separate function, so that the stack is as deep as opening or decoding and not as both.
#[inline(never)]
pub fn tell<'a, M: Described, D: OnArena<'a> + From<Arena<'a>>>(
    line: &mut Line,
    image: &ImageOf<'a, M>,
    (storage, ids): (&'a mut [u64], &mut [u32]),
    counter: &Counter,
    (prompt, tokens): (&str, usize),
) -> Result<(), Refused> {
    let vocabulary = image.vocabulary();
    let mut decoder = Decoder::new(image, image.description().context());
    let arena = decoder.arena(storage, image)?;
    let mut device = D::from(arena);
    // A document begins with its begin mark.
    let [begin, end] = vocabulary.marks().ok_or(TextError::None)?;
    let (first, rest) = ids.split_at_mut_checked(1).ok_or(Refused::Command)?;
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
