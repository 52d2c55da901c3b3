//! Finds changes that make a spiking model fit: first smaller steps, then smaller sizes in the order of their effect,
//! by planning each.

use super::{Machine, Plan};
use crate::config::{ByteSize, Config, Found, ModelConfig, NameOrSize, NeuroGenConfig, RawConfig};
use capful_base::human_bytes;

/// Presets for small GPUs, the medium one first.
const PRESETS: [&str; 4] = ["gtx1650-balanced", "gtx1650-ultra", "neurogen-39k", "neurogen-tiny"];

/// The smallest segments and chunks that are tried.
const LEAST: u32 = 16;

/// One line: smaller steps that fit; or the sizes to lower, the widest decoder that fits, and a preset that fits.
pub fn that_fits(config: &Config, model: &NeuroGenConfig, machine: &Machine, budget: u64) -> String {
    let needed = |config: &Config| {
        config.validate().ok()?;
        let bytes = Plan::of(config, machine).ok()?.needed_bytes;
        (bytes <= budget).then_some(bytes)
    };
    let steps = smaller_steps(config);
    if let Some((flags, bytes)) = steps.iter().find_map(|step| Some((flags(config, step), needed(step)?))) {
        return format!("{flags} fits ({})", human_bytes(bytes));
    }
    let mut advice = vec![format!(
        "lower broca_outputs first (the decoder is {} × {}), then pfc_neurons, then wernicke_neurons and broca_neurons",
        model.vocab_size, model.broca_outputs
    )];
    // With the requested steps if that suffices, else with the smallest.
    let narrower = [Some(config), steps.last()].into_iter().flatten().find_map(|step| {
        let (smaller, bytes) = narrower_decoder(step, model, &needed)?;
        let more = flags(config, step);
        let more = if more.is_empty() { more } else { format!(" {more}") };
        Some(format!("--set broca_outputs={}{more} fits ({})", smaller.broca_outputs, human_bytes(bytes)))
    });
    advice.extend(narrower);
    let preset = PRESETS.iter().find_map(|name| {
        let raw = RawConfig {
            preset: Some((*name).to_owned()),
            device: Some(config.device.clone()),
            precision: Some(config.precision),
            threads: Some(config.threads),
            gpu: config.gpu.clone().map(NameOrSize),
            budget: config.budget.map(ByteSize),
            ..RawConfig::default()
        };
        let bytes = needed(&Config::resolve_with(raw, &Found::default()).ok()?)?;
        Some(format!("--preset {name} fits ({})", human_bytes(bytes)))
    });
    advice.extend(preset);
    advice.join("; ")
}

/// The same model in smaller steps, the mildest change first: fewer rows of logits at a time, which affects no result,
/// then fewer streams, then shorter segments. Stages have shapes of their own.
fn smaller_steps(config: &Config) -> Vec<Config> {
    let halves = |n: u32, least: u32| std::iter::successors(Some(n), move |n| (n / 2 >= least).then_some(n / 2));
    let mut shapes: Vec<(u32, u32)> = halves(config.batch_size, 1).map(|batch| (batch, config.seq_len)).collect();
    shapes.extend(halves(config.seq_len, LEAST).skip(1).map(|seq_len| (1, seq_len)));
    if !config.stage.is_empty() {
        shapes.truncate(1);
    }
    let with = |(batch_size, seq_len): (u32, u32)| {
        halves(config.chunk, LEAST).map(move |chunk| Config { batch_size, seq_len, chunk, ..config.clone() })
    };
    shapes.into_iter().flat_map(with).skip(1).collect()
}

/// The widest decoder that fits, of at most half the width.
fn narrower_decoder(
    config: &Config,
    model: &NeuroGenConfig,
    needed: &dyn Fn(&Config) -> Option<u64>,
) -> Option<(NeuroGenConfig, u64)> {
    let mut smaller = *model;
    while smaller.broca_outputs > model.fan_out.max(64) {
        smaller.broca_outputs /= 2;
        let tried = Config { model: ModelConfig::NeuroGen(smaller), ..config.clone() };
        if let Some(bytes) = needed(&tried) {
            return Some((smaller, bytes));
        }
    }
    None
}

/// The flags that change the steps of `from` into those of `to`.
fn flags(from: &Config, to: &Config) -> String {
    let each = [
        ("--batch-size", from.batch_size, to.batch_size),
        ("--seq-len", from.seq_len, to.seq_len),
        ("--chunk", from.chunk, to.chunk),
    ];
    let flags = each.into_iter().filter(|(_, from, to)| from != to).map(|(flag, _, to)| format!("{flag} {to}"));
    flags.collect::<Vec<_>>().join(" ")
}
