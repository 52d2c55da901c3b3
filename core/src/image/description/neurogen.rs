//! The description of a NeuroGen: one word for each field.

use super::super::ImageError;
use super::words::{Reader, Words, Writer, choice};
use super::{Described, LARGEST};
use crate::device::{Device, OperationError, Single};
use crate::memory::{Ledger, Region};
use crate::model::neurogen::{Connectome, Decoding, Network, SynapseLearning};
use crate::model::{Family as _, NeuroGen};
use crate::ops::Cell;

/// The description of a NeuroGen in an image. Its weights are f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpikingDescription {
    /// The model.
    pub model: NeuroGen,
    /// The largest number of positions. Storage does not depend on it.
    pub context: u32,
}

choice!("rule": SynapseLearning {
    0 => SynapseLearning::Eprop,
    1 => SynapseLearning::EpropRandom,
    2 => SynapseLearning::Bptt,
    3 => SynapseLearning::Frozen,
});

impl SpikingDescription {
    /// The number of words.
    const LENGTH: usize = 52;

    /// What is read into: every field has a word.
    const NOTHING: SpikingDescription = SpikingDescription {
        model: NeuroGen {
            vocab_size: 0,
            embedding: 0,
            taps: 0,
            connectome: Connectome {
                taps: 0,
                neurons: [0; 6],
                outputs: [0; 6],
                fan_in: [0; 6],
                tap_share: 0.0,
                pipelined: false,
                feedback: false,
                seed: 0,
            },
            fan_out: 0,
            skip: 0,
            memory: 0,
            memory_decay: 0.0,
            gate: false,
            rule: SynapseLearning::Frozen,
            full: false,
            dopamine: 0.0,
            novelty: 0.0,
            cell: Cell {
                leak: 0.0,
                threshold: 0.0,
                fatigue: 0.0,
                adaptation: 0.0,
                filter: 0.0,
                rate: 0.0,
                homeostasis: 0.0,
                block: 0,
                winners: 0,
            },
            streams: 0,
        },
        context: 0,
    };

    /// Writes or reads the fields: the family, then the model's as they are declared.
    fn visit(&mut self, words: &mut impl Words) -> Result<(), ImageError> {
        // By name, so that a new field does not compile until it has a word.
        let SpikingDescription { model, context } = self;
        let NeuroGen {
            vocab_size,
            embedding,
            taps,
            connectome,
            fan_out,
            skip,
            memory,
            memory_decay,
            gate,
            rule,
            full,
            dopamine,
            novelty,
            cell,
            streams,
        } = model;
        let Connectome { taps: signals, neurons, outputs, fan_in, tap_share, pipelined, feedback, seed } = connectome;
        let Cell { leak, threshold, fatigue, adaptation, filter, rate, homeostasis, block, winners } = cell;
        let mut family = Self::FAMILY;
        words.word(&mut family);
        if family != Self::FAMILY {
            return Err(ImageError::Family(family));
        }
        words.words([context, vocab_size, embedding, taps, signals]);
        for sizes in [neurons, outputs, fan_in] {
            words.words(sizes.each_mut());
        }
        words.float(tap_share);
        words.choice(pipelined)?;
        words.choice(feedback)?;
        let mut halves = [*seed as u32, (*seed >> 32) as u32];
        words.words(halves.each_mut());
        *seed = u64::from(halves[0]) | u64::from(halves[1]) << 32;
        words.words([fan_out, skip, memory]);
        words.float(memory_decay);
        words.choice(gate)?;
        words.choice(rule)?;
        words.choice(full)?;
        words.floats([dopamine, novelty, leak, threshold, fatigue, adaptation, filter, rate, homeostasis]);
        words.words([block, winners, streams]);
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

    fn of_words(words: &[u32; Self::LENGTH]) -> Result<SpikingDescription, ImageError> {
        let mut description = Self::NOTHING;
        let mut reader = Reader(words.iter());
        description.visit(&mut reader)?;
        reader.require_rest()?;
        let SpikingDescription { model, context } = &description;
        let NeuroGen { vocab_size, embedding, taps, fan_out, skip, memory, streams, .. } = *model;
        let (Connectome { taps: signals, neurons, outputs, fan_in, .. }, Cell { block, winners, .. }) =
            (&model.connectome, &model.cell);
        let sizes = [vocab_size, embedding, taps, *signals, fan_out, skip, memory, *block, *winners, streams, *context];
        // All neurons together have a number of 32 bits, twice.
        if let Some(&word) = sizes.iter().chain(neurons).chain(outputs).chain(fan_in).find(|size| **size > LARGEST) {
            return Err(ImageError::Word { field: "size", word });
        }
        if *context == 0 {
            return Err(ImageError::Word { field: "context", word: 0 });
        }
        model.validate().map_err(ImageError::Model)?;
        // The number of signals that are taps must be taps · embedding, the size of the output of `Taps`.
        if u64::from(taps) * u64::from(embedding) != u64::from(*signals) {
            return Err(ImageError::Word { field: "taps", word: *signals });
        }
        Ok(description)
    }
}

impl Described for SpikingDescription {
    const FAMILY: u32 = 2;
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
        self.context
    }

    fn lay_network(&self, ledger: &mut dyn Ledger) -> Network {
        self.model.lay_network(&Single, ledger)
    }

    fn lay_decoding(&self, context: u32, ledger: &mut dyn Ledger) -> Decoding {
        self.model.lay_decoding(context, &Single, ledger)
    }

    fn check_tables(&self, network: &Network, weights: &[u8]) -> Result<(), ImageError> {
        let wrong = ImageError::Part("wiring");
        let Connectome { neurons, .. } = self.model.connectome;
        for (region, neurons) in network.sources().iter().zip(neurons) {
            let bytes = weights.get(region.offset as usize..region.end() as usize).ok_or(wrong)?;
            let sources = bytemuck::try_cast_slice::<u8, u32>(bytes).map_err(|_| wrong)?;
            let places = 2 * self.model.connectome.signals() + neurons;
            if sources.iter().any(|source| *source >= places) {
                return Err(wrong);
            }
        }
        Ok(())
    }

    fn io(decoding: &Decoding) -> (Region, Region, Region) {
        NeuroGen::decoding_io(decoding)
    }

    fn decode(&self, device: &mut dyn Device, network: &Network, decoding: &Decoding) -> Result<(), OperationError> {
        self.model.decode_with(device, network, decoding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No two numbers are equal, so that swapped fields are detected. Presets have many equal numbers.
    const DESCRIBED: SpikingDescription = SpikingDescription {
        model: NeuroGen {
            vocab_size: 61,
            embedding: 10,
            taps: 17,
            connectome: Connectome {
                taps: 170,
                neurons: [41, 42, 43, 44, 45, 46],
                outputs: [31, 32, 33, 34, 35, 36],
                fan_in: [18, 19, 20, 21, 22, 23],
                tap_share: 0.4,
                pipelined: false,
                feedback: false,
                seed: 0x0123_4567_89ab_cdef,
            },
            fan_out: 7,
            skip: 8,
            memory: 9,
            memory_decay: 0.9,
            gate: false,
            rule: SynapseLearning::Frozen,
            full: false,
            dopamine: 0.5,
            novelty: 0.3,
            cell: Cell {
                leak: 0.85,
                threshold: 1.5,
                fatigue: 0.96,
                adaptation: 0.2,
                filter: 0.6,
                rate: 0.1,
                homeostasis: 0.005,
                block: 6,
                winners: 5,
            },
            streams: 4,
        },
        context: 100,
    };

    #[test]
    fn what_is_written_is_read_again() {
        let words = DESCRIBED.as_words();
        for (at, word) in words.iter().enumerate() {
            // 0 stands for `false`, and for unused words.
            assert!(*word == 0 || !words[..at].contains(word), "word {at} is not the only {word}");
        }
        assert_eq!(SpikingDescription::of_words(&words), Ok(DESCRIBED));
        let NeuroGen { connectome, .. } = DESCRIBED.model;
        let models = [
            NeuroGen { gate: true, rule: SynapseLearning::Eprop, ..DESCRIBED.model },
            NeuroGen { full: true, rule: SynapseLearning::EpropRandom, ..DESCRIBED.model },
            NeuroGen {
                connectome: Connectome { pipelined: true, ..connectome },
                rule: SynapseLearning::Bptt,
                ..DESCRIBED.model
            },
            NeuroGen { connectome: Connectome { feedback: true, ..connectome }, ..DESCRIBED.model },
        ];
        for model in models {
            let description = SpikingDescription { model, ..DESCRIBED };
            assert_eq!(SpikingDescription::of_words(&description.as_words()), Ok(description));
        }
    }

    #[test]
    fn each_word_counts_and_none_makes_it_panic() {
        let words = DESCRIBED.as_words();
        for at in 0..SpikingDescription::LENGTH {
            for word in [0, 1, 2, 3, 7, 1 << 24, 1 << 31, u32::MAX] {
                let mut changed = words;
                changed[at] = word;
                let found = SpikingDescription::of_words(&changed);
                assert!(word == words[at] || found != Ok(DESCRIBED), "word {at} does not count");
            }
        }
    }

    #[test]
    fn words_of_another_family_or_number_are_refused() {
        let mut words = DESCRIBED.as_words();
        let part = Err(ImageError::Part("description"));
        assert_eq!(SpikingDescription::of(&words[1..]), part);
        assert_eq!(SpikingDescription::of(&[]), part);
        words[0] = super::super::Description::FAMILY;
        assert_eq!(SpikingDescription::of(&words), Err(ImageError::Family(1)));
    }

    /// The words of an image are a file format: these are of version 0.1.0's code.
    #[test]
    fn words_have_the_order_of_earlier_versions() {
        assert_eq!(
            DESCRIBED.as_words(),
            [
                2, 100, 61, 10, 17, 170, 41, 42, 43, 44, 45, 46, 31, 32, 33, 34, 35, 36, 18, 19, 20, 21, 22, 23,
                1053609165, 0, 0, 2309737967, 19088743, 7, 8, 9, 1063675494, 0, 3, 0, 1056964608, 1050253722,
                1062836634, 1069547520, 1064682127, 1045220557, 1058642330, 1036831949, 1000593162, 6, 5, 4, 0, 0, 0,
                0
            ]
        );
    }
}
