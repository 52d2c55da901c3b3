//! The sizes and parts of a transformer as they are written.

use capful_core::model::Transformer;
use capful_core::model::transformer::{self, Dialect};
use capful_core::ops::{self, NormKind};
use serde::{Deserialize, Serialize};

/// Which norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// LayerNorm, with gain and bias.
    Layer,
    /// RMSNorm, with a gain.
    Rms,
}

/// How attention and feed-forward are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residual {
    /// One after the other.
    Sequential,
    /// Both of the layer's input.
    Parallel,
}

/// What a feed-forward does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Feed {
    /// The exact GELU.
    Gelu,
    /// SwiGLU.
    SwiGlu,
}

/// Which linear layers of a block have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", rename_all = "lowercase")]
pub enum Bias {
    /// None.
    None,
    /// All.
    All,
    /// Those before and behind attention.
    Attention,
    /// Those that make queries, keys and values.
    Qkv,
    /// The feed-forward's.
    Feed,
}

impl Bias {
    /// Their words, in the order of the variants.
    pub(super) const WORDS: [&str; 5] = ["none", "all", "attention", "qkv", "feed"];
}

impl TryFrom<toml::Value> for Bias {
    type Error = String;

    /// A word; or a switch, as it is written by earlier versions.
    fn try_from(value: toml::Value) -> Result<Bias, String> {
        match value.as_str() {
            Some("none") => Ok(Bias::None),
            Some("all") => Ok(Bias::All),
            Some("attention") => Ok(Bias::Attention),
            Some("qkv") => Ok(Bias::Qkv),
            Some("feed") => Ok(Bias::Feed),
            _ => match value.as_bool() {
                Some(all) => Ok(if all { Bias::All } else { Bias::None }),
                None => Err(format!("bias is {value}; it must be one of {}", Bias::WORDS.join(", "))),
            },
        }
    }
}

/// How rotary wavelengths are stretched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RotaryScaling {
    /// Not at all.
    None,
    /// All by one factor.
    Linear,
    /// The long ones, as in Llama 3.1.
    Llama3,
}

/// A transformer's sizes and parts: the keys of `[model]` and `--set`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerConfig {
    /// Layers.
    pub layers: u32,
    /// Width.
    pub d_model: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; 0 for as many as there are query heads.
    pub kv_heads: u32,
    /// Elements of a head; 0 for the width by the query heads.
    pub head_size: u32,
    /// Width of the feed-forward.
    pub d_ff: u32,
    /// The most positions.
    pub context: u32,
    /// Token ids.
    pub vocab_size: u32,
    /// Columns of the factorised embedding; 0 where it is plain.
    pub rank: u32,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Which norm.
    pub norm: Norm,
    /// How a layer's branches are added.
    pub residual: Residual,
    /// What the feed-forward does.
    pub feed: Feed,
    /// Which linear layers have biases.
    pub bias: Bias,
    /// Whether queries and keys are normalised.
    pub qk_norm: bool,
    /// Rotated share of each head.
    pub rotary_pct: f32,
    /// Base of the rotary wavelengths.
    pub rotary_base: f32,
    /// How they are stretched.
    pub rotary_scaling: RotaryScaling,
    /// By how much.
    pub rotary_factor: f32,
    /// Turns in the original context up to which `llama3` stretches by all of the factor.
    pub rotary_low: f32,
    /// Turns from which on it does not stretch.
    pub rotary_high: f32,
    /// Positions of the original context.
    pub rotary_original: u32,
    /// Added to the variance, or mean square, in norms.
    pub norm_eps: f32,
}

impl TransformerConfig {
    /// What is not written, where the family is one of `dialect`.
    pub(super) fn defaults(dialect: Dialect) -> toml::Table {
        let text = match dialect {
            Dialect::GptNeox => include_str!("presets/gpt_neox.toml"),
            Dialect::Llama => include_str!("presets/llama.toml"),
        };
        // A test parses both with every preset.
        toml::from_str(text).unwrap_or_default()
    }

    /// The model.
    pub(super) fn family(&self, dialect: Dialect) -> Transformer {
        let head_size = match self.head_size {
            // Where the heads do not divide the width, that is refused later.
            0 if self.d_model.is_multiple_of(self.heads.max(1)) => self.d_model / self.heads.max(1),
            given => given,
        };
        // As GPT-NeoX: the share of a head, rounded down; an odd number is refused later.
        let rotary_dims = f64::from(head_size) * f64::from(self.rotary_pct);
        Transformer {
            layers: self.layers,
            d_model: self.d_model,
            heads: self.heads,
            kv_heads: if self.kv_heads > 0 { self.kv_heads } else { self.heads },
            head_size,
            d_ff: self.d_ff,
            vocab_size: self.vocab_size,
            context: self.context,
            rank: (self.rank > 0).then_some(self.rank),
            tied: self.tied,
            norm: match self.norm {
                Norm::Layer => NormKind::Layer,
                Norm::Rms => NormKind::Rms,
            },
            residual: match self.residual {
                Residual::Sequential => transformer::Residual::Sequential,
                Residual::Parallel => transformer::Residual::Parallel,
            },
            feed: match self.feed {
                Feed::Gelu => transformer::Feed::Gelu,
                Feed::SwiGlu => transformer::Feed::SwiGlu,
            },
            bias: match self.bias {
                Bias::None => transformer::Biases::NONE,
                Bias::All => transformer::Biases::ALL,
                Bias::Attention => transformer::Biases::ATTENTION,
                Bias::Qkv => transformer::Biases::QKV,
                Bias::Feed => transformer::Biases::FEED,
            },
            qk_norm: self.qk_norm,
            rotary_dims: rotary_dims as u32,
            rotary_base: self.rotary_base,
            rotary_scaling: match self.rotary_scaling {
                RotaryScaling::None => ops::RotaryScaling::None,
                RotaryScaling::Linear => ops::RotaryScaling::Linear { factor: self.rotary_factor },
                RotaryScaling::Llama3 => ops::RotaryScaling::Llama3 {
                    factor: self.rotary_factor,
                    low: self.rotary_low,
                    high: self.rotary_high,
                    original: self.rotary_original,
                },
            },
            norm_eps: self.norm_eps,
            dialect,
        }
    }
}
