//! The sizes and parts of a transformer as they are written.

use capful_core::model::Transformer;
use capful_core::model::transformer::{self, Dialect};
use capful_core::ops::NormKind;
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
    /// Whether linear layers have biases.
    pub bias: bool,
    /// Rotated share of each head.
    pub rotary_pct: f32,
    /// Base of the rotary wavelengths.
    pub rotary_base: f32,
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
        // As GPT-NeoX: the share of a head, rounded down; an odd number is refused later.
        let rotary_dims = f64::from(self.d_model) / f64::from(self.heads.max(1)) * f64::from(self.rotary_pct);
        Transformer {
            layers: self.layers,
            d_model: self.d_model,
            heads: self.heads,
            kv_heads: if self.kv_heads > 0 { self.kv_heads } else { self.heads },
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
            bias: self.bias,
            rotary_dims: rotary_dims as u32,
            rotary_base: self.rotary_base,
            norm_eps: self.norm_eps,
            dialect,
        }
    }
}
