//! Where every byte of a run lives: regions, the ledger that lays them, the arena that carves them, the budget.

mod arena;
mod budget;
mod ledger;
mod region;
mod sections;
mod share;

pub use arena::{Arena, ArenaError, View};
pub use budget::{Budget, Excess};
pub use ledger::{Entry, Init, Layout, LayoutError, Ledger, Part, Role, Slot, TensorName, Window, WiringPart};
pub use region::{Dtype, Region, Space, Stacked};
pub use sections::{Section, Sections};
pub use share::{Layers, Share, Sharing};
