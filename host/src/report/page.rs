//! The page: prepares the data of the template.

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, context};
use serde::Serialize;

use super::chart::{Chart, Curve, Drawing, Level, Marked, Size, Style};
use super::facts::{Fact, cut, differing};
use super::known::{Known, PROFILE, Profile};
use super::memory::Memory;
use super::read::{BUCKETS, Evaluation};
use super::scale::rounded;
use super::series::{Lowest, Series};
use super::{MOST_RUNS, Served};
use capful_base::words::{counted, grouped};

/// The suffix `.html` makes the engine escape every value.
const TEMPLATE: (&str, &str) = ("page.html", include_str!("page.html"));

/// How much of a run is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Detail {
    /// The most buckets of a line.
    buckets: usize,
    /// The most marked evaluations.
    marks: usize,
    /// The most regions of each part of the memory.
    regions: usize,
    /// Whether a run with a preset is shown with its whole configuration, not only with what differs from the preset.
    settings: bool,
}

/// From the finest to the coarsest: the first is used with which the page is small enough.
pub const DETAILS: [Detail; 6] = [
    Detail { buckets: BUCKETS, marks: 200, regions: 60, settings: true },
    Detail { buckets: 200, marks: 100, regions: 40, settings: true },
    Detail { buckets: 100, marks: 50, regions: 20, settings: true },
    Detail { buckets: 60, marks: 25, regions: 10, settings: false },
    Detail { buckets: 40, marks: 12, regions: 5, settings: false },
    Detail { buckets: 20, marks: 6, regions: 3, settings: false },
];

/// The most kinds of operations that are shown separately.
const KINDS: usize = 20;

/// The colours of validation and of the averaged weights; training has the first colour.
const VALIDATION: usize = 1;
const AVERAGED: usize = 2;

/// A run, as the template receives it.
#[derive(Serialize)]
struct Run {
    name: String,
    sentence: String,
    facts: Vec<Fact>,
    notes: Vec<String>,
    loss: Option<Chart>,
    charts: Vec<Chart>,
    modules: Vec<Chart>,
    memory: Option<Memory>,
    profile: Option<Bars>,
    profile_command: String,
    samples: Vec<(u64, String)>,
    data: Vec<Fact>,
    machine: Vec<Fact>,
    preset: String,
    differs: Option<Vec<[String; 3]>>,
    changes: Vec<(u64, String, [String; 2])>,
    settings: Vec<(String, String)>,
}

/// Time by operation.
#[derive(Serialize)]
struct Bars {
    rows: Vec<Bar>,
    milliseconds: String,
    roofline: String,
}

/// The time of one kind of operation, and its roofline.
#[derive(Serialize)]
struct Bar {
    operation: String,
    count: u64,
    milliseconds: String,
    share: String,
    roofline: String,
    reached: String,
    /// Pixels of the bar, and the position of the roofline's mark.
    width: f64,
    mark: f64,
}

/// Pixels of the longest bar.
const BAR: f64 = 240.0;

impl Bars {
    fn of(profile: &Profile) -> Bars {
        let mut totals = profile.totals.clone();
        if totals.len() > KINDS {
            let rest = totals.split_off(KINDS - 1);
            let mut sum = rest[0].clone();
            sum.operation = format!("{} other kinds", rest.len());
            for one in &rest[1..] {
                sum.count += one.count;
                sum.seconds += one.seconds;
                sum.roofline_seconds += one.roofline_seconds;
                sum.share += one.share;
            }
            totals.push(sum);
        }
        let longest = totals.iter().map(|t| t.seconds.max(t.roofline_seconds)).fold(f64::MIN_POSITIVE, f64::max);
        let bar = |total: &super::known::Total| Bar {
            operation: cut(&total.operation, 60),
            count: total.count,
            milliseconds: format!("{:.3}", total.seconds * 1e3),
            share: format!("{:.1} %", 100.0 * total.share),
            roofline: format!("{:.3}", total.roofline_seconds * 1e3),
            reached: match total.seconds > 0.0 {
                true => format!("{:.0} %", 100.0 * total.roofline_seconds / total.seconds),
                false => "–".to_owned(),
            },
            width: rounded(BAR * total.seconds / longest),
            mark: rounded(BAR * total.roofline_seconds / longest),
        };
        let roofline: f64 = profile.totals.iter().map(|total| total.roofline_seconds).sum();
        Bars {
            rows: totals.iter().map(bar).collect(),
            milliseconds: format!("{:.3}", profile.seconds * 1e3),
            roofline: format!("{:.3}", roofline * 1e3),
        }
    }
}

/// The page of `runs`, with `served` if it is served.
pub fn html(runs: &[Known], served: Option<Served>, detail: Detail) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_template(TEMPLATE.0, TEMPLATE.1)?;
    let views: Vec<Run> = runs.iter().enumerate().map(|(number, run)| view(run, number, detail)).collect();
    let comparison = (runs.len() > 1).then(|| comparison(runs, detail));
    let title = match runs {
        [run] => format!("{}: a run of capful", run.name),
        _ => format!("{} of capful side by side", counted(runs.len() as u64, "run")),
    };
    let page = environment.get_template(TEMPLATE.0)?.render(context! {
        title,
        version => env!("CARGO_PKG_VERSION"),
        comparison => Serde(comparison),
        served => Serde(served),
        runs => Serde(views),
    })?;
    Ok(page.trim().to_owned() + "\n")
}

fn view(run: &Known, number: usize, detail: Detail) -> Run {
    let curves = &run.curves;
    let mut notes = Vec::new();
    if curves.logged == 0 && curves.evaluated == 0 {
        notes.push("No step was logged yet: there is nothing to draw.".to_owned());
    }
    if curves.cut {
        notes.push(
            "The last line of metrics.jsonl is cut, as in a run that goes on or was killed, and was passed over."
                .to_owned(),
        );
    }
    if let Some(ended) = run.ended.last().filter(|ended| ended.step < curves.step) {
        notes.push(format!(
            "What is known of the end (baselines, energy, memory used) is of a command that ended after step {}, before the \
             last step here.",
            grouped(ended.step)
        ));
    }
    let (changes, differs) = (&run.history.changes, run.differs());
    Run {
        name: run.name.clone(),
        sentence: run.sentence(),
        facts: run.facts(),
        notes,
        loss: loss(run, number, detail),
        charts: charts(run, number, detail),
        modules: modules(run, number, detail),
        memory: run.plan.as_ref().and_then(|plan| Memory::of(plan, detail.regions)),
        profile: run.profile.as_ref().map(Bars::of),
        profile_command: profile_command(run),
        samples: run.samples(),
        data: run.data(),
        machine: run.machine(),
        preset: run.config.preset.clone(),
        changes: changes
            .iter()
            .take(40)
            .map(|c| (c.step, c.key.clone(), c.values.clone().map(|v| cut(&v, 100))))
            .collect(),
        settings: if detail.settings || differs.is_none() { run.settings() } else { Vec::new() },
        differs,
    }
}

/// The command that makes the profile of a run.
fn profile_command(run: &Known) -> String {
    let (name, dir) = (crate::name::called(), run.dir.display());
    format!("{name} bench --config {dir}/config.toml --steps 10 --profile --json > {dir}/{PROFILE}")
}

fn marked(evaluations: &Lowest<Evaluation>, marks: usize, colour: usize, averaged: Option<usize>) -> Vec<Marked> {
    let mut all = Vec::new();
    for one in evaluations.within(marks).iter() {
        let error = one.error.map_or(String::new(), |error| format!(" ± {error:.4}"));
        let title = format!("step {}: validation loss {:.4}{error}", grouped(one.step), one.loss);
        all.push(Marked { step: one.step, value: one.loss, error: one.error, colour, title });
        if let (Some(loss), Some(colour)) = (one.averaged, averaged) {
            let title = format!("step {}: validation loss of the averaged weights {loss:.4}", grouped(one.step));
            all.push(Marked { step: one.step, value: loss, error: None, colour, title });
        }
    }
    all
}

/// The meaning of the points in a run's loss chart.
fn mark_names(run: &Known) -> Vec<(usize, &'static str)> {
    let Some(last) = run.curves.last else { return Vec::new() };
    let error = if last.error.is_some() { "validation loss ± its standard error" } else { "validation loss" };
    let averaged = last.averaged.map(|_| (AVERAGED, "validation loss of the averaged weights"));
    [Some((VALIDATION, error)), averaged].into_iter().flatten().collect()
}

/// The reference losses that a run recorded, for comparison with its own.
fn levels(run: &Known) -> Vec<Level> {
    let level = |label: &str, value: Option<f64>| {
        Some(Level { label: label.to_owned(), value: value.filter(|value| value.is_finite())?, between: None })
    };
    let baseline = |name: &str| run.last_end()?.result.get("baselines")?.get(name)?.as_f64();
    let names = [("unigram", "unigram"), ("bigram", "bigram"), ("trigram", "trigram"), ("4-gram", "fourgram")];
    let mut levels: Vec<Level> = names.iter().filter_map(|(label, name)| level(label, baseline(name))).collect();
    levels.extend(level("floor of the text", run.result("floor")));
    // Both values are in bits a byte; `nats` converts them to nats a token.
    let nats = run.curves.last.and_then(|last| Some(last.loss / last.bits.filter(|bits| *bits > 0.0)?));
    if let Some(nats) = nats {
        levels.extend(level("scaling law", run.result("expected_bits_per_byte").map(|bits| bits * nats)));
        let foretold = run.curves.foretold.and_then(|one| Some((one.step, one.expected?)));
        levels.extend(foretold.map(|(step, [bits, low, high])| Level {
            label: format!("predicted at {}", super::scale::short(step as f64)),
            value: bits * nats,
            between: Some([low * nats, high * nats]),
        }));
    }
    levels
}

fn loss(run: &Known, number: usize, detail: Detail) -> Option<Chart> {
    let curves = &run.curves;
    let series = curves.loss.within(detail.buckets);
    let last = curves.last.map_or("no evaluation yet".to_owned(), |last| {
        format!("the last validation loss is {:.4} after step {}", last.loss, grouped(last.step))
    });
    let trained = curves.loss.last.map_or("no step is logged".to_owned(), |(step, loss)| {
        format!("training loss is {loss:.4} at step {}", grouped(step))
    });
    let drawing = Drawing {
        id: format!("r{number}-loss"),
        title: "Loss".to_owned(),
        desc: format!("Loss in nats a token over steps: {trained}; {last}."),
        size: Size::LARGE,
        curves: vec![Curve { name: "training loss", colour: 0, series: &series, style: Style::Smoothed }],
        marked: marked(&curves.evaluations, detail.marks, VALIDATION, Some(AVERAGED)),
        mark_names: mark_names(run),
        levels: levels(run),
        from_zero: false,
        log_from: 3.0,
    };
    drawing.chart()
}

/// The smaller charts of a run.
fn charts(run: &Known, number: usize, detail: Detail) -> Vec<Chart> {
    let curves = &run.curves;
    let draw = |(id, title, series, from_zero, log_from): (&str, &str, &Series, bool, f64)| {
        let series = series.within(detail.buckets);
        small(format!("r{number}-{id}"), title, &[(id.to_owned(), series)], from_zero, log_from)
    };
    let all = [
        ("lr", "Learning rate", &curves.lr, true, f64::INFINITY),
        ("norm", "Norm of the gradient, before the clip", &curves.norm, true, 30.0),
        ("tokens_per_s", "Tokens a second", &curves.speed, true, f64::INFINITY),
    ];
    all.into_iter().filter_map(draw).chain(by_source(run, number, detail)).collect()
}

/// The validation loss of each source of a mixture, for as many sources as there are colours.
fn by_source(run: &Known, number: usize, detail: Detail) -> Option<Chart> {
    let last = |name: &str| cut(name.rsplit('/').find(|part| !part.is_empty()).unwrap_or(name), 40);
    let names = run.config.data.names().map(last);
    let each = run.curves.by_source.iter().map(|series| series.within(detail.buckets / 2));
    let all: Named = names.zip(each).take(MOST_RUNS).collect();
    small(format!("r{number}-sources"), "Validation loss by source", &all, false, 3.0)
}

fn small(id: String, title: &str, all: &[(String, Series)], from_zero: bool, log_from: f64) -> Option<Chart> {
    let ends = all.iter().filter_map(|(name, series)| {
        let (_, value) = series.last?;
        let [low, high] = series.range()?;
        let [value, low, high] = [value, low, high].map(super::scale::short);
        Some(format!("{name} from {low} to {high}, {value} at the end"))
    });
    let style = if all.len() > 1 { Style::Alone } else { Style::Means };
    let desc = format!("{title} over steps: {}.", ends.collect::<Vec<_>>().join("; "));
    let curve = |(colour, (name, series))| Curve { name, colour, series, style };
    let drawing = Drawing {
        id,
        title: title.to_owned(),
        desc,
        size: Size::SMALL,
        curves: all
            .iter()
            .enumerate()
            .map(|(colour, one): (usize, &(String, Series))| (colour, (&*one.0, &one.1)))
            .map(curve)
            .collect(),
        marked: Vec::new(),
        mark_names: Vec::new(),
        levels: Vec::new(),
        from_zero,
        log_from,
    };
    drawing.chart()
}

/// Series and their names.
type Named = Vec<(String, Series)>;

/// Charts of everything else that a run logged, such as the firing rates of NeuroGen's modules and its gate: names with
/// the same last word share a chart.
fn modules(run: &Known, number: usize, detail: Detail) -> Vec<Chart> {
    let mut groups: Vec<(&str, Named)> = Vec::new();
    for (name, series) in run.curves.gauges.iter().filter(|(_, series)| !series.is_empty()) {
        let (stem, kind) = name.rsplit_once('.').unwrap_or(("", name));
        let label = if stem.is_empty() { name.as_str() } else { stem.strip_prefix("modules.").unwrap_or(stem) };
        // A chart of several lines needs fewer points a line.
        let one = (cut(label, 40), series.within(detail.buckets / 2));
        match groups.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, all)) => all.push(one),
            None => groups.push((kind, vec![one])),
        }
    }
    let chart = |(i, (kind, all)): (usize, &(&str, Named))| {
        let title = match *kind {
            "firing" => "Firing rates by module".to_owned(),
            "gate" => "Mean opening of the gate".to_owned(),
            "expected_reward" => "Expected reward".to_owned(),
            other => cut(other, 60),
        };
        small(format!("r{number}-gauge{i}"), &title, all, true, f64::INFINITY)
    };
    groups.iter().enumerate().filter_map(chart).collect()
}

/// Several runs side by side.
#[derive(Serialize)]
struct Comparison {
    names: Vec<String>,
    /// Whether all runs score the same tokens, so that losses a token are comparable.
    same_text: bool,
    results: Vec<Compared>,
    settings: Vec<(String, Vec<String>)>,
    loss: Option<Chart>,
}

/// One result for every run.
#[derive(Serialize)]
struct Compared {
    key: &'static str,
    label: &'static str,
    /// Text, value and whether it is the best; `None` for a run without this result.
    cells: Vec<Option<(String, String, bool)>>,
}

/// The results that are compared.
const RESULTS: [&str; 13] = [
    "state",
    "params",
    "steps",
    "tokens",
    "val_loss",
    "best_val_loss",
    "bits_per_byte",
    "averaged",
    "loss",
    "tokens_per_s",
    "seconds",
    "planned_bytes",
    "joules",
];
/// The results that are losses a token: the lowest is the best if the runs score the same tokens.
const OF_TOKENS: [&str; 3] = ["val_loss", "best_val_loss", "averaged"];
/// Configuration keys that decide which tokens are scored.
const OF_TEXT: [&str; 6] = ["data", "validation", "tokenizer", "model.vocab_size", "seed", "eval_tokens"];

fn comparison(runs: &[Known], detail: Detail) -> Comparison {
    let facts: Vec<Vec<Fact>> = runs.iter().map(Known::facts).collect();
    let settings: Vec<_> = runs.iter().map(Known::settings).collect();
    let settings: Vec<&[(String, String)]> = settings.iter().map(Vec::as_slice).collect();
    let settings = differing(&settings);
    let same_text = !settings.iter().any(|(key, _)| OF_TEXT.contains(&&**key));
    let result = |key: &&'static str| {
        let of = |facts: &Vec<Fact>| facts.iter().find(|fact| fact.key == *key).cloned();
        let all: Vec<Option<Fact>> = facts.iter().map(of).collect();
        let label = all.iter().flatten().next()?.label;
        let number = |fact: &Fact| fact.value.parse::<f64>().ok();
        let comparable = same_text && (OF_TOKENS.contains(key) || *key == "bits_per_byte");
        let several = all.iter().flatten().count() > 1;
        let best = all.iter().flatten().filter_map(number).reduce(f64::min).filter(|_| comparable && several);
        let cell = |fact: Fact| {
            let is_best = best.is_some() && number(&fact) == best;
            (fact.text, fact.value, is_best)
        };
        Some(Compared { key, label, cells: all.into_iter().map(|fact| fact.map(cell)).collect() })
    };
    let buckets = detail.buckets.min(150);
    let series: Vec<Series> = runs.iter().map(|run| run.curves.loss.within(buckets)).collect();
    let curves = runs.iter().zip(&series).enumerate();
    let marks = runs.iter().enumerate().flat_map(|(colour, run)| {
        let mut all = marked(&run.curves.evaluations, detail.marks.min(25), colour, None);
        all.iter_mut().for_each(|mark| mark.title = format!("{}, {}", run.name, mark.title));
        all
    });
    let ends = runs.iter().filter_map(|run| Some(format!("{} {:.4}", run.name, run.curves.last?.loss)));
    let desc = format!(
        "Training loss in nats a token over steps, smoothed, a line a run, and validation losses as points; the last: {}.",
        ends.collect::<Vec<_>>().join(", ")
    );
    let drawing = Drawing {
        id: "all-loss".to_owned(),
        title: "Losses".to_owned(),
        desc,
        size: Size::LARGE,
        curves: curves
            .map(|(colour, (run, series))| Curve { name: &run.name, colour, series, style: Style::Smoothed })
            .collect(),
        marked: marks.collect(),
        mark_names: Vec::new(),
        levels: Vec::new(),
        from_zero: false,
        log_from: 3.0,
    };
    let loss = drawing.chart().map(|chart| Chart { bands: Vec::new(), ..chart });
    Comparison {
        names: runs.iter().map(|run| run.name.clone()).collect(),
        results: RESULTS.iter().filter_map(result).collect(),
        same_text,
        settings,
        loss,
    }
}
