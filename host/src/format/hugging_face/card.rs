//! The model card, which contains only known facts about a model.

use capful_base::human_bytes;
use std::fmt::Write as _;
use std::path::Path;

use capful_core::model::Transformer;
use capful_core::train::Averaging;
use serde::{Deserialize, Serialize};

use crate::format::export::{Architecture, Element, Stored};

/// A model that another was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Its name: that of its directory, or of the Hub where it lies in the Hub's cache.
    pub name: String,
    /// Whether it was trained elsewhere.
    pub elsewhere: bool,
    /// Whether it was taken over as it is; else it was trained on.
    pub imported: bool,
}

/// A model's validation.
#[derive(Debug, Clone, Copy)]
pub struct Score {
    /// Steps done.
    pub step: u64,
    /// Nats a token.
    pub loss: f64,
    /// The loss's standard error over the documents, of several documents.
    pub standard_error: Option<f64>,
    /// Bits a byte of text, of a tokenizer that restores the text.
    pub bits_per_byte: Option<f64>,
    /// Tokens that were scored.
    pub tokens: u64,
}

/// A run's information about its model.
#[derive(Debug, Clone)]
pub struct Card {
    /// The models that it was made of, the nearest first.
    pub from: Vec<Ancestor>,
    /// The one that it is a version of, where it is of another's.
    pub base: Option<Ancestor>,
    /// The data's name, of a model that was trained here.
    pub data: Option<String>,
    /// The kind of the tokenizer, or its file's name.
    pub tokenizer: String,
    /// Number of ids of the tokenizer.
    pub tokenizer_size: u32,
    /// Number of steps done.
    pub step: Option<u64>,
    /// Number of tokens trained on.
    pub tokens: Option<u64>,
    /// The last evaluation.
    pub score: Option<Score>,
    /// How its weights are averaged, where they are.
    pub averaging: Option<Averaging>,
    /// How to train it again.
    pub recipe: Recipe,
    /// The version of capful that trained it.
    pub trained_by: Option<String>,
}

/// How to train a model again.
#[derive(Debug, Clone)]
pub enum Recipe {
    /// With a configuration, as a user would write all of it, and notes.
    Config {
        /// The file's text.
        text: String,
        /// Further information that is needed.
        notes: Vec<String>,
    },
    /// Not with a single configuration; says why.
    None(String),
}

impl Card {
    /// The README.md of a directory with these files.
    pub(super) fn markdown(
        &self,
        stored: &Stored,
        architecture: Architecture,
        element: Element,
        files: &[(String, u64)],
        out: &Path,
    ) -> String {
        let name = out.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        // The name is used in a heading and in Python: characters that would end either are removed.
        let name = plain(&name).replace('/', "");
        let mut text = String::from("---\nlibrary_name: transformers\npipeline_tag: text-generation\n");
        if let Some(base) = &self.base {
            text.push_str(&format!("base_model: \"{}\"\n", plain(&base.name)));
        }
        text.push_str("tags:\n");
        // Writing to a string cannot fail.
        let _ = self.body(&mut text, &name, stored, architecture, element, files);
        text
    }

    fn body(
        &self,
        text: &mut String,
        name: &str,
        stored: &Stored,
        architecture: Architecture,
        element: Element,
        files: &[(String, u64)],
    ) -> std::fmt::Result {
        let model = &stored.model;
        for tag in ["capful", "safetensors", architecture.model_type()] {
            writeln!(text, "- {tag}")?;
        }
        writeln!(text, "---\n\n# {name}\n")?;
        let version = env!("CARGO_PKG_VERSION");
        let trained_by = self.trained_by.as_deref().unwrap_or(version);
        match &self.from[..] {
            [] => writeln!(
                text,
                "A language model trained with capful {trained_by} and exported with capful {version}.\n"
            )?,
            [source, ..] if source.imported => writeln!(
                text,
                "A language model imported from {} with capful and exported with capful {version}, which did not train it.\n",
                called(source)
            )?,
            [source, before @ ..] => {
                writeln!(
                    text,
                    "A language model begun from {} and trained further with capful {trained_by}; exported with capful \
                     {version}.{}\n",
                    called(source),
                    before.iter().map(itself).collect::<String>()
                )?;
            }
        }
        writeln!(text, "| | |\n| --- | --- |")?;
        writeln!(text, "| Architecture | `{}` |", architecture.class())?;
        writeln!(text, "| Parameters | {} |", grouped(stored.parameters()))?;
        writeln!(text, "| Shape | {} |", shape(model))?;
        writeln!(text, "| Weights | {} |", element.torch())?;
        writeln!(text, "| Tokenizer | {}, {} ids |", cell(&self.tokenizer), self.tokenizer_size)?;
        let (further, data_is) = if self.from.is_empty() { ("", "Training") } else { (" further", "Further training") };
        if let Some(data) = &self.data {
            writeln!(text, "| {data_is} data | {} |", cell(data))?;
        }
        if let (Some(step), Some(tokens)) = (self.step, self.tokens) {
            writeln!(text, "| Trained{further} on | {} tokens, {} steps |", grouped(tokens), grouped(step))?;
        }
        match self.averaging {
            Some(Averaging::Exponential(decay)) => {
                writeln!(text, "| Weights are | an exponential moving average over steps, decay {decay} |")?;
            }
            Some(Averaging::Last { count, .. }) => {
                writeln!(text, "| Weights are | the mean of those after each of the last {} steps |", grouped(count))?;
            }
            None => {}
        }
        if let Some(score) = self.score {
            let error =
                score.standard_error.map_or_else(String::new, |error| format!(" ± {error:.4} (standard error)"));
            writeln!(text, "| Validation loss | {:.4}{error} nats a token |", score.loss)?;
            if let Some(bits) = score.bits_per_byte {
                writeln!(text, "| Validation loss | {bits:.4} bits a byte |")?;
            }
            writeln!(text, "| Validated on | {} tokens after {} steps |", grouped(score.tokens), grouped(score.step))?;
        }
        writeln!(text, "\n## Load it\n\n```python")?;
        writeln!(text, "from transformers import AutoModelForCausalLM, AutoTokenizer")?;
        writeln!(text, "model = AutoModelForCausalLM.from_pretrained(\"{name}\")")?;
        writeln!(text, "tokenizer = AutoTokenizer.from_pretrained(\"{name}\")\n```\n")?;
        self.again(text)?;
        writeln!(text, "## Files\n\n| file | bytes | |\n| --- | ---: | --- |")?;
        for (file, bytes) in files {
            writeln!(text, "| `{file}` | {bytes} | {} |", human_bytes(*bytes))?;
        }
        writeln!(text, "\n## Limits\n")?;
        if let Some(source) = self.base.as_ref().or(self.from.first()) {
            writeln!(text, "- Its context is {} tokens.", model.context)?;
            writeln!(text, "- The limits and the licence of {} are its own too; see there.", called(source))?;
        } else {
            writeln!(text, "- Its context is {} tokens; positions beyond it were never trained.", model.context)?;
            writeln!(
                text,
                "- It continues text of the kind that it was trained on. It was not trained to follow instructions."
            )?;
        }
        writeln!(text, "- Its output is not filtered and may be wrong or offensive.")?;
        if self.score.is_none() {
            writeln!(text, "- Its validation loss was not measured.")?;
        }
        if model.rank.is_some() {
            writeln!(
                text,
                "- The factors E and P of its embedding are multiplied out here, which adds parameters and no power."
            )?;
        }
        Ok(())
    }

    /// The section on how to train it again, if that is known.
    fn again(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "## Train it again\n")?;
        match &self.recipe {
            Recipe::None(why) => writeln!(text, "There is no recipe: {}.\n", cell(why)),
            Recipe::Config { text: config, notes } => {
                writeln!(text, "Save this as `run.toml`, then `host train --config run.toml --out RUN`.")?;
                notes.iter().try_for_each(|note| writeln!(text, "{}", cell(note)))?;
                writeln!(text, "\n```toml\n{}\n```\n", config.trim_end())
            }
        }
    }
}

/// A name with only the characters that are valid in a heading, in Python and in YAML.
fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric() || "-_. /".contains(*c)).collect()
}

/// The card's name of a model.
fn called(source: &Ancestor) -> String {
    match plain(&source.name) {
        name if name.is_empty() => "a model that is not recorded".to_owned(),
        name => format!("`{name}`"),
    }
}

/// The sentence about the model from which this one was made.
fn itself(source: &Ancestor) -> String {
    let how = if source.imported { "imported" } else { "begun" };
    format!(" That was itself {how} from {}.", called(source))
}

fn shape(model: &Transformer) -> String {
    let heads = match model.kv_heads {
        keys if keys == model.heads => format!("{} heads", model.heads),
        keys => format!("{} query heads, {keys} key heads", model.heads),
    };
    let residual = if model.parallel() { ", parallel residual" } else { "" };
    let rank = model.rank.map_or_else(String::new, |rank| format!(", embedding of rank {rank}"));
    let Transformer { layers, d_model, d_ff, context, vocab_size, .. } = model;
    format!(
        "{layers} layers, width {d_model}, {heads}, feed-forward {d_ff}, context {context}, vocabulary {vocab_size}{residual}\
         {rank}"
    )
}

/// A number with commas.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || c == '|' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_in_threes() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn a_cell_stays_a_cell() {
        assert_eq!(cell("a|b\nc"), "a b c");
    }
}
