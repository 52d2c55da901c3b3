//! A transformer's description: every field in a word.

use super::super::ImageError;
use super::{Described, LARGEST, choice, yes};
use crate::device::{Device, InIntegers, OperationError, Single};
use crate::integer::Integer;
use crate::memory::{Ledger, Region};
use crate::model::transformer::{Biases, Decoding, Dialect, Feed, FirstValues, Network, Residual};
use crate::model::{Family as _, ModelError, Transformer};
use crate::ops::{Kind, NormKind, Pattern, RotaryScaling};

/// What the elements of an image's matrices are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightType {
    /// Floats of 32 bits.
    F32,
    /// Integers of 8 bits and their scales.
    Int8,
    /// Integers of 4 bits and their scales.
    Int4,
}

impl WeightType {
    /// The integers, where they are any.
    pub const fn integer(self) -> Option<Integer> {
        match self {
            WeightType::F32 => None,
            WeightType::Int8 => Some(Integer::Int8),
            WeightType::Int4 => Some(Integer::Int4),
        }
    }
}

impl From<Option<Integer>> for WeightType {
    fn from(integer: Option<Integer>) -> WeightType {
        match integer {
            None => WeightType::F32,
            Some(Integer::Int8) => WeightType::Int8,
            Some(Integer::Int4) => WeightType::Int4,
        }
    }
}

/// What an image holds besides numbers: the model, and how it is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Description {
    /// The model.
    pub model: Transformer,
    /// What a query sees.
    pub pattern: Pattern,
    /// The type of the weights.
    pub weights: WeightType,
}

choice!(weights: WeightType {
    0 => WeightType::F32, WeightType::F32;
    1 => WeightType::Int8, WeightType::Int8;
    2 => WeightType::Int4, WeightType::Int4;
});
choice!(pattern: Kind {
    0 => Kind::Dense, Kind::Dense;
    1 => Kind::Local, Kind::Local;
    2 => Kind::Global, Kind::Global;
    3 => Kind::Mixed, Kind::Mixed;
});
choice!(norm: NormKind { 0 => NormKind::Layer, NormKind::Layer; 1 => NormKind::Rms, NormKind::Rms; });
choice!(residual: Residual {
    0 => Residual::Sequential, Residual::Sequential;
    1 => Residual::Parallel, Residual::Parallel;
});
choice!(feed: Feed { 0 => Feed::Gelu, Feed::Gelu; 1 => Feed::SwiGlu, Feed::SwiGlu; });
choice!(first: FirstValues {
    0 => FirstValues::Published, FirstValues::Published;
    1 => FirstValues::ZeroOutputs, FirstValues::ZeroOutputs;
});
choice!(dialect: Dialect { 0 => Dialect::GptNeox, Dialect::GptNeox; 1 => Dialect::Llama, Dialect::Llama; });

fn scaling_words(scaling: &RotaryScaling) -> [u32; 5] {
    match *scaling {
        RotaryScaling::None => [0; 5],
        RotaryScaling::Linear { factor } => [1, factor.to_bits(), 0, 0, 0],
        RotaryScaling::Llama3 { factor, low, high, original } => {
            [2, factor.to_bits(), low.to_bits(), high.to_bits(), original]
        }
    }
}

fn scaling([kind, factor, low, high, original]: [u32; 5]) -> Result<RotaryScaling, ImageError> {
    let [factor, low, high] = [factor, low, high].map(f32::from_bits);
    match kind {
        0 => Ok(RotaryScaling::None),
        1 => Ok(RotaryScaling::Linear { factor }),
        2 => Ok(RotaryScaling::Llama3 { factor, low, high, original }),
        word => Err(ImageError::Word { field: "rotary scaling", word }),
    }
}

impl Description {
    /// Words that it takes.
    const LENGTH: usize = 36;

    /// What its regions are laid for: floats of 32 bits, and the weights as they are.
    pub fn profile(&self) -> InIntegers<'static> {
        InIntegers { profile: &Single, weights: self.weights.integer() }
    }

    /// As an image holds it: family, type of the weights, pattern, then the model's fields as they are declared.
    fn as_words(&self) -> [u32; Self::LENGTH] {
        let Description { model, pattern: seen, weights: element } = self;
        // By name, so that a new field does not compile until it has a word.
        let Transformer {
            layers,
            d_model,
            heads,
            kv_heads,
            head_size,
            d_ff,
            vocab_size,
            context,
            rank,
            tied,
            norm: kind,
            norm_gains,
            residual: branches,
            feed: forward,
            bias,
            qk_norm,
            softcap,
            rotary_dims,
            rotary_base,
            rotary_scaling,
            norm_eps,
            dialect: names,
            first: begins,
            value_tables,
            stream_scalars,
            // An image has none: they are merged into the weights before.
            adapters: _,
        } = model;
        let [s0, s1, s2, s3, s4] = scaling_words(rotary_scaling);
        let Biases { qkv, out, feed: up } = bias;
        let used = [
            Self::FAMILY,
            weights::word(element),
            pattern::word(&seen.kind),
            seen.block,
            seen.window,
            seen.stride,
            *layers,
            *d_model,
            *heads,
            *kv_heads,
            *head_size,
            *d_ff,
            *vocab_size,
            *context,
            rank.unwrap_or(0),
            yes::word(tied),
            norm::word(kind),
            residual::word(branches),
            feed::word(forward),
            yes::word(qkv),
            yes::word(out),
            yes::word(up),
            yes::word(qk_norm),
            *rotary_dims,
            rotary_base.to_bits(),
            s0,
            s1,
            s2,
            s3,
            s4,
            norm_eps.to_bits(),
            dialect::word(names),
            // Reversed, so that images without this word are of models whose gains learn.
            yes::word(&!norm_gains),
            first::word(begins),
            // Below 2³⁰, since each layer uses one at the most.
            2 * *value_tables + yes::word(stream_scalars),
            // 0 in images without this word: no cap.
            softcap.to_bits(),
        ];
        let mut words = [0; Self::LENGTH];
        words.iter_mut().zip(used).for_each(|(to, word)| *to = word);
        words
    }

    fn of_words(words: &[u32; Self::LENGTH]) -> Result<Description, ImageError> {
        let [
            family,
            element,
            kind,
            block,
            window,
            stride,
            layers,
            d_model,
            heads,
            kv_heads,
            head_size,
            d_ff,
            vocab_size,
            context,
            rank,
            tied,
            normalised,
            branches,
            forward,
            qkv,
            out,
            up,
            qk_norm,
            rotary_dims,
            rotary_base,
            s0,
            s1,
            s2,
            s3,
            s4,
            norm_eps,
            names,
            fixed_gains,
            begins,
            tables_and_scalars,
            softcap,
            rest @ ..,
        ] = *words;
        if family != Self::FAMILY {
            return Err(ImageError::Family(family));
        }
        if let Some(&word) = rest.iter().find(|&&word| word != 0) {
            return Err(ImageError::Word { field: "reserved", word });
        }
        for (field, word) in [("block", block), ("stride", stride)] {
            if word == 0 {
                return Err(ImageError::Word { field, word });
            }
        }
        let sizes = [layers, d_model, heads, kv_heads, head_size, d_ff, vocab_size, context, rank, rotary_dims];
        let widths = [heads, kv_heads].map(|heads| heads.saturating_mul(head_size));
        if let Some(&word) = sizes.iter().chain(&widths).find(|&&size| size > LARGEST) {
            return Err(ImageError::Word { field: "size", word });
        }
        let model = Transformer {
            layers,
            d_model,
            heads,
            kv_heads,
            head_size,
            d_ff,
            vocab_size,
            context,
            rank: (rank > 0).then_some(rank),
            tied: yes::value(tied)?,
            norm: norm::value(normalised)?,
            norm_gains: !yes::value(fixed_gains)?,
            residual: residual::value(branches)?,
            feed: feed::value(forward)?,
            bias: Biases { qkv: yes::value(qkv)?, out: yes::value(out)?, feed: yes::value(up)? },
            qk_norm: yes::value(qk_norm)?,
            softcap: f32::from_bits(softcap),
            rotary_dims,
            rotary_base: f32::from_bits(rotary_base),
            rotary_scaling: scaling([s0, s1, s2, s3, s4])?,
            norm_eps: f32::from_bits(norm_eps),
            dialect: dialect::value(names)?,
            first: first::value(begins)?,
            value_tables: tables_and_scalars / 2,
            stream_scalars: tables_and_scalars % 2 == 1,
            adapters: None,
        };
        model.validate().map_err(|error: ModelError| ImageError::Model(error))?;
        let pattern = Pattern { kind: pattern::value(kind)?, block, window, stride };
        Ok(Description { model, pattern, weights: weights::value(element)? })
    }
}

impl Described for Description {
    const FAMILY: u32 = 1;
    const WORDS: usize = Self::LENGTH;
    type Network = Network;
    type Decoding = Decoding;

    fn words(&self, show: &mut dyn FnMut(u32)) {
        self.as_words().into_iter().for_each(show);
    }

    fn of(words: &[u32]) -> Result<Self, ImageError> {
        Self::of_words(words.try_into().map_err(|_| ImageError::Part("description"))?)
    }

    fn ids(&self) -> u32 {
        self.model.vocab_size
    }

    fn context(&self) -> u32 {
        self.model.context
    }

    fn lay_network(&self, ledger: &mut dyn Ledger) -> Network {
        self.model.lay_network(&self.profile(), ledger)
    }

    fn lay_decoding(&self, context: u32, ledger: &mut dyn Ledger) -> Decoding {
        self.model.lay_decoding(context, &self.profile(), ledger)
    }

    fn io(decoding: &Decoding) -> (Region, Region, Region) {
        Transformer::decoding_io(decoding)
    }

    fn decode(&self, device: &mut dyn Device, network: &Network, decoding: &Decoding) -> Result<(), OperationError> {
        self.model.decode_with(device, network, decoding, self.pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Transformer = Transformer {
        layers: 2,
        d_model: 16,
        heads: 4,
        kv_heads: 2,
        head_size: 6,
        d_ff: 24,
        vocab_size: 300,
        context: 32,
        rotary_dims: 4,
        ..Transformer::LLAMA
    };

    fn described(model: Transformer, pattern: Pattern) -> Description {
        Description { model, pattern, weights: WeightType::Int8 }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mixed = Pattern { kind: Kind::Mixed, block: 8, window: 3, stride: 5 };
        let llama3 = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 16 };
        let models = [
            MODEL,
            Transformer {
                norm_gains: false,
                softcap: 30.0,
                first: FirstValues::ZeroOutputs,
                rank: Some(8),
                bias: Biases::QKV,
                rotary_scaling: llama3,
                ..MODEL
            },
            Transformer { rotary_scaling: RotaryScaling::Linear { factor: 2.0 }, bias: Biases::ATTENTION, ..MODEL },
            Transformer {
                tied: false,
                norm: NormKind::Layer,
                residual: Residual::Parallel,
                feed: Feed::Gelu,
                bias: Biases::FEED,
                rotary_base: 500.0,
                norm_eps: 1e-3,
                dialect: Dialect::GptNeox,
                ..MODEL
            },
        ];
        for model in models {
            for pattern in [Pattern::DENSE, mixed] {
                for weights in [WeightType::F32, WeightType::Int8, WeightType::Int4] {
                    let description = Description { weights, ..described(model, pattern) };
                    assert_eq!(Description::of_words(&description.as_words()), Ok(description));
                    assert_eq!(WeightType::from(weights.integer()), weights);
                }
            }
        }
    }

    #[test]
    fn each_word_counts_and_none_makes_it_panic() {
        let description = described(MODEL, Pattern::DENSE);
        let words = description.as_words();
        for at in 0..Description::LENGTH {
            for word in [0, 1, 2, 3, 7, 1 << 24, 1 << 31, u32::MAX] {
                let mut changed = words;
                changed[at] = word;
                // What a scaling of none does not use may be anything.
                let unused = (26..30).contains(&at);
                let found = Description::of_words(&changed);
                assert!(word == words[at] || unused || found != Ok(description), "word {at} does not count");
            }
        }
    }
}
