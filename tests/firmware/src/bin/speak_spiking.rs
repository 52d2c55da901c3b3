//! [`speak`] for a NeuroGen: `speak_spiking ADDRESS BYTES STORAGE BYTES TOKENS PROMPT…`. It uses only that storage.
//!
//! [`speak`]: ../speak/index.html
#![no_std]
#![no_main]

use capful_core::image::SpikingDescription;
use capful_firmware::{SpikingSpeaker, outside};

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    outside::<SpikingDescription, SpikingSpeaker<'_>>("speak_spiking ADDRESS BYTES STORAGE BYTES TOKENS PROMPT")
}
