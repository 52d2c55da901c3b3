//! Trains a NeuroGen by e-prop on the chip: `spike ADDRESS BYTES STEPS`; tokens are bytes of ASCII at the address.
//!
//! Prints the bits of each step's loss and its instructions, checksums of weights, moments and state, and the depth of
//! the stack. Exits with 0, or with 3 and a line that says what is refused.
#![no_std]
#![no_main]

use capful_firmware::recipe::{NEUROGEN, STAGE};
use capful_firmware::{Once, SpikingLearner, learn};

/// Words of storage: exactly the size in the plan.
const WORDS: usize = 22_400;
static STORAGE: Once<[u64; WORDS]> = Once::new([0; WORDS]);

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    learn::<_, SpikingLearner<'_>>(&NEUROGEN, &STAGE, STORAGE.take().map(|words| &mut words[..]))
}
