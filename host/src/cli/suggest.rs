//! `host suggest`.

use capful_base::human_bytes;
use std::path::Path;

use serde_json::json;

use super::calibrate::calibrate;
use super::output::{in_columns, say, tell};
use super::{Failure, RunFlags, request, work};
use crate::config::{Config, Found, Names, Order, Precision, RawConfig, Span};
use crate::data::corpus::Corpus;
use crate::data::found;
use crate::data::shards::Manifest;
use crate::plan::{Plan, memory};
use crate::run::Session;
use crate::run::bench::Bench;
use crate::suggest::{Candidate, Means, Recipe, Shape, Tokens};
use capful_base::words::{counted, duration, grouped, short as abbreviated};

/// Flags of `host suggest`.
#[derive(Debug, clap::Args)]
pub struct Suggest {
    #[command(flatten)]
    flags: RunFlags,
    /// Trains the best candidates on the text itself for so long in all, the better half of them longer, and chooses by that
    #[arg(long, help_heading = "Run", value_name = "SPAN")]
    calibrate: Option<Span>,
    /// JSON on standard output
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// The default time of a run.
const HOUR: f64 = 3600.0;
/// Seconds for measuring a candidate, and number of measured candidates.
const MEASURED: f64 = 2.0;
const MOST_MEASURED: usize = 4;
/// The sizes of vocabulary that are tried, as far as the text suffices for them.
const VOCABULARIES: [u32; 3] = [2000, 5000, 10_000];
/// Tokens of held-out text for measuring the bytes of a token.
const SAMPLE: u64 = 32_768;
/// Number of rows shown.
const ROWS: usize = 6;

impl Suggest {
    pub(super) fn run(self) -> Result<(), Failure> {
        let found = find_by(self.flags.written()?, self.calibrate, 0)?;
        let Suggestion { time, candidates, measured, short } = &found;
        let (best, command) = (found.best(), found.command());
        if self.json {
            let rows: Vec<_> = distinct(candidates).take(ROWS).map(as_json).collect();
            return say!(
                "{}",
                json!({ "command": command, "measured": measured, "calibrated": short, "candidates": rows })
            );
        }
        let text = best.tokens;
        say!(
            "a text of about {} tokens ({:.2} bytes each), {} on {}",
            abbreviated(text.unique as u64),
            text.bytes,
            Span(*time),
            best.config.device
        )?;
        table(candidates).iter().try_for_each(|line| say!("{line}"))?;
        say!(
            "{}",
            match short {
                0 => "bits a byte of a text like English technical prose; others end at 0.6 to 1.3 times that, in much the same order"
                    .to_owned(),
                runs => format!("bits a byte of this text, by {}, give or take 8 %", counted(*runs as u64, "short run")),
            }
        )?;
        found.enough().map_or(Ok(()), |line| say!("{line}"))?;
        say!("\n{command}")
    }
}

/// The result for the written settings.
pub(super) struct Suggestion {
    /// The available seconds.
    time: f64,
    /// The candidates, the best first; at least one.
    candidates: Vec<Candidate>,
    /// Number of measured candidates.
    measured: usize,
    /// Number of short runs on the text.
    short: usize,
}

impl Suggestion {
    /// The best candidate.
    pub fn best(&self) -> &Candidate {
        &self.candidates[0]
    }

    /// The configuration that trains it: the written settings and the found ones.
    pub fn raw(&self) -> RawConfig {
        self.best().training(self.time)
    }

    /// The command for a shell, with the device that it was found for.
    fn command(&self) -> String {
        let raw = RawConfig { gpu: None, device: Some(self.best().config.device.clone()), ..self.raw() };
        format!("{} train {}", crate::name::called(), raw.flags().join(" "))
    }

    /// A line if the text is too short for the time.
    pub fn enough(&self) -> Option<String> {
        let best = self.best();
        (!best.whole).then(|| {
            format!(
                "{} of the time are enough: read more often, this text is learnt by heart; more text would help",
                duration(best.steps as f64 * best.step_seconds)
            )
        })
    }
}

/// Searches the run that ends with the lowest loss under the `written` settings, next to a page of `live` bytes.
pub(super) fn find(written: RawConfig, live: u64) -> Result<Suggestion, Failure> {
    find_by(written, None, live)
}

/// As [`find`]; with short runs for `calibrated` in all.
fn find_by(written: RawConfig, calibrated: Option<Span>, live: u64) -> Result<Suggestion, Failure> {
    let data = written.data.as_ref();
    if data.is_none_or(|data| data.only() == Some("tales")) {
        return Err(request("name a text of your own with --data: what is suggested depends on how long it is"));
    }
    if data.is_some_and(|data| data.only().is_none()) {
        return Err(request("what is suggested is for one source; several --data say nothing of how long the text is"));
    }
    if written.steps.is_some() || written.epochs.is_some() {
        return Err(request("how many steps is what is suggested; give the --time there is instead"));
    }
    let time = written.time.map_or(HOUR, |Span(time)| time);
    let on_gpu = written.device.as_ref().map_or(written.gpu.is_some(), |device| device.starts_with("cuda"));
    let precision = written.precision.or(on_gpu.then_some(Precision::Bf16));
    let written = RawConfig { time: None, precision, ..written }.rooted();
    let found = found::find(&written)?;
    let before = before(&found, time)?;
    let tokens = tokenizers(&written, &found)?;
    let means = Means { written: &written, found: &found, seconds: time - before, tokens: &tokens, live };
    let elsewhere = written.gpu.is_some();
    let pace = if elsewhere { 1.0 } else { pace(&means)? };
    let mut candidates = means.candidates(pace)?;
    let measured = if elsewhere { 0 } else { measure(&mut candidates, &means)? };
    let short = match calibrated {
        None => 0,
        Some(_) if elsewhere => {
            return Err(request("--calibrate trains here, and --gpu names a GPU that need not be here; give --device"));
        }
        Some(Span(span)) => calibrate(&mut candidates, &means, span)?,
    };
    // The measured memory is not part of a run that follows.
    memory::forget_most();
    Ok(Suggestion { time, candidates, measured, short })
}

/// The best candidate of each shape, for programs.
fn as_json(c: &Candidate) -> serde_json::Value {
    json!({
        "bits_per_byte": c.bits, "preset": c.config.preset, "layers": c.shape.layers, "d_model": c.shape.width,
        "dropout": c.config.dropout, "recompute": c.config.recompute.to_string(), "params": c.params,
        "vocab_size": c.config.vocab_size(), "batch_size": c.config.batch_size, "seq_len": c.config.seq_len,
        "lr": c.raw.lr, "steps": c.steps, "passes": c.passes(), "seconds_per_step": c.step_seconds,
        "needed_bytes": c.bytes,
    })
}

/// The best candidate of each shape, for people.
fn table(candidates: &[Candidate]) -> Vec<String> {
    let titles = [
        "bits/byte",
        "layers × width",
        "parameters",
        "vocabulary",
        "batch × length",
        "lr",
        "steps",
        "passes",
        "step",
        "memory",
    ];
    let cells = distinct(candidates).take(ROWS).map(|c| {
        [
            format!("{:.3}", c.bits),
            format!(
                "{} × {}{}",
                c.shape.layers,
                c.shape.width,
                if c.shape.recipe == Recipe::Many { ", dropout" } else { "" }
            ),
            abbreviated(c.params),
            grouped(c.config.vocab_size().into()),
            format!("{} × {}", c.config.batch_size, c.config.seq_len),
            c.raw.lr.map_or(String::new(), |lr| format!("{lr:e}")),
            grouped(c.steps),
            format!("{:.2}", c.passes()),
            format!("{:.1} ms", 1e3 * c.step_seconds),
            human_bytes(c.bytes),
        ]
    });
    let rows: Vec<_> = std::iter::once(titles.map(str::to_owned)).chain(cells).collect();
    in_columns(&rows, 2..=9)
}

/// Seconds of `time` before the first step.
fn before(found: &Found, time: f64) -> Result<f64, Failure> {
    // Encoding, at about the speed of a current core.
    let encoding = found.source.text_bytes.unwrap_or(0) as f64 / (5e6 * f64::from(found.cores.max(1)));
    let before = 1.5 + encoding;
    if before < 0.5 * time {
        return Ok(before);
    }
    Err(request(format_args!(
        "--time {} is too short for this text: reading it takes about {}; give more time, or encode it once with `{} data`",
        Span(time),
        duration(before),
        crate::name::called()
    )))
}

/// The tokenizers that are tried, with the size of the text in each.
fn tokenizers(written: &RawConfig, found: &Found) -> Result<Vec<Tokens>, Failure> {
    let data = written.data.as_ref().map_or("", Names::first);
    if let Some(there) = Manifest::read(Path::new(data)).map_err(request)? {
        let bytes = if there.bytes > 0 { there.bytes as f64 / there.tokens as f64 } else { 3.4 };
        return Ok(vec![Tokens { vocabulary: None, bytes, unique: there.tokens as f64 }]);
    }
    let base = RawConfig { budget: None, ..written.clone() };
    Corpus::text_bytes(&Config::resolve_with(base, found)?).map_err(request)?;
    let Some(bytes) = found.source.text_bytes else {
        return Err(request(
            "how long this text is cannot be told before it is read; encode it with `host data` first",
        ));
    };
    let named = found.tokenizer.is_some() || written.decides_vocabulary();
    let mut all = Vec::new();
    for vocabulary in VOCABULARIES {
        let raw = RawConfig {
            preset: Some("quick-14m".to_owned()),
            order: Some(Order::Consecutive),
            cache: Some("none".to_owned()),
            vocab_size: written.vocab_size.or((!named).then_some(vocabulary)),
            device: Some("cpu".to_owned()),
            precision: None,
            budget: None,
            ..written.clone()
        };
        let config = Config::resolve_with(raw, found)?;
        if !named && !all.is_empty() && config.clone().fit_text(bytes).is_some() {
            break;
        }
        let corpus = Corpus::open(&config, Path::new("."), &mut |_| {}).map_err(request)?;
        let set = corpus.validation(SAMPLE).map_err(request)?.set;
        let each = set.bytes() as f64 / set.targets().max(1) as f64;
        let vocabulary = (!named).then(|| vocabulary.min(corpus.tokenizer.vocab_size().max(512)));
        all.push(Tokens { vocabulary, bytes: each, unique: bytes as f64 / each });
        if named {
            break;
        }
    }
    Ok(all)
}

/// The first candidate of each shape.
pub(super) fn distinct(all: &[Candidate]) -> impl Iterator<Item = &Candidate> {
    let mut seen: Vec<Shape> = Vec::new();
    all.iter().filter(move |candidate| {
        let new = !seen.contains(&candidate.shape);
        seen.push(candidate.shape);
        new
    })
}

/// The factor by which steps take longer here than predicted.
fn pace(means: &Means<'_>) -> Result<f64, Failure> {
    let candidates = means.candidates(1.0)?;
    // A candidate of medium size among the most promising.
    let promising = &candidates[..candidates.len().min(64)];
    let mut by_size: Vec<&Candidate> = promising.iter().collect();
    by_size.sort_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
    let Some(middle) = by_size.get(by_size.len() / 4) else { return Ok(1.0) };
    Ok(seconds_of_step(middle)? / middle.step_seconds)
}

/// Measures the best candidates and sorts them into their places. Returns the number of measured candidates.
fn measure(candidates: &mut [Candidate], means: &Means<'_>) -> Result<usize, Failure> {
    let mut done = 0;
    // A candidate that becomes the best by its measurement may still be behind one that was not measured.
    while done < MOST_MEASURED.min(candidates.len()) {
        let Some(next) = (0..candidates.len()).find(|at| !candidates[*at].is_measured) else { break };
        let first = candidates[next].shape;
        let step = seconds_of_step(&candidates[next])?;
        let by = step / candidates[next].step_seconds;
        for candidate in candidates.iter_mut().filter(|candidate| candidate.shape == first && !candidate.is_measured) {
            candidate.measured(by * candidate.step_seconds, means.seconds);
        }
        candidates[next].is_measured = true;
        candidates.sort_by(|a, b| a.bits.total_cmp(&b.bits));
        done += 1;
        if candidates[0].is_measured && done > 1 {
            break;
        }
    }
    Ok(done)
}

/// Measured seconds of a candidate's step.
fn seconds_of_step(candidate: &Candidate) -> Result<f64, Failure> {
    let Candidate { config, machine, shape, .. } = candidate;
    tell!("measuring {} layers of {}, {} × {} tokens …", shape.layers, shape.width, config.batch_size, config.seq_len);
    let (plan, laid) = Plan::new(config, machine)?;
    plan.require_fit(config, machine)?;
    let profile = crate::plan::profile(config)?;
    profile.require()?;
    let mut session = Session::start_training(laid, &profile, config, &[], None)?;
    Bench::as_training(&mut session, config).time_for(MEASURED).map_err(work)
}
