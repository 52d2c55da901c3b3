//! Requests that cannot be fulfilled.

use capful_core::model::ModelError;

/// A wrong request: one line with the request, the state of the machine and advice.
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
