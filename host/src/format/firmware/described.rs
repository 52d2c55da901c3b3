//! The description of a run's model in an image.

#[cfg(feature = "neurogen")]
use capful_core::image::SpikingDescription;
use capful_core::image::{Described as _, Description};
use capful_core::memory::LayoutError;

use super::Sizes;
use crate::config::{AnyFamily, Config, ConfigError};

/// The description of a model in an image.
#[derive(Debug, Clone, Copy)]
pub enum Model {
    /// A transformer, whose weights may be in integers.
    Transformer(Description),
    /// A NeuroGen.
    #[cfg(feature = "neurogen")]
    NeuroGen(SpikingDescription),
}

impl Model {
    /// Number of ids.
    pub fn ids(&self) -> u32 {
        match self {
            Model::Transformer(description) => description.ids(),
            #[cfg(feature = "neurogen")]
            Model::NeuroGen(description) => description.ids(),
        }
    }

    /// See [`Sizes::of`].
    ///
    /// # Errors
    /// As in [`Sizes::of`].
    pub fn sizes(&self, context: u32, vocabulary: u64) -> Result<Sizes, LayoutError> {
        match self {
            Model::Transformer(description) => Sizes::of(description, context, vocabulary),
            #[cfg(feature = "neurogen")]
            Model::NeuroGen(description) => Sizes::of(description, context, vocabulary),
        }
    }
}

/// Number of positions in a chip's program: `asked` if it is given, else the whole context; a NeuroGen's context is no
/// limit, so the length of its sequences is used.
///
/// # Errors
/// More positions than the model has, or none.
pub fn positions(config: &Config, asked: Option<u32>) -> Result<u32, ConfigError> {
    let most = config.context();
    match (asked, config.family()) {
        (Some(context), _) if context == 0 || context > most => {
            Err(ConfigError(format!("--context {context}: the model has 1 to {most} positions")))
        }
        (Some(context), _) => Ok(context),
        (None, AnyFamily::Transformer(_)) => Ok(most),
        #[cfg(feature = "neurogen")]
        (None, AnyFamily::NeuroGen(_)) => Ok(most.min(config.seq_len)),
    }
}

/// The description for a configuration, with its types of weights.
pub fn described(config: &Config) -> Model {
    match config.family() {
        AnyFamily::Transformer(model) => {
            Model::Transformer(Description { model, pattern: config.pattern(), weights: config.weights.into() })
        }
        #[cfg(feature = "neurogen")]
        AnyFamily::NeuroGen(model) => Model::NeuroGen(SpikingDescription { model, context: config.context() }),
    }
}
