//! What an image says of a run's model.

#[cfg(feature = "neurogen")]
use capful_core::image::SpikingDescription;
use capful_core::image::{Described as _, Description};
use capful_core::memory::LayoutError;

use super::Sizes;
use crate::config::{AnyFamily, Config, ConfigError};

/// A model as an image describes it.
#[derive(Debug, Clone, Copy)]
pub enum Model {
    /// A transformer, whose weights may be in integers.
    Transformer(Description),
    /// A NeuroGen.
    #[cfg(feature = "neurogen")]
    NeuroGen(SpikingDescription),
}

impl Model {
    /// Ids.
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
    /// As there.
    pub fn sizes(&self, context: u32, vocabulary: u64) -> Result<Sizes, LayoutError> {
        match self {
            Model::Transformer(description) => Sizes::of(description, context, vocabulary),
            #[cfg(feature = "neurogen")]
            Model::NeuroGen(description) => Sizes::of(description, context, vocabulary),
        }
    }
}

/// Positions that a chip's program keeps: as many as were `asked` for, else the whole context; a NeuroGen's is no limit, and
/// its sequences' length is taken.
///
/// # Errors
/// More than the model has, or none.
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

/// That of a configuration, with weights as it has them.
pub fn described(config: &Config) -> Model {
    match config.family() {
        AnyFamily::Transformer(model) => {
            Model::Transformer(Description { model, pattern: config.pattern(), weights: config.weights.into() })
        }
        #[cfg(feature = "neurogen")]
        AnyFamily::NeuroGen(model) => Model::NeuroGen(SpikingDescription { model, context: config.context() }),
    }
}
