//! The number of rows of logits computed at a time, where the plan decides it.

use capful_core::train::Stage;

use super::{Machine, Plan};
use crate::config::{Config, GPU_CHUNK};

/// More rows make no matrix multiplication faster.
const MOST: u32 = 16_384;

impl Plan {
    /// Doubles a GPU's default chunk as long as the run needs no more memory for it. Logits share their memory with a
    /// layer's gradients, so up to the size of these they cost nothing, and matrix multiplications of more rows are
    /// faster.
    pub(super) fn widen_chunk(mut config: Config, machine: &Machine) -> Config {
        // A preset may set another chunk.
        if !config.device.starts_with("cuda") || config.chunk != GPU_CHUNK {
            return config;
        }
        let rows = |stage: &Stage| u64::from(stage.batch) * u64::from(stage.seq_len);
        let rows = config.stages().iter().map(rows).max().unwrap_or(0);
        // A configuration that cannot be planned is refused later, with the reason.
        let needed = |config: &Config| Plan::of(config, machine).ok().map(|plan| plan.needed_bytes);
        let Some(most) = needed(&config) else { return config };
        while config.chunk < MOST && u64::from(config.chunk) < rows {
            let tried = Config { chunk: 2 * config.chunk, ..config.clone() };
            if needed(&tried).is_none_or(|bytes| bytes > most) {
                break;
            }
            config = tried;
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(text: &str) -> Config {
        let preset = if text.contains("preset") { "" } else { "preset = 'pythia-70m'\n" };
        Plan::settle(toml::from_str(&format!("{preset}{text}")).unwrap(), 0).unwrap().config
    }

    fn needed(config: &Config, chunk: u32) -> u64 {
        let tried = Config { chunk, ..config.clone() };
        Plan::of(&tried, &Machine::of(&tried).unwrap()).unwrap().needed_bytes
    }

    #[test]
    fn a_chunk_is_as_wide_as_costs_nothing() {
        for (text, chunk) in [
            ("gpu = 'h200'\nvocab_size = 10000\nbatch_size = 1024", 16_384),
            // The memory of the gradients for 65,536 rows of 2,048 values has room for 8,192 rows of 16,000 logits.
            ("gpu = 'h200'\nvocab_size = 16000\nbatch_size = 512", 8192),
            ("gpu = 'h200'\nvocab_size = 50304\nseq_len = 2048\nbatch_size = 32", 4096),
        ] {
            let config = settled(text);
            assert_eq!((config.chunk, needed(&config, chunk)), (chunk, needed(&config, 4096)), "{text}");
            assert!(chunk == MOST || needed(&config, 2 * chunk) > needed(&config, chunk), "{text}");
        }
    }

    #[test]
    fn a_chunk_that_is_given_or_holds_all_rows_or_a_processors_stays() {
        for (text, chunk) in [
            ("gpu = 'h200'\nvocab_size = 10000\nbatch_size = 1024\nchunk = 4096", 4096),
            ("gpu = 'h200'\nvocab_size = 10000\nbatch_size = 32", 4096),
            ("device = 'cpu'\nvocab_size = 10000\nbatch_size = 1024", 512),
            ("preset = 'yxanul-197m'\ngpu = 'h200'\nvocab_size = 4096", 1024),
        ] {
            assert_eq!(settled(text).chunk, chunk, "{text}");
        }
    }
}
