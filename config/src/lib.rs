//! From the user's settings to the run's. [`RawConfig`] contains flags and files as written; [`Config`] is completely
//! resolved, validated and saved with the run.

mod adapters;
mod attention;
mod choices;
mod count;
mod error;
mod found;
mod gradients;
mod key;
mod keys;
mod link;
mod model;
mod nearest;
#[cfg(feature = "neurogen")]
mod neurogen;
mod optimizer;
mod order;
mod places;
mod preset;
mod ranks;
mod raw;
mod recompute;
mod released;
mod resolved;
mod resume;
mod saved;
mod schedule;
mod size;
mod sources;
mod span;
mod stage;
mod table;
mod transformer;
mod unknown;
mod value;
mod vocabulary;
mod warmup;

pub use adapters::LoraTargets;
pub use choices::{
    Attention, BaseType, BatchSize, DecayShape, Device, Gradients, InvalidUtf8, LrSchedule, Masters, Order, Overflow,
    Precision, States, StatesChoice, TokenizerChoice, Weights,
};
pub use count::{count, scored_tokens};
pub use error::ConfigError;
pub use found::{Found, FoundSource, cores};
pub use key::{RunKey, page_of_keys};
pub use keys::{Key, Values, keys};
pub use link::Link;
pub use model::{AnyFamily, ModelConfig};
pub use nearest::nearest;
#[cfg(feature = "neurogen")]
pub use neurogen::{Eligibility, Mode, NeuroGenConfig, SynapseLearning};
pub use optimizer::{GroupConfig, Groups, RuleName};
pub use order::{Cache, NO_CACHE, OWN};
pub use places::{Source, absolute, absolute_source, is_path};
pub use preset::{IMPORTED, Preset, presets};
pub use raw::RawStage;
pub use recompute::{Recompute, RecomputeChoice, kinds};
pub use resolved::GPU_CHUNK;
pub use saved::{CONFIG_FILE, PLAN_FILE, is_sealed, require_unchanged, sealed};
pub use size::{ByteSize, NameOrSize};
pub use sources::{MOST_SOURCES, Names, Sources};
pub use span::Span;
pub use stage::StageConfig;
pub use table::{Config, RUN_KEYS, RawConfig};
pub use transformer::{Bias, Feed, Norm, Residual, RotaryScaling, TransformerConfig};
