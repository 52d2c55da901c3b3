//! The order of a run's sequences: which one, and in which lengths they are taken.

use std::path::{Path, PathBuf};

use capful_core::data::Stretch;
use capful_core::train::{Curriculum, Stage};

use super::error::error;
use super::{Config, ConfigError, FoundSource, Order, RawConfig, is_path};

/// `--cache` with this keeps nothing.
pub const NO_CACHE: &str = "none";
/// A source of about so much text is encoded before a run begins, unless a place for it is named: on two cores it takes
/// minutes.
const KEPT: u64 = 4 << 30;

/// What `raw` says, or what is best for its source, which was `found` at its path.
pub(super) fn resolve(raw: &RawConfig, found: &FoundSource) -> Result<Order, ConfigError> {
    if raw.data.as_ref().is_some_and(|data| data.only().is_none()) {
        // Another one is refused with what else a mixture has not.
        return Ok(raw.order.unwrap_or(Order::Random));
    }
    if raw.data.as_ref().is_none_or(|data| !is_path(data.first())) {
        // Every tale is drawn by itself: no order of them is better than another.
        return match raw.order {
            Some(Order::Random) => error(
                "--order random: tales have no end, so not all their sequences can be permuted; leave it away, each tale \
                 is drawn by itself"
                    .to_owned(),
            ),
            order => Ok(order.unwrap_or(Order::Consecutive)),
        };
    }
    let streamed = raw.cache.as_deref() == Some(NO_CACHE) && found.documents.is_none();
    match raw.order {
        Some(Order::Random) if streamed => error(
            "--order random reads tokens at any place, and --cache none keeps none; leave one of them away, or use \
             --order pool"
                .to_owned(),
        ),
        Some(order) => Ok(order),
        None if streamed => Ok(Order::Pool),
        None => {
            let small = found.text_bytes.is_some_and(|bytes| bytes <= KEPT);
            let kept = found.documents.is_some() || raw.cache.is_some() || !found.exists || small;
            Ok(if kept { Order::Random } else { Order::Pool })
        }
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
            Some(span) => u64::from(p.seq_len) * p.batches_in(span),
            None => u64::from(p.seq_len),
        };
        stages.iter().map(|p| Stretch { from: curriculum.tokens(p.from), length: length(p) }).collect()
    }

    /// Tokens that an epoch must have: a batch's, or a block's where rows are streams, and one.
    pub fn least_tokens(&self) -> u64 {
        let stages = self.stages();
        let micro = stages.iter().map(Stage::micro_tokens).max().unwrap_or(0);
        micro.max(self.span().map_or(0, |span| Stage::largest_block(&stages, span))) + 1
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found decides, and not what is there.
    #[test]
    fn the_order_is_that_of_what_was_found() {
        let shards = FoundSource { exists: true, documents: Some(3), ..FoundSource::default() };
        let text = |bytes| FoundSource { exists: true, text_bytes: bytes, ..FoundSource::default() };
        let gone = FoundSource::default();
        for (more, found, order) in [
            ("", gone, Some(Order::Random)),
            ("", text(Some(KEPT)), Some(Order::Random)),
            ("", text(Some(KEPT + 1)), Some(Order::Pool)),
            ("", text(None), Some(Order::Pool)),
            ("cache = '/there'", text(None), Some(Order::Random)),
            ("cache = 'none'", text(Some(1)), Some(Order::Pool)),
            ("cache = 'none'", shards, Some(Order::Random)),
            ("cache = 'none'\norder = 'random'", text(Some(1)), None),
            ("order = 'consecutive'", text(None), Some(Order::Consecutive)),
            ("", shards, Some(Order::Random)),
        ] {
            let raw: RawConfig = toml::from_str(&format!("data = '/no/such/place'\n{more}")).unwrap();
            assert_eq!(resolve(&raw, &found).ok(), order, "{more} {found:?}");
        }
    }
}
