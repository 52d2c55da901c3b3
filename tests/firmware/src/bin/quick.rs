//! [`large`] for a model by the recipe of the quick presets, whose parts need five more operations: `quick ADDRESS
//! BYTES STORAGE BYTES TOKENS PROMPT…`.
//!
//! [`large`]: ../large/index.html
#![no_std]
#![no_main]

use capful_core::image::Description;
use capful_firmware::{QuickSpeaker, outside};

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    outside::<Description, QuickSpeaker<'_>>("quick ADDRESS BYTES STORAGE BYTES TOKENS PROMPT")
}
