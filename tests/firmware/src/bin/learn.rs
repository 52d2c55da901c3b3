//! Trains a Pythia by AdamW on the chip: `learn ADDRESS BYTES STEPS`; tokens are bytes of ASCII at the address.
//!
//! Prints the bits of each step's loss and its instructions, checksums of weights, moments and state, and the depth of the
//! stack. Ends with 0; with 3 where something is refused, by a line that says what.
#![no_std]
#![no_main]

use capful_firmware::recipe::{PYTHIA, STAGE};
use capful_firmware::{Learner, Once, learn};

/// Words of storage: the plan's, to the byte.
const WORDS: usize = 29_120;
static STORAGE: Once<[u64; WORDS]> = Once::new([0; WORDS]);

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    learn::<_, Learner<'_>>(&PYTHIA, &STAGE, STORAGE.take().map(|words| &mut words[..]))
}
