//! Requests that cannot be met.

use capful_core::model::ModelError;

/// A wrong request: one line that says what was asked, what is there and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

impl From<ModelError> for ConfigError {
    fn from(error: ModelError) -> Self {
        ConfigError(error.to_string())
    }
}

pub(super) fn error<T>(message: String) -> Result<T, ConfigError> {
    Err(ConfigError(message))
}
