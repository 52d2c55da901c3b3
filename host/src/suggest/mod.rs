//! From the user's means (memory, time, a text and a machine) to the run that ends at the lowest loss within them.
//!
//! - `law`: the loss at the end of a run; `anchor`: what a text adds to the law, from short runs;
//! - `ending`: where a run in progress ends, from its evaluations so far;
//! - `shapes`: the models that are tried;
//! - this file: every candidate that fits, with its cost and its expected loss.

pub mod anchor;
pub mod ending;
pub mod law;
mod shapes;

use crate::config::{BatchSize, Config, ConfigError, Found, ModelConfig, RawConfig, Recompute, RecomputeChoice, Span};
use crate::plan::{Machine, Plan};
use law::{Course, PROSE, Text};
pub use shapes::{Recipe, Shape};

/// Tokens of a step that are tried.
const STEPS: [u32; 6] = [2048, 4096, 8192, 16_384, 32_768, 65_536];
/// Tokens of a sequence that are tried.
const LENGTHS: [u32; 3] = [256, 512, 1024];
/// Parts of the time that are tried, each 0.75 times the one before: a text that is read too often is overfitted.
const SHORTER: f64 = 0.75;
const PARTS: i32 = 40;
/// The learning rate of the presets.
const RATE: f64 = 1e-3;
/// The number of steps in which the preset's rate moves a model as far as necessary.
const MOVEMENT: f64 = 1000.0;
/// Levels of recomputation: a higher one only if the one before does not fit.
const AGAIN: [Option<Recompute>; 3] = [None, Some(Recompute::CHEAP), Some(Recompute::FULL)];
/// Number of evaluations of a run.
const EVALUATIONS: u64 = 5;
/// The fewest steps, at the preset's rate and decay, of the law's runs, minus what a run that ends by time may lack;
/// and the preset's decay.
const MOVED: f64 = 850.0;
const TUNED: f64 = 0.6;
/// The most passes in the runs that the law was fitted to.
const MOST_PASSES: f64 = 14.0;
/// The recipe for many passes: the numbers of tokens that it is tried on, the number of its passes, and its loss as a
/// fraction of the best of the law's recipe. Measured on one text of 1.2 million tokens: docs/learning.md.
const LITTLE: std::ops::Range<f64> = 0.4e6..3e6;
const MANY: f64 = 20.0;
const BELOW: f64 = 0.95;
/// Parameters in matrices, and rates as multiples of the preset's, to which the law was fitted.
const SIZES: std::ops::RangeInclusive<f64> = 0.15e6..=1e8;
const RATES: std::ops::RangeInclusive<f64> = 0.24..=4.1;
/// The fewest steps for which the law holds, at the highest rate.
pub const FEWEST: f64 = 225.0;

/// A tokenizer, and the size of the text with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tokens {
    /// The size of its vocabulary; `None` if the user named a tokenizer.
    pub vocabulary: Option<u32>,
    /// Bytes of text a token.
    pub bytes: f64,
    /// Tokens of the training text.
    pub unique: f64,
}

/// The user's means.
pub struct Means<'a> {
    /// The configuration that the user wrote: it holds for every candidate.
    pub written: &'a RawConfig,
    /// What was found of its files and the machine.
    pub found: &'a Found,
    /// Seconds from the first step to the last save.
    pub seconds: f64,
    /// The tokenizers to choose from.
    pub tokens: &'a [Tokens],
    /// Bytes of a page that is served during the run.
    pub live: u64,
}

/// A run that fits.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Its model.
    pub shape: Shape,
    /// Its configuration, including what the user wrote.
    pub raw: RawConfig,
    /// The resolved configuration.
    pub config: Config,
    /// Its machine.
    pub machine: Machine,
    /// Its tokenizer, and the size of the text with it.
    pub tokens: Tokens,
    /// Parameters.
    pub params: u64,
    /// Bytes of memory that it needs.
    pub bytes: u64,
    /// Seconds of a step, expected or measured.
    pub step_seconds: f64,
    /// Its steps: as many as the time allows, or fewer.
    pub steps: u64,
    /// Whether its steps take all of the time.
    pub whole: bool,
    /// Expected bits a byte at its end: on a text like that of the law's fit, until [`Candidate::anchored`] sets
    /// another.
    pub bits: f64,
    /// What the text adds to the law.
    text: Text,
    /// The factor by which it ends above the law, from its own short runs.
    own: f64,
    /// Whether the seconds of a step were measured.
    pub is_measured: bool,
    /// Whether the user wrote the learning rate.
    rate_is_given: bool,
}

impl Candidate {
    /// The course of a training of `steps` steps.
    pub fn course(&self, steps: f64) -> Course {
        let step = self.config.tokens_per_step() as f64;
        Course {
            matrices: self.shape.matrices(),
            tokens: steps * step,
            unique: self.tokens.unique,
            bytes_a_token: self.tokens.bytes,
            vocabulary: f64::from(self.config.vocab_size()),
            step,
            length: f64::from(self.config.seq_len),
            rate: if self.rate_is_given { self.config.lr / RATE } else { rate(steps) },
        }
    }

    /// Chooses how many steps it trains within `seconds`, from the seconds of a step.
    fn choose(&mut self, seconds: f64) {
        let most = (seconds / self.step_seconds).floor();
        if self.shape.recipe == Recipe::Many {
            let steps = (MANY * self.tokens.unique / self.config.tokens_per_step() as f64).ceil();
            self.bits = if steps > most { f64::INFINITY } else { BELOW * self.best_of_law() };
            (self.steps, self.whole) = (steps as u64, false);
            return;
        }
        let ends = (0..PARTS).map(|n| SHORTER.powi(n)).map(|part| (part, (part * most).floor()));
        // Fewer than `FEWEST` steps only if the time allows no more; never more than `MOST_PASSES` passes.
        let ends = ends.filter(|(part, steps)| *part == 1.0 || *steps >= FEWEST);
        let ends = ends.filter(|(_, steps)| self.passes_of(*steps) <= MOST_PASSES);
        let bits = ends.map(|(part, steps)| (self.own * self.course(steps.max(1.0)).bits(self.text), part, steps));
        let (bits, part, steps) = bits.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 1.0, most));
        // With fewer than `FEWEST` steps a run ends higher than the law says.
        self.bits = if steps < FEWEST { bits * (FEWEST / steps.max(1.0)).powf(0.3) } else { bits };
        (self.steps, self.whole) = (steps as u64, part == 1.0);
        self.raw.lr = self.lr(steps);
    }

    /// Bits a byte of the best run of the law's recipe on this text, without a limit of time.
    fn best_of_law(&self) -> f64 {
        let step = self.config.tokens_per_step() as f64;
        // From half a pass to eight passes.
        let passes = || (0..=16).map(|quarter| 2f64.powf(f64::from(quarter) / 4.0 - 1.0));
        let runs = Shape::all().flat_map(|shape| passes().map(move |passes| (shape.matrices(), passes)));
        let bits = runs.map(|(matrices, passes)| {
            let tokens = passes * self.tokens.unique;
            Course { matrices, tokens, rate: rate(tokens / step), ..self.course(1.0) }.bits(self.text)
        });
        bits.fold(f64::INFINITY, f64::min)
    }

    /// The learning rate for `steps` steps, or the one that the user wrote.
    fn lr(&self, steps: f64) -> Option<f64> {
        if self.rate_is_given { self.raw.lr } else { Some(round(RATE * rate(steps))) }
    }

    /// The configuration that trains it for `steps` steps, including what the user wrote.
    pub fn short(&self, steps: u64) -> RawConfig {
        RawConfig { time: None, steps: Some(steps), lr: self.lr(steps as f64), ..self.raw.clone() }
    }

    /// Sets the known effect of the text and of its own short runs.
    pub fn anchored(&mut self, text: Text, own: f64, seconds: f64) {
        (self.text, self.own) = (text, own);
        self.choose(seconds);
    }

    /// Replaces the expected seconds of a step with measured ones.
    pub fn measured(&mut self, step_seconds: f64, seconds: f64) {
        self.step_seconds = step_seconds;
        self.choose(seconds);
    }

    /// Passes over the text.
    pub fn passes(&self) -> f64 {
        self.passes_of(self.steps as f64)
    }

    fn passes_of(&self, steps: f64) -> f64 {
        steps * self.config.tokens_per_step() as f64 / self.tokens.unique
    }

    /// The configuration that trains it, including what the user wrote: until `time` seconds have passed, or for its
    /// number of steps if they are fewer.
    pub fn training(&self, time: f64) -> RawConfig {
        let (time, steps) = if self.whole { (Some(Span(time)), None) } else { (None, Some(self.steps)) };
        // Enough evaluations to see the progress, and where it will end.
        let eval_every = self.raw.eval_every.or(Some((self.steps / EVALUATIONS).max(1)));
        RawConfig { time, steps, eval_every, ..self.raw.clone() }
    }
}

/// The law's description of a run of `config` with `steps` steps on a text of `unique` tokens of `bytes` bytes each;
/// `None` if the law was not fitted to such runs.
pub fn course(config: &Config, steps: u64, unique: u64, bytes: f64) -> Option<Course> {
    let model = match &config.model {
        ModelConfig::Pythia(model) | ModelConfig::Yxanul(model) => model,
        #[cfg(feature = "neurogen")]
        ModelConfig::NeuroGen(_) => return None,
    };
    let (rate, steps) = (config.lr / RATE, steps as f64);
    let moved = rate * steps * (1.0 - config.decay / 2.0) / (1.0 - TUNED / 2.0) >= MOVED;
    let step = config.tokens_per_step() as f64;
    let course = Course {
        matrices: law::matrices(model.layers, model.d_model, model.d_ff),
        tokens: steps * step,
        unique: unique.max(1) as f64,
        bytes_a_token: bytes,
        vocabulary: f64::from(config.vocab_size()),
        step,
        length: f64::from(config.seq_len),
        rate,
    };
    let known = is_quick(config)
        && moved
        && SIZES.contains(&course.matrices)
        && RATES.contains(&course.rate)
        && config.dropout == 0.0
        && !config.mask_documents
        && course.passes() <= MOST_PASSES
        && bytes > 0.0;
    known.then_some(course)
}

/// Bits a byte at the end of such a run on a text like that of the law's fit; `None` if the law was not fitted to such
/// runs.
pub fn expected_bits(config: &Config, steps: u64, unique: u64, bytes: f64) -> Option<f64> {
    Some(course(config, steps, unique, bytes)?.bits(PROSE))
}

/// A line of advice if a short run of the quick recipe has the preset's rate and would end lower with a higher one.
pub fn wants_a_rate(config: &Config) -> Option<String> {
    let better = round(RATE * rate(config.steps as f64));
    let (short, quick) = ((1..900).contains(&config.steps), is_quick(config));
    (quick && short && config.lr == RATE).then(|| {
        format!("runs of {} steps end lower at a higher rate: --lr {better:e}, see docs/scaling.md", config.steps)
    })
}

/// Whether the law covers the run's preset.
fn is_quick(config: &Config) -> bool {
    config.preset.starts_with("quick-") && config.preset != "quick-tiny" && config.stage.is_empty()
}

/// The best rate for `steps` steps, as a multiple of the preset's: docs/scaling.md.
fn rate(steps: f64) -> f64 {
    (MOVEMENT / steps.max(1.0)).clamp(1.0, 4.0)
}

/// Rounds to two significant digits.
fn round(lr: f64) -> f64 {
    format!("{lr:.1e}").parse().unwrap_or(lr)
}

impl Means<'_> {
    /// Every candidate that fits, the lowest loss first. An operation takes `pace` times its expected time.
    ///
    /// # Errors
    /// A configuration that is wrong with every shape; no candidate that fits, with the smallest that does not.
    pub fn candidates(&self, pace: f64) -> Result<Vec<Candidate>, ConfigError> {
        let mut all = Vec::new();
        let (mut refused, mut least) = (None, None::<u64>);
        let many = self.tokens.iter().map(|tokens| (Shape::many(), (*tokens, 512, STEPS[3])));
        let many = many.filter(|(_, (tokens, ..))| LITTLE.contains(&tokens.unique));
        let quick = Shape::all().flat_map(|shape| self.variants().map(move |variant| (shape, variant)));
        for (shape, (tokens, length, step)) in quick.chain(many) {
            let own = shape.raw();
            let raw = RawConfig {
                batch_size: Some(BatchSize::Sequences((step / length).max(1))),
                seq_len: Some(length),
                vocab_size: tokens.vocabulary,
                // The recipe's tokenizer is used only if the user named none.
                tokenizer: own.tokenizer.clone().filter(|_| tokens.vocabulary.is_some()),
                ..own
            };
            let tries = if self.written.recompute.is_some() { 1 } else { AGAIN.len() };
            for again in &AGAIN[..tries] {
                let recompute = again.map(RecomputeChoice::Set);
                let raw = RawConfig { recompute, ..raw.clone() }.overlaid(self.written.clone());
                match self.candidate(shape, raw, tokens, pace) {
                    Ok((candidate, false)) => least = least.min(Some(candidate.bytes)).or(Some(candidate.bytes)),
                    Ok((candidate, true)) => {
                        all.push(candidate);
                        break;
                    }
                    Err(e) => {
                        refused = Some(e);
                        break;
                    }
                }
            }
        }
        let fitted = !all.is_empty();
        // Drops candidates without time for many passes, and those with too little text for a few.
        all.retain(|candidate| candidate.bits.is_finite());
        if fitted && all.is_empty() {
            return Err(self.too_little());
        }
        if all.is_empty() {
            let too_large = least.map(|bytes| {
                let bytes = capful_base::human_bytes(bytes);
                ConfigError(format!("no model fits: the smallest run needs {bytes}; raise --budget or free memory"))
            });
            return Err(too_large.or(refused).unwrap_or_else(|| ConfigError("there is no candidate".to_owned())));
        }
        all.sort_by(|a, b| a.bits.total_cmp(&b.bits));
        Ok(all)
    }

    /// The error for a text that even the shortest run reads too often.
    fn too_little(&self) -> ConfigError {
        let tokens = self.tokens.iter().map(|tokens| tokens.unique).fold(0.0, f64::max);
        let shortest = FEWEST * f64::from(STEPS[0]);
        ConfigError(format!(
            "this text has about {tokens:.0} tokens: the shortest run, {FEWEST} steps of {}, reads it {:.0} times and learns it by \
             heart; give {:.0} times as much text or more, or go on from a trained model with `train --init-from`",
            STEPS[0],
            shortest / tokens,
            (shortest / MOST_PASSES / tokens).ceil().max(2.0)
        ))
    }

    /// Each combination of tokenizer, length and tokens of a step, once.
    fn variants(&self) -> impl Iterator<Item = (Tokens, u32, u32)> + '_ {
        let lengths = self.written.seq_len.map_or(LENGTHS.to_vec(), |length| vec![length]);
        self.tokens.iter().flat_map(move |tokens| {
            let lengths = lengths.clone();
            lengths.into_iter().flat_map(move |length| {
                let steps: &[u32] = if self.written.batch_size.is_some() { &[1] } else { &STEPS };
                steps
                    .iter()
                    .filter(move |step| **step == 1 || **step >= length)
                    .map(move |step| (*tokens, length, *step))
            })
        })
    }

    /// The run that `raw` describes, and whether it fits.
    fn candidate(
        &self,
        shape: Shape,
        raw: RawConfig,
        tokens: Tokens,
        pace: f64,
    ) -> Result<(Candidate, bool), ConfigError> {
        let config = Config::resolve_with(raw.clone(), self.found)?;
        let machine = Machine { live: self.live, ..Machine::with(&config, self.found.source)? };
        let plan = Plan::of(&config, &machine)?;
        let seconds = plan.stages.first().map_or(0.0, |stage| stage.expected_seconds.unwrap_or(stage.roofline_seconds));
        let fits = plan.fits.unwrap_or(false);
        let (params, bytes) = (plan.params, plan.needed_bytes);
        let step_seconds = pace * seconds;
        let bits = f64::INFINITY;
        let mut candidate = Candidate {
            shape,
            raw,
            config,
            machine,
            tokens,
            params,
            bytes,
            step_seconds,
            steps: 0,
            whole: true,
            bits,
            text: PROSE,
            own: 1.0,
            is_measured: false,
            rate_is_given: self.written.lr.is_some(),
        };
        if fits {
            candidate.choose(self.seconds);
        }
        Ok((candidate, fits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FoundSource;

    const CLEAN: Tokens = Tokens { vocabulary: Some(10_000), bytes: 3.396, unique: 22.25e6 };

    fn found() -> Found {
        let source = FoundSource { exists: true, text_bytes: Some(75_571_558), ..FoundSource::default() };
        Found { source, cores: 2, ..Found::default() }
    }

    /// The best candidate for a GPU with this memory and time.
    fn best(budget: &str, seconds: f64, tokens: Tokens) -> Result<Candidate, ConfigError> {
        let text = format!("gpu = 'h200'\nprecision = 'bf16'\ndata = 'text.jsonl'\nbudget = '{budget}'");
        let (written, found) = (toml::from_str::<RawConfig>(&text).unwrap(), found());
        let means = Means { written: &written, found: &found, seconds, tokens: &[tokens], live: 0 };
        let all = means.candidates(1.0)?;
        let budget = written.budget.unwrap().0;
        assert!(all.iter().all(|candidate| candidate.bytes <= budget), "what does not fit");
        assert!(
            all.iter().all(|candidate| candidate.steps as f64 * candidate.step_seconds <= seconds),
            "what is too long"
        );
        assert!(all.is_sorted_by(|a, b| a.bits <= b.bits));
        Ok(all[0].clone())
    }

    #[test]
    fn more_of_anything_never_ends_higher() {
        let bits = |budget, seconds| best(budget, seconds, CLEAN).unwrap().bits;
        let by_memory = ["1GiB", "2GiB", "4GiB", "16GiB"].map(|budget| bits(budget, 60.0));
        let by_time = [5.0, 20.0, 60.0, 300.0].map(|seconds| bits("4GiB", seconds));
        for of in [by_memory, by_time] {
            assert!(of.is_sorted_by(|a, b| a >= b) && of[0] > of[3], "{of:?}");
        }
        let more = Tokens { unique: 10.0 * CLEAN.unique, ..CLEAN };
        assert!(best("4GiB", 300.0, more).unwrap().bits < bits("4GiB", 300.0));
    }

    #[test]
    fn a_little_text_is_not_read_for_hours() {
        let little = Tokens { unique: 1.5e6, ..CLEAN };
        let many = best("8GiB", 600.0, little).unwrap();
        assert_eq!((many.shape.recipe, many.config.dropout, many.whole), (Recipe::Many, 0.3, false));
        assert!((19.9..20.1).contains(&many.passes()) && many.config.keep_best, "{} passes", many.passes());
        // Without enough memory for the recipe of many passes.
        let best = best("1GiB", 600.0, little).unwrap();
        assert_eq!((best.shape.recipe, best.config.dropout), (Recipe::Quick, 0.0));
        assert!(!best.whole && (1.0..8.0).contains(&best.passes()), "{} passes", best.passes());
        let flags = best.training(600.0).flags();
        assert!(flags.iter().any(|flag| flag.starts_with("--steps ")), "{flags:?}");
    }

    #[test]
    fn a_text_that_is_too_little_is_refused() {
        let refused = best("8GiB", 600.0, Tokens { unique: 20e3, ..CLEAN }).unwrap_err().to_string();
        assert!(refused.contains("20000 tokens") && refused.contains("reads it 23 times"), "{refused}");
        for unique in [40e3, 200e3] {
            let best = best("8GiB", 3600.0, Tokens { unique, ..CLEAN }).unwrap();
            let most = if best.shape.recipe == Recipe::Many { 21.0 } else { MOST_PASSES };
            assert!(
                best.passes() <= most && best.shape.width <= 512,
                "{unique}: {:?}, {} passes",
                best.shape,
                best.passes()
            );
        }
    }

    #[test]
    fn its_flags_are_the_run_that_was_planned() {
        let best = best("2GiB", 20.0, CLEAN).unwrap();
        assert!(best.whole);
        let line = best.training(20.0).flags().join(" ");
        for flag in ["--preset quick-", "--data text.jsonl", "--time 20s", "--precision bf16", "--budget 2048MiB"] {
            assert!(line.contains(flag), "{flag}: {line}");
        }
        let steps = best.steps as f64;
        let expected = 1e-3 * (1000.0 / steps).clamp(1.0, 4.0);
        assert!((best.raw.lr.unwrap() / expected - 1.0).abs() < 0.05, "{steps} steps at {:?}", best.raw.lr);
    }

    #[test]
    fn where_nothing_fits_the_smallest_is_named() {
        let refused = best("100MiB", 60.0, CLEAN).unwrap_err().to_string();
        assert!(
            refused.starts_with("no model fits: the smallest run needs ") && refused.contains("--budget"),
            "{refused}"
        );
    }

    /// The prediction for a run equals that of the candidate it came from.
    #[test]
    fn a_run_is_expected_to_end_where_its_candidate_did() {
        let best = best("2GiB", 20.0, CLEAN).unwrap();
        let lr = best.raw.lr.unwrap();
        let config = Config { lr, ..best.config.clone() };
        let found = expected_bits(&config, best.steps, CLEAN.unique as u64, CLEAN.bytes).unwrap();
        approx::assert_relative_eq!(found, best.bits, max_relative = 0.01);
        for other in [
            Config { dropout: 0.1, ..config.clone() },
            Config { mask_documents: true, ..config.clone() },
            Config { preset: "pythia-14m".to_owned(), ..config.clone() },
            Config { lr: 5e-3, ..config.clone() },
        ] {
            assert_eq!(expected_bits(&other, best.steps, CLEAN.unique as u64, CLEAN.bytes), None);
        }
        assert_eq!(expected_bits(&config, 50, CLEAN.unique as u64, CLEAN.bytes), None, "so few steps");
        assert_eq!(expected_bits(&config, best.steps, 1000, CLEAN.bytes), None, "so many passes");
    }

    #[test]
    fn a_short_run_is_told_of_a_better_rate() {
        let line = |text: &str| wants_a_rate(&Config::resolve(toml::from_str(text).unwrap()).unwrap());
        for (steps, lr) in [(500, "--lr 2e-3"), (100, "--lr 4e-3")] {
            let said = line(&format!("preset = 'quick-14m'\nsteps = {steps}")).unwrap();
            assert!(said.contains(&format!("of {steps} steps")) && said.contains(lr), "{said}");
        }
        for right in ["'quick-14m'\nsteps = 1000", "'quick-14m'\nsteps = 500\nlr = 2e-3", "'pythia-14m'\nsteps = 500"] {
            assert_eq!(line(&format!("preset = {right}")), None, "{right}");
        }
    }

    #[test]
    fn what_does_not_fit_is_computed_again() {
        let levels = |budget: &str, more: &str| {
            let text = format!("gpu = 'h200'\nprecision = 'bf16'\ndata = 'text.jsonl'\nbudget = '{budget}'\n{more}");
            let (written, found) = (toml::from_str::<RawConfig>(&text).unwrap(), found());
            let means = Means { written: &written, found: &found, seconds: 60.0, tokens: &[CLEAN], live: 0 };
            let all = means.candidates(1.0).unwrap();
            let count = |level| all.iter().filter(|candidate| candidate.config.recompute == level).count();
            [Recompute::NONE, Recompute::CHEAP, Recompute::FULL].map(count)
        };
        let [none, cheap, full] = levels("2GiB", "");
        assert!(none > cheap && cheap > 0 && full > 0, "{none}, {cheap}, {full}");
        assert_eq!(levels("2GiB", "recompute = 'none'"), [none, 0, 0]);
    }

    #[test]
    fn what_is_written_holds_for_all() {
        let text = "gpu = 'h200'\nprecision = 'bf16'\ndata = 'text.jsonl'\nseq_len = 128\nbatch_size = 7\nlr = 5e-3";
        let (written, found) = (toml::from_str::<RawConfig>(text).unwrap(), found());
        let means = Means { written: &written, found: &found, seconds: 60.0, tokens: &[CLEAN], live: 0 };
        for candidate in means.candidates(1.0).unwrap() {
            let Config { seq_len, batch_size, .. } = candidate.config;
            assert_eq!((seq_len, batch_size, candidate.raw.lr), (128, 7, Some(5e-3)));
        }
    }
}
