//! Gradients that are released layer by layer, and the features that they exclude.

use capful_core::model::Capability;

use super::error::error;
use super::{Config, ConfigError, RawConfig};

/// The reason why there is no clip.
const NO_CLIP: &str = "with --release-gradients layers are moved before the norm of all gradients is known";

impl RawConfig {
    /// The first requested clip, if any.
    pub fn asked_clip(&self) -> Option<f32> {
        let stages = self.stage.iter().filter_map(|stage| stage.clip);
        self.clip.into_iter().chain(stages).find(|clip| *clip > 0.0)
    }

    /// If gradients are released, removes a preset's clip and the default clip, unless a clip was requested in `asked`.
    ///
    /// # Errors
    /// A clip was requested.
    pub(super) fn releasing(mut self, asked: Option<f32>) -> Result<RawConfig, ConfigError> {
        if self.release_gradients != Some(true) {
            return Ok(self);
        }
        if let Some(clip) = asked {
            return error(format!("--clip {clip}: {NO_CLIP}; use --clip 0"));
        }
        self.clip = Some(0.0);
        self.stage.iter_mut().for_each(|stage| stage.clip = None);
        Ok(self)
    }
}

impl Config {
    /// Refuses released gradients if a step has more than one micro-batch or process, or is clipped.
    pub(super) fn validate_released(&self) -> Result<(), ConfigError> {
        if !self.release_gradients {
            return Ok(());
        }
        if let Some(why) = self.family().lacks(Capability::ReleasedGradients) {
            return error(format!("--release-gradients: {why}; leave it away"));
        }
        if self.ranks().shares() {
            let what = if self.ranks > 1 { format!("{} ranks", self.ranks) } else { "--exact-ranks".to_owned() };
            return error(format!(
                "--release-gradients: {what} add up gradients at the end of a step; use one process without --exact-ranks, or \
                 --zero 2 in its place"
            ));
        }
        for stage in self.stages() {
            if stage.accumulate != 1 {
                return error(format!(
                    "--accumulate {}: with --release-gradients no gradient waits for a second micro-batch; use --accumulate 1 \
                     and more sequences",
                    stage.accumulate
                ));
            }
            if stage.clip > 0.0 {
                return error(format!("--clip {}: {NO_CLIP}; use --clip 0", stage.clip));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str, ranks: u32) -> Result<Config, String> {
        let raw: RawConfig = toml::from_str(&format!("release_gradients = true\n{text}")).unwrap();
        Config::resolve(RawConfig { ranks: Some(ranks), ..raw }).map_err(|e| e.to_string())
    }

    #[test]
    fn what_needs_all_gradients_is_refused_in_a_line() {
        let stage = |more: &str| format!("[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2\n{more}");
        for (text, ranks, says) in [
            ("clip = 0.5", 1, "--clip 0.5: with --release-gradients layers are moved before"),
            (&stage("clip = 2.0"), 1, "--clip 2: "),
            ("accumulate = 2", 1, "--accumulate 2: with --release-gradients no gradient waits"),
            ("batch_size = 2\nseq_len = 8\ntokens_per_step = 64", 1, "--accumulate 4: "),
            (&stage("accumulate = 3"), 1, "--accumulate 3: "),
            ("accumulate = 2", 2, "2 ranks add up gradients at the end of a step"),
            ("exact_ranks = true", 1, "--exact-ranks add up"),
            ("preset = 'neurogen-tiny'", 1, "--release-gradients: a NeuroGen"),
        ] {
            let message = resolved(text, ranks).unwrap_err();
            assert!(message.contains(says) && !message.contains('\n'), "{text}: {message}");
        }
    }

    #[test]
    fn nobody_asked_for_a_clip_of_a_preset_or_the_default() {
        for text in ["", "clip = 0.0", "preset = 'pythia-tiny'", "preset = 'yxanul-tiny'", "zero = 2"] {
            let config = resolved(text, 1).unwrap();
            assert!(config.optimizer().releases() && config.stages().iter().all(|stage| stage.clip == 0.0), "{text}");
            let saved = toml::to_string(&config).unwrap();
            assert_eq!(toml::from_str::<Config>(&saved).unwrap(), config, "{text}");
        }
        let plain = Config::resolve(toml::from_str("preset = 'pythia-tiny'").unwrap()).unwrap();
        assert!(plain.clip > 0.0 && !toml::to_string(&plain).unwrap().contains("release"));
    }

    /// A checkpoint contains no gradients, so a run without a clip may start to release them at any step, and stop
    /// again.
    #[test]
    fn a_run_without_a_clip_may_begin_and_end_to_release_them() {
        let raw = |text: &str| toml::from_str::<RawConfig>(text).unwrap();
        let begun = Config::resolve(raw("preset = 'pythia-tiny'\nclip = 0.0")).unwrap();
        let released = begun.resumed(raw("release_gradients = true")).unwrap();
        assert_eq!(released, Config { release_gradients: true, ..begun.clone() });
        assert_eq!(released.resumed(raw("release_gradients = false")).unwrap(), begun);
        assert_eq!(released.resumed(raw("")).unwrap(), released);
        let clipped = Config::resolve(raw("preset = 'pythia-tiny'")).unwrap();
        let message = clipped.resumed(raw("release_gradients = true")).unwrap_err().to_string();
        assert!(message.contains("--clip 1: "), "{message}");
    }
}
