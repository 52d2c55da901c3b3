//! Checks where gradients may have a lower precision.

use capful_core::model::Capability;

use super::error::error;
use super::{Config, ConfigError, Gradients, Precision};

/// The most terms in the sum of a gradient in bf16. With this many equal terms the last one is still one or two units
/// in the last place of the sum; much smaller terms would be lost one after the other.
const MOST_PARTS: u64 = 128;

impl Config {
    pub(super) fn validate_gradients(&self) -> Result<(), ConfigError> {
        if self.gradients == Gradients::F32 {
            return Ok(());
        }
        if self.precision == Precision::F32 {
            return error(
                "--gradients bf16: in f32 gradients are f32; use --precision bf16 or fp8, or --gradients f32"
                    .to_owned(),
            );
        }
        if let Some(why) = self.family().lacks(Capability::Bf16Gradients) {
            return error(format!("--gradients bf16: {why}; use --gradients f32"));
        }
        if self.ranks().shares() {
            let why =
                if self.ranks > 1 { format!("{} ranks share", self.ranks) } else { "--exact-ranks adds".to_owned() };
            return error(format!("--gradients bf16: {why} gradients in f32; use --gradients f32"));
        }
        for stage in self.stages() {
            let rows = u64::from(stage.batch) * u64::from(stage.seq_len);
            let (micro_batches, chunks) = (u64::from(stage.accumulate), rows.div_ceil(self.chunk.max(1).into()));
            if micro_batches.saturating_mul(chunks) > MOST_PARTS {
                return error(format!(
                    "--gradients bf16: a step adds up {micro_batches} × {chunks} parts (micro-batches, chunks of logits), \
                     more than {MOST_PARTS}; use a larger --chunk, a smaller --accumulate, or --gradients f32"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawConfig;

    fn refused(text: &str) -> Option<String> {
        let raw: RawConfig = toml::from_str(&format!("gradients = 'bf16'\n{text}")).unwrap();
        Config::resolve(raw).err().map(|e| e.to_string())
    }

    #[test]
    fn gradients_in_bf16_are_for_few_parts_in_bf16_on_one_gpu() {
        let gpu = "device = 'cuda'\nprecision = 'bf16'\nseq_len = 128\nbatch_size = 1024\n";
        assert_eq!(refused(gpu), None);
        assert_eq!(refused(&format!("{gpu}accumulate = 4")), None);
        for (text, why) in [
            ("", "--precision bf16"),
            ("device = 'cuda'", "--precision bf16"),
            (&format!("{gpu}accumulate = 5"), "5 × 32 parts"),
            (&format!("{gpu}chunk = 512"), "1 × 256 parts"),
            (&format!("{gpu}exact_ranks = true"), "--exact-ranks"),
            ("preset = 'neurogen-tiny'\ndevice = 'cuda'\nprecision = 'bf16'", "NeuroGen"),
        ] {
            let message = refused(text).unwrap_or_default();
            assert!(message.starts_with("--gradients bf16") && message.contains(why), "{text}: {message}");
        }
        // A stage of a curriculum.
        let stages = "device = 'cuda'\nprecision = 'bf16'\n[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 64\n\
                      [[stage]]\nfrom = 9\nseq_len = 64\nbatch_size = 64\naccumulate = 129";
        assert!(refused(stages).is_some_and(|message| message.contains("129 × 1 parts")));
    }
}
