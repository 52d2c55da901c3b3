//! The number of a model's ids, if its data has fewer ids than the cap.

use capful_base::human_bytes;
use capful_core::vocab::BYTE_IDS;

use super::{Config, ModelConfig, RawConfig};

/// A vocabulary that is this many times the data's number of ids is too large.
const TOO_LARGE: u32 = 2;
/// Bytes of text for each id of a BPE trained on it, so that a token occurs often enough to be learnt: about seventy
/// times on average.
const TEXT_OF_AN_ID: u64 = 256;

impl RawConfig {
    /// The requested vocabulary, from its own key or from the model's table.
    pub fn asked_vocabulary(&self) -> Option<u32> {
        let of_model = || self.model.get("vocab_size")?.as_integer()?.try_into().ok();
        self.vocab_size.or_else(of_model)
    }

    /// Whether the user has set the vocabulary. If not, that of a preset is a cap.
    pub fn decides_vocabulary(&self) -> bool {
        self.asked_vocabulary().is_some() || self.set.iter().any(|pair| pair.starts_with("vocab_size="))
    }
}

impl Config {
    /// Lowers the default cap of a BPE to a number of ids for which `bytes` of text are enough. Returns a line for
    /// people.
    pub fn fit_text(&mut self, bytes: u64) -> Option<String> {
        let (cap, enough) = (self.vocab_size(), u64::from(BYTE_IDS) + bytes / TEXT_OF_AN_ID);
        if self.tokenizer != "bpe" || enough >= cap.into() {
            return None;
        }
        self.set_vocabulary(enough as u32);
        Some(format!(
            "vocabulary: {} of text are enough for {enough} ids, one for {TEXT_OF_AN_ID} bytes; --vocab-size {cap} keeps the \
             preset's cap",
            human_bytes(bytes)
        ))
    }

    fn set_vocabulary(&mut self, ids: u32) {
        match &mut self.model {
            ModelConfig::Pythia(model) | ModelConfig::Yxanul(model) => model.vocab_size = ids,
            #[cfg(feature = "neurogen")]
            ModelConfig::NeuroGen(model) => model.vocab_size = ids,
        }
    }

    /// Lowers a default vocabulary to the tokenizer's number of `ids`, if it is at least twice that. Returns a line for
    /// people.
    pub fn fit_vocabulary(&mut self, ids: u32) -> Option<String> {
        let cap = self.vocab_size();
        if cap / TOO_LARGE < ids {
            return None;
        }
        self.set_vocabulary(ids);
        Some(format!(
            "vocabulary: the data gives {ids} ids, and the model gets as many instead of {cap}; --vocab-size {cap} keeps \
             that number"
        ))
    }

    /// A line for people if at least half of the model's rows belong to ids that the tokenizer does not have.
    pub fn unused_vocabulary(&self, ids: u32) -> Option<String> {
        let rows = self.vocab_size();
        (rows / TOO_LARGE >= ids).then(|| {
            format!(
                "the tokenizer has {ids} ids and the model {rows}: {} rows are never used; --vocab-size {ids} leaves them \
                 out",
                rows - ids
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_cap_of_twice_the_ids_is_lowered_to_them() {
        for (preset, ids, fitted) in [
            ("neurogen-39k", 1201, 1201),
            ("yxanul-197m", 1201, 1201),
            ("pythia-14m", 5000, 5000),
            ("pythia-14m", 5001, 10_000),
            ("pythia-tiny", 402, 512),
            ("neurogen-tiny", 260, 260),
        ] {
            let mut config = Config::resolve(raw(&format!("preset = '{preset}'"))).unwrap();
            let (cap, unused) = (config.vocab_size(), config.unused_vocabulary(ids));
            let line = config.fit_vocabulary(ids);
            assert_eq!((config.vocab_size(), line.is_some(), unused.is_some()), (fitted, fitted < cap, fitted < cap));
            for line in line.into_iter().chain(unused) {
                assert!(line.contains(&format!("{ids} ")) && line.contains(&cap.to_string()), "{line}");
            }
            config.validate().unwrap();
        }
    }

    #[test]
    fn a_text_decides_how_many_ids_bpe_makes_of_it() {
        for (text, bytes, ids) in [
            ("preset = 'pythia-14m'\ndata = 'my.txt'", 100_000, 260 + 390),
            ("preset = 'pythia-14m'\ndata = 'my.txt'", 3 << 20, 10_000),
            ("preset = 'pythia-14m'\ndata = 'my.txt'", 0, 260),
            ("data = 'my.txt'", 100_000, 512),
            ("preset = 'pythia-14m'\ndata = 'my.txt'\ntokenizer = 'word'", 100_000, 10_000),
        ] {
            let mut config = Config::resolve(raw(text)).unwrap();
            let (cap, line) = (config.vocab_size(), config.fit_text(bytes));
            assert_eq!(line.is_some(), ids < cap, "{text} {bytes}");
            assert_eq!(config.vocab_size(), ids, "{text} {bytes}");
            config.validate().unwrap();
        }
    }

    #[test]
    fn a_vocabulary_that_was_asked_for_is_known_and_used_however_it_is_written() {
        assert!(!raw("preset = 'pythia-14m'\ntokenizer = 'bpe'\n[model]\nlayers = 2").decides_vocabulary());
        let set = RawConfig { set: vec!["vocab_size=300".to_owned()], ..raw("") };
        for written in [raw("vocab_size = 300"), raw("[model]\nvocab_size = 300"), set] {
            assert!(written.decides_vocabulary());
            assert_eq!(Config::resolve(written).unwrap().vocab_size(), 300);
        }
    }
}
