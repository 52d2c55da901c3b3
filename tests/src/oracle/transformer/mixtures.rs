//! A dozen mixtures in which any two options meet in every way.

use super::super::attention::Pattern;
use super::Feed::{Gelu, SwiGlu};
use super::Names::{GptNeox, Llama};
use super::Norm::{Layer, Rms};
use super::Residual::{Parallel, Sequential};
use super::{Config, Feed, Names, Norm, Residual};

/// Rank, and whether the head is the embedding.
type Embedding = (Option<usize>, bool);
const UNTIED: Embedding = (None, false);
const TIED: Embedding = (None, true);
const FACTORISED: Embedding = (Some(5), true);

/// Norm, residual, feed-forward, biases, embedding, key heads of 4, rotated dimensions of 6, names.
type Options = (Norm, Residual, Feed, bool, Embedding, usize, usize, Names);

/// The first is a Pythia, the second a Llama. Found by search: of all pairs none is missing, of all triples few.
#[rustfmt::skip]
const MIXTURES: [Options; 12] = [
    (Layer, Parallel, Gelu, true, UNTIED, 4, 4, GptNeox),
    (Rms, Sequential, SwiGlu, false, FACTORISED, 2, 6, Llama),
    (Rms, Parallel, Gelu, false, TIED, 2, 6, GptNeox),
    (Layer, Parallel, Gelu, true, FACTORISED, 4, 6, Llama),
    (Layer, Sequential, Gelu, false, FACTORISED, 4, 4, GptNeox),
    (Rms, Sequential, Gelu, true, UNTIED, 4, 6, Llama),
    (Rms, Parallel, SwiGlu, false, TIED, 4, 4, Llama),
    (Layer, Sequential, Gelu, true, TIED, 2, 4, Llama),
    (Layer, Sequential, SwiGlu, true, TIED, 4, 6, GptNeox),
    (Rms, Parallel, SwiGlu, true, FACTORISED, 2, 4, GptNeox),
    (Rms, Sequential, SwiGlu, false, UNTIED, 2, 4, GptNeox),
    (Layer, Parallel, SwiGlu, false, UNTIED, 2, 6, Llama),
];

/// Small models, of which any two options of norm, residual, feed-forward, biases, embedding, key heads, rotation and
/// names have every pair of values somewhere: 2 layers of 4 heads of 6 dimensions, a feed-forward of 7, 11 ids, dense
/// attention.
pub fn mixtures() -> Vec<Config> {
    let mix = |(norm, residual, feed, bias, (rank, tied), kv_heads, rotary, names): Options| Config {
        layers: 2,
        d: 24,
        heads: 4,
        kv_heads,
        d_ff: 7,
        vocab: 11,
        rank,
        tied,
        norm,
        residual,
        feed,
        bias,
        rotary,
        rotary_base: 10_000.0,
        eps: 1e-5,
        names,
        attention: Pattern::Dense,
    };
    MIXTURES.map(mix).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many values each option has.
    const VALUES: [usize; 8] = [2, 2, 2, 2, 3, 2, 2, 2];

    /// The value of each option.
    fn options(config: &Config) -> [usize; 8] {
        let embedding = match (config.rank, config.tied) {
            (None, false) => 0,
            (None, true) => 1,
            (Some(_), _) => 2,
        };
        [
            (config.norm == Rms).into(),
            (config.residual == Sequential).into(),
            (config.feed == SwiGlu).into(),
            config.bias.into(),
            embedding,
            (config.kv_heads < config.heads).into(),
            (config.rotary < config.head_size()).into(),
            (config.names == Llama).into(),
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
