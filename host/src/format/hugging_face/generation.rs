//! A model's settings for generation: its end tokens, and how it samples. `transformers` stores them in
//! `generation_config.json`, and earlier versions in `config.json`.

use std::path::Path;

use capful_core::generate::Sampler;
use serde_json::{Map, Value, json};

use super::keys::Keys;
use crate::data::tokenizer::Tokenizer;
use crate::regular;

/// The settings file of a model, and of a run whose model has one.
pub const FILE_NAME: &str = "generation_config.json";
/// The longest accepted file.
const LONGEST: u64 = 1 << 20;

/// The keys of the tokens that begin and end a text.
const MARKS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];
/// The keys of sampling.
const DRAWN: [&str; 5] = ["do_sample", "temperature", "top_k", "top_p", "repetition_penalty"];
/// Other keys that affect sampling, with their neutral values.
const NOT_APPLIED: [(&str, f64); 8] = [
    ("min_p", 0.0),
    ("typical_p", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("length_penalty", 1.0),
    ("encoder_repetition_penalty", 1.0),
];

/// A model's settings as they were read: they are written again unchanged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Generation {
    said: Map<String, Value>,
}

/// The ids that begin and end a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks {
    /// The id at the beginning of a text.
    pub bos: Option<u32>,
    /// The ids that end a text.
    pub ends: Vec<u32>,
}

impl Marks {
    /// The marks of a tokenizer.
    pub fn of(tokenizer: &dyn Tokenizer) -> Marks {
        Marks { bos: tokenizer.bos().or(tokenizer.eos()), ends: tokenizer.eos().into_iter().collect() }
    }

    /// One id, a list of several, or null.
    pub(super) fn eos(&self) -> Value {
        match self.ends[..] {
            [] => Value::Null,
            [one] => one.into(),
            ref all => json!(all),
        }
    }
}

/// How a model is meant to sample tokens, as far as it has settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drawn {
    /// Whether tokens are sampled; else the most likely one is chosen.
    pub sample: Option<bool>,
    /// As in [`Sampler`].
    pub temperature: Option<f32>,
    /// As in [`Sampler`]; 0 for all.
    pub top_k: Option<u32>,
    /// As in [`Sampler`].
    pub top_p: Option<f32>,
    /// As in [`Sampler`].
    pub repetition_penalty: Option<f32>,
    /// Keys that are not supported here, with their values.
    pub others: Vec<String>,
}

/// The settings of `transformers` for a model that only says that it samples.
pub const THEIRS: Sampler = Sampler { temperature: 1.0, top_k: 50, top_p: 1.0, repetition_penalty: 1.0 };

impl Generation {
    /// The settings of the model in `dir`; `config` is its config.json.
    ///
    /// # Errors
    /// A file that cannot be read, or a key with an invalid value.
    pub fn of_model(dir: &Path, config: &Value) -> Result<Generation, String> {
        let found = Generation::read(dir)?;
        let (keys, mut said) = match found {
            Some(Generation { said }) => (&MARKS[..], said),
            None => (&[MARKS.as_slice(), &DRAWN].concat()[..], Map::new()),
        };
        for key in keys {
            if let Some(value) = config.get(key).filter(|value| !value.is_null())
                && said.get(*key).is_none_or(Value::is_null)
            {
                said.insert((*key).to_owned(), value.clone());
            }
        }
        let generation = Generation { said };
        generation.check().map_err(|what| format!("{}: {what}", dir.join("config.json").display()))?;
        Ok(generation)
    }

    /// The settings in the file of `dir`; `None` if there is no file.
    ///
    /// # Errors
    /// As [`Generation::of_model`].
    pub fn read(dir: &Path) -> Result<Option<Generation>, String> {
        let path = dir.join(FILE_NAME);
        let at = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
        let length = match regular::open(&path).and_then(|file| file.metadata()) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(|e| at(&e))?.len(),
        };
        if length > LONGEST {
            return Err(at(&format_args!("{length} bytes are more than such a file has")));
        }
        let text = regular::read_to_string(&path).map_err(|e| at(&e))?;
        let said = serde_json::from_str(&text).map_err(|e| at(&format_args!("it does not parse ({e})")))?;
        let generation = Generation { said };
        generation.check().map_err(|what| at(&what))?;
        Ok(Some(generation))
    }

    fn check(&self) -> Result<(), String> {
        self.drawn()?;
        self.ids().map(drop)
    }

    fn keys(&self) -> Keys<'_> {
        Keys { object: &self.said, within: "" }
    }

    /// Whether there are no settings.
    pub fn is_empty(&self) -> bool {
        self.said.is_empty()
    }

    /// The ids that end a text. Ids below 0 are ignored.
    fn ids(&self) -> Result<Vec<u32>, String> {
        let key = "eos_token_id";
        let keys = self.keys();
        let Some(value) = keys.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let ids: Option<Vec<i64>> = list.iter().map(Value::as_i64).collect();
        let ids = ids.ok_or_else(|| keys.refused(key, "it must be an id or a list of ids"))?;
        let mut found = Vec::new();
        for id in ids.into_iter().filter_map(|id| u32::try_from(id).ok()) {
            if !found.contains(&id) {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// The marks of a model with `tokenizer`: those of the settings, else the tokenizer's.
    pub fn marks(&self, tokenizer: &dyn Tokenizer) -> Marks {
        let own = Marks::of(tokenizer);
        let bos = self.said.get("bos_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        // The value was checked when it was read.
        let ends = self.ids().unwrap_or_default();
        Marks { bos: bos.or(own.bos), ends: if ends.is_empty() { own.ends } else { ends } }
    }

    /// Each id below `ids` at which a text of the model ends: the tokenizer's mark, which ends training documents, and
    /// those of the settings.
    pub fn ends(&self, tokenizer: &dyn Tokenizer, ids: u32) -> Vec<u32> {
        let mut ends: Vec<u32> = tokenizer.eos().into_iter().collect();
        for id in self.marks(tokenizer).ends {
            if id < ids && !ends.contains(&id) {
                ends.push(id);
            }
        }
        ends
    }

    /// The settings of a model that is trained further with documents that end with `eos`.
    #[must_use]
    pub fn trained_on(mut self, eos: Option<u32>) -> Generation {
        let mut ids = self.ids().unwrap_or_default();
        if let Some(eos) = eos.filter(|eos| !ids.is_empty() && !ids.contains(eos)) {
            ids.push(eos);
            self.said.insert("eos_token_id".to_owned(), json!(ids));
        }
        self
    }

    /// How tokens are sampled.
    ///
    /// # Errors
    /// A key with an invalid value.
    pub fn drawn(&self) -> Result<Drawn, String> {
        let keys = self.keys();
        let number = |key: &str, fits: fn(f32) -> bool, must: &str| match keys.get(key) {
            None => Ok(None),
            Some(value) => {
                let number = value.as_f64().map(|x| x as f32).filter(|x| x.is_finite() && fits(*x));
                number.map(Some).ok_or_else(|| keys.refused(key, must))
            }
        };
        let top_k = match keys.get("top_k") {
            None => None,
            Some(value) => {
                let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
                Some(count.ok_or_else(|| keys.refused("top_k", "it must be a whole number, 0 for all"))?)
            }
        };
        let sample = keys.get("do_sample").is_some().then(|| keys.switch("do_sample", false)).transpose()?;
        let other = |(key, neutral): (&str, f64)| {
            let value = keys.get(key).and_then(Value::as_f64).filter(|value| *value != neutral)?;
            Some(format!("{key} {value}"))
        };
        Ok(Drawn {
            sample,
            temperature: number("temperature", |x| x >= 0.0, "it must be at least 0")?,
            top_k,
            top_p: number("top_p", |x| (0.0..=1.0).contains(&x), "it must be from 0 to 1")?,
            repetition_penalty: number("repetition_penalty", |x| x > 0.0, "it must be above 0")?,
            others: NOT_APPLIED.into_iter().filter_map(other).collect(),
        })
    }

    /// A number of the file, unchanged.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.keys().get(key).and_then(Value::as_f64)
    }

    /// The file's text as it was read.
    pub fn said(&self) -> String {
        format!("{:#}\n", Value::Object(self.said.clone()))
    }

    /// The file's text for a model with `marks`: the settings that were read, and the marks that they lack.
    pub fn text(&self, marks: &Marks) -> String {
        let mut said = self.said.clone();
        let usual = [("bos_token_id", json!(marks.bos)), ("eos_token_id", marks.eos())];
        let pad = self.said.is_empty().then(|| ("pad_token_id", json!(marks.ends.first())));
        for (key, value) in usual.into_iter().chain(pad) {
            said.entry(key).or_insert(value);
        }
        format!("{:#}\n", Value::Object(said))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::data::tokenizer::build;

    fn of(file: Option<Value>, config: Value) -> Result<Generation, String> {
        let dir = tempfile::tempdir().unwrap();
        if let Some(file) = file {
            fs::write(dir.path().join(FILE_NAME), file.to_string()).unwrap();
        }
        Generation::of_model(dir.path(), &config)
    }

    #[test]
    fn every_end_is_an_end_wherever_it_is_said() {
        // The marks of this tokenizer are 2 and 3.
        let tokenizer = build("byte", None, true, &mut std::iter::empty()).unwrap().tokenizer;
        for (file, config, marks, ends) in [
            (None, json!({}), json!(3), vec![3]),
            (None, json!({"eos_token_id": 1}), json!(1), vec![3, 1]),
            (None, json!({"eos_token_id": [1, 2, 1]}), json!([1, 2]), vec![3, 1, 2]),
            (Some(json!({"eos_token_id": [3, 9]})), json!({"eos_token_id": 1}), json!([3, 9]), vec![3, 9]),
            (Some(json!({"temperature": 0.5})), json!({"eos_token_id": 1}), json!(1), vec![3, 1]),
            // Ids outside the model end no text, but are written again.
            (Some(json!({"eos_token_id": [-1, 5, 700]})), json!({}), json!([5, 700]), vec![3, 5]),
            (Some(json!({"eos_token_id": null})), json!({"eos_token_id": null}), json!(3), vec![3]),
        ] {
            let shown = format!("{file:?} {config}");
            let generation = of(file, config).unwrap();
            assert_eq!(generation.marks(tokenizer.as_ref()).eos(), marks, "{shown}");
            assert_eq!(generation.ends(tokenizer.as_ref(), 260), ends, "{shown}");
        }
        let trained = of(None, json!({"eos_token_id": [1, 2]})).unwrap().trained_on(Some(3));
        assert_eq!(trained.marks(tokenizer.as_ref()).ends, [1, 2, 3]);
        assert!(Generation::default().trained_on(Some(3)).is_empty());
    }

    #[test]
    fn what_is_said_is_written_again_and_what_cannot_be_is_refused() {
        let file = json!({"eos_token_id": [1, 2], "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 7, "x": [{}]});
        let generation = of(Some(file.clone()), json!({"eos_token_id": 1, "temperature": 9.0})).unwrap();
        let written: Value = serde_json::from_str(&generation.text(&Marks { bos: Some(0), ends: vec![5] })).unwrap();
        let mut expected = file;
        expected["bos_token_id"] = 0.into();
        assert_eq!(written, expected);
        let drawn = generation.drawn().unwrap();
        assert_eq!((drawn.temperature, drawn.top_p, drawn.top_k, drawn.sample), (Some(0.6), Some(0.9), None, None));
        // Old models have the settings in config.json.
        let old = of(None, json!({"do_sample": true, "top_k": 20, "min_p": 0.1, "hidden_size": 3})).unwrap();
        let drawn = old.drawn().unwrap();
        assert_eq!((drawn.sample, drawn.top_k, drawn.others.len()), (Some(true), Some(20), 0));
        let others = of(Some(json!({"min_p": 0.1, "num_beams": 1, "typical_p": 1.0})), json!({})).unwrap();
        assert_eq!(others.drawn().unwrap().others, ["min_p 0.1"]);
        for (key, value) in [
            ("eos_token_id", json!("end")),
            ("eos_token_id", json!([1, 2.5])),
            ("temperature", json!(-1)),
            ("temperature", json!("hot")),
            ("top_p", json!(1.5)),
            ("top_k", json!(-3)),
            ("repetition_penalty", json!(0)),
            ("do_sample", json!("yes")),
        ] {
            for (file, config, name) in
                [(Some(json!({key: value})), json!({}), FILE_NAME), (None, json!({key: value}), "config.json")]
            {
                let message = of(file, config).unwrap_err();
                assert!(message.contains(&format!("{name}: {key} is ")) && !message.contains('\n'), "{message}");
            }
        }
    }
}
