//! The flags that name a trained model, shared by eval, generate, chat and logits.

use std::path::PathBuf;

use crate::config::{Config, ConfigError};
use crate::run::directory;

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
}
