//! Images and programs for a chip: on the host, and on emulated chips.

mod adapt;
mod learn;
// The recipe that the chip's program is built with.
#[path = "../../../firmware/src/recipe.rs"]
mod recipe;
mod speak;
mod spiking;
