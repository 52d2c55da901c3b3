//! The flags that name a trained model, shared by eval, generate, chat and logits.

use std::path::PathBuf;

use super::{Failure, say_warnings};
use crate::config::{Config, ConfigError};
use crate::plan::Sections;
use crate::run::directory::{self, Trained};

/// Which model, and where it runs.
#[derive(Debug, Clone, clap::Args)]
pub struct TrainedFlags {
    /// The run's directory
    #[arg(long = "run", value_name = "DIR")]
    pub dir: PathBuf,
    /// Another device than it was trained on; other than cuda in f32
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

impl TrainedFlags {
    /// The run's configuration on the device asked for.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        directory::read_config(&self.dir)?.on(self.device.clone())
    }

    /// The model, ready to decode as many tokens as its context has.
    pub(super) fn decoding(&self) -> Result<(Config, Trained), Failure> {
        let config = self.config()?;
        let sections = Sections { decoding: Some(config.context()), ..Sections::none(&config) };
        let mut trained = Trained::load(&self.dir, &config, &sections)?;
        say_warnings(&mut trained.session);
        Ok((config, trained))
    }
}
