//! Continues a prompt from an image in flash: `speak ADDRESS BYTES TOKENS PROMPT…`.
//!
//! Prints the text, a checksum of all logits' bits, instructions per token and the depth of the stack. Exits with 0, or
//! with 3 and a line with the reason where the image, the prompt or the storage is refused.
#![no_std]
#![no_main]

use capful_core::image::Description;
use capful_firmware::semihosting::command_line;
use capful_firmware::{Counter, Line, Once, Refused, Speaker, exit, number, open, tell};

#[allow(dead_code, reason = "as exported")]
mod model {
    include!("../model.rs");
}

static STORAGE: Once<[u64; model::ARENA_WORDS]> = Once::new([0; model::ARENA_WORDS]);
static IDS: Once<[u32; model::CONTEXT]> = Once::new([0; model::CONTEXT]);
static COMMAND: Once<[u8; 256]> = Once::new([0; 256]);

#[inline(never)]
fn speak<'a>(line: &mut Line, command: &'a str) -> Result<(), Refused> {
    let cut = |words: &'a str| words.split_once(' ').ok_or(Refused::Command);
    let (_, words) = cut(command)?;
    let (address, words) = cut(words)?;
    let (bytes, words) = cut(words)?;
    let (tokens, prompt) = cut(words)?;
    let [address, bytes, tokens] = [number(address)?, number(bytes)?, number(tokens)?];
    let (Some(storage), Some(ids)) = (STORAGE.take(), IDS.take()) else { return Err(Refused::Command) };
    let counter = Counter::start();
    // Safety: the image was placed there before the program started.
    let image = unsafe { open::<Description>(line, &counter, address, bytes)? };
    tell::<_, Speaker<'_>>(line, &image, (storage, ids), &counter, (prompt, tokens))
}

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let mut line = Line::open();
    let Some(buffer) = COMMAND.take() else { exit(1) };
    match speak(&mut line, command_line(buffer)) {
        Ok(()) => exit(0),
        Err(refused) => refused.end(&mut line, "speak ADDRESS BYTES TOKENS PROMPT"),
    }
}
