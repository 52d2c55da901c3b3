//! [`speak`] for a model whose image and storage lie in memory outside the chip: `large ADDRESS BYTES STORAGE BYTES TOKENS
//! PROMPT…`. What is named is all that it has, so that storage of a byte too few is refused.
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
