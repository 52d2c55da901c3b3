//! `host vocab`.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::output::say;
use super::reading::Reading;
use super::{Failure, request};
use crate::config::RawConfig;
use crate::data::corpus;
use crate::data::found;
use crate::data::tokenizer::{self, Built, Tokenizer};
use crate::run::checkpoint;

/// Flags of `host vocab`.
#[derive(Debug, clap::Args)]
pub struct Vocab {
    /// What to build the vocabulary from
    #[arg(long, value_name = "SOURCE", default_value = "tales")]
    data: String,
    #[command(flatten)]
    reading: Reading,
    /// Token ids, special ones included: the cap
    #[arg(long, value_name = "N")]
    vocab_size: Option<u32>,
    /// word, byte, bpe, a tokenizer.json, or a run's directory
    #[arg(long, value_name = "KIND|FILE|RUN", default_value = "word")]
    tokenizer: String,
    /// Shows the ids of a text
    #[arg(long, value_name = "TEXT", conflicts_with = "decode")]
    encode: Option<String>,
    /// Shows the text of ids, separated by commas
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    decode: Option<Vec<u32>>,
    /// Reads JSON from standard input, a text or a list of ids a line, and prints ids and their text for each
    #[arg(long, conflicts_with_all = ["encode", "decode"])]
    lines: bool,
    /// Writes the tokenizer into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Vocab {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Built { tokenizer, coverage } = self.tokenizer()?;
        if let Some(dir) = &self.out {
            std::fs::create_dir_all(dir).map_err(|e| request(format!("{}: {e}", dir.display())))?;
            tokenizer.save(dir).map_err(request)?;
        }
        if self.encode.is_some() || self.decode.is_some() {
            return self.translate(tokenizer.as_ref());
        }
        if self.lines {
            return translate_lines(tokenizer.as_ref());
        }
        let shown: Vec<_> = (0..tokenizer.vocab_size()).filter_map(|id| tokenizer.token(id)).collect();
        if self.json {
            let coverage = coverage.map(|c| {
                json!({
                    "words": c.words, "covered": c.covered, "share": c.share(), "distinct": c.distinct,
                    "error_bound": c.error_bound, "counts": c.counts,
                })
            });
            say!(
                "{}",
                json!({
                    "vocab_size": tokenizer.vocab_size(), "bos": tokenizer.bos(), "eos": tokenizer.eos(), "tokens": shown,
                    "coverage": coverage,
                })
            )?;
            return Ok(());
        }
        let mark = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).unwrap_or_else(|| "no mark".to_owned());
        let (bos, eos) = (mark(tokenizer.bos()), mark(tokenizer.eos()));
        say!("{} ids; documents begin with {bos} and end with {eos}", tokenizer.vocab_size())?;
        if let Some(c) = &coverage {
            let exact = if c.error_bound == 0 { String::new() } else { format!(", counts ± {}", c.error_bound) };
            say!("{:.2} % of {} words are covered{exact}", 100.0 * c.share(), c.words)?;
        }
        for (id, token) in shown.iter().enumerate().take(40) {
            let count = coverage.as_ref().and_then(|c| id.checked_sub(4).and_then(|i| c.counts.get(i)));
            say!("{id:>7}  {token:?}{}", count.map_or(String::new(), |n| format!("  {n}")))?;
        }
        if shown.len() > 40 {
            say!("    ...  {} more; --json shows all", shown.len() - 40)?;
        }
        Ok(())
    }

    fn tokenizer(&self) -> Result<Built, Failure> {
        let path = Path::new(&self.tokenizer);
        // A kind takes precedence over a directory of the same name, which can be written as ./word.
        let kind = matches!(self.tokenizer.as_str(), "word" | "byte" | "bpe");
        if path.is_dir() && !kind {
            // A run stores its tokenizer next to its checkpoints; a checkpoint has a copy.
            let dir = if path.join(tokenizer::FILE_NAME).exists() {
                path.to_owned()
            } else {
                checkpoint::latest(path).map_err(request)?
            };
            let tokenizer = tokenizer::load(&dir).map_err(request)?;
            return Ok(Built { tokenizer, coverage: None });
        }
        if self.tokenizer.ends_with(".json") {
            let tokenizer = tokenizer::load_file(path).map_err(request)?;
            return Ok(Built { tokenizer, coverage: None });
        }
        let config = found::resolve(RawConfig {
            data: Some(self.data.clone().into()),
            text_field: Some(self.reading.text_field.clone()),
            invalid_utf8: Some(self.reading.invalid_utf8),
            skip_bad_lines: Some(self.reading.skip_bad_lines),
            tokenizer: Some(self.tokenizer.clone()),
            vocab_size: self.vocab_size.or(if self.tokenizer == "byte" { None } else { Some(10_000) }),
            ..RawConfig::default()
        })?;
        corpus::built::build_tokenizer(&config).map_err(request)
    }

    fn translate(&self, tokenizer: &dyn Tokenizer) -> Result<(), Failure> {
        let (ids, text) = match (&self.encode, &self.decode) {
            (Some(text), _) => {
                let mut ids = Vec::new();
                tokenizer.encode(text, &mut ids).map_err(request)?;
                (ids, text.clone())
            }
            (None, ids) => {
                let ids = ids.clone().unwrap_or_default();
                require_known(&ids, tokenizer)?;
                let text = tokenizer.decode(&ids);
                (ids, text)
            }
        };
        if self.json {
            say!("{}", json!({ "ids": ids, "text": text }))?;
        } else if self.encode.is_some() {
            let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
            say!("{}", ids.join(","))?;
        } else {
            say!("{text}")?;
        }
        Ok(())
    }
}

/// One line of standard input.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    Ids(Vec<u32>),
}

fn translate_lines(tokenizer: &dyn Tokenizer) -> Result<(), Failure> {
    for (number, line) in (1u64..).zip(std::io::stdin().lines()) {
        let line = line.map_err(|e| request(format!("standard input: {e}")))?;
        let ids = match serde_json::from_str(&line) {
            Ok(Line::Text(text)) => {
                let mut ids = Vec::new();
                tokenizer.encode(&text, &mut ids).map_err(request)?;
                ids
            }
            Ok(Line::Ids(ids)) => ids,
            Err(_) => {
                return Err(request(format!(
                    "line {number} of standard input is neither a text nor a list of ids in JSON, such as \"a text\" or [1,2]"
                )));
            }
        };
        require_known(&ids, tokenizer)?;
        say!("{}", json!({ "ids": ids, "text": tokenizer.decode(&ids) }))?;
    }
    Ok(())
}

fn require_known(ids: &[u32], tokenizer: &dyn Tokenizer) -> Result<(), Failure> {
    match ids.iter().find(|&&id| id >= tokenizer.vocab_size()) {
        Some(id) => Err(request(format!("id {id} is outside the vocabulary of {}", tokenizer.vocab_size()))),
        None => Ok(()),
    }
}
