//! The report of a training run at its end.

use capful_base::human_bytes;
use std::io;
use std::path::Path;

use serde_json::json;

use super::Failure;
use super::output::{say, within};
use super::usage::Usage;
use crate::config::{Config, Span};
use crate::data::corpus::{Corpus, Drawn};
use crate::data::ngram::Baselines;
use crate::data::overlap::Overlap;
use crate::data::validation::ValidationSet;
use crate::plan::memory;
use crate::run::checkpoint;
use crate::run::energy;
use crate::run::outcome::Outcome;
use crate::run::outlook::of_text;
use crate::suggest::ending::Expected;
use crate::suggest::expected_bits;

/// A run that waits for text for more than this share of its time gets a warning.
const MOST_WAITED: f64 = 0.03;

/// The warning for a run whose steps waited for text, with advice.
pub(super) fn waited(config: &Config, corpus: &Corpus, outcome: &Outcome) -> Option<String> {
    let share = outcome.waited / outcome.seconds;
    if share <= MOST_WAITED {
        return None;
    }
    let help = match corpus.shards() {
        Some(_) => "the token shards lie on a slow disk: name a faster one with --cache DIR",
        None if config.data.only() == Some("tales") => {
            "the tales are made by one thread: a larger model or device would not wait"
        }
        None => "encode the text once: with --cache DIR, or with `host data` beforehand",
    };
    Some(format!("steps waited {:.1} s for text, {:.0} % of the run; {help}", outcome.waited, 100.0 * share))
}

/// Explains a loss by comparison with those of n-grams, of one to four tokens.
fn against(loss: f64, ngrams: [f64; 4]) -> String {
    let names = ["unigram", "bigram", "trigram", "4-gram"];
    // A longer n-gram can be worse on little text: "passed" means that all shorter ones have a higher loss.
    let Some(above) = ngrams.iter().position(|ngram| loss >= *ngram) else {
        return "below the 4-gram: the model uses more than the three tokens before".to_owned();
    };
    let knows =
        ["which counts tokens alone", "which sees one token", "which sees two tokens", "which sees three tokens"];
    let passed = above.checked_sub(1).map_or(String::new(), |passed| format!("below the {}, ", names[passed]));
    format!("{passed}still above the {}, {}: train longer, or on more text", names[above], knows[above])
}

/// Values that a run's loss is compared with.
pub(super) struct Beside<'a> {
    pub validation: &'a ValidationSet,
    pub overlap: Option<Overlap>,
    pub baselines: Option<Baselines>,
    /// The bits a byte at the end of a typical run like this, see [`expected`].
    pub expected: Option<f64>,
}

/// The bits a byte at the end of a run of `steps` steps on the text of the law; `None` if the law does not cover such
/// runs.
pub(super) fn expected(config: &Config, steps: u64, corpus: &Corpus, validation: &ValidationSet) -> Option<f64> {
    let (unique, each) = of_text(corpus, validation)?;
    expected_bits(config, steps, unique, each)
}

/// The result of a run, for programs.
pub(super) fn result(
    config: &Config,
    corpus: &Corpus,
    dir: &Path,
    beside: &Beside<'_>,
    outcome: &Outcome,
    usage: &Usage,
) -> serde_json::Value {
    let Beside { validation, overlap, baselines, expected } = beside;
    let bits = outcome.score.bits_per_byte(corpus.tokenizer.as_ref());
    let mut result = json!({
        "done": true,
        "run": dir.display().to_string(),
        "val_loss": outcome.score.loss(),
        "val_loss_se": outcome.score.standard_error(),
        "val_tokens": outcome.score.tokens,
        "val_loss_averaged": outcome.averaged.map(|score| score.loss()),
        "val_loss_averaged_se": outcome.averaged.and_then(|score| score.standard_error()),
        "val_overlap": overlap.map(|o| o.share),
        "floor": corpus.floor(validation),
        "bits_per_byte": bits,
        "expected_bits_per_byte": bits.and(*expected),
        "predicted_bits_per_byte": outcome.predicted_end.map(|(_, expected)| expected.bits),
        "baselines": baselines,
        "seconds": outcome.seconds,
        "predicted_seconds": outcome.predicted,
        "seconds_per_step": outcome.parts[0],
        "seconds_per_evaluation": outcome.parts[1],
        "seconds_per_save": outcome.parts[2],
        "seconds_of_time": outcome.timed,
        "joules": outcome.joules,
        "predicted_joules": outcome.predicted_joules,
        "tokens": outcome.tokens,
        "tokens_per_s": outcome.session_tokens as f64 / outcome.seconds,
        "steps": outcome.end,
        "steps_done": outcome.steps,
        "best": best(config, dir, outcome),
        "waited_s": outcome.waited,
        "heap_allocations": outcome.allocations,
        "loader_allocations": outcome.loader_allocations,
        "peak_rss_bytes": memory::most_resident().max(usage.resident),
        "training_peak_rss_bytes": usage.resident,
        "planned_bytes": usage.planned,
        "device_bytes": usage.device,
        "gpu_busy": usage.busy,
        "heap_allocations_per_save": outcome.save.allocations,
        "heap_bytes_per_save": outcome.save.bytes,
    });
    if !outcome.score.by_source.is_empty() {
        result["val_by_source"] = json!(*outcome.score.by_source);
    }
    if let Some(sources) = corpus.drawn(outcome.tokens).ok().filter(|sources| !sources.is_empty()) {
        result["sources"] = sources.iter().map(of_source).collect();
    }
    result
}

/// What a run read of a source, for programs.
fn of_source(one: &Drawn) -> serde_json::Value {
    let Drawn { name, share, tokens, drawn } = one;
    json!({ "source": name, "share": share, "tokens": tokens, "drawn": drawn, "passes": one.passes() })
}

/// Reports the result to people.
pub(super) fn report(
    config: &Config,
    corpus: &Corpus,
    dir: &Path,
    beside: &Beside<'_>,
    outcome: &Outcome,
    usage: &Usage,
) -> Result<(), Failure> {
    let Beside { validation, baselines, expected, .. } = beside;
    let (loss, floor) = (outcome.score.loss(), corpus.floor(validation));
    let bits = outcome.score.bits_per_byte(corpus.tokenizer.as_ref());
    say!("validation loss {} nats a token over {} tokens", outcome.score.shown(), outcome.score.tokens)?;
    for (name, loss) in config.data.names().zip(outcome.score.by_source.iter()) {
        say!("  {loss:.4} on {name}")?;
    }
    if let Some(bits) = bits {
        let expected = expected.map_or(String::new(), |expected| {
            format!("; such a run ends at about {expected:.2} on English technical prose, see docs/scaling.md")
        });
        say!("  {bits:.3} bits a byte{expected}")?;
    }
    if let Some(averaged) = outcome.averaged {
        say!("  of the averaged weights {}; eval, generate and export take them with --averaged", averaged.shown())?;
    }
    if let Some(floor) = floor {
        say!("  the corpus's own floor is {floor:.4}: {:.3} times that", loss / floor)?;
    }
    if let Some(Baselines { unigram, bigram, trigram, fourgram, tokens }) = baselines {
        let line = format!(
            "  n-grams of {tokens} training tokens on the same tokens: unigram {unigram:.3}, bigram {bigram:.3}, \
             trigram {trigram:.3}, 4-gram {fourgram:.3}"
        );
        say!("{}", within(&line, &io::stdout()))?;
        say!("  {}", against(loss, [*unigram, *bigram, *trigram, *fourgram]))?;
    }
    let ends = predicted(bits, outcome);
    let lines =
        endings(config, dir, outcome).into_iter().chain(ends).chain(times(config, outcome)).chain(energy(outcome));
    for line in lines {
        say!("  {line}")?;
    }
    say!(
        "  {:.1} s, {:.0} tokens/s, {} heap allocations in steps, {} in the largest save ({})",
        outcome.seconds,
        outcome.session_tokens as f64 / outcome.seconds,
        outcome.allocations,
        outcome.save.allocations,
        human_bytes(outcome.save.bytes)
    )?;
    say!("  {}", usage.line())?;
    say!("  run {}", dir.display())?;
    Ok(())
}

/// The lowest validation loss, for programs.
fn best(config: &Config, dir: &Path, outcome: &Outcome) -> serde_json::Value {
    let Some((best, there)) = outcome.best.filter(|_| config.keep_best || config.patience > 0) else {
        return serde_json::Value::Null;
    };
    let path = there.then(|| checkpoint::of_step(dir, best.step).display().to_string());
    json!({ "step": best.step, "val_loss": best.val_loss, "checkpoint": path })
}

/// Which checkpoint is the best, and why a run ended before its last step.
fn endings(config: &Config, dir: &Path, outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    if outcome.impatient && outcome.steps < outcome.end {
        let (done, all, patience) = (outcome.steps, outcome.end, config.patience);
        lines.push(format!(
            "ended after step {done} of {all}: {patience} evaluations in a row were not lower (--patience {patience})"
        ));
    }
    let asked = config.keep_best || config.patience > 0;
    if let Some((best, there)) = outcome.best.filter(|_| asked) {
        let path = checkpoint::of_step(dir, best.step);
        let kept = match there {
            true => format!("in {}, --checkpoint best", path.display()),
            false => "its checkpoint is not kept without --keep-best".to_owned(),
        };
        lines.push(format!("lowest validation loss {:.4} after step {}: {kept}", best.val_loss, best.step));
    }
    lines
}

/// The loss that was first predicted in the second half of the run, next to the final one; `None` if the run ended
/// before its last step.
fn predicted(bits: Option<f64>, outcome: &Outcome) -> Option<String> {
    let (step, Expected { bits: predicted, .. }) = outcome.predicted_end.filter(|_| outcome.steps == outcome.end)?;
    let bits = bits?;
    let part = match (100.0 * step as f64 / outcome.end.max(1) as f64).round() {
        50.0 => "half".to_owned(),
        part => format!("{part:.0} %"),
    };
    Some(format!(
        "predicted {predicted:.3} bits a byte at {part} of it, {bits:.3} when it ended ({:+.1} %)",
        100.0 * (bits / predicted - 1.0)
    ))
}

/// The time it took, next to the prediction or the time limit.
fn times(config: &Config, outcome: &Outcome) -> Option<String> {
    match (config.time, outcome.timed, outcome.predicted) {
        (Some(time), Some(seconds), _) => Some(format!(
            "saved {seconds:.1} s after it began, of --time {} ({:+.1} %)",
            Span(time),
            100.0 * (seconds / time - 1.0)
        )),
        (_, _, Some(predicted)) => Some(format!(
            "predicted {predicted:.1} s, took {:.1} s ({:+.1} %)",
            outcome.seconds,
            100.0 * (outcome.seconds / predicted - 1.0)
        )),
        _ => None,
    }
}

/// The energy it used, next to the prediction.
fn energy(outcome: &Outcome) -> Option<String> {
    let joules = outcome.joules?;
    let watts = joules / outcome.seconds;
    let predicted = outcome.predicted_joules.map_or(String::new(), |predicted| {
        format!("; predicted {} ({:+.1} %)", energy::shown(predicted), 100.0 * (joules / predicted - 1.0))
    });
    Some(format!("energy {}, {watts:.0} W{predicted}", energy::shown(joules)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_placed_among_the_n_grams() {
        let ngrams = [6.0, 5.0, 4.5, 4.6];
        for (loss, says) in [
            (7.0, "still above the unigram, which counts"),
            (6.0, "still above the unigram, which counts"),
            (5.5, "below the unigram, still above the bigram"),
            (4.7, "below the bigram, still above the trigram"),
            (4.55, "below the bigram, still above the trigram"),
            (4.4, "below the 4-gram: the model uses more"),
        ] {
            let line = against(loss, ngrams);
            assert!(line.starts_with(says) && line.len() < 98, "{loss}: {line}");
        }
        let usual = against(4.3, [6.0, 5.0, 4.5, 4.2]);
        assert!(usual.starts_with("below the trigram, still above the 4-gram"), "{usual}");
    }
}
