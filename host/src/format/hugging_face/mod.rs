//! Models as the library `transformers` keeps them.

mod card;
mod export;
mod names;
mod read;
mod shards;
mod write;

pub use card::Card;
pub use export::{Exported, Request, export};
pub use names::{is_buffer, tied_head};
pub use read::described;
pub use write::config;
