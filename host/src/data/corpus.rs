//! Everything a command needs of the data that a configuration names.

use std::path::Path;
use std::sync::Arc;

use super::ahead;
use super::error::SourceError;
use super::files::Files;
use super::ngram::Baselines;
use super::shuffle::Shuffled;
use super::source::{Document, Documents, Source, SourceOptions};
use super::split::{DEFAULT_FRACTION, Part, Split};
use super::stream::{Feed, TokenStream};
use super::tales::TaleDocuments;
use super::tokenizer::{self, Built, DocumentError, Tokenizer, TokenizerError};
use super::validation::{ValidationReader, ValidationSet};
use crate::config::Config;

/// Documents of the built-in corpus that a tokenizer is built from: each of its words occurs in them many times.
const TALES_READ: usize = 10_000;
/// The most tokens that the n-gram baselines are counted on.
const BASELINE_TOKENS: usize = 1 << 22;

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer has more ids than the model.
    #[error("the tokenizer has {tokens} ids and the model {model}; raise --vocab-size to at least {tokens}")]
    Vocabulary {
        /// Ids of the tokenizer.
        tokens: u32,
        /// Ids of the model.
        model: u32,
    },
}

/// The data of a run.
pub struct Corpus {
    source: Source,
    options: SourceOptions,
    validation: Option<Source>,
    seed: u64,
    split: Split,
    shuffle: u32,
    encoders: u32,
    /// What reads it.
    pub tokenizer: Arc<dyn Tokenizer>,
}

fn open(source: &Source, options: &SourceOptions, seed: u64, part: Part) -> Result<Box<dyn Documents>, SourceError> {
    Ok(match (source, part) {
        (Source::Tales, Part::Validation) => Box::new(TaleDocuments::validation(seed)),
        (Source::Tales, _) => Box::new(TaleDocuments::training(seed)),
        (Source::Path(path), _) => Box::new(Files::open(path, options)?),
    })
}

fn parse(name: &str) -> Source {
    name.parse().unwrap_or_else(|never| match never {})
}

impl Corpus {
    /// Opens the sources of `config` and builds its tokenizer from the training documents.
    ///
    /// # Errors
    /// What is wrong with a source or with the tokenizer.
    pub fn open(config: &Config) -> Result<Corpus, CorpusError> {
        let (source, options, split) = Self::sources(config)?;
        let built = build(config, &source, &options, split)?;
        Self::with(config, built.tokenizer.into(), source, options, split)
    }

    /// Opens the sources of `config` with the tokenizer saved in `dir`.
    ///
    /// # Errors
    /// What is wrong with a source or with the tokenizer.
    pub fn reopen(config: &Config, dir: &Path) -> Result<Corpus, CorpusError> {
        let (source, options, split) = Self::sources(config)?;
        Self::with(config, tokenizer::load(dir)?.into(), source, options, split)
    }

    fn sources(config: &Config) -> Result<(Source, SourceOptions, Split), CorpusError> {
        let options = SourceOptions { text_field: config.text_field.clone(), ..SourceOptions::default() };
        let source = parse(&config.data);
        // The built-in corpus has a stream of its own for validation, and so has a separate source.
        let split = if source == Source::Tales || config.validation.is_some() {
            Split::new(config.seed, 0.0)?
        } else {
            let mut documents = open(&source, &options, config.seed, Part::All)?;
            Split::over(documents.as_mut(), config.seed, DEFAULT_FRACTION)?
        };
        Ok((source, options, split))
    }

    fn with(
        config: &Config,
        tokenizer: Arc<dyn Tokenizer>,
        source: Source,
        options: SourceOptions,
        split: Split,
    ) -> Result<Corpus, CorpusError> {
        if tokenizer.vocab_size() > config.vocab_size() {
            return Err(CorpusError::Vocabulary { tokens: tokenizer.vocab_size(), model: config.vocab_size() });
        }
        let validation = config.validation.as_deref().map(parse);
        let (shuffle, encoders) = (config.shuffle, ahead::threads(config));
        Ok(Corpus { source, options, validation, seed: config.seed, split, shuffle, encoders, tokenizer })
    }

    fn feed(&self, part: Part) -> Result<Feed, SourceError> {
        let (source, part) = match (&self.validation, part) {
            (Some(other), Part::Validation) => (other, Part::All),
            _ => (&self.source, part),
        };
        let documents = open(source, &self.options, self.seed, part)?;
        let part = if *source == Source::Tales { Part::All } else { part };
        Ok(Feed { documents, tokenizer: Some(Arc::clone(&self.tokenizer)), split: self.split, part })
    }

    /// The training tokens, from the beginning, in the order of the run.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub fn training(&self) -> Result<TokenStream, SourceError> {
        let mut feed = self.feed(Part::Training)?;
        if self.shuffle > 0 {
            let documents: Box<dyn Documents> = match &self.source {
                Source::Path(path) => Box::new(Files::open(path, &self.options)?.shuffled(self.seed)),
                Source::Tales => feed.documents,
            };
            feed.documents = Box::new(Shuffled::new(documents, self.shuffle, self.seed));
        }
        TokenStream::with_threads(feed, self.encoders)
    }

    /// Tokens of one reading of the training documents, counted by reading them.
    ///
    /// # Errors
    /// A source that cannot be read, or that has no end.
    pub fn training_tokens(&self) -> Result<u64, SourceError> {
        if self.source == Source::Tales {
            return Err(SourceError::Endless { name: "tales".to_owned() });
        }
        let mut stream = self.training()?;
        stream.limit_epochs(1);
        while stream.next_token()?.is_some() {}
        Ok(stream.epoch_length().unwrap_or(0))
    }

    /// At most `max_tokens` of whole validation documents, the first ones.
    ///
    /// # Errors
    /// A source that cannot be read, or holds nothing for validation.
    pub fn validation(&self, max_tokens: u64) -> Result<ValidationSet, SourceError> {
        self.read(Part::Validation, max_tokens as usize)
    }

    fn read(&self, part: Part, max_tokens: usize) -> Result<ValidationSet, SourceError> {
        let mut set = ValidationSet::new(max_tokens);
        ValidationReader::new(self.feed(part)?)?.read(&mut set)?;
        Ok(set)
    }

    /// Kneser-Ney n-gram losses on `validation`, counted on at most 2²² training tokens.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub fn baselines(&self, validation: &ValidationSet) -> Result<Baselines, SourceError> {
        let training = self.read(Part::Training, BASELINE_TOKENS)?;
        // The first token of a document has no predecessor and is never a target; where it is no mark of the
        // tokenizer, the n-gram's own mark takes its place.
        let targets = |set: &ValidationSet| set.iter().map(|d| d[1..].to_vec()).collect::<Vec<_>>();
        let vocabulary = self.tokenizer.vocab_size();
        Baselines::measure(vocabulary, targets(&training), BASELINE_TOKENS, targets(validation))
            .map_err(|e| SourceError::Ngram { reason: e.to_string() })
    }

    /// The exact loss of the source itself on `validation`, in nats a token, where it is known and no word was
    /// merged into `<unk>`.
    pub fn floor(&self, validation: &ValidationSet) -> Option<f64> {
        let unknown = self.tokenizer.unk();
        let merged = unknown.is_some_and(|unk| validation.iter().any(|document| document.contains(&unk)));
        let total = validation.log_probability().filter(|_| !merged)?;
        Some(-total / validation.targets() as f64)
    }
}

/// Builds the tokenizer of `config` from its training documents.
///
/// # Errors
/// What is wrong with the source or with the tokenizer.
pub fn build_tokenizer(config: &Config) -> Result<Built, CorpusError> {
    let (source, options, split) = Corpus::sources(config)?;
    build(config, &source, &options, split)
}

fn build(config: &Config, source: &Source, options: &SourceOptions, split: Split) -> Result<Built, CorpusError> {
    let mut documents = open(source, options, config.seed, Part::Training)?;
    let endless = *source == Source::Tales;
    let part = if endless { Part::All } else { Part::Training };
    let mut left = if endless { TALES_READ } else { usize::MAX };
    let mut texts = std::iter::from_fn(|| {
        let mut document = Document::default();
        while left > 0 {
            match documents.next(&mut document) {
                Ok(true) if split.holds(part, &document) => {
                    left -= 1;
                    return Some(Ok(std::mem::take(&mut document.text)));
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
