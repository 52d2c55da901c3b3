//! [`speak`] for a model whose image and storage lie in memory outside the chip: `large ADDRESS BYTES STORAGE BYTES TOKENS
//! PROMPT…`. What is named is all that it has, so that storage of a byte too few is refused.
//!
//! [`speak`]: ../speak/index.html
#![no_std]
#![no_main]

use capful_firmware::semihosting::command_line;
use capful_firmware::{Counter, Line, Once, Refused, exit, number, open, tell};

static IDS: Once<[u32; 1024]> = Once::new([0; 1024]);
static COMMAND: Once<[u8; 256]> = Once::new([0; 256]);

#[inline(never)]
fn speak(line: &mut Line, command: &str) -> Result<(), Refused> {
    let mut words = command.splitn(7, ' ').skip(1);
    let mut next = || words.next().ok_or(Refused::Command);
    let [address, bytes, place, room] = [number(next()?)?, number(next()?)?, number(next()?)?, number(next()?)?];
    let (tokens, prompt) = (number(next()?)?, next()?);
    if place == 0 || !place.is_multiple_of(8) {
        return Err(Refused::Command);
    }
    let Some(ids) = IDS.take() else { return Err(Refused::Command) };
    // Safety: whoever starts the program names memory that nothing else uses.
    let storage = unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(place), room / 8) };
    let counter = Counter::start();
    // Safety: whoever starts the program has put the image there.
    let image = unsafe { open(line, &counter, address, bytes)? };
    tell(line, &image, (storage, ids), &counter, (prompt, tokens))
}

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let mut line = Line::open();
    let Some(buffer) = COMMAND.take() else { exit(1) };
    match speak(&mut line, command_line(buffer)) {
        Ok(()) => exit(0),
        Err(refused) => refused.end(&mut line, "large ADDRESS BYTES STORAGE BYTES TOKENS PROMPT"),
    }
}
