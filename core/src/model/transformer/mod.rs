//! The transformer family as a configuration: Pythia, Llama and Yxanul are values of it, as is every mix of their
//! parts.
//!
//! A layer adds attention and a feed-forward to the residual stream, each after a norm of its own: sequentially
//! (`m = x + attention(norm₁ x)`, `x ← m + feed(norm₂ m)`) or in parallel (`x ← x + attention(norm₁ x) + feed(norm₂ x)`).
//! A final norm gives h. With a rank r the embedding is `E[id] · Pᵀ` and the logits are `(h · P) · Eᵀ` (Lan et al. 2020);
//! without one the logits are h times the embedding, or times a separate table of the head.

mod adapters;
mod backward;
mod base;
mod copies;
mod eighths;
#[cfg(all(test, feature = "compressed"))]
mod eighths_tests;
mod family;
mod forward;
mod integers;
mod masks;
mod names;
mod regions;
#[cfg(test)]
mod tests;
mod weights;

pub use adapters::{Adapter, Adapters, is_adapter};
pub use base::BaseType;
pub use integers::Integers;
pub use names::Dialect;
pub use regions::{Decoding, Evaluation, Lasting, Network, Training};
use regions::{Forward, QkInput};
pub use weights::{Dense, Gain, ValueTables, Weights};

use super::checks::{Must, check_constants, check_sizes};
use super::family::ModelError;
use crate::device::{Device, OperationError, count};
use crate::memory::Region;
use crate::ops::{AddValues, Heads, Linear, NormKind, QkNorm, Rotary, RotaryScaling, Softcap};

/// How attention and feed-forward are added to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// One after the other.
    Sequential,
    /// Both branches read the layer's input.
    Parallel,
}

/// How initial values are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstValues {
    /// As in the published models that the dialect is named after: see [`Dialect`].
    Published,
    /// Matrices whose output is added to the residual stream begin at 0, so every layer begins as the identity; an
    /// untied head begins at 0 too. An untied embedding has deviation 1, every other matrix 0.58 / √d_model (as in
    /// modded-nanogpt, Jordan et al. 2024).
    ZeroOutputs,
}

/// The function of a feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feed {
    /// `down(gelu(up n))`.
    Gelu,
    /// `down(silu(gate n) ∘ up n)`.
    SwiGlu,
}

impl Feed {
    /// Whether its first matrix is gate and up.
    pub const fn gated(self) -> bool {
        match self {
            Feed::Gelu => false,
            Feed::SwiGlu => true,
        }
    }
}

/// Which linear layers of a block have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// The biases of queries, keys and values.
    pub qkv: bool,
    /// The bias of attention's output projection.
    pub out: bool,
    /// The feed-forward's biases.
    pub feed: bool,
}

impl Biases {
    /// No layer.
    pub const NONE: Biases = Biases { qkv: false, out: false, feed: false };
    /// Every layer.
    pub const ALL: Biases = Biases { qkv: true, out: true, feed: true };
    /// The biases of queries, keys and values, and of attention's output.
    pub const ATTENTION: Biases = Biases { feed: false, ..Biases::ALL };
    /// The biases of queries, keys and values.
    pub const QKV: Biases = Biases { qkv: true, ..Biases::NONE };
    /// The feed-forward's.
    pub const FEED: Biases = Biases { feed: true, ..Biases::NONE };
}

/// A transformer's sizes and parts. All can be chosen freely; the published models are presets of the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transformer {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub d_model: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; they divide the query heads.
    pub kv_heads: u32,
    /// Elements of a head; mostly the width divided by the number of query heads.
    pub head_size: u32,
    /// Width of the feed-forward.
    pub d_ff: u32,
    /// Token ids. In memory they are padded to a multiple of [`Transformer::VOCABULARY_GRAIN`] rows.
    pub vocab_size: u32,
    /// The largest number of positions.
    pub context: u32,
    /// Columns of E where the embedding is factorised.
    pub rank: Option<u32>,
    /// Whether the head uses the embedding's table. With a factorised embedding it does.
    pub tied: bool,
    /// LayerNorm, with gain and bias, or RMSNorm, with a gain.
    pub norm: NormKind,
    /// Whether the gains and biases of norms learn, including those of queries and keys. Where they do not, gains stay
    /// 1 and biases 0, as in norms without parameters.
    pub norm_gains: bool,
    /// How a layer's two branches are added to the residual stream.
    pub residual: Residual,
    /// What the feed-forward does.
    pub feed: Feed,
    /// Which linear layers of a block have biases. The head has none.
    pub bias: Biases,
    /// Whether each query and key head is normalised before it is rotated (Henry et al. 2020): RMSNorm, with a gain that
    /// all query heads of a layer share, and one of all key heads.
    pub qk_norm: bool,
    /// The number of tables of value embeddings: layer l adds the token's row of table l mod this number to its values,
    /// scaled by a learnt gain (Jordan et al. 2024); 0 for none.
    pub value_tables: u32,
    /// Whether the embedding is blended into the residual stream after every layer, by two learnt scalars: see
    /// [`Blend`](crate::ops::Blend).
    pub stream_scalars: bool,
    /// C of `C · tanh(z / C)`, which caps the logits (Gemma 2, Google 2024); 0 for no cap.
    pub softcap: f32,
    /// Rotated dims of each head; even.
    pub rotary_dims: u32,
    /// Base of the rotary wavelengths.
    pub rotary_base: f32,
    /// How the rotary wavelengths are stretched.
    pub rotary_scaling: RotaryScaling,
    /// Added to the variance, or mean square, in norms.
    pub norm_eps: f32,
    /// The names of the tensors, and the initial values published with them.
    pub dialect: Dialect,
    /// How initial values are drawn.
    pub first: FirstValues,
    /// Adapters, which learn while everything else is frozen: see [`Adapters`].
    pub adapters: Option<Adapters>,
}

impl Transformer {
    /// The parts of a GPT-NeoX such as Pythia (Black et al. 2022; Biderman et al. 2023), without sizes.
    pub const GPT_NEOX: Transformer = Transformer {
        layers: 0,
        d_model: 0,
        heads: 0,
        kv_heads: 0,
        head_size: 0,
        d_ff: 0,
        vocab_size: 0,
        context: 0,
        rank: None,
        tied: false,
        norm: NormKind::Layer,
        norm_gains: true,
        residual: Residual::Parallel,
        feed: Feed::Gelu,
        bias: Biases::ALL,
        qk_norm: false,
        value_tables: 0,
        stream_scalars: false,
        softcap: 0.0,
        rotary_dims: 0,
        rotary_base: 10_000.0,
        rotary_scaling: RotaryScaling::None,
        norm_eps: 1e-5,
        dialect: Dialect::GptNeox,
        first: FirstValues::Published,
        adapters: None,
    };
    /// The parts of a Llama (Touvron et al. 2023) with a tied embedding, without sizes. A Yxanul has a rank in
    /// addition.
    pub const LLAMA: Transformer = Transformer {
        tied: true,
        norm: NormKind::Rms,
        residual: Residual::Sequential,
        feed: Feed::SwiGlu,
        bias: Biases::NONE,
        dialect: Dialect::Llama,
        ..Transformer::GPT_NEOX
    };
    /// The vocabulary's rows are padded to a multiple of this, which suits matrix units.
    pub const VOCABULARY_GRAIN: u32 = 64;

    /// Rows of the embedding's table.
    pub const fn vocabulary_rows(&self) -> u32 {
        self.vocab_size.next_multiple_of(Self::VOCABULARY_GRAIN)
    }

    /// Whether every query has a key of its own, and a projection's rows are ordered as in GPT-NeoX.
    const fn interleaved(&self) -> bool {
        let by_head = match self.dialect {
            Dialect::GptNeox => true,
            Dialect::Llama => false,
        };
        by_head && self.heads == self.kv_heads
    }

    /// The order of queries, keys and values in the rows of their one projection.
    pub const fn attention_heads(&self) -> Heads {
        match self.interleaved() {
            true => Heads::interleaved(self.heads, self.head_size),
            false => Heads::grouped(self.heads, self.kv_heads, self.head_size),
        }
    }

    /// Columns of queries, keys and values together.
    const fn qkv_width(&self) -> u32 {
        self.attention_heads().width()
    }

    /// Columns of attention's output.
    const fn mixed_width(&self) -> u32 {
        self.attention_heads().out_width()
    }

    /// Columns of the feed-forward's first output: gate and up, or up alone.
    const fn up_width(&self) -> u32 {
        if self.feed.gated() { 2 * self.d_ff } else { self.d_ff }
    }

    /// The norm of queries and keys of layer `l`, if there is one; `keep` has the regions that save its input for the
    /// backward pass.
    fn qk_norm(&self, weights: &Weights, l: u32, qkv: Region, keep: Option<QkInput>) -> Option<QkNorm> {
        let [query_gain, key_gain] = weights.qk_norm?.map(|gain| gain.at(l));
        let (raw, stats) = (keep.map(|k| k.raw.at(l)), keep.map(|k| k.stats.at(l)));
        Some(QkNorm { qkv, raw, stats, query_gain, key_gain, eps: self.norm_eps, heads: self.attention_heads() })
    }

    /// The addition of layer `l`'s value table to the values, if there are value tables.
    fn add_values(&self, network: &Network, l: u32, ids: Region, qkv: Region) -> Option<AddValues> {
        let (ValueTables { tables, gain }, heads) = (network.weights.values?, self.attention_heads());
        let table = l % self.value_tables.max(1);
        let scales = network.value_scales(table);
        Some(AddValues { ids, table: tables.at(table), scales, gain: gain.at(l), qkv, heads })
    }

    /// The rotation of rows whose positions start again at 0 after every `positions` rows.
    const fn rotary(&self, table: Region, positions: u32) -> Rotary {
        Rotary { table, heads: self.attention_heads(), positions }
    }

    /// Whether both branches of a layer read its input.
    pub const fn parallel(&self) -> bool {
        match self.residual {
            Residual::Sequential => false,
            Residual::Parallel => true,
        }
    }

    /// The number of a norm's statistics: mean and reciprocal deviation, or the scale alone.
    const fn statistics(&self) -> u32 {
        match self.norm {
            NormKind::Layer => 2,
            NormKind::Rms => 1,
        }
    }

    /// The logits of rows `x`, for the vocabulary's rows that are token ids.
    fn head(
        &self,
        device: &mut dyn Device,
        network: &Network,
        forward: &Forward,
        x: Region,
        out: Region,
    ) -> Result<(), OperationError> {
        let mut weight = network.weights.head();
        let scales = forward.readable(device, &mut weight, network.head_scales())?;
        let rows = match scales {
            // Includes the whole pair of the last row.
            Some(scales) if self.vocab_size < scales.paired => self.vocab_size.next_multiple_of(2),
            _ => self.vocab_size,
        };
        let linear = Linear::new(x, weight.slice_rows(0, rows), None, out);
        integers::multiply(device, linear, scales.map(|scales| scales.first_rows(rows)), forward.codes.as_ref())?;
        if self.softcap > 0.0 { device.emit(Softcap { x: out, cap: self.softcap }) } else { Ok(()) }
    }

    fn check(&self) -> Result<(), ModelError> {
        check_sizes(&[
            ("layers", self.layers),
            ("d_model", self.d_model),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("d_ff", self.d_ff),
            ("vocab_size", self.vocab_size),
            ("context", self.context),
            ("rank", self.rank.unwrap_or(1)),
        ])?;
        check_constants(&[
            ("rotary_base", self.rotary_base, Must::Positive),
            ("norm_eps", self.norm_eps, Must::Positive),
            ("softcap", self.softcap, Must::NotNegative),
        ])?;
        self.check_scaling()?;
        let Transformer { d_model, heads, kv_heads, head_size: size, rotary_dims: dims, .. } = *self;
        if size == 0 && !d_model.is_multiple_of(heads) {
            return Err(ModelError::Heads { d_model, heads });
        }
        check_sizes(&[("head_size", size), ("heads * head_size", heads.saturating_mul(size))])?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::Groups { heads, kv_heads });
        }
        check_sizes(&[("rotary_dims", dims)])?;
        if !dims.is_multiple_of(2) || dims > size {
            return Err(ModelError::Rotary { dims, size });
        }
        self.check_adapters()?;
        if self.value_tables > self.layers {
            return Err(ModelError::ValueTables { tables: self.value_tables, layers: self.layers });
        }
        match self.rank {
            Some(rank) if rank > d_model => Err(ModelError::Rank { rank, d_model }),
            Some(_) if !self.tied => Err(ModelError::Untied),
            _ => Ok(()),
        }
    }

    fn check_adapters(&self) -> Result<(), ModelError> {
        let Some(Adapters { rank, alpha, qkv, out, up, down, base: _ }) = self.adapters() else {
            return match self.adapters {
                Some(_) => Err(ModelError::Adapters("this build has none of them; build with the feature adapters")),
                None => Ok(()),
            };
        };
        // The low-rank values of a projection of three parts are three ranks wide.
        check_sizes(&[("lora_rank", rank), ("3 * lora_rank", rank.saturating_mul(3))])?;
        check_constants(&[("lora_alpha", alpha, Must::Positive)])?;
        if !(qkv || out || up || down) {
            return Err(ModelError::Adapters("no projection is named that they belong to"));
        }
        let most = self.smallest_adapted_side();
        if rank > most {
            return Err(ModelError::AdapterRank { rank, most });
        }
        if self.value_tables > 0 || self.stream_scalars {
            return Err(ModelError::Adapters("value tables and stream scalars, which this model has, always learn"));
        }
        Ok(())
    }

    fn check_scaling(&self) -> Result<(), ModelError> {
        let (factor, [low, high]) = match self.rotary_scaling {
            RotaryScaling::None => return Ok(()),
            RotaryScaling::Linear { factor } => (factor, [1.0, 2.0]),
            RotaryScaling::Llama3 { factor, low, high, original } => {
                check_sizes(&[("rotary_original", original)])?;
                (factor, [low, high])
            }
        };
        check_constants(&[
            ("rotary_factor", factor, Must::Positive),
            ("rotary_low", low, Must::Positive),
            ("rotary_high", high, Must::Positive),
        ])?;
        if low < high { Ok(()) } else { Err(ModelError::Scaling { low, high }) }
    }

    /// See [`crate::model::Family::flops_per_token`].
    fn training_flops(&self, seq_len: u32) -> u64 {
        let [d, ff, layers, vocabulary] = [self.d_model, self.d_ff, self.layers, self.vocab_size].map(u64::from);
        let [qkv, mixed, up] = [self.qkv_width(), self.mixed_width(), self.up_width()].map(u64::from);
        let layer = count(&[d, qkv + mixed + up + ff]);
        // P is used twice, at both ends; without it the embedding is looked up and not multiplied.
        let ends = match self.rank.map(u64::from) {
            Some(rank) => count(&[rank, vocabulary + 2 * d]),
            None => count(&[vocabulary, d]),
        };
        let products = count(&[layers, layer]).saturating_add(ends);
        let attention = count(&[12, layers, mixed, seq_len.into()]);
        // A frozen weight has no gradient of its own.
        let each = if self.adapters().is_some() { 4 } else { 6 };
        let adapters = count(&[6, layers, self.adapter_elements()]);
        count(&[each, products]).saturating_add(attention).saturating_add(adapters)
    }
}
