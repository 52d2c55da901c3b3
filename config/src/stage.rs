//! The resolved stages of a curriculum.

use capful_core::train::{Curriculum, Stage};
use serde::{Deserialize, Serialize};

use super::error::error;
use super::{Config, ConfigError, RawStage};

/// A stage of a curriculum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// Steps done when it begins.
    pub from: u64,
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// Sequences of a micro-batch.
    pub batch_size: u32,
    /// Micro-batches of a step.
    pub accumulate: u32,
    /// Factor of the learning rate.
    pub lr: f64,
    /// The largest global norm; 0 for none.
    pub clip: f32,
}

impl StageConfig {
    /// Resolves the written stages, with `scale` times as many sequences.
    pub(super) fn scaled(raw: &[RawStage], clip: f32, scale: Option<f64>) -> Result<Vec<StageConfig>, ConfigError> {
        let mut stages: Vec<_> = raw.iter().map(|stage| StageConfig::resolve(stage, clip)).collect();
        let Some(scale) = scale else { return Ok(stages) };
        if stages.is_empty() {
            return error(format!("--stage-scale {scale}: all steps are of one shape; use --batch-size"));
        }
        for (i, stage) in stages.iter_mut().enumerate() {
            let sequences = (f64::from(stage.batch_size) * scale).floor();
            if !(1.0..=f64::from(u32::MAX)).contains(&sequences) {
                return error(format!(
                    "--stage-scale {scale}: stage {} has {} sequences, and so many times that is no number of them",
                    i + 1,
                    stage.batch_size
                ));
            }
            stage.batch_size = sequences as u32;
        }
        Ok(stages)
    }

    fn resolve(raw: &RawStage, clip: f32) -> StageConfig {
        let RawStage { from, seq_len, batch_size, accumulate, lr, clip: own } = *raw;
        let (accumulate, lr, clip) = (accumulate.unwrap_or(1), lr.unwrap_or(1.0), own.unwrap_or(clip));
        StageConfig { from, seq_len, batch_size, accumulate, lr, clip }
    }

    fn resolved(self) -> Stage {
        let StageConfig { from, seq_len, batch_size, accumulate, lr, clip } = self;
        Stage { from, batch: batch_size, seq_len, accumulate, rate: lr, clip }
    }
}

impl Config {
    pub(super) fn validate_stages(&self) -> Result<(), ConfigError> {
        if self.stage.is_empty() {
            return Ok(());
        }
        let all: Vec<Stage> = self.stage.iter().map(|stage| stage.resolved()).collect();
        Curriculum::new(&all).map_err(|e| ConfigError(format!("[[stage]]: {e}")))?;
        for (i, stage) in self.stage.iter().enumerate() {
            let of = |what: &dyn std::fmt::Display| ConfigError(format!("[[stage]] {}: {what}", i + 1));
            let shape = self.shaped(stage.batch_size, stage.seq_len);
            self.family().validate_micro_batch(&shape).map_err(|e| of(&e))?;
            if stage.accumulate == 0 {
                return Err(of(&"accumulate is 0; it must be at least 1"));
            }
            for (name, x) in [("lr", stage.lr), ("clip", f64::from(stage.clip))] {
                if !(x.is_finite() && x >= 0.0) {
                    return Err(of(&format!("{name} {x} is no number of at least 0")));
                }
            }
        }
        Ok(())
    }

    /// The curriculum: one entry for each stage, or a single one for the whole run. Stages that begin after the run's
    /// last step are omitted.
    pub fn stages(&self) -> Vec<Stage> {
        let Config { batch_size: batch, seq_len, accumulate, clip, steps, .. } = *self;
        if self.stage.is_empty() {
            return vec![Stage { from: 0, batch, seq_len, accumulate, rate: 1.0, clip }];
        }
        let reached = |stage: &&StageConfig| steps == 0 || stage.from == 0 || stage.from < steps;
        self.stage.iter().filter(reached).map(|stage| stage.resolved()).collect()
    }

    /// The same run with the shape of stage `number`, counted from 1, in all steps.
    ///
    /// # Errors
    /// There is no such stage.
    pub fn only(mut self, number: usize) -> Result<Config, ConfigError> {
        let Some(stage) = number.checked_sub(1).and_then(|i| self.stage.get(i)).copied() else {
            let there = self.stage.len();
            return Err(ConfigError(format!("there is no stage {number}; this configuration has {there}")));
        };
        (self.batch_size, self.seq_len, self.accumulate) = (stage.batch_size, stage.seq_len, stage.accumulate);
        self.stage.clear();
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawConfig;

    fn raw(text: &str) -> RawConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn one_factor_scales_every_stage() {
        let published = Config::resolve(raw("preset = 'yxanul-197m'")).unwrap();
        for factor in [4.0, 0.5, 1.0] {
            let scaled = Config::resolve(raw(&format!("preset = 'yxanul-197m'\nstage_scale = {factor:.1}"))).unwrap();
            for (stage, was) in scaled.stage.iter().zip(&published.stage) {
                let batch_size = (f64::from(was.batch_size) * factor) as u32;
                assert_eq!(*stage, StageConfig { batch_size, ..*was });
            }
            assert_eq!(scaled.batch_size, (32.0 * factor) as u32);
            // The run continues with the command line it began with, and is not scaled twice.
            let line = RawConfig { stage_scale: Some(factor), ..raw("preset = 'yxanul-197m'") };
            assert_eq!(scaled.resumed(line.clone()).unwrap(), scaled);
            assert_eq!(scaled.resumed(raw("")).unwrap(), scaled);
            let other = RawConfig { stage_scale: Some(3.0), ..line };
            assert!(scaled.resumed(other).unwrap_err().to_string().contains("--stage-scale 3"));
        }
        for (text, says) in [
            ("stage_scale = 2.0", "--batch-size"),
            ("preset = 'yxanul-197m'\nseq_len = 64\nstage_scale = 2.0", "--batch-size"),
            ("preset = 'yxanul-197m'\nstage_scale = 0.01", "stage 9"),
            ("preset = 'yxanul-197m'\nstage_scale = -1.0", "stage 1"),
            ("preset = 'yxanul-197m'\nstage_scale = nan", "stage 1"),
            ("preset = 'yxanul-197m'\nstage_scale = 1e9", "stage 1"),
        ] {
            let message = Config::resolve(raw(text)).unwrap_err().to_string();
            assert!(message.contains(says) && !message.contains('\n'), "{text}: {message}");
        }
    }

    /// Out of order.
    const TWO_STAGES: &str =
        "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2\n[[stage]]\nfrom = 0\nseq_len = 16\nbatch_size = 2";

    #[test]
    fn stages_that_the_run_does_not_reach_are_not_of_it() {
        let stages = TWO_STAGES.replacen("from = 0\nseq_len = 16", "from = 7\nseq_len = 16", 1);
        let resolve = |steps| Config::resolve(raw(&format!("steps = {steps}\nclip = 0.7\n{stages}"))).unwrap();
        let [short, long] = [7, 8].map(resolve);
        assert_eq!((short.stages().len(), long.stages().len()), (1, 2));
        assert_eq!((long.seq_len, long.stages()[1].clip), (16, 0.7));
        let text = toml::to_string(&long).unwrap();
        assert_eq!(toml::from_str::<Config>(&text).unwrap(), long);
        assert_eq!(long.clone().only(1).unwrap().seq_len, 8);
        assert!(long.only(3).unwrap_err().to_string().contains("has 2"));
    }

    #[test]
    fn what_is_no_stage_is_refused_in_one_line() {
        let unreached = format!("steps = 1\n{}", TWO_STAGES.replace("from = 0\nseq_len = 8", "from = 5\nseq_len = 8"));
        let cases = [
            (unreached.as_str(), "first stage"),
            ("[[stage]]\nfrom = 1\nseq_len = 8\nbatch_size = 2", "first stage"),
            (TWO_STAGES, "stage 2"),
            ("[[stage]]\nfrom = 0\nseq_len = 4096\nbatch_size = 2", "context"),
            ("[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2\naccumulate = 0", "accumulate"),
            ("[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2\nclip = -1.0", "clip"),
        ];
        for (text, expected) in cases {
            let message = Config::resolve(raw(text)).unwrap_err().to_string();
            assert!(message.contains(expected) && !message.contains('\n'), "{text}: {message}");
        }
    }
}
