//! The description of a transformer: one word for each field.

use super::super::ImageError;
use super::words::{Choice as _, Reader, Words, Writer, choice};
use super::{Described, LARGEST};
use crate::device::{Device, InIntegers, OperationError, Single};
use crate::integer::Integer;
use crate::memory::{Ledger, Region};
use crate::model::transformer::{Biases, Decoding, Dialect, Feed, FirstValues, Network, Residual};
use crate::model::{Family as _, ModelError, Transformer};
use crate::ops::{NormKind, Pattern, PatternKind, RotaryScaling};

/// The element type of an image's matrices.
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
    /// The integer type, if it is one.
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

/// The description in an image: the model and its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Description {
    /// The model.
    pub model: Transformer,
    /// The tokens that a query sees.
    pub pattern: Pattern,
    /// The type of the weights.
    pub weights: WeightType,
}

choice!("weights": WeightType {
    0 => WeightType::F32,
    1 => WeightType::Int8,
    2 => WeightType::Int4,
});
choice!("pattern": PatternKind {
    0 => PatternKind::Dense,
    1 => PatternKind::Local,
    2 => PatternKind::Global,
    3 => PatternKind::Mixed,
});
choice!("norm": NormKind {
    0 => NormKind::Layer,
    1 => NormKind::Rms,
});
choice!("residual": Residual {
    0 => Residual::Sequential,
    1 => Residual::Parallel,
});
choice!("feed": Feed {
    0 => Feed::Gelu,
    1 => Feed::SwiGlu,
});
choice!("first": FirstValues {
    0 => FirstValues::Published,
    1 => FirstValues::ZeroOutputs,
});
choice!("dialect": Dialect {
    0 => Dialect::GptNeox,
    1 => Dialect::Llama,
});

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
    /// The number of words.
    const LENGTH: usize = 36;

    /// The profile that its regions are laid for: f32, with weights in their integer type, if any.
    pub fn profile(&self) -> InIntegers<'static> {
        InIntegers { profile: &Single, weights: self.weights.integer() }
    }

    /// What is read into: every field has a word.
    const NOTHING: Description =
        Description { model: Transformer::LLAMA, pattern: Pattern::DENSE, weights: WeightType::F32 };

    /// Writes or reads the fields: family, type of the weights, pattern, then the model's as they are declared.
    fn visit(&mut self, words: &mut impl Words) -> Result<(), ImageError> {
        let Description { model, pattern, weights } = self;
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
            norm,
            norm_gains,
            residual,
            feed,
            bias,
            qk_norm,
            softcap,
            rotary_dims,
            rotary_base,
            rotary_scaling,
            norm_eps,
            dialect,
            first,
            value_tables,
            stream_scalars,
            // An image has no adapters: they are merged into the weights before.
            adapters: _,
        } = model;
        let mut family = Self::FAMILY;
        words.word(&mut family);
        if family != Self::FAMILY {
            return Err(ImageError::Family(family));
        }
        words.choice(weights)?;
        words.choice(&mut pattern.kind)?;
        words.words([&mut pattern.block, &mut pattern.window, &mut pattern.stride]);
        words.words([layers, d_model, heads, kv_heads, head_size, d_ff, vocab_size, context]);
        let mut ranks = rank.unwrap_or(0);
        words.word(&mut ranks);
        *rank = (ranks > 0).then_some(ranks);
        words.choice(tied)?;
        words.choice(norm)?;
        words.choice(residual)?;
        words.choice(feed)?;
        let Biases { qkv, out, feed: up } = bias;
        for switch in [qkv, out, up, qk_norm] {
            words.choice(switch)?;
        }
        words.word(rotary_dims);
        words.float(rotary_base);
        let mut scaled = scaling_words(rotary_scaling);
        words.words(scaled.each_mut());
        *rotary_scaling = scaling(scaled)?;
        words.float(norm_eps);
        words.choice(dialect)?;
        // Reversed, so that images without this word are of models whose gains learn.
        let mut fixed_gains = !*norm_gains;
        words.choice(&mut fixed_gains)?;
        *norm_gains = !fixed_gains;
        words.choice(first)?;
        // Below 2³⁰, since each layer uses one at the most.
        let mut both = 2 * *value_tables + stream_scalars.word();
        words.word(&mut both);
        (*value_tables, *stream_scalars) = (both / 2, both % 2 == 1);
        // 0 in images without this word: no cap.
        words.float(softcap);
        Ok(())
    }

    /// As an image holds it.
    fn as_words(&self) -> [u32; Self::LENGTH] {
        let mut words = [0; Self::LENGTH];
        let mut description = *self;
        // Writing refuses nothing: every word is of a value.
        let _ = description.visit(&mut Writer(words.iter_mut()));
        words
    }

    fn of_words(words: &[u32; Self::LENGTH]) -> Result<Description, ImageError> {
        let mut description = Self::NOTHING;
        let mut reader = Reader(words.iter());
        description.visit(&mut reader)?;
        reader.require_rest()?;
        let Description { model, pattern: Pattern { block, stride, .. }, .. } = &description;
        for (field, word) in [("block", *block), ("stride", *stride)] {
            if word == 0 {
                return Err(ImageError::Word { field, word });
            }
        }
        let Transformer { layers, d_model, heads, kv_heads, head_size, d_ff, .. } = *model;
        let Transformer { vocab_size, context, rank, rotary_dims, .. } = *model;
        let widths = [heads, kv_heads].map(|heads| heads.saturating_mul(head_size));
        let sizes = [layers, d_model, heads, kv_heads, head_size, d_ff, vocab_size, context, rotary_dims];
        if let Some(word) = sizes.into_iter().chain(widths).chain(rank).find(|size| *size > LARGEST) {
            return Err(ImageError::Word { field: "size", word });
        }
        model.validate().map_err(|error: ModelError| ImageError::Model(error))?;
        Ok(description)
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
        let mixed = Pattern { kind: PatternKind::Mixed, block: 8, window: 3, stride: 5 };
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
                // Words that no scaling uses may have any value.
                let unused = (26..30).contains(&at);
                let found = Description::of_words(&changed);
                assert!(word == words[at] || unused || found != Ok(description), "word {at} does not count");
            }
        }
    }

    /// The words of an image are a file format: these are of version 0.1.0's code.
    #[test]
    fn words_have_the_order_of_earlier_versions() {
        let model = Transformer {
            norm_gains: false,
            softcap: 30.0,
            first: FirstValues::ZeroOutputs,
            rank: Some(8),
            bias: Biases::QKV,
            rotary_scaling: RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 16 },
            value_tables: 1,
            stream_scalars: true,
            ..MODEL
        };
        let words = described(model, Pattern { kind: PatternKind::Mixed, block: 8, window: 3, stride: 5 }).as_words();
        assert_eq!(
            words,
            [
                1, 1, 3, 8, 3, 5, 2, 16, 4, 2, 6, 24, 300, 32, 8, 1, 1, 0, 1, 1, 0, 0, 0, 4, 1176256512, 2, 1090519040,
                1065353216, 1082130432, 16, 925353388, 1, 1, 1, 3, 1106247680
            ]
        );
    }
}
