//! What the user wrote → what will run. [`RawConfig`] is flags and files as written; [`Config`] is everything
//! resolved, validated and saved with the run.

mod choices;
mod error;
mod model;
mod neurogen;
mod preset;
mod raw;
mod resolved;
mod size;
mod stage;

pub use choices::{Attention, Device, Precision, Recompute, Schedule, TokenizerChoice};
pub use error::ConfigError;
pub use model::{AnyFamily, ModelConfig};
pub use neurogen::{Eligibility, Mode, NeuroGenConfig, Rule};
pub use preset::{Preset, presets};
pub use raw::{RawConfig, RawStage};
pub use resolved::Config;
pub use size::{ByteSize, human_bytes};
pub use stage::StageConfig;
