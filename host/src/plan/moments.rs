//! Changes that make the phases without an arena fit: the documents to score, the tokenizer, the encoders, the
//! baselines. A smaller model or batch does not make these phases smaller.

use super::{Machine, Plan};
use crate::config::{Config, NO_CACHE, Order};
use crate::data::tokenizer;

/// Fewer tokens than this are not worth scoring.
const LEAST_SCORED: u64 = 1 << 10;

/// A changed configuration, and the flags for the change; `None` if no further change is possible.
type Change = fn(&Config) -> Option<(Config, String)>;

/// The index of the baselines in the plan's list of moments.
const BASELINES: usize = 3;

/// Pairs of a moment, by its index in the plan, and a change that makes it smaller.
const CHANGES: [(usize, Change); 5] = [(2, scored), (0, built), (1, encoders), (1, streamed), (BASELINES, baselines)];

/// `config` with changes that make its moments fit in `budget`, and the flags for them. Changes that would not suffice
/// are omitted.
pub(super) fn that_fit(config: &Config, machine: &Machine, budget: u64) -> (Config, Vec<String>) {
    let too_large =
        |config: &Config, moment| Plan::of(config, machine).is_ok_and(|plan| too_large(&plan, moment, budget));
    let (mut changed, mut flags) = (config.clone(), Vec::new());
    for (moment, change) in CHANGES {
        if !too_large(&changed, moment) {
            continue;
        }
        let mut tried = change(&changed);
        while let Some((config, _)) = tried.as_ref().filter(|(config, _)| too_large(config, moment)) {
            tried = change(config);
        }
        if let Some((config, flag)) = tried {
            changed = config;
            flags.push(flag);
        }
    }
    (changed, flags)
}

/// Whether some moment does not fit in `budget`.
pub(super) fn any_too_large(plan: &Plan, budget: u64) -> bool {
    (0..plan.moments.len()).any(|moment| too_large(plan, moment, budget))
}

fn too_large(plan: &Plan, moment: usize, budget: u64) -> bool {
    let running = plan.arena_bytes.saturating_add(plan.outside_arena_bytes);
    // The baselines may use everything that the run freed: if they do not fit, the run itself is too large.
    let least = if moment == BASELINES { budget.max(running) } else { budget };
    plan.moments.get(moment).is_some_and(|moment| moment.bytes > least)
}

fn scored(config: &Config) -> Option<(Config, String)> {
    let eval_tokens = config.eval_tokens / 2;
    (eval_tokens >= LEAST_SCORED)
        .then(|| (Config { eval_tokens, ..config.clone() }, format!("--eval-tokens {eval_tokens}")))
}

fn encoders(config: &Config) -> Option<(Config, String)> {
    let threads = config.threads / 2;
    (config.order == Order::Random && threads > 0)
        .then(|| (Config { threads, ..config.clone() }, format!("--threads {threads}")))
}

fn streamed(config: &Config) -> Option<(Config, String)> {
    let changed = Config { order: Order::Consecutive, cache: Some(NO_CACHE.to_owned()), ..config.clone() };
    (config.order == Order::Random).then(|| (changed, format!("--cache {NO_CACHE} --order consecutive")))
}

/// The byte tokenizer's vocabulary is smaller than that of `config`, so the plan is no larger with it.
fn built(config: &Config) -> Option<(Config, String)> {
    let builds = tokenizer::training_bytes(&config.tokenizer, Some(config.vocab_size())) > 0;
    let changed = Config { tokenizer: "byte".to_owned(), ..config.clone() };
    builds.then(|| (changed, "--tokenizer byte".to_owned()))
}

fn baselines(config: &Config) -> Option<(Config, String)> {
    let changed = Config { baseline_tokens: 0, ..config.clone() };
    (config.baseline_tokens > 0).then(|| (changed, "--baseline-tokens 0".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    fn refused(text: &str) -> String {
        let small = "[model]\nlayers = 1\nd_model = 32\nheads = 2\nd_ff = 64\ncontext = 32\n";
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("a.txt");
        std::fs::write(&data, "a bear went home\n".repeat(50)).unwrap();
        let shape = "preset = 'llama-tiny'\nbatch_size = 1\nseq_len = 16\nthreads = 2";
        let text = format!("data = '{}'\n{shape}\n{text}\n{small}", data.display());
        let config = Config::resolve(toml::from_str::<RawConfig>(&text).unwrap()).unwrap();
        let machine = Machine { held: 0, ..Machine::of(&config).unwrap() };
        Plan::of(&config, &machine).unwrap().require_fit(&config, &machine).unwrap_err().to_string()
    }

    #[test]
    fn the_moment_that_does_not_fit_is_named_with_its_remedy() {
        let bpe = refused("baseline_tokens = 0\nvocab_size = 300\ntokenizer = 'bpe'\nbudget = '150MiB'");
        assert!(bpe.contains(" (building the tokenizer, before the arena), "), "{bpe}");
        assert!(bpe.contains("; --tokenizer byte fits ("), "{bpe}");
        let scored = refused("baseline_tokens = 0\ntokenizer = 'byte'\neval_tokens = 2147483648\nbudget = '400MiB'");
        assert!(scored.contains("; --eval-tokens ") && scored.contains(" fits ("), "{scored}");
        let nothing = refused("tokenizer = 'byte'\neval_tokens = 2147483648\nbudget = '1MiB'");
        assert!(nothing.contains("; lower --eval-tokens 2147483648, whose documents take 8.5 GiB; "), "{nothing}");
        assert!(nothing.contains("the program itself takes "), "{nothing}");
    }
}
