//! The tokenizer of a run, built from its training documents, and the template of its conversations.

use super::super::conversation::ChatTemplate;
use super::super::error::SourceError;
use super::super::source::{Document, Source, SourceOptions};
use super::super::split::{Part, Split};
use super::super::tokenizer::{self, Built, DocumentError, Tokenizer, TokenizerError};
use super::{Corpus, CorpusError, open};
use crate::config::Config;

/// Documents of the built-in corpus that a tokenizer is built from: each of its words occurs in them many times.
const TALES_READ: usize = 10_000;

/// The template of a run's conversations: the one that it names, else that of `tokenizer`.
pub(super) fn template(config: &Config, tokenizer: Option<&dyn Tokenizer>) -> Result<ChatTemplate, CorpusError> {
    Ok(match (&config.chat_template, tokenizer) {
        (Some(path), tokenizer) => ChatTemplate::of_file(path, tokenizer)?,
        (None, Some(tokenizer)) => ChatTemplate::of(tokenizer),
        (None, None) => ChatTemplate::default(),
    })
}

/// Builds the tokenizer of `config` from its training documents.
///
/// # Errors
/// What is wrong with the source or with the tokenizer.
pub fn build_tokenizer(config: &Config) -> Result<Built, CorpusError> {
    let (source, options, split) = Corpus::sources(config, None, false, template(config, None)?)?;
    build(config, &source, &options, split)
}

pub(super) fn build(
    config: &Config,
    source: &Source,
    options: &SourceOptions,
    split: Split,
) -> Result<Built, CorpusError> {
    let mut documents = open(source, options, config.seed, Part::Training)?;
    let kinds = matches!(config.tokenizer.as_str(), "word" | "bpe");
    if kinds && !documents.has_text() {
        let name = documents.name().to_owned();
        return Err(SourceError::NoText { name, tokenizer: config.tokenizer.clone() }.into());
    }
    let endless = *source == Source::Tales;
    let part = if endless { Part::All } else { Part::Training };
    let mut left = if endless { TALES_READ } else { usize::MAX };
    let mut texts = std::iter::from_fn(|| {
        let mut document = Document::default();
        while left > 0 {
            match documents.next(&mut document) {
                Ok(true) if split.holds(part, &document) => {
                    left -= 1;
                    let text = std::mem::take(&mut document.text);
                    let conversation = !document.parts.is_empty();
                    return Some(Ok(if conversation { options.template.unmarked(&text) } else { text }));
                }
                Ok(true) => {}
                Ok(false) => return None,
                Err(e) => return Some(Err(DocumentError::from(e))),
            }
        }
        None
    });
    let known = matches!(config.tokenizer.as_str(), "word" | "byte" | "bpe");
    let cap = known.then(|| config.vocab_size());
    let built = tokenizer::build(&config.tokenizer, cap, true, &mut texts);
    if let (Err(TokenizerError::NoWords(_)), Source::Path(path)) = (&built, source) {
        // Better said by the data's name.
        let name = path.display().to_string();
        let blank = !open(source, options, config.seed, Part::All)?.next(&mut Document::default())?;
        return Err(if blank {
            SourceError::NoDocuments { name }.into()
        } else {
            SourceError::EmptyPart { name, part: "training" }.into()
        });
    }
    Ok(built?)
}
