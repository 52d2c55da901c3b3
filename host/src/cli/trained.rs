//! The flags that name a trained model, shared by eval, generate, chat and logits.

use std::path::PathBuf;

use super::{Failure, request, say_warnings};
use crate::config::{Config, ConfigError, Weights};
use crate::plan::Sections;
use crate::run::checkpoint;
use crate::run::directory::{self, Trained};

/// The default for the most positions of a key/value cache: imported models may have a million.
const CACHED: u32 = 8192;

/// Which of a run's checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Which {
    /// The last one
    #[default]
    Last,
    /// That of the lowest validation loss
    Best,
}

impl Which {
    /// The directory of this checkpoint of `dir`.
    ///
    /// # Errors
    /// A run without its best checkpoint.
    pub(super) fn of(self, dir: PathBuf) -> Result<PathBuf, Failure> {
        match self {
            Which::Last => Ok(dir),
            Which::Best => checkpoint::best(&dir).map_err(request),
        }
    }
}

/// Which model, and where it runs.
#[derive(Debug, Clone, clap::Args)]
pub struct TrainedFlags {
    /// The run's directory, for its last checkpoint, or one of its checkpoints, DIR/checkpoint-N
    #[arg(long = "run", value_name = "DIR")]
    pub dir: PathBuf,
    /// Of a run's directory the last checkpoint, or that of the lowest validation loss, which --keep-best of `host train` keeps
    #[arg(long, value_enum, value_name = "last|best", default_value = "last", hide_possible_values = true)]
    checkpoint: Which,
    /// The averages of its weights, which --ema or --average of `host train` keeps, and not those after the last step
    #[arg(long)]
    averaged: bool,
    /// Another device than it was trained on; other than cuda in f32
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// What its matrices are kept in: rounded to integers as they are read, with activations in 8 bits; on cpu and
    /// reference
    #[arg(long, value_enum, value_name = "TYPE", default_value = "f32")]
    weights: Weights,
}

impl TrainedFlags {
    /// Replaces the directory by that of the requested checkpoint.
    ///
    /// # Errors
    /// As [`Which::of`].
    pub(super) fn settle(&mut self) -> Result<(), Failure> {
        self.dir = self.checkpoint.of(std::mem::take(&mut self.dir))?;
        self.checkpoint = Which::Last;
        Ok(())
    }

    /// The run's configuration on the requested device.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        directory::read_config(&self.dir)?.on(self.device.clone())?.in_integers(self.weights.integer())
    }

    /// The model, with memory for `sections`.
    pub(super) fn load(&self, config: &Config, sections: &Sections) -> Result<Trained, Failure> {
        let mut trained = Trained::load(&self.dir, checkpoint::Weights::averaged(self.averaged), config, sections)?;
        say_warnings(&mut trained.session);
        Ok(trained)
    }

    /// The model, ready to decode `context` tokens; by default as many as its own context has, up to [`CACHED`] for a
    /// model with a key/value cache.
    pub(super) fn decoding(&self, context: Option<u32>) -> Result<(Config, Trained), Failure> {
        let mut config = self.config()?;
        let most = if config.span().is_none() { CACHED } else { u32::MAX };
        config.limit_context(context.unwrap_or(config.context().min(most)))?;
        let sections = Sections { decoding: Some(config.context()), ..Sections::none(&config) };
        let trained = self.load(&config, &sections)?;
        Ok((config, trained))
    }
}
