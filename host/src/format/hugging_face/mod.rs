//! Models as the library `transformers` keeps them.

mod card;
mod export;
mod names;
mod shards;
mod write;

pub use card::Card;
pub use export::{Exported, Request, export};
pub use write::config;
