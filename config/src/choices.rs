//! The choices in a configuration.

use std::path::{Path, PathBuf};

use capful_core::integer::Integer;
use capful_core::memory::Dtype;
use capful_core::model::transformer;
use capful_core::ops::PatternKind;
use capful_core::optimizer;
use capful_core::train::{Decay, Shape};
use serde::{Deserialize, Serialize};

use super::error::{ConfigError, error};
use super::keys::words;

words! {
    /// How the learning rate decays.
    #[derive(clap::ValueEnum)]
    LrSchedule => Shape {
        /// Half a cosine to the end.
        Cosine "cosine" => Shape::Cosine;
        /// A straight line to the end.
        Linear "linear" => Shape::Linear;
        /// Not at all.
        Constant "constant" => Shape::Constant;
        /// Over the last steps only: warm-up, stable, decay.
        Wsd "wsd" => Shape::Wsd;
    }
}

words! {
    /// How the learning rate decays at the end of `wsd`.
    #[derive(clap::ValueEnum)]
    DecayShape => Decay {
        /// A straight line.
        Linear "linear" => Decay::Linear;
        /// Half a cosine.
        Cosine "cosine" => Decay::Cosine;
        /// 1 - √x.
        Sqrt "sqrt" => Decay::Sqrt;
    }
}

/// The order in which a run reads its sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// A random permutation of all sequences of each epoch, of tokens that are kept in files.
    Random,
    /// Drawn at random from a part of the stream.
    Pool,
    /// As they follow each other. Runs saved before there were others are of it.
    #[default]
    Consecutive,
}

/// How bytes of a text that are not UTF-8 are treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InvalidUtf8 {
    /// The file is refused.
    #[default]
    Refuse,
    /// They become U+FFFD, and are counted.
    Replace,
}

/// How a conversation that is longer than a sequence is treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// Its end is left out.
    #[default]
    Cut,
    /// It is left out.
    Drop,
}

/// Sequences of a micro-batch, in written form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", into = "toml::Value")]
pub enum BatchSize {
    /// As many as fit in memory.
    Auto,
    /// This many.
    Sequences(u32),
}

impl std::str::FromStr for BatchSize {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchSize, String> {
        let other = || format!("'{text}' is neither a number of sequences nor auto");
        if text == "auto" {
            Ok(BatchSize::Auto)
        } else {
            super::count(text).map(BatchSize::Sequences).map_err(|_| other())
        }
    }
}

impl TryFrom<toml::Value> for BatchSize {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<BatchSize, String> {
        value.as_str().map_or_else(|| value.to_string(), str::to_owned).parse()
    }
}

impl From<BatchSize> for toml::Value {
    fn from(size: BatchSize) -> toml::Value {
        match size {
            BatchSize::Auto => "auto".into(),
            BatchSize::Sequences(n) => i64::from(n).into(),
        }
    }
}

/// The type of weights and matrix multiplications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision.
    F32,
    /// bfloat16 with f32 masters.
    Bf16,
    /// bf16, with 8-bit floats in the products of the layers.
    Fp8,
}

impl Precision {
    /// The type of the weights in files, by torch's name.
    pub fn of_weights(self) -> &'static str {
        match self {
            Precision::F32 => "float32",
            Precision::Bf16 | Precision::Fp8 => "bfloat16",
        }
    }
}

/// The storage type of the base weights under adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BaseType {
    /// Single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// Integers of 8 bits, a scale a row.
    Int8,
}

impl BaseType {
    /// The core's type; f32 is the type of the matrix multiplications, or is refused.
    pub fn core(self) -> transformer::BaseType {
        match self {
            BaseType::F32 => transformer::BaseType::Same,
            BaseType::Bf16 => transformer::BaseType::Bf16,
            BaseType::Int8 => transformer::BaseType::Int8,
        }
    }
}

/// The type of the parameters' gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gradients {
    /// Single precision.
    #[default]
    F32,
    /// bfloat16: sums are made in f32 and rounded as they are kept.
    Bf16,
}

/// The storage type of an optimizer's states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum States {
    /// Single precision.
    #[default]
    F32,
    /// 8 bits a number, in blocks with a scale.
    #[serde(rename = "8bit")]
    EightBits,
}

/// The storage type of an optimizer's states, in written form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatesChoice {
    /// Single precision.
    F32,
    /// 8 bits a number, in blocks with a scale.
    #[value(name = "8bit")]
    #[serde(rename = "8bit")]
    EightBits,
    /// What costs least of what fits.
    Auto,
}

impl From<States> for StatesChoice {
    fn from(states: States) -> StatesChoice {
        match states {
            States::F32 => StatesChoice::F32,
            States::EightBits => StatesChoice::EightBits,
        }
    }
}

impl States {
    /// The core's type.
    pub const fn core(self) -> optimizer::States {
        match self {
            States::F32 => optimizer::States::F32,
            States::EightBits => optimizer::States::EightBits,
        }
    }
}

/// The form of the masters of weights in bf16.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Masters {
    /// Single precision: 16 bits beside the weight.
    #[default]
    F32,
    /// The upper 24 bits of that: 8 bits beside the weight.
    F24,
    /// There are none: weights are rounded by chance as they move.
    Bf16,
}

impl Masters {
    /// The type of the remainder that is stored next to the weight.
    pub const fn remainder(self) -> Option<Dtype> {
        match self {
            Masters::F32 => Some(Dtype::Remainder),
            Masters::F24 => Some(Dtype::Remainder8),
            Masters::Bf16 => None,
        }
    }
}

/// The storage type of a trained model's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Weights {
    /// What the device computes in.
    F32,
    /// Integers of 8 bits, a scale a row.
    Int8,
    /// Integers of 4 bits, a scale a group of 32 inputs.
    Int4,
}

impl Weights {
    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Weights::F32 => "f32",
            Weights::Int8 => "int8",
            Weights::Int4 => "int4",
        }
    }

    /// The integer type, if these are integers.
    pub const fn integer(self) -> Option<Integer> {
        match self {
            Weights::F32 => None,
            Weights::Int8 => Some(Integer::Int8),
            Weights::Int4 => Some(Integer::Int4),
        }
    }
}

words! {
    /// What a query sees.
    #[derive(clap::ValueEnum)]
    Attention => PatternKind {
        /// Every earlier token.
        Dense "dense" => PatternKind::Dense;
        /// The nearest blocks.
        Local "local" => PatternKind::Local;
        /// Every stride-th block.
        Global "global" => PatternKind::Global;
        /// Both.
        Mixed "mixed" => PatternKind::Mixed;
    }
}

/// The device of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// SIMD and threads.
    Cpu,
    /// Plain loops, one thread.
    Reference,
    /// The GPU of this number.
    Cuda(u32),
}

/// The tokenizer to build or to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerChoice {
    /// Words under the cap.
    Word,
    /// Bytes.
    Byte,
    /// Byte-level BPE trained under the cap.
    Bpe,
    /// A tokenizer.json.
    File(PathBuf),
}

impl TokenizerChoice {
    /// Parses `word`, `byte`, `bpe`, or the path of a .json file or of a directory with a tokenizer.json.
    ///
    /// # Errors
    /// Any other word, or a directory without the file.
    pub fn parse(text: &str) -> Result<TokenizerChoice, ConfigError> {
        match text {
            "word" => Ok(TokenizerChoice::Word),
            "byte" => Ok(TokenizerChoice::Byte),
            "bpe" => Ok(TokenizerChoice::Bpe),
            file if file.ends_with(".json") => Ok(TokenizerChoice::File(file.into())),
            dir if Path::new(dir).is_dir() => match Path::new(dir).join("tokenizer.json") {
                file if file.exists() => Ok(TokenizerChoice::File(file)),
                _ => error(format!(
                    "--tokenizer {dir}: there is no tokenizer.json in this directory; name one that has it"
                )),
            },
            other => error(format!(
                "no tokenizer is called '{other}'; there are word, byte, bpe, or a tokenizer.json or the directory that it \
                 is in"
            )),
        }
    }

    /// `text`, or the file in the directory that it names.
    pub fn written(text: &str) -> String {
        match TokenizerChoice::parse(text) {
            Ok(TokenizerChoice::File(path)) => path.display().to_string(),
            _ => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_is_named_by_its_file_or_the_directory_that_it_is_in() {
        let dir = tempfile::tempdir().unwrap();
        let (name, file) = (dir.path().display().to_string(), dir.path().join("tokenizer.json"));
        let refused = |name: &str| TokenizerChoice::parse(name).unwrap_err().to_string();
        assert_eq!(
            refused(&name),
            format!("--tokenizer {name}: there is no tokenizer.json in this directory; name one that has it")
        );
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(TokenizerChoice::written(&name), file.display().to_string());
        assert_eq!(TokenizerChoice::written("bpe"), "bpe");
        assert_eq!(TokenizerChoice::parse(&name), Ok(TokenizerChoice::File(file)));
        assert!(refused("wrod").starts_with("no tokenizer is called 'wrod'; there are word, byte, bpe, or a"));
    }
}
