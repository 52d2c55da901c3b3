//! What the user wrote → what will run. [`RawConfig`] is flags and files as written; [`Config`] is everything
//! resolved, validated and saved with the run.

mod neurogen;
mod preset;
mod raw;
mod resolved;
mod size;
mod stage;

pub use neurogen::{Eligibility, Mode, NeuroGenConfig, Rule};
pub use preset::{Preset, presets};
pub use raw::{RawConfig, RawStage};
pub(crate) use resolved::with_family;
pub use resolved::{
    AnyFamily, Attention, Config, ConfigError, Device, ModelConfig, Precision, Recompute, Schedule, TokenizerChoice,
};
pub use size::{ByteSize, human_bytes};
pub use stage::StageConfig;
