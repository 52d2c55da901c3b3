//! The data that a configuration names, for every command: the module `built` makes its tokenizer, `held_out` the text
//! that is scored.
//!
//! A mixture of several sources is stored as the first source, which owns the others; the functions in `mixed` combine
//! the answers of all of them.

pub mod built;
mod held_out;
mod mixed;

pub use mixed::Drawn;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use capful_core::data::Stretch;
use capful_core::model::Capability;
use capful_core::train::Stage;

use self::built::template;
use super::ahead;
use super::conversation::{ChatTemplate, TemplateError};
use super::error::SourceError;
use super::files::{Files, describe};
use super::sequences::Sequences;
use super::sequences::consecutive::Consecutive;
use super::sequences::mixture::Shares;
use super::sequences::packed::{Packed, Rows, Table};
use super::sequences::permuted::Permuted;
use super::sequences::pool::{Pool, half};
use super::shards::build::{Event, LOCK, estimate, open_or_build};
use super::shards::documents::ShardDocuments;
use super::shards::training::TrainingTokens;
use super::shards::{self, Manifest, Origin, Shards};
use super::shuffle::Shuffled;
use super::snapshot::{Began, Snapshot};
use super::source::{Document, Documents, SourceOptions};
use super::split::{DEFAULT_FRACTION, Part, Split};
use super::stream::{Feed, TokenStream};
use super::tales::TaleDocuments;
use super::tokenizer::{self, Tokenizer, TokenizerError, template as templates};
use super::validation::ValidationSet;
use capful_config::{Cache, Config, OWN, Order, Overflow, Source};

/// A source, how it is read and how it is divided.
type Opened = (Source, SourceOptions, Split);

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// An error of the source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An error of the tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// An error of the chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The source holds conversations, but the rows of the model are streams.
    #[error("{name}: holds conversations, and {why}; train a transformer on them")]
    Streams {
        /// Why the model has no rows of its own for them.
        why: &'static str,
        /// The source.
        name: String,
    },
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
    /// Options for reading the validation text.
    validation_options: SourceOptions,
    /// A snapshot of the files of `validation` at the beginning of the run, where that is known.
    validation_began: Option<Snapshot>,
    seed: u64,
    split: Split,
    shuffle: u32,
    encoders: u32,
    order: Order,
    stretches: Vec<Stretch>,
    /// The shape of rows of conversations; `None` if it changes within the run.
    rows: Option<Rows>,
    overflow: Overflow,
    /// The table of conversations to learn from, computed at first use.
    table: OnceLock<Table>,
    clean_validation: bool,
    pool: u64,
    /// The encoded tokens of the source, where they can be read at any offset.
    shards: Option<Arc<Shards>>,
    /// The run's directory, if this process encoded its tokens there.
    made: Option<PathBuf>,
    /// For a mixture: the sources after this first one, and the share drawn from each.
    beside: Vec<Corpus>,
    shares: Option<Shares>,
    /// Whether one separate validation source serves all sources.
    one_validation: bool,
    /// The tokenizer of the run.
    pub tokenizer: Arc<dyn Tokenizer>,
}

fn open(source: &Source, options: &SourceOptions, seed: u64, part: Part) -> Result<Box<dyn Documents>, SourceError> {
    Ok(match (source, part) {
        (Source::Tales, Part::Validation) => Box::new(TaleDocuments::validation(seed)),
        (Source::Tales, _) => Box::new(TaleDocuments::training(seed)),
        (Source::Path(path), _) => match Shards::open(path, None)? {
            Some(shards) => Box::new(ShardDocuments::new(Arc::new(shards))),
            None if shards::begun(path) => return Err(SourceError::ShardsUnfinished { path: path.clone() }),
            None => Box::new(Files::open(path, options)?),
        },
    })
}

fn parse(name: &str) -> Source {
    name.parse().unwrap_or_else(|never| match never {})
}

impl Corpus {
    /// Opens the sources of `config` and builds its tokenizer from the training documents. Where the order of the run
    /// needs it, all tokens are encoded into the cache of `dir`, the run's directory, unless they are there already;
    /// `say` receives the progress events.
    ///
    /// # Errors
    /// What is wrong with a source, the tokenizer or the cache.
    pub fn open(config: &Config, dir: &Path, say: &mut dyn FnMut(Event)) -> Result<Corpus, CorpusError> {
        let named: Option<Arc<dyn Tokenizer>> = match config.tokenizer.as_str() {
            "word" | "byte" | "bpe" => None,
            file => Some(tokenizer::build(file, None, true, &mut std::iter::empty())?.tokenizer.into()),
        };
        let template = template(config, named.as_deref())?;
        let opened = mixed::open_all(config, dir, Began::default(), false, &template)?;
        mixed::require_different(config)?;
        let tokenizer = match named {
            Some(tokenizer) => tokenizer,
            None => built::build(config, opened.iter().map(|one| &one.opened))?.tokenizer.into(),
        };
        let fresh = !dir.join(OWN).exists();
        let mut parts = mixed::with(opened, &tokenizer)?;
        for (_, part) in &mut parts {
            part.validation_began = part.look_at_validation()?;
        }
        mixed::keep(config, &mut parts, dir, say)?;
        if config.data.is_mixture() && config.cache.is_none() && fresh {
            parts[0].1.made = Some(dir.to_owned());
        }
        Ok(mixed::joined(config, parts))
    }

    /// Opens the sources of `config` with the tokenizer saved in `from`, a checkpoint of the run in `dir`. `began`
    /// lists the files that the run began with, where the checkpoint has that list. Missing tokens are encoded again
    /// only for a run that continues.
    ///
    /// # Errors
    /// The paths of the cached tokens of the run in `dir`, as far as these exist; the other arguments are those of
    /// [`Corpus::reopen`].
    pub fn reopen(
        config: &Config,
        from: &Path,
        dir: &Path,
        began: Began,
        goes_on: Option<&mut dyn FnMut(Event)>,
    ) -> Result<Corpus, CorpusError> {
        let reopened = || {
            let tokenizer = tokenizer::load(from)?;
            let template = ChatTemplate::of(tokenizer.as_ref());
            let opened = mixed::open_all(config, dir, began, true, &template)?;
            let mut parts = mixed::with(opened, &tokenizer.into())?;
            match goes_on {
                Some(say) => mixed::keep(config, &mut parts, dir, say)?,
                None => parts.iter_mut().try_for_each(|(config, part)| part.find(config, dir))?,
            }
            Ok(mixed::joined(config, parts))
        };
        reopened().map_err(|e| gone(config, e))
    }

    /// The directories in which the tokens of the run in `dir` are cached; other arguments as for [`Corpus::reopen`].
    ///
    /// # Errors
    /// What is wrong with a source or the tokenizer.
    pub fn caches_of(config: &Config, from: &Path, dir: &Path, began: Began) -> Result<Vec<PathBuf>, CorpusError> {
        let tokenizer = tokenizer::load(from)?;
        let template = ChatTemplate::of(tokenizer.as_ref());
        let parts = mixed::with(mixed::open_all(config, dir, began, true, &template)?, &tokenizer.into())?;
        let mut there = Vec::new();
        for (config, part) in &parts {
            there.extend(part.cached(config, dir)?.map(|(_, at)| at));
        }
        Ok(there)
    }

    /// Approximate bytes of text in the files of `config`'s source; `None` if the source has no files, or holds
    /// tokens.
    ///
    /// # Errors
    /// What is wrong with the source.
    pub fn text_bytes(config: &Config) -> Result<Option<u64>, CorpusError> {
        let (options, mut sum) = (SourceOptions::of(config), Some(0));
        for name in config.data.names() {
            let Source::Path(path) = parse(name) else { return Ok(None) };
            let bytes = if Manifest::read(&path)?.is_some() || shards::begun(&path) {
                None
            } else {
                let files = Files::open(&path, &options)?;
                files.text_bytes().filter(|_| files.has_text())
            };
            sum = sum.zip(bytes).map(|(sum, bytes)| sum + bytes);
        }
        Ok(sum)
    }

    /// The origin of this corpus's token set, and the path where the set is cached.
    fn cached(&self, config: &Config, dir: &Path) -> Result<Option<(Origin, PathBuf)>, SourceError> {
        let (Source::Path(path), Some(cache)) = (&self.source, config.cache(dir)) else { return Ok(None) };
        if config.order != Order::Random || Manifest::read(path)?.is_some() {
            return Ok(None);
        }
        let source = Files::open(path, &self.options)?.identity();
        let origin = Origin { source, tokenizer: self.tokenizer.fingerprint() };
        let at = match cache {
            Cache::Own(dir) => dir,
            Cache::Shared(dir) => dir.join(format!("{:016x}", origin.key())),
        };
        Ok(Some((origin, at)))
    }

    /// Makes the tokens of a run in random order readable at any offset.
    fn keep(&mut self, config: &Config, dir: &Path, say: &mut dyn FnMut(Event)) -> Result<(), CorpusError> {
        let Some((origin, at)) = self.cached(config, dir)? else {
            if config.order == Order::Random {
                self.shards = self.given()?.map(Arc::new);
            }
            return self.keep_template(config);
        };
        if self.validation.is_some() {
            // Errors of the validation side are reported before the encoding work, not after it.
            ValidationSet::first(self.feed(Part::Validation)?, 2)?;
        }
        self.look_at_the_first(config)?;
        let feed = || self.whole(&self.source);
        let (threads, there) = (ahead::builders(config.threads), at.exists());
        let made = open_or_build(&at, origin, || estimate(feed()?), feed, threads, say);
        if !there && at == dir.join(OWN) {
            self.made = Some(dir.to_owned());
        }
        if made.is_err() {
            self.discard_empty();
        }
        self.shards = Some(Arc::new(made?.verified()?.written_by(self.options.template.key())?));
        self.keep_template(config)
    }

    /// Refuses conversations for a run that cannot learn from them, before they are encoded, where the first document is
    /// one.
    fn look_at_the_first(&self, config: &Config) -> Result<(), CorpusError> {
        let streams = config.family().lacks(Capability::Documents);
        if streams.is_none() && self.rows.is_some() {
            return Ok(());
        }
        let mut first = Document::default();
        let there = open(&self.source, &self.options, self.seed, Part::All)?.next(&mut first)?;
        match streams {
            _ if !there || !first.is_conversation() => Ok(()),
            Some(why) => Err(CorpusError::Streams { name: self.name(), why }),
            None => Err(SourceError::Stages { name: self.name() }.into()),
        }
    }

    /// Gives the run's tokenizer the template of its conversations, where it has conversations, so that both are saved
    /// together.
    fn keep_template(&mut self, config: &Config) -> Result<(), CorpusError> {
        if !self.is_of_conversations() {
            return Ok(());
        }
        if let Some(why) = config.family().lacks(Capability::Documents) {
            return Err(CorpusError::Streams { name: self.name(), why });
        }
        let source = self.options.template.source();
        let has = templates::of(self.tokenizer.as_ref());
        if has.first().is_none_or(|(_, text)| text != source) {
            self.tokenizer = tokenizer::with_template(Arc::clone(&self.tokenizer), source);
        }
        Ok(())
    }

    /// Whether the source is of conversations.
    fn is_of_conversations(&self) -> bool {
        self.shards.as_ref().is_some_and(|shards| shards.manifest().template().is_some())
    }

    /// Removes the directories that were made for tokens and are still empty.
    fn discard_empty(&mut self) {
        let Some(dir) = self.made.take() else { return };
        let tokens = dir.join(OWN);
        if !shards::begun(&tokens) {
            let _ = fs::remove_file(tokens.join(LOCK));
            // `remove_dir` removes empty directories only.
            let _ = fs::remove_dir(tokens).and_then(|()| fs::remove_dir(dir));
        }
    }

    /// Checks that the source has a whole batch to begin with. If not, the tokens that were encoded for the run are
    /// removed.
    ///
    /// # Errors
    /// The source is too short, or cannot be read.
    pub fn require(&mut self, config: &Config) -> Result<(), SourceError> {
        let least = config.least_tokens();
        let enough = self.training().and_then(|mut sequences| sequences.require(least));
        if let (Err(_), Some(dir)) = (&enough, self.made.take()) {
            self.shards = None;
            let _ = fs::remove_dir_all(dir.join(OWN)).and_then(|()| fs::remove_dir(dir));
        }
        enough
    }

    /// Uses the run's cached tokens where they are complete and belong to its source and tokenizer.
    fn find(&mut self, config: &Config, dir: &Path) -> Result<(), SourceError> {
        let Ok(Some((origin, at))) = self.cached(config, dir) else { return Ok(()) };
        // A set of another source or version is ignored; a damaged set is an error.
        let found = match Shards::open(&at, Some(origin)) {
            Err(e @ SourceError::Shard { .. }) => return Err(e),
            found => found.ok().flatten(),
        };
        let found = found.map(Shards::verified).transpose()?;
        self.shards = found.map(|shards| shards.written_by(self.options.template.key())).transpose()?.map(Arc::new);
        Ok(())
    }

    /// Opens the shards that the configuration names as data.
    fn given(&self) -> Result<Option<Shards>, SourceError> {
        let Source::Path(path) = &self.source else { return Ok(None) };
        let Some(shards) = Shards::open(path, None)? else { return Ok(None) };
        let (file, run) = (shards.manifest().origin.tokenizer, self.tokenizer.fingerprint());
        if file != run {
            let [file, run] = [file, run].map(|fingerprint| format!("{fingerprint:016x}"));
            let name = shards.name().to_owned();
            return Err(SourceError::TokenOther { name, what: "fingerprint", file, run });
        }
        Ok(Some(shards.verified()?.written_by(self.options.template.key())?))
    }

    /// Every document of a source.
    fn whole(&self, source: &Source) -> Result<Feed, SourceError> {
        let documents = open(source, &self.options, self.seed, Part::All)?;
        Ok(Feed { documents, tokenizer: Some(Arc::clone(&self.tokenizer)), split: self.split, part: Part::All })
    }

    /// The source of `config`, the options for reading it, and its split. A run that `goes_on` reads the files that it
    /// `began` with, unless an earlier version saved it without that list.
    fn sources(
        config: &Config,
        began: Option<Snapshot>,
        goes_on: bool,
        template: ChatTemplate,
    ) -> Result<(Source, SourceOptions, Split), CorpusError> {
        let mut options = SourceOptions { template, ..SourceOptions::of(config) };
        let source = parse(config.data.first());
        if let Source::Path(path) = &source
            && Manifest::read(path)?.is_none()
            && !shards::begun(path)
        {
            // Moved files count as the same files where their text is the same.
            let name = config.data.first();
            let began = began.and_then(|began| if began.name == name { Some(began) } else { began.moved(name).ok() });
            options.formerly = goes_on && began.is_none();
            let began = began.map_or_else(|| Files::open(path, &options)?.snapshot(), Ok)?;
            options.began = Some(Arc::new(began));
        }
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
        let validation = config.validation.as_ref().map(|names| parse(names.first()));
        let (shuffle, encoders) = (config.shuffle, ahead::threads(config));
        Ok(Corpus {
            source,
            validation,
            validation_options: options.clone(),
            options,
            validation_began: None,
            seed: config.seed,
            split,
            shuffle,
            encoders,
            order: config.order,
            stretches: config.stretches(),
            rows: rows(config),
            overflow: config.overflow,
            table: OnceLock::new(),
            clean_validation: config.clean_validation,
            pool: config.pool,
            shards: None,
            made: None,
            beside: Vec::new(),
            shares: None,
            one_validation: false,
            tokenizer,
        })
    }

    /// The documents of a part, and what encodes them.
    pub(super) fn feed(&self, part: Part) -> Result<Feed, SourceError> {
        let (source, options, part) = match (&self.validation, part) {
            (Some(other), Part::Validation) => (other, &self.validation_options, Part::All),
            _ => (&self.source, &self.options, part),
        };
        let documents = match &self.shards {
            Some(shards) if source == &self.source => Box::new(ShardDocuments::new(Arc::clone(shards))),
            _ => open(source, options, self.seed, part)?,
        };
        let part = if *source == Source::Tales { Part::All } else { part };
        Ok(Feed { documents, tokenizer: Some(Arc::clone(&self.tokenizer)), split: self.split, part })
    }

    /// The source's files, or their state when the run began; `None` if the source has no files.
    pub fn began(&self) -> Option<&Snapshot> {
        self.options.began.as_deref()
    }

    /// Changes the options for reading a separate validation source, independently of the training source.
    pub fn read_validation(&mut self, as_said: impl FnOnce(&mut SourceOptions)) {
        as_said(&mut self.validation_options);
    }

    /// The files of a separate validation source, as [`Corpus::began`] gives those of the source.
    pub fn validation_began(&self) -> Option<&Snapshot> {
        self.validation_began.as_ref()
    }

    fn look_at_validation(&self) -> Result<Option<Snapshot>, SourceError> {
        let Some(Source::Path(path)) = &self.validation else { return Ok(None) };
        if Manifest::read(path)?.is_some() || shards::begun(path) {
            return Ok(None);
        }
        Ok(Some(Files::open(path, &self.options)?.snapshot()?))
    }

    /// The token set from which the run's sequences can be read at any offset, if there is one.
    pub fn shards(&self) -> Option<&Shards> {
        self.shards.as_deref()
    }

    /// The run's sequences, from the beginning, in its order.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub fn training(&self) -> Result<Box<dyn Sequences>, SourceError> {
        if let Some(shares) = &self.shares {
            return Ok(Box::new(self.mixture(shares)?));
        }
        if let Some(packed) = self.packed()? {
            return Ok(Box::new(packed));
        }
        if let (Order::Random, Some(shards)) = (self.order, &self.shards) {
            let tokens = self.tokens(shards)?;
            let fingerprint = self.fingerprint()?;
            return Ok(Box::new(Permuted::new(tokens, self.seed, self.stretches.clone(), fingerprint)));
        }
        let stream = self.stream()?;
        Ok(match self.order {
            Order::Consecutive => Box::new(Consecutive::new(stream)),
            Order::Random | Order::Pool => {
                let (stretches, vocab) = (self.stretches.clone(), self.tokenizer.vocab_size());
                Box::new(Pool::new(stream, self.seed, stretches, self.pool, vocab))
            }
        })
    }

    /// Rows of the source's conversations; `None` if the source is text.
    fn packed(&self) -> Result<Option<Packed>, SourceError> {
        let Some(rows) = self.rows else {
            return if self.is_of_conversations() { Err(SourceError::Stages { name: self.name() }) } else { Ok(None) };
        };
        self.packed_in(rows, self.seed)
    }

    /// Rows of the source's conversations in rows of this shape, in an order from this seed; `None` if the source is
    /// text.
    fn packed_in(&self, rows: Rows, seed: u64) -> Result<Option<Packed>, SourceError> {
        let (Some(shards), true) = (&self.shards, self.is_of_conversations()) else { return Ok(None) };
        let mut tokens = self.tokens(shards)?;
        let table = match self.table.get() {
            Some(table) => table.clone(),
            None => {
                let table = Table::of(&mut tokens, &self.split, rows.length, self.overflow)?;
                self.table.get_or_init(|| table).clone()
            }
        };
        Ok(Some(Packed::new(tokens, table, self.fingerprint()?, seed, rows)))
    }

    fn name(&self) -> String {
        match &self.source {
            Source::Path(path) => path.display().to_string(),
            Source::Tales => "tales".to_owned(),
        }
    }

    fn tokens(&self, shards: &Arc<Shards>) -> Result<TrainingTokens, SourceError> {
        TrainingTokens::new(Arc::clone(shards), &self.split, &self.name())
    }

    /// In what order the run reads, for people.
    pub fn order(&self, config: &Config) -> String {
        if config.data.is_mixture() {
            let sources = config.data.names().len();
            return format!(
                "order: random, sequences of {sources} sources by their shares, each source a permutation of its own"
            );
        }
        let grain = self.stretches.iter().map(|s| s.length).max().unwrap_or(1);
        let sequences = if self.stretches.len() > 1 { "at most" } else { "of" };
        match (self.order, &self.shards) {
            (Order::Random, Some(_)) if self.has_conversations() => {
                "order: conversations whole, anew in a random order each epoch".to_owned()
            }
            (Order::Random, Some(shards)) => format!(
                "order: random, a permutation of all sequences {sequences} {grain} tokens each epoch; {} tokens in {}",
                shards.manifest().tokens,
                shards.name()
            ),
            (Order::Random | Order::Pool, _) => format!(
                "order: drawn from a pool of two times {} sequences {sequences} {grain} tokens, streamed; what `host data` \
                 encodes beforehand, or --cache DIR keeps, is read in a random order of all",
                half(self.pool, self.tokenizer.vocab_size(), grain) / grain
            ),
            (Order::Consecutive, _) if config.data.only() == Some("tales") => {
                "order: tale after tale, each drawn by itself".to_owned()
            }
            (Order::Consecutive, _) => "order: consecutive, as documents follow each other".to_owned(),
        }
    }

    /// The fingerprint of the source itself, independent of how its tokens are read.
    fn fingerprint(&self) -> Result<u64, SourceError> {
        Ok(open(&self.source, &self.options, self.seed, Part::All)?.fingerprint())
    }

    /// The training tokens in source order, or with shuffled documents where the run requests it.
    fn stream(&self) -> Result<TokenStream, SourceError> {
        let mut feed = self.feed(Part::Training)?;
        if self.shuffle > 0 {
            let documents: Box<dyn Documents> = match &self.source {
                Source::Path(path) if feed.documents.has_text() => {
                    Box::new(Files::open(path, &self.options)?.shuffled(self.seed))
                }
                _ => feed.documents,
            };
            feed.documents = Box::new(Shuffled::new(documents, self.shuffle, self.seed));
        }
        TokenStream::with_threads(feed, self.encoders)
    }

    /// Number of tokens in one pass over the source's training documents, counted by reading them.
    fn own_tokens(&self) -> Result<u64, SourceError> {
        if self.source == Source::Tales {
            return Err(SourceError::Endless { name: "tales".to_owned() });
        }
        if let Some(packed) = self.packed()? {
            return Ok(packed.epoch_tokens());
        }
        if let Some(shards) = &self.shards {
            return Ok(self.tokens(shards)?.tokens());
        }
        let mut stream = self.stream()?;
        stream.limit_epochs(1);
        while stream.next_token()?.is_some() {}
        Ok(stream.epoch_length().unwrap_or(0))
    }
}

/// The row shape of a run whose steps all have the same shape.
fn rows(config: &Config) -> Option<Rows> {
    let stages = config.stages();
    let of = |stage: &Stage| Rows { length: stage.seq_len, step: stage.step_tokens() / u64::from(stage.seq_len) };
    let first = of(stages.first()?);
    stages.iter().all(|stage| of(stage) == first).then_some(first)
}

/// For data of a run that no longer exists, makes an error that says what to do; returns other errors unchanged.
fn gone(config: &Config, error: CorpusError) -> CorpusError {
    match error {
        CorpusError::Source(SourceError::Missing { path })
            if config.data.names().any(|name| path.starts_with(name)) =>
        {
            SourceError::Gone { path }.into()
        }
        other => other,
    }
}

/// Describes which files of `config` are read and which are not, one line for each directory; a run that continues is
/// compared with the files that it `began` with. Errors in these files are reported when they are opened.
pub fn reading(config: &Config, began: Option<&Began>) -> Vec<String> {
    let options = SourceOptions::of(config);
    let sources =
        config.data.names().enumerate().map(|(number, name)| (name, began.and_then(|began| began.of(number))));
    let sources = sources.map(|(name, began)| (name, began.and_then(|began| began.source.as_ref())));
    let validation = config.validation.iter().flat_map(|names| names.iter()).map(|name| (name, None));
    let lines = sources.chain(validation).filter_map(|(name, began)| {
        let Source::Path(path) = parse(name) else { return None };
        if shards::begun(&path) || path.join(shards::MANIFEST).exists() {
            return None;
        }
        describe(&path, &options, began).ok().flatten()
    });
    lines.collect()
}
