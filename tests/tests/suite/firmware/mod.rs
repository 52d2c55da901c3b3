//! Images and programs for a chip: on the host, and on emulated chips.

mod adapt;
mod learn;
// What the program for the chip is built with.
#[path = "../../../firmware/src/recipe.rs"]
mod recipe;
mod speak;
mod spiking;
