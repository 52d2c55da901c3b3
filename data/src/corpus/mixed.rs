//! Combines all sources of a run.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use capful_core::random::{Random, stream};

use super::super::choice::Validation;
use super::super::conversation::ChatTemplate;
use super::super::error::SourceError;
use super::super::sequences::mixture::{Mixture, Part, Shares};
use super::super::sequences::packed::Rows;
use super::super::sequences::permuted::Permuted;
use super::super::shards::build::Event;
use super::super::snapshot::Began;
use super::super::tokenizer::Tokenizer;
use super::{Corpus, CorpusError, Opened};
use capful_config::Config;

/// A source that was opened.
pub(super) struct One {
    /// The configuration of a run with this source alone.
    config: Config,
    pub(super) opened: Opened,
    began: Began,
}

/// Opens the sources of `config`, a run in `dir` that `goes_on` or not and began with these files.
pub(super) fn open_all(
    config: &Config,
    dir: &Path,
    mut began: Began,
    goes_on: bool,
    template: &ChatTemplate,
) -> Result<Vec<One>, CorpusError> {
    let open = |number| {
        let (config, mut began) = (config.of_source(number, dir), began.take(number));
        let opened = Corpus::sources(&config, began.source.take(), goes_on, template.clone())?;
        Ok(One { config, opened, began })
    };
    (0..config.data.names().len()).map(open).collect()
}

/// The corpus of each opened source, next to its configuration.
pub(super) fn with(opened: Vec<One>, tokenizer: &Arc<dyn Tokenizer>) -> Result<Vec<(Config, Corpus)>, CorpusError> {
    let part = |One { config, opened: (source, options, split), began }| {
        let mut part = Corpus::with(&config, Arc::clone(tokenizer), source, options, split)?;
        part.validation_began = began.validation;
        Ok((config, part))
    };
    opened.into_iter().map(part).collect()
}

/// Makes the tokens of all sources readable at any offset.
pub(super) fn keep(
    config: &Config,
    parts: &mut [(Config, Corpus)],
    dir: &Path,
    say: &mut dyn FnMut(Event),
) -> Result<(), CorpusError> {
    for (own, part) in parts {
        if config.data.is_mixture() {
            say(Event::Of(part.name()));
        }
        part.keep(own, dir, say)?;
    }
    Ok(())
}

/// Refuses a source that occurs twice under two names.
pub(super) fn require_different(config: &Config) -> Result<(), SourceError> {
    let places: Vec<_> = config.data.names().map(|name| (name, fs::canonicalize(name).ok())).collect();
    for (number, (name, place)) in places.iter().enumerate() {
        if let Some((other, _)) = places[..number].iter().find(|(_, other)| place.is_some() && other == place) {
            return Err(SourceError::Twice { name: (*name).to_owned(), other: (*other).to_owned() });
        }
    }
    Ok(())
}

/// Joins the sources into the corpus of one run: the first source owns the others.
pub(super) fn joined(config: &Config, parts: Vec<(Config, Corpus)>) -> Corpus {
    let mut parts = parts.into_iter().map(|(_, part)| part);
    let Some(mut first) = parts.next() else { unreachable!("a run has a source") };
    if !config.data.is_mixture() {
        return first;
    }
    first.beside = parts.collect();
    first.shares = Some(Shares::new(config.seed, &config.data.weights(), config.stretches()));
    first.one_validation = config.validation.as_ref().is_some_and(|names| names.only().is_some());
    // The tokenizer of a source of conversations carries their template.
    if let Some(other) = first.beside.iter().find(|part| !first.is_of_conversations() && part.is_of_conversations()) {
        first.tokenizer = Arc::clone(&other.tokenizer);
    }
    first
}

impl Corpus {
    /// The sources of the run.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Corpus> {
        std::iter::once(self).chain(&self.beside)
    }

    /// What the run draws from its sources, where it has several.
    pub fn shares(&self) -> Option<&Shares> {
        self.shares.as_ref()
    }

    /// Whether the run learns the answers of conversations.
    pub fn has_conversations(&self) -> bool {
        self.parts().any(Corpus::is_of_conversations)
    }

    /// Skipped or repaired text in what was read so far: the lines that were not returned before.
    pub fn noticed(&self) -> Vec<String> {
        self.parts().flat_map(|part| part.options.noticed.news()).collect()
    }

    /// Skipped or repaired text in what was read so far, all lines.
    pub fn flaws(&self) -> Vec<String> {
        self.parts().flat_map(|part| part.options.noticed.all()).collect()
    }

    /// The files of the sources and of their validation sources when the run began, as far as that is known.
    pub fn all_began(&self) -> Began {
        let of = |part: &Corpus| Began {
            source: part.began().cloned(),
            validation: part.validation_began().cloned(),
            beside: Vec::new(),
        };
        Began { beside: self.beside.iter().map(of).collect(), ..of(self) }
    }

    /// Number of documents and tokens of all sources, training and validation side together, where all are encoded.
    pub fn encoded(&self) -> Option<(u64, u64)> {
        self.parts().try_fold((0, 0), |(documents, tokens), part| {
            let manifest = part.shards.as_ref()?.manifest();
            Some((documents + manifest.documents, tokens + manifest.tokens))
        })
    }

    /// Number of tokens in one pass over the training documents, counted by reading them; for a mixture, the sum over
    /// all sources.
    ///
    /// # Errors
    /// A source that cannot be read, or that has no end.
    pub fn training_tokens(&self) -> Result<u64, SourceError> {
        self.parts().map(Corpus::own_tokens).sum()
    }

    /// Describes how the run's conversations were packed into rows, for people; empty if it learns from text.
    ///
    /// # Errors
    /// As [`Corpus::training`].
    pub fn packing(&self) -> Result<Vec<String>, SourceError> {
        let of = |part: &Corpus| {
            let line = part.packed()?.zip(part.rows).map(|(packed, rows)| packed.packing().describe(rows.length));
            Ok(line.map(|line| if self.shares.is_some() { format!("{}: {line}", part.name()) } else { line }))
        };
        self.parts().filter_map(|part| of(part).transpose()).collect()
    }

    /// At most `max_tokens` tokens of documents to score. The sources of a mixture divide `max_tokens` equally where
    /// each holds out its own documents.
    ///
    /// # Errors
    /// A source that cannot be read, or holds nothing for validation.
    pub fn validation(&self, max_tokens: u64) -> Result<Validation, SourceError> {
        let Some(shares) = self.shares.as_ref().filter(|_| !self.one_validation) else {
            return self.own_validation(max_tokens, self);
        };
        let each = (max_tokens / (1 + self.beside.len() as u64)).max(2);
        let chosen = self.parts().map(|part| part.own_validation(each, self));
        Ok(Validation::joined(chosen.collect::<Result<_, _>>()?, &shares.of_all()))
    }

    /// The sequences of the run over all its sources.
    pub(super) fn mixture(&self, shares: &Shares) -> Result<Mixture, SourceError> {
        let part = |(number, part): (usize, &Corpus)| {
            // Sources of equal length must not be read in the same order.
            let seed = Random::new(self.seed, stream("source")).bits(number as u64);
            if part.is_of_conversations() && part.rows.is_none() {
                return Err(SourceError::Stages { name: part.name() });
            }
            let rows = part.rows.map(|rows| Rows { step: 0, ..rows });
            if let Some(packed) = rows.map(|rows| part.packed_in(rows, seed)).transpose()?.flatten() {
                return Ok(Part::Conversations(packed));
            }
            let Some(shards) = &part.shards else { return Err(SourceError::Streamed { name: part.name() }) };
            let (tokens, fingerprint) = (part.tokens(shards)?, part.fingerprint()?);
            Ok(Part::Text(Permuted::new(tokens, seed, shares.of_source(number), fingerprint)))
        };
        let parts = self.parts().enumerate().map(part).collect::<Result<_, _>>()?;
        Ok(Mixture::new(parts, shares.clone(), self.rows))
    }

    /// For each source of a mixture its name, its share, the tokens of its training side, and the tokens that a run of
    /// `tokens` draws from it; empty for a single source.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub fn drawn(&self, tokens: u64) -> Result<Vec<Drawn>, SourceError> {
        let Some(shares) = &self.shares else { return Ok(Vec::new()) };
        let drawn = shares.tokens(tokens);
        let each = self.parts().zip(shares.of_all()).zip(drawn);
        each.map(|((part, share), drawn)| Ok(Drawn { name: part.name(), share, tokens: part.own_tokens()?, drawn }))
            .collect()
    }

    /// Short names of the sources of a mixture, all different, at most 23 bytes each; empty for a single source.
    pub fn labels(&self) -> Vec<String> {
        if self.shares.is_none() {
            return Vec::new();
        }
        let short = |part: &Corpus| {
            let name = part.name();
            let last = Path::new(&name).file_name().map_or(name.clone(), |name| name.to_string_lossy().into_owned());
            last[..last.floor_char_boundary(20)].to_owned()
        };
        let all: Vec<String> = self.parts().map(short).collect();
        let alone = |label: &String| all.iter().filter(|other| *other == label).count() == 1;
        let numbered = (1..).zip(&all).map(|(number, label)| match alone(label) {
            true => label.clone(),
            false => format!("{number}_{label}"),
        });
        numbered.collect()
    }
}

/// What a run draws from one source.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Its name.
    pub name: String,
    /// Its share of the run.
    pub share: f64,
    /// Tokens of its training side.
    pub tokens: u64,
    /// Tokens that the run reads of it.
    pub drawn: u64,
}

impl Drawn {
    /// How many passes over the source the run makes.
    pub fn passes(&self) -> f64 {
        self.drawn as f64 / self.tokens.max(1) as f64
    }
}
