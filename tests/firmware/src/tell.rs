//! A prompt continued, and what is said of it: the text, a checksum of all logits' bits, instructions a token and the depth
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
/// Positions whose instructions are counted.
const COUNTED: usize = 64;

/// Why nothing was said.
#[derive(Clone, Copy)]
pub enum Refused {
    /// The command is not what the program takes.
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
    /// Says why, or that the program wants `usage`, and ends with 3.
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

/// A number of a command, decimal or from `0x` on hexadecimal.
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

/// The image at `address`, and how many instructions it took to open it.
///
/// # Safety
/// So many bytes are there, which nobody writes.
///
/// # Errors
/// As [`ImageOf::open`].
pub unsafe fn open<M: Described>(
    line: &mut Line,
    counter: &Counter,
    address: usize,
    bytes: usize,
) -> Result<ImageOf<'static, M>, Refused> {
    // Safety: the caller's.
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

/// Continues `prompt` by up to `tokens` tokens on a device `D`. The regions of the model lie in `storage`, its ids in `ids`, of which there
/// is one a position.
///
/// # Errors
/// What the image, the prompt or the storage is refused for.
// In a function of its own, so that the stack is as deep as opening or speaking and not as both.
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
    // A document begins with its mark.
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
