//! The order of a run's sequences: which one, and in which lengths they are taken.

use std::path::{Path, PathBuf};

use capful_core::data::Stretch;
use capful_core::train::{Curriculum, Stage};

use super::error::error;
use super::{Config, ConfigError, Order, RawConfig};
use crate::data::error::SourceError;
use crate::data::files::Files;
use crate::data::shards::{MANIFEST, Manifest};
use crate::data::source::{Documents as _, Source, SourceOptions};
use crate::data::tokenizer;
use crate::run::shapes::{in_span, largest_block};

/// `--cache` with this keeps nothing.
pub const NO_CACHE: &str = "none";
/// A source of about so much text is encoded before a run begins, unless a place for it is named: on two cores it takes
/// minutes.
const KEPT: u64 = 4 << 30;

/// The path of a source that lies in files.
fn path(data: &str) -> Option<PathBuf> {
    match data.parse() {
        Ok(Source::Path(path)) => Some(path),
        _ => None,
    }
}

/// The tokenizer that lies beside a source's token shards, where it is of such.
pub(super) fn tokenizer_of(data: Option<&str>) -> Result<Option<String>, ConfigError> {
    let Some(path) = data.and_then(path).filter(|path| path.join(MANIFEST).is_file()) else { return Ok(None) };
    let path = path.join(tokenizer::FILE_NAME);
    if !path.is_file() {
        return error(format!("{}: missing; name the tokenizer of these shards with --tokenizer", path.display()));
    }
    Ok(Some(path.display().to_string()))
}

/// What `raw` says, or what is best for its source.
pub(super) fn resolve(raw: &RawConfig, data: &str) -> Result<Order, ConfigError> {
    let streamed = raw.cache.as_deref() == Some(NO_CACHE);
    let Some(path) = path(data) else {
        // Every tale is drawn by itself: no order of them is better than another.
        return match raw.order {
            Some(Order::Random) => error(
                "--order random: tales have no end, so not all their sequences can be permuted; leave it away, each tale \
                 is drawn by itself"
                    .to_owned(),
            ),
            order => Ok(order.unwrap_or(Order::Consecutive)),
        };
    };
    let shards = known(Manifest::read(&path))?.flatten().is_some();
    if raw.order == Some(Order::Random) && streamed && !shards {
        return error(
            "--order random reads tokens at any place, and --cache none keeps none; leave one of them away, or use \
             --order pool"
                .to_owned(),
        );
    }
    if let Some(order) = raw.order {
        return Ok(order);
    }
    if streamed && !shards {
        return Ok(Order::Pool);
    }
    let mut options = SourceOptions::default();
    raw.text_field.iter().for_each(|field| options.text_field.clone_from(field));
    let small = || -> Result<bool, ConfigError> {
        let files = known(Files::open(&path, &options))?;
        Ok(files.is_some_and(|files| files.text_bytes().is_some_and(|bytes| bytes <= KEPT)))
    };
    let kept = shards || raw.cache.is_some() || !path.exists() || small()?;
    Ok(if kept { Order::Random } else { Order::Pool })
}

/// What was read of a source. What is wrong with it is said when it is opened; but a disk that fails now and not then would
/// decide the order of a run.
fn known<T>(read: Result<T, SourceError>) -> Result<Option<T>, ConfigError> {
    match read {
        Err(e @ SourceError::Unreadable { .. }) => error(e.to_string()),
        read => Ok(read.ok()),
    }
}

/// A directory for tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cache {
    /// For any number of sets, each in a directory of its own.
    Shared(PathBuf),
    /// For the run's set.
    Own(PathBuf),
}

/// The directory in a run's for its tokens.
pub const OWN: &str = "tokens";

impl Config {
    /// The lengths in which the run takes its tokens, stage by stage, those that it does not reach too: its steps may
    /// become more. A stream's sequence is what it reads on end.
    pub fn stretches(&self) -> Vec<Stretch> {
        let stages = Config { steps: 0, ..self.clone() }.stages();
        let Ok(curriculum) = Curriculum::new(&stages) else { return Vec::new() };
        let length = |p: &Stage| match self.span() {
            Some(span) => u64::from(p.seq_len) * in_span(p, span),
            None => u64::from(p.seq_len),
        };
        stages.iter().map(|p| Stretch { from: curriculum.tokens(p.from), length: length(p) }).collect()
    }

    /// Tokens that an epoch must have: a batch's, or a block's where rows are streams, and one.
    pub fn least_tokens(&self) -> u64 {
        let stages = self.stages();
        let micro = stages.iter().map(Stage::micro_tokens).max().unwrap_or(0);
        micro.max(self.span().map_or(0, |span| largest_block(&stages, span))) + 1
    }

    /// The directory of the run's tokens: `run` is the run's own. None where they are streamed, or lie in shards already.
    pub fn cache(&self, run: &Path) -> Option<Cache> {
        match self.cache.as_deref() {
            Some(NO_CACHE) => None,
            Some(dir) => Some(Cache::Shared(dir.into())),
            None => Some(Cache::Own(run.join(OWN))),
        }
    }
}
