//! The sizes and parts of a transformer in written form.

use capful_core::model::Transformer;
use capful_core::model::transformer::{self, Dialect};
use capful_core::ops::{self, NormKind};
use serde::{Deserialize, Serialize};

use super::keys::{Key, SIZE, SIZES, Values, model_keys, words};

words! {
    /// Which norm.
    Norm => NormKind {
        /// LayerNorm, with gain and bias.
        Layer "layer" => NormKind::Layer;
        /// RMSNorm, with a gain.
        Rms "rms" => NormKind::Rms;
    }
}

words! {
    /// How attention and feed-forward are added.
    Residual => transformer::Residual {
        /// One after the other.
        Sequential "sequential" => transformer::Residual::Sequential;
        /// Both of the layer's input.
        Parallel "parallel" => transformer::Residual::Parallel;
    }
}

words! {
    /// How first values are drawn.
    FirstValues => transformer::FirstValues {
        /// As the models were published.
        Published "published" => transformer::FirstValues::Published;
        /// What is added to the residual stream, and an untied head, begin at 0.
        ZeroOutputs "zero-outputs" => transformer::FirstValues::ZeroOutputs;
    }
}

words! {
    /// What a feed-forward does.
    Feed => transformer::Feed {
        /// The exact GELU.
        Gelu "gelu" => transformer::Feed::Gelu;
        /// SwiGLU.
        SwiGlu "swiglu" => transformer::Feed::SwiGlu;
    }
}

words! {
    /// Which linear layers of a block have biases.
    #[serde(try_from = "toml::Value")]
    Bias => transformer::Biases {
        /// None.
        None "none" => transformer::Biases::NONE;
        /// All.
        All "all" => transformer::Biases::ALL;
        /// Those before and behind attention.
        Attention "attention" => transformer::Biases::ATTENTION;
        /// Those that make queries, keys and values.
        Qkv "qkv" => transformer::Biases::QKV;
        /// The feed-forward's.
        Feed "feed" => transformer::Biases::FEED;
    }
}

impl TryFrom<toml::Value> for Bias {
    type Error = String;

    /// A word; or a boolean, as in earlier versions.
    fn try_from(value: toml::Value) -> Result<Bias, String> {
        let once = value.as_bool().map(|all| if all { Bias::All } else { Bias::None });
        let said = value.as_str().and_then(Bias::named).or(once);
        said.ok_or_else(|| format!("bias is {value}; it must be one of {}", Bias::WORDS.join(", ")))
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

model_keys! {
    /// A transformer's sizes and parts: the keys of `[model]` and `--set`.
    TransformerConfig, TRANSFORMER {
        /// layers
        layers: u32 = SIZE;
        /// width of the residual stream
        d_model: u32 = SIZE;
        /// query heads, a divisor of d_model where head_size is 0
        heads: u32 = SIZE;
        /// key and value heads, a divisor of heads; 0 for as many as heads
        kv_heads: u32 = Values::Whole(0, SIZES);
        /// elements of a head; 0 for d_model / heads
        head_size: u32 = Values::Whole(0, SIZES);
        /// width of the feed-forward
        d_ff: u32 = SIZE;
        /// the most positions
        context: u32 = SIZE;
        /// token ids; the same as --vocab-size
        vocab_size: u32 = SIZE;
        /// rank of a factorised embedding; 0 for a plain one
        rank: u32 = Values::Whole(0, SIZES);
        /// whether the output head shares the embedding
        tied: bool = Values::Switch;
        /// LayerNorm or RMSNorm
        norm: Norm = Values::Word(Norm::WORDS);
        /// whether the gains and biases of norms learn; where not, they stay 1 and 0
        norm_gains: bool = Values::Switch;
        /// how attention and feed-forward are added
        residual: Residual = Values::Word(Residual::WORDS);
        /// the feed-forward's activation
        feed: Feed = Values::Word(Feed::WORDS);
        /// which of the layers' matrices have biases
        bias: Bias = Values::OnceSwitch(Bias::WORDS);
        /// whether each query and key head is normalised
        qk_norm: bool = Values::Switch;
        /// tables of value embeddings, which layers use in turn; 0 for none
        value_tables: u32 = Values::Whole(0, SIZES);
        /// whether the embedding is mixed into the residual stream behind each layer
        stream_scalars: bool = Values::Switch;
        /// C of C tanh(z / C), which logits become; 0: they stay what they are
        softcap: f32 = Values::NotNegative;
        /// share of each head that is rotated
        rotary_pct: f32 = Values::Fraction;
        /// base of the rotary wavelengths
        rotary_base: f32 = Values::Positive;
        /// how rotary wavelengths are stretched
        rotary_scaling: RotaryScaling = Values::Word(&["none", "linear", "llama3"]);
        /// by how much
        rotary_factor: f32 = Values::Positive;
        /// turns in rotary_original up to which llama3 stretches by the whole factor
        rotary_low: f32 = Values::Positive;
        /// turns from which on llama3 does not stretch
        rotary_high: f32 = Values::Positive;
        /// positions of the context before llama3 stretched it
        rotary_original: u32 = SIZE;
        /// how first values are drawn
        init: FirstValues = Values::Word(FirstValues::WORDS);
        /// added to the variance or mean square in norms
        norm_eps: f32 = Values::Positive;
    }
}

impl TransformerConfig {
    /// The defaults of missing keys, for a family of `dialect`.
    pub(super) fn defaults(dialect: Dialect) -> toml::Table {
        let text = match dialect {
            Dialect::GptNeox => include_str!("presets/gpt_neox.toml"),
            Dialect::Llama => include_str!("presets/llama.toml"),
        };
        // A test parses both texts together with every preset.
        toml::from_str(text).unwrap_or_default()
    }

    /// The model.
    pub(super) fn family(&self, dialect: Dialect) -> Transformer {
        let head_size = match self.head_size {
            // Heads that do not divide the width are refused later.
            0 if self.d_model.is_multiple_of(self.heads.max(1)) => self.d_model / self.heads.max(1),
            given => given,
        };
        // As in GPT-NeoX: the share of a head, rounded down; an odd number is refused later.
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
            norm: self.norm.core(),
            norm_gains: self.norm_gains,
            residual: self.residual.core(),
            feed: self.feed.core(),
            bias: self.bias.core(),
            qk_norm: self.qk_norm,
            value_tables: self.value_tables,
            stream_scalars: self.stream_scalars,
            softcap: self.softcap,
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
            first: self.init.core(),
            adapters: None,
        }
    }
}
