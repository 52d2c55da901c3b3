//! The tokenizer of a run, built from the training documents of its sources, and the template of its conversations.

use std::path::Path;

use super::super::conversation::ChatTemplate;
use super::super::error::SourceError;
use super::super::snapshot::Began;
use super::super::source::{Document, Documents};
use super::super::split::Part;
use super::super::tokenizer::{self, Built, DocumentError, Tokenizer, TokenizerError};
use super::{CorpusError, Opened, mixed, open};
use capful_config::{Config, Source};

/// Documents of the built-in corpus that a tokenizer is built from: each of the corpus's words occurs many times in
/// them.
const TALES_READ: usize = 10_000;

/// The template of a run's conversations: the template that `config` names, or else that of `tokenizer`.
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
    let opened = mixed::open_all(config, Path::new(""), Began::default(), false, &template(config, None)?)?;
    build(config, opened.iter().map(|one| &one.opened))
}

/// The training documents of one source, read in turn with those of the other sources.
struct Texts<'a> {
    of: &'a Opened,
    documents: Box<dyn Documents>,
    weight: f64,
    part: Part,
    /// Documents that are left to read, and bytes read divided by the weight.
    left: usize,
    taken: f64,
}

impl Texts<'_> {
    fn next(&mut self) -> Result<Option<String>, SourceError> {
        let (_, options, split) = self.of;
        let mut document = Document::default();
        while self.left > 0 && self.documents.next(&mut document)? {
            if split.holds(self.part, &document) {
                self.left -= 1;
                let text = std::mem::take(&mut document.text);
                self.taken += text.len() as f64;
                let conversation = !document.parts.is_empty();
                return Ok(Some(if conversation { options.template.unmarked(&text) } else { text }));
            }
        }
        self.left = 0;
        Ok(None)
    }
}

/// Builds the tokenizer of `config` from these sources. They are read in turn so that each source's bytes are in
/// proportion to its weight.
pub(super) fn build<'a>(config: &Config, opened: impl Iterator<Item = &'a Opened>) -> Result<Built, CorpusError> {
    let kinds = matches!(config.tokenizer.as_str(), "word" | "bpe");
    let mut sources = Vec::new();
    for (of, weight) in opened.zip(config.data.weights()) {
        let documents = open(&of.0, &of.1, config.seed, Part::Training)?;
        if kinds && !documents.has_text() {
            let name = documents.name().to_owned();
            return Err(SourceError::NoText { name, tokenizer: config.tokenizer.clone() }.into());
        }
        let endless = of.0 == Source::Tales;
        let part = if endless { Part::All } else { Part::Training };
        let left = if endless { TALES_READ } else { usize::MAX };
        sources.push(Texts { of, documents, weight, part, left, taken: 0.0 });
    }
    // A source that is only scored must not influence the tokenizer.
    sources.retain(|source| source.weight > 0.0);
    let mut texts = std::iter::from_fn(|| {
        loop {
            let behind = |a: &&mut Texts<'_>, b: &&mut Texts<'_>| (a.taken / a.weight).total_cmp(&(b.taken / b.weight));
            let next = sources.iter_mut().filter(|source| source.left > 0).min_by(behind)?;
            if let Some(text) = next.next().map_err(DocumentError::from).transpose() {
                return Some(text);
            }
        }
    });
    let known = matches!(config.tokenizer.as_str(), "word" | "byte" | "bpe");
    let cap = known.then(|| config.vocab_size());
    let built = tokenizer::build(&config.tokenizer, cap, true, &mut texts);
    if let (Err(TokenizerError::NoWords(_)), [Texts { of: (source @ Source::Path(path), options, _), .. }]) =
        (&built, &sources[..])
    {
        // The data's own name makes a better message.
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
