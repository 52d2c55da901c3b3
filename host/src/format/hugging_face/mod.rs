//! Models in the format of the library `transformers`.

pub mod adapter;
mod card;
mod class;
mod export;
pub mod generation;
mod keys;
mod names;
mod read;
mod rotary;
mod shards;
mod window;
mod write;

pub use card::{Ancestor, Card, Recipe, Score};
pub use export::{Exported, Request, export};
pub use generation::{Generation, Marks};
pub use names::{canonical, is_buffer, tied_head};
pub use read::described;
pub use write::config;
