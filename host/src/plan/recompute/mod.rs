//! The memory saved and the time added by recomputing activations, or by storing them in 8 bits: determined by planning
//! each choice.

mod fit;

use capful_core::model::{self, EightBits, MicroBatch};
use serde::Serialize;

use super::{Machine, Plan};
use crate::config::{Config, ConfigError, Recompute};

/// The effect of one kind of activation, with all other kinds as configured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tradeoff {
    /// Its name in `--recompute`.
    pub activation: &'static str,
    /// Whether it is recomputed, or stored in 8 bits, in any layer of this run.
    pub again: bool,
    /// Bytes of the arena that the choice saves, over all layers. Negative if a slot shared by all layers makes it
    /// larger.
    pub saved_bytes: i64,
    /// Floating-point operations that it adds to a step.
    pub flops: u64,
    /// Bytes of operands that it adds to a step.
    pub bytes: u64,
    /// Roofline seconds that it adds to a step.
    pub seconds: f64,
}

/// The configuration with this choice.
fn with(set: model::Recompute, config: &Config) -> Config {
    Config { recompute: Recompute(set), ..config.clone() }
}

/// The activations that the model can store in 8 bits.
fn reducible(config: &Config) -> Vec<EightBits> {
    let keeps = |kind: &EightBits| {
        let recompute = model::Recompute::NONE.with_eight_bits(*kind, model::Recompute::ALL_LAYERS);
        config.family().validate_micro_batch(&MicroBatch { recompute, ..config.micro_batch() }).is_ok()
    };
    EightBits::ALL.into_iter().filter(keeps).collect()
}

impl Plan {
    /// The effect of each kind of activation of the model. For a curriculum, steps are those of the last stage.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn tradeoffs(config: &Config, machine: &Machine) -> Result<Vec<Tradeoff>, ConfigError> {
        let (set, with) = (config.recompute.0, |set| Plan::of(&with(set, config), machine));
        let tradeoff = |activation: &'static str, again: bool, [less, more]: [model::Recompute; 2]| {
            let (kept, saved) = (with(less)?, with(more)?);
            Ok(Tradeoff {
                activation,
                again,
                saved_bytes: kept.arena_bytes as i64 - saved.arena_bytes as i64,
                flops: saved.flops_per_step.saturating_sub(kept.flops_per_step),
                bytes: saved.bytes_per_step.saturating_sub(kept.bytes_per_step),
                seconds: saved.roofline_seconds - kept.roofline_seconds,
            })
        };
        // Recomputed activations are not stored in 8 bits as well.
        let again = config.family().recomputable().iter().map(|kind| {
            let eighths = EightBits::ALL.into_iter().filter(|eighths| eighths.activation() == Some(kind));
            let more = eighths.fold(set.with(kind), |set, eighths| set.with_eight_bits(eighths, 0));
            tradeoff(kind.name(), set.contains(kind), [set.without(kind), more])
        });
        let eighths = reducible(config).into_iter().map(|kind| {
            let set = kind.activation().map_or(set, |activation| set.without(activation));
            let of = |layers| set.with_eight_bits(kind, layers);
            tradeoff(kind.name(), set.eight_bits(kind) > 0, [of(0), of(model::Recompute::ALL_LAYERS)])
        });
        again.chain(eighths).collect()
    }
}

/// The table for people; empty for a model without recomputation.
pub fn table(tradeoffs: &[Tradeoff]) -> String {
    if tradeoffs.is_empty() {
        return String::new();
    }
    let mut out =
        format!("  {:<10} {:<6} {:>14} {:>12} {:>12}\n", "recompute", "again", "saved bytes", "GFLOP more", "ms more");
    for t in tradeoffs {
        let again = if t.again { "yes" } else { "no" };
        let (gflop, ms) = (t.flops as f64 / 1e9, t.seconds * 1e3);
        out.push_str(&format!("  {:<10} {again:<6} {:>14} {gflop:>12.3} {ms:>12.3}\n", t.activation, t.saved_bytes));
    }
    out
}

#[cfg(test)]
mod tests {
    use capful_core::model::Activation;

    use super::*;
    use crate::config::{AnyFamily, ModelConfig};

    pub(super) fn config(text: &str) -> (Config, Machine) {
        let config = Config::resolve(toml::from_str(text).unwrap()).unwrap();
        let machine = Machine::of(&config).unwrap();
        (config, machine)
    }

    #[test]
    fn of_a_kind_that_is_computed_again_one_layer_is_left() {
        // 4 layers of [2, 64, d]: three of them are saved; their bytes need no padding.
        for (preset, recompute) in [("yxanul-tiny", "none"), ("yxanul-tiny", "gate_up,mid"), ("pythia-tiny", "cheap")] {
            let (config, machine) =
                config(&format!("preset = '{preset}'\nbatch_size = 2\nseq_len = 64\nrecompute = '{recompute}'"));
            let layers = u64::from(config.model.layers());
            let kept = Config { recompute: Recompute::NONE, ..config.clone() };
            let lines = Plan::of(&kept, &machine).unwrap().regions;
            let bytes = |names: &[&str]| {
                let named = lines.iter().filter(|l| names.contains(&l.name.as_str()));
                named.map(|l| l.bytes + l.padding).sum::<u64>() / layers * (layers - 1)
            };
            let tradeoffs = Plan::tradeoffs(&config, &machine).unwrap();
            let exact = tradeoffs.iter().filter(|t| !t.activation.ends_with('8'));
            for t in exact.filter(|t| t.activation != "norm2" && t.activation != "mid") {
                let names: &[&str] = match t.activation {
                    "norm1" => &["layers.norm1"],
                    "qkv" => &["layers.qkv", "layers.qk_raw", "layers.qk_stats"],
                    "mixed" => &["layers.mixed", "layers.log_sum"],
                    "gate_up" => &["layers.up"],
                    _ => &["layers.activated"],
                };
                assert_eq!(t.saved_bytes as u64, bytes(names), "{preset} {recompute} {}", t.activation);
                assert!(t.seconds > 0.0 && t.bytes > 0, "{t:?}");
            }
            let products = tradeoffs.iter().filter(|t| t.flops > 0).map(|t| t.activation);
            let expected = match preset {
                "pythia-tiny" => vec!["qkv", "mixed", "gate_up"],
                _ => vec!["qkv", "mixed", "mid", "gate_up"],
            };
            assert_eq!(products.collect::<Vec<_>>(), expected);
            assert_eq!(table(&tradeoffs).lines().count(), 1 + tradeoffs.len());
        }
        let (config, machine) = config("preset = 'neurogen-tiny'");
        assert!(table(&Plan::tradeoffs(&config, &machine).unwrap()).is_empty());
    }

    #[test]
    fn every_layer_costs_and_saves_as_much_as_another() {
        let (config, machine) = config("preset = 'yxanul-tiny'\nbatch_size = 2\nseq_len = 64");
        let layers = config.model.layers() as u16;
        let of = |count| {
            let set = model::Recompute::NONE.with_layers(Activation::GateUp, count);
            let plan = Plan::of(&Config { recompute: Recompute(set), ..config.clone() }, &machine).unwrap();
            (plan.arena_bytes as i64, plan.flops_per_step as i64)
        };
        let (none, one) = (of(0), of(1));
        // For a matrix of [2 d_ff, d_model] with 128 tokens.
        let ModelConfig::Yxanul(shape) = &config.model else { panic!("{config:?}") };
        assert_eq!(one.1 - none.1, 2 * 128 * 2 * i64::from(shape.d_ff * shape.d_model));
        for count in 2..layers {
            let (bytes, flops) = of(count);
            assert_eq!(bytes - none.0, i64::from(count) * (one.0 - none.0));
            assert_eq!(flops - none.1, i64::from(count) * (one.1 - none.1));
        }
        assert_eq!(of(layers), of(layers - 1));
    }

    #[test]
    fn what_is_kept_in_8_bits_has_a_line_of_what_it_saves() {
        for (recompute, names) in [
            ("none", &["x8", "mid8", "gate_up8"][..]),
            ("full,x8", &["x8", "mid8", "gate_up8"]),
            ("none", &["x8", "gate_up8"]),
        ] {
            let preset = if names.len() == 3 { "yxanul-tiny" } else { "pythia-tiny" };
            let (config, machine) =
                config(&format!("preset = '{preset}'\nbatch_size = 2\nseq_len = 64\nrecompute = '{recompute}'"));
            let tradeoffs = Plan::tradeoffs(&config, &machine).unwrap();
            let eighths: Vec<_> = tradeoffs.iter().filter(|t| t.activation.ends_with('8')).collect();
            assert!(eighths.iter().map(|t| t.activation).eq(names.iter().copied()));
            let AnyFamily::Transformer(model) = config.family() else { panic!("another family") };
            // 128 tokens in f32, or as one code for each number and one scale for each 128; for all layers except the
            // last.
            let saved = |columns: u32, codes: u32| {
                i64::from(model.layers - 1) * 128 * 4 * i64::from(columns)
                    - i64::from(((model.layers - 1) * codes).next_multiple_of(256))
            };
            for t in eighths {
                let (gated, [d, ff]) = (model.feed.gated(), [model.d_model, model.d_ff]);
                let expected = match t.activation {
                    "gate_up8" if gated => saved(2 * ff, 128 * 2 * ff),
                    "gate_up8" => saved(ff, 132 * ff),
                    // With norm₂ its scale is recomputed too.
                    "mid8" if recompute != "none" => saved(d, 132 * d) + i64::from(model.layers - 1) * 128 * 4,
                    _ => saved(d, 132 * d),
                };
                assert_eq!((t.saved_bytes, t.flops), (expected, 0), "{preset} {recompute} {}", t.activation);
                assert!(t.seconds > 0.0 || t.activation == "gate_up8" && gated, "{t:?}");
                assert_eq!(t.again, t.activation == "x8" && recompute != "none");
            }
        }
    }

    #[test]
    fn gate_and_up_in_8_bits_take_a_byte_a_value_of_their_layers() {
        let needs = |recompute: &str| {
            let (config, machine) =
                config(&format!("preset = 'yxanul-tiny'\nbatch_size = 2\nseq_len = 64\nrecompute = '{recompute}'"));
            Plan::of(&config, &machine).unwrap().arena_bytes
        };
        // [2, 64, 2 d_ff] in f32 or E4M3, for all layers except the last: its gate and up are still available.
        let (config, _) = config("preset = 'yxanul-tiny'");
        let ModelConfig::Yxanul(shape) = &config.model else { panic!("{config:?}") };
        let d_ff = u64::from(shape.d_ff);
        let most = u64::from(config.model.layers()) - 1;
        let all = format!("gate_up8:{}", most + 1);
        for (recompute, layers) in [("gate_up8:1", 1), ("gate_up8:3", 3), (&all, most), ("gate_up8", most)] {
            assert_eq!(needs("none") - needs(recompute), layers * 2 * 64 * 2 * d_ff * 3, "{recompute}");
        }
    }
}
