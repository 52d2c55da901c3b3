//! A tale-teller learns new names on the chip: `adapt IMAGE BYTES TEXT BYTES STEPS`. At TEXT are sixteen sentences, a line
//! each: it takes steps on the first eight and is tested on the others.
//!
//! Prints the bits of the losses, of the sentences that are held out before and after the steps too, instructions, a
//! checksum of the weights and the depth of the stack. Ends with 0; with 3 where something is refused, by a line that says
//! what.
#![no_std]
#![no_main]

use capful_firmware::{Once, adapt};

/// Words of storage: the plan's, to the byte.
const WORDS: usize = 270_272;
static STORAGE: Once<[u64; WORDS]> = Once::new([0; WORDS]);

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    adapt(STORAGE.take().map(|words| &mut words[..]))
}
