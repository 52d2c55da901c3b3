//! The order of a run's sequences, and the lengths of the sequences.

use std::path::{Path, PathBuf};

use capful_core::data::Stretch;
use capful_core::train::{Curriculum, Stage};

use super::error::error;
use super::{Config, ConfigError, FoundSource, Order, RawConfig, is_path};

/// The value of `--cache` that stores nothing.
pub const NO_CACHE: &str = "none";
/// A source with at most about this much text is encoded before a run begins, even if no cache directory is named: on
/// two cores that takes minutes.
const KEPT: u64 = 4 << 30;

/// The order in `raw`, or the best order for the source, about which `found` has the information.
pub(super) fn resolve(raw: &RawConfig, found: &FoundSource) -> Result<Order, ConfigError> {
    if raw.data.as_ref().is_some_and(|data| data.only().is_none()) {
        // Another order is refused together with other settings that a mixture does not support.
        return Ok(raw.order.unwrap_or(Order::Random));
    }
    if raw.data.as_ref().is_none_or(|data| !is_path(data.first())) {
        // Every tale is drawn independently: no order of them is better than another.
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

/// A cache directory for tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cache {
    /// For any number of sets, each in its own subdirectory.
    Shared(PathBuf),
    /// For the set of this run.
    Own(PathBuf),
}

/// The subdirectory of a run's directory for its tokens.
pub const OWN: &str = "tokens";

impl Config {
    /// The lengths of the run's sequences, stage by stage, including stages that the run does not reach: it may get
    /// more steps. For streams, a sequence is the text that a stream reads without interruption.
    pub fn stretches(&self) -> Vec<Stretch> {
        let stages = Config { steps: 0, ..self.clone() }.stages();
        let Ok(curriculum) = Curriculum::new(&stages) else { return Vec::new() };
        let length = |p: &Stage| match self.span() {
            Some(span) => u64::from(p.seq_len) * p.batches_in(span),
            None => u64::from(p.seq_len),
        };
        stages.iter().map(|p| Stretch { from: curriculum.tokens(p.from), length: length(p) }).collect()
    }

    /// Minimum tokens of an epoch: those of a batch, or of a block where rows are streams, plus one.
    pub fn least_tokens(&self) -> u64 {
        let stages = self.stages();
        let micro = stages.iter().map(Stage::micro_tokens).max().unwrap_or(0);
        micro.max(self.span().map_or(0, |span| Stage::largest_block(&stages, span))) + 1
    }

    /// The directory of the run's tokens; `run` is the run's own directory. `None` if the tokens are streamed, or are
    /// in shards already.
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

    /// The order follows from `found`, not from the current state of the disk.
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
