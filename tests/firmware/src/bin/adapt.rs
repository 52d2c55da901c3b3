//! Goes on training a model from an image, on a text: `adapt IMAGE BYTES STORAGE BYTES TEXT BYTES STEPS`.
//!
//! The text consists of the part to learn, a `|`, and the part on which the loss is measured before and after. Prints
//! both losses, checksums of weights and moments, instructions per step and the depth of the stack. Exits with 0, or
//! with 3 and a line that says what is refused.
#![no_std]
#![no_main]

use capful_firmware::semihosting::command_line;
use capful_firmware::{Line, Once, adapt, exit};

static COMMAND: Once<[u8; 256]> = Once::new([0; 256]);
static IDS: Once<[u32; 2048]> = Once::new([0; 2048]);

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    let (Some(buffer), Some(ids)) = (COMMAND.take(), IDS.take()) else { exit(1) };
    adapt(&mut Line::open(), command_line(buffer), ids)
}
