//! The model card: what is known of a model, and nothing else.

use std::fmt::Write as _;
use std::path::Path;

use capful_core::model::Transformer;
use capful_core::model::transformer::Residual;

use crate::config::human_bytes;
use crate::format::export::{Architecture, Element, Stored};
use crate::run::metrics::EvalMetrics;

/// What a run knows of its model.
#[derive(Debug, Clone)]
pub struct Card {
    /// The data's name.
    pub data: String,
    /// The kind of the tokenizer, or its file's name.
    pub tokenizer: String,
    /// Ids of the tokenizer.
    pub tokenizer_size: u32,
    /// Steps done.
    pub step: Option<u64>,
    /// Tokens trained on.
    pub tokens: Option<u64>,
    /// The last evaluation.
    pub score: Option<EvalMetrics>,
    /// The configuration as a user would write all of it.
    pub config: String,
    /// The version of capful that trained it.
    pub trained_by: Option<String>,
}

impl Card {
    /// README.md of a directory with these files.
    pub(super) fn markdown(
        &self,
        stored: &Stored,
        architecture: Architecture,
        element: Element,
        files: &[(String, u64)],
        out: &Path,
    ) -> String {
        let name = out.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        // A name goes into a heading and into Python: what would end either is left out.
        let name: String = name.chars().filter(|c| c.is_alphanumeric() || "-_. ".contains(*c)).collect();
        let mut text = String::from("---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n");
        // Writing into a string cannot fail.
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
        writeln!(text, "A language model trained with capful {trained_by} and exported with capful {version}.\n")?;
        writeln!(text, "| | |\n| --- | --- |")?;
        writeln!(text, "| Architecture | `{}` |", architecture.class())?;
        writeln!(text, "| Parameters | {} |", grouped(stored.parameters()))?;
        writeln!(text, "| Shape | {} |", shape(model))?;
        writeln!(text, "| Weights | {} |", element.torch())?;
        writeln!(text, "| Tokenizer | {}, {} ids |", cell(&self.tokenizer), self.tokenizer_size)?;
        writeln!(text, "| Training data | {} |", cell(&self.data))?;
        if let (Some(step), Some(tokens)) = (self.step, self.tokens) {
            writeln!(text, "| Trained on | {} tokens, {} steps |", grouped(tokens), grouped(step))?;
        }
        if let Some(score) = self.score {
            let error = score.val_loss_se.map_or_else(String::new, |error| format!(" ± {error:.4} (standard error)"));
            writeln!(text, "| Validation loss | {:.4}{error} nats a token |", score.val_loss)?;
            if let Some(bits) = score.val_bits_per_byte {
                writeln!(text, "| Validation loss | {bits:.4} bits a byte |")?;
            }
            writeln!(
                text,
                "| Validated on | {} tokens after {} steps |",
                grouped(score.val_tokens),
                grouped(score.step)
            )?;
        }
        writeln!(text, "\n## Load it\n\n```python")?;
        writeln!(text, "from transformers import AutoModelForCausalLM, AutoTokenizer")?;
        writeln!(text, "model = AutoModelForCausalLM.from_pretrained(\"{name}\")")?;
        writeln!(text, "tokenizer = AutoTokenizer.from_pretrained(\"{name}\")\n```\n")?;
        writeln!(
            text,
            "## Train it again\n\nSave this as `run.toml`, then `host train --config run.toml --out RUN`.\n"
        )?;
        writeln!(text, "```toml\n{}\n```\n", self.config.trim_end())?;
        writeln!(text, "## Files\n\n| file | bytes | |\n| --- | ---: | --- |")?;
        for (file, bytes) in files {
            writeln!(text, "| `{file}` | {bytes} | {} |", human_bytes(*bytes))?;
        }
        writeln!(text, "\n## Limits\n")?;
        writeln!(text, "- Its context is {} tokens; positions beyond it were never trained.", model.context)?;
        writeln!(
            text,
            "- It continues text of the kind that it was trained on. It was not trained to follow instructions."
        )?;
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
}

fn shape(model: &Transformer) -> String {
    let heads = match model.kv_heads {
        keys if keys == model.heads => format!("{} heads", model.heads),
        keys => format!("{} query heads, {keys} key heads", model.heads),
    };
    let residual = if model.residual == Residual::Parallel { ", parallel residual" } else { "" };
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
