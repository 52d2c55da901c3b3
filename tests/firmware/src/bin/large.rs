//! [`speak`] for a model with image and storage outside the chip: `large ADDRESS BYTES STORAGE BYTES TOKENS PROMPT…`.
//! The program uses only that storage, so it refuses storage that is a byte too small.
//!
//! [`speak`]: ../speak/index.html
#![no_std]
#![no_main]

use capful_core::image::Description;
use capful_firmware::{Speaker, outside};

#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    outside::<Description, Speaker<'_>>("large ADDRESS BYTES STORAGE BYTES TOKENS PROMPT")
}
