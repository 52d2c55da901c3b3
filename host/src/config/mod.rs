//! What the user wrote → what will run. [`RawConfig`] is flags and files as written; [`Config`] is everything
//! resolved, validated and saved with the run.

mod attention;
mod choices;
mod count;
mod error;
mod gradients;
mod keys;
mod model;
mod nearest;
mod neurogen;
mod order;
mod places;
mod preset;
mod ranks;
mod raw;
mod recompute;
mod resolved;
mod resume;
mod saved;
mod size;
mod stage;
mod transformer;
mod unknown;
mod vocabulary;
mod warmup;

pub use choices::{
    Attention, BatchSize, Device, Gradients, InvalidUtf8, LrSchedule, Order, Precision, TokenizerChoice, Weights,
};
pub use count::{count, scored_tokens};
pub use error::ConfigError;
pub use keys::{Key, Values, keys};
pub use model::{AnyFamily, ModelConfig};
pub(crate) use nearest::nearest;
pub use neurogen::{Eligibility, Mode, NeuroGenConfig, Rule};
pub use order::{Cache, NO_CACHE, OWN};
pub use places::{absolute, absolute_source, is_path};
pub use preset::{IMPORTED, Preset, presets};
pub use raw::{RawConfig, RawStage};
pub use recompute::{Recompute, RecomputeChoice, kinds};
pub use resolved::{Config, GPU_CHUNK};
pub use saved::{is_sealed, require_unchanged, sealed};
pub use size::{ByteSize, human_bytes};
pub use stage::StageConfig;
pub use transformer::{Bias, Feed, Norm, Residual, RotaryScaling, TransformerConfig};
