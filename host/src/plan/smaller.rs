//! What would make a spiking model fit: its sizes in the order of what they give, tried on the ledger.

use super::{Machine, Plan};
use crate::config::{Config, ModelConfig, NeuroGenConfig, RawConfig, human_bytes};

/// Presets for small GPUs, the one in the middle first.
const PRESETS: [&str; 4] = ["gtx1650-balanced", "gtx1650-ultra", "neurogen-39k", "neurogen-tiny"];

/// One line: which sizes to lower, the widest decoder that fits, and a preset that does.
pub fn that_fits(config: &Config, model: &NeuroGenConfig, machine: &Machine, budget: u64) -> String {
    let needed = |config: &Config| {
        let bytes = Plan::of(config, machine).ok()?.needed_bytes;
        (bytes <= budget).then_some(bytes)
    };
    let mut advice = vec![format!(
        "lower broca_outputs first (the decoder is {} × {}), then pfc_neurons, then wernicke_neurons and broca_neurons",
        model.vocab_size, model.broca_outputs
    )];
    let mut smaller = *model;
    while smaller.broca_outputs > model.fan_out.max(64) {
        smaller.broca_outputs /= 2;
        let tried = Config { model: ModelConfig::NeuroGen(smaller), ..config.clone() };
        if let Some(bytes) = needed(&tried) {
            advice.push(format!("--set broca_outputs={} fits ({})", smaller.broca_outputs, human_bytes(bytes)));
            break;
        }
    }
    let preset = PRESETS.iter().find_map(|name| {
        let raw = RawConfig {
            preset: Some((*name).to_owned()),
            device: Some(config.device.clone()),
            precision: Some(config.precision),
            threads: Some(config.threads),
            gpu: config.gpu.clone(),
            budget: config.budget.map(|bytes| format!("{bytes}B")),
            ..RawConfig::default()
        };
        let bytes = needed(&Config::resolve(raw).ok()?)?;
        Some(format!("--preset {name} fits ({})", human_bytes(bytes)))
    });
    advice.extend(preset);
    advice.join("; ")
}
