//! Mixtures that cover every pair of values of any two options.

use super::super::attention::Pattern;
use super::Feed::{Gelu, SwiGlu};
use super::Names::{GptNeox, Llama};
use super::Norm::{Layer, Rms};
use super::Residual::{Parallel, Sequential};
use super::Scaling::None as Unscaled;
use super::{Biases, Config, Feed, Names, Norm, Residual, Scaling};

/// Rank, and whether the head is the embedding.
type Embedding = (Option<usize>, bool);
const UNTIED: Embedding = (None, false);
const TIED: Embedding = (None, true);
const FACTORISED: Embedding = (Some(5), true);

const NONE: Biases = Biases::NONE;
const ALL: Biases = Biases::ALL;
const ATTENTION: Biases = Biases { feed: false, ..ALL };
const QKV: Biases = Biases { qkv: true, ..NONE };
const FEED: Biases = Biases { feed: true, ..NONE };

const LINEAR: Scaling = Scaling::Linear(4.0);
/// With 6 or 8 dimensions the first pair stays, the second is in between, the others are stretched by the whole factor.
const LLAMA3: Scaling = Scaling::Llama3 { factor: 8.0, low: 0.25, high: 4.0, original: 40.0 };

/// A cap for logits of about 1.
const CAPPED: Option<f64> = Some(1.5);

/// Dropout of the embedding and the norms.
const DROPPED: Option<f32> = Some(0.3);

/// Borders of documents that are not borders of blocks.
const SPLIT: Option<usize> = Some(9);

/// Value tables, whether the embedding is blended into the stream, the cap of logits, dropout, tokens of a document.
type More = (usize, bool, Option<f64>, Option<f32>, Option<usize>);

/// Norm, residual, feed-forward; biases; embedding; key heads of 4, dimensions of a head, whether queries and keys are
/// normalised; dimensions that rotate, and how they are scaled; value tables, whether the embedding is blended into the
/// stream, the cap of logits, dropout, tokens of a document; names.
type Options = ((Norm, Residual, Feed), Biases, Embedding, (usize, usize, bool), (usize, Scaling), More, Names);

/// The first is a Pythia, the second a Llama. Found by search: every pair of values occurs, and fewer rows cannot cover
/// those of five biases and three embeddings.
#[rustfmt::skip]
const MIXTURES: [Options; 15] = [
    ((Layer, Parallel, Gelu), ALL, UNTIED, (4, 6, false), (4, Unscaled), (0, false, None, None, None), GptNeox),
    ((Rms, Sequential, SwiGlu), NONE, FACTORISED, (2, 6, false), (6, Unscaled), (0, false, None, None, None), Llama),
    ((Layer, Parallel, Gelu), NONE, UNTIED, (2, 6, true), (4, LINEAR), (1, true, CAPPED, DROPPED, None), GptNeox),
    ((Rms, Sequential, Gelu), QKV, TIED, (2, 6, false), (4, Unscaled), (1, true, None, DROPPED, None), Llama),
    ((Layer, Parallel, Gelu), ATTENTION, FACTORISED, (2, 8, true), (4, Unscaled), (1, false, None, DROPPED, None), Llama),
    ((Rms, Sequential, SwiGlu), FEED, TIED, (4, 6, false), (6, LINEAR), (1, false, None, None, None), GptNeox),
    ((Layer, Sequential, SwiGlu), QKV, UNTIED, (2, 8, true), (8, LLAMA3), (0, true, None, DROPPED, None), GptNeox),
    ((Layer, Sequential, SwiGlu), ATTENTION, TIED, (4, 8, false), (8, LINEAR), (0, false, CAPPED, None, SPLIT), GptNeox),
    ((Rms, Parallel, Gelu), FEED, UNTIED, (2, 8, true), (4, LLAMA3), (0, true, CAPPED, None, SPLIT), Llama),
    ((Layer, Sequential, Gelu), FEED, FACTORISED, (4, 6, false), (6, Unscaled), (2, false, CAPPED, DROPPED, SPLIT), Llama),
    ((Rms, Parallel, Gelu), ALL, FACTORISED, (4, 6, false), (6, LLAMA3), (1, true, CAPPED, DROPPED, SPLIT), GptNeox),
    ((Rms, Parallel, SwiGlu), NONE, TIED, (4, 8, false), (4, LLAMA3), (2, false, CAPPED, None, SPLIT), Llama),
    ((Rms, Parallel, SwiGlu), ATTENTION, UNTIED, (4, 6, false), (6, LLAMA3), (2, true, CAPPED, None, None), Llama),
    ((Layer, Parallel, Gelu), QKV, FACTORISED, (4, 8, true), (8, LINEAR), (2, false, CAPPED, None, SPLIT), GptNeox),
    ((Rms, Sequential, SwiGlu), ALL, TIED, (2, 8, true), (8, LINEAR), (2, false, None, None, SPLIT), Llama),
];

/// Small models that cover every pair of values of any two options: 2 layers of width 24 and 4 heads, a feed-forward of
/// 7, 11 ids, dense attention.
pub fn mixtures() -> Vec<Config> {
    let mix = |((norm, residual, feed), bias, (rank, tied), heads, (rotary, scaling), more, names): Options| {
        let ((kv_heads, head_size, qk_norm), (value_tables, stream_scalars, softcap, dropout, documents)) =
            (heads, more);
        Config {
            layers: 2,
            d: 24,
            heads: 4,
            kv_heads,
            head_size,
            d_ff: 7,
            vocab: 11,
            rank,
            tied,
            norm,
            residual,
            feed,
            bias,
            norm_gains: true,
            qk_norm,
            value_tables,
            stream_scalars,
            softcap,
            dropout,
            documents,
            rotary,
            rotary_base: 10_000.0,
            scaling,
            eps: 1e-5,
            adapters: None,
            eight_bits: false,
            names,
            attention: Pattern::Dense,
        }
    };
    MIXTURES.map(mix).to_vec()
}

/// The mixtures with adapters, without the parts that always learn.
pub fn adapted_mixtures() -> Vec<Config> {
    let adapted = |config| Config { value_tables: 0, stream_scalars: false, adapters: Some((3, 5.0)), ..config };
    mixtures().into_iter().map(adapted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of values of each option.
    const VALUES: [usize; 16] = [2, 2, 2, 5, 3, 2, 2, 2, 2, 2, 3, 3, 2, 2, 2, 2];

    /// The value of each option.
    fn options(config: &Config) -> [usize; 16] {
        let embedding = match (config.rank, config.tied) {
            (None, false) => 0,
            (None, true) => 1,
            (Some(_), _) => 2,
        };
        [
            (config.norm == Rms).into(),
            (config.residual == Sequential).into(),
            (config.feed == SwiGlu).into(),
            [NONE, ALL, ATTENTION, QKV, FEED].iter().position(|bias| *bias == config.bias).expect("one of them"),
            embedding,
            (config.kv_heads < config.heads).into(),
            (config.rotary < config.head_size).into(),
            (config.names == Llama).into(),
            (config.head_size * config.heads > config.d).into(),
            config.qk_norm.into(),
            [Unscaled, LINEAR, LLAMA3].iter().position(|scaling| *scaling == config.scaling).expect("one of them"),
            config.value_tables,
            config.stream_scalars.into(),
            config.softcap.is_some().into(),
            config.dropout.is_some().into(),
            config.documents.is_some().into(),
        ]
    }

    #[test]
    fn any_two_options_meet_in_every_way() {
        let all: Vec<_> = mixtures().iter().map(options).collect();
        for one in 0..VALUES.len() {
            for other in 0..one {
                for (x, y) in (0..VALUES[one]).flat_map(|x| (0..VALUES[other]).map(move |y| (x, y))) {
                    let met = all.iter().any(|o| (o[one], o[other]) == (x, y));
                    assert!(met, "option {one} is nowhere {x} where option {other} is {y}");
                }
            }
        }
    }

    #[test]
    fn a_pythia_and_a_llama_are_among_them() {
        let all = mixtures();
        assert_eq!(all[0], Config { rotary: 4, ..Config::pythia(2, 24, 4, 7, 11) });
        assert_eq!(all[1], Config { rank: Some(5), ..Config::llama(2, 24, 4, 2, 7, 11) });
    }
}
