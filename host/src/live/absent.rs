//! What stands in the place of the page in a build without the feature `live`.

use std::io;

use crate::config::ConfigError;
use crate::report::known::Known;
use crate::run::metrics::{EvalMetrics, StepMetrics};

/// Nothing: there is no value of it.
#[derive(Debug)]
pub enum Bound {}

/// Nothing: there is no value of it.
#[derive(Debug)]
pub enum Live {}

impl Bound {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn to(_: u16) -> Result<Bound, ConfigError> {
        Err(ConfigError(
            "--live: this build has no live page; build it with the feature `live`, a default one".to_owned(),
        ))
    }

    /// Where it is served.
    pub fn address(&self) -> String {
        match *self {}
    }

    /// Begins to serve.
    ///
    /// # Errors
    /// None.
    pub fn serve(self, _: Known) -> io::Result<Live> {
        match self {}
    }
}

impl Live {
    /// Hands over a logged step.
    pub fn step(&self, _: &StepMetrics) {
        match *self {}
    }

    /// Hands over an evaluation.
    pub fn evaluation(&self, _: &EvalMetrics) {
        match *self {}
    }
}
