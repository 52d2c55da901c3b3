//! Replaces the page in a build without the feature `live`.

use std::io;

use crate::config::ConfigError;
use crate::report::known::Known;
use crate::run::metrics::{EvalMetrics, StepMetrics};

/// Uninhabited: this build binds no port.
#[derive(Debug)]
pub enum Bound {}

/// Uninhabited: this build serves no page.
#[derive(Debug)]
pub enum Live {}

impl Bound {
    /// Refuses the request for a page.
    ///
    /// # Errors
    /// Always.
    pub fn to(_: u16) -> Result<Bound, ConfigError> {
        Err(ConfigError(
            "--live: this build has no live page; build it with the feature `live`, a default one".to_owned(),
        ))
    }

    /// The address of the page.
    pub fn address(&self) -> String {
        match *self {}
    }

    /// Starts to serve.
    ///
    /// # Errors
    /// Never.
    pub fn serve(self, _: Known) -> io::Result<Live> {
        match self {}
    }
}

impl Live {
    /// Passes a logged step to the page.
    pub fn step(&self, _: &StepMetrics) {
        match *self {}
    }

    /// Passes an evaluation to the page.
    pub fn evaluation(&self, _: &EvalMetrics) {
        match *self {}
    }
}
