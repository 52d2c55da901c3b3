//! A program that continues a prompt, with image and storage at addresses in its command.

use capful_core::image::{Described, OnArena};
use capful_core::memory::Arena;

use crate::semihosting::command_line;
use crate::{Counter, Line, Once, Refused, exit, number, open, tell};

static IDS: Once<[u32; 1024]> = Once::new([0; 1024]);
static COMMAND: Once<[u8; 256]> = Once::new([0; 256]);

#[inline(never)]
fn speak<M: Described, D: OnArena<'static> + From<Arena<'static>>>(
    line: &mut Line,
    command: &str,
) -> Result<(), Refused> {
    let mut words = command.splitn(7, ' ').skip(1);
    let mut next = || words.next().ok_or(Refused::Command);
    let [address, bytes, place, room] = [number(next()?)?, number(next()?)?, number(next()?)?, number(next()?)?];
    let (tokens, prompt) = (number(next()?)?, next()?);
    if place == 0 || !place.is_multiple_of(8) {
        return Err(Refused::Command);
    }
    let Some(ids) = IDS.take() else { return Err(Refused::Command) };
    // Safety: the command's author guarantees that nothing else uses this memory.
    let storage = unsafe { core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(place), room / 8) };
    let counter = Counter::start();
    // Safety: the image was placed there before the program started.
    let image = unsafe { open::<M>(line, &counter, address, bytes)? };
    tell::<M, D>(line, &image, (storage, ids), &counter, (prompt, tokens))
}

/// A whole program: continues the prompt of its command from an image with a description `M`, on a device `D`, and
/// exits with 0, or with 3 and a line that says what is refused. For an invalid command it prints `usage`.
pub fn outside<M: Described, D: OnArena<'static> + From<Arena<'static>>>(usage: &str) -> ! {
    let mut line = Line::open();
    let Some(buffer) = COMMAND.take() else { exit(1) };
    match speak::<M, D>(&mut line, command_line(buffer)) {
        Ok(()) => exit(0),
        Err(refused) => refused.end(&mut line, usage),
    }
}
