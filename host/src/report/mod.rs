//! One page of HTML about a run, or about several side by side: `host report`.
//!
//! [`read`] streams the metrics, [`known`] reads the other files of a run's directory, [`facts`] puts them into words,
//! [`chart`] and [`memory`] lay out the drawings, and the template `page.html` is the page. The page contains no script
//! and loads nothing; [`live`](crate::live) serves it with a script.

pub mod chart;
pub mod facts;
pub mod known;
pub mod memory;
mod page;
pub mod read;
pub mod scale;
pub mod series;
pub mod treemap;

use std::path::PathBuf;

use serde::Serialize;

use crate::config::ConfigError;
use known::Known;

/// The most runs of a page: there are no more distinguishable colours.
pub const MOST_RUNS: usize = 12;
/// The most bytes of a page.
pub const MOST_BYTES: usize = 400_000;

/// The page of the runs in `dirs`, of at most [`MOST_BYTES`].
///
/// # Errors
/// Too many runs; a directory that holds no run; a file that is damaged or of another version.
pub fn page(dirs: &[PathBuf]) -> Result<String, ConfigError> {
    if dirs.len() > MOST_RUNS {
        return Err(ConfigError(format!("{} runs are too many for a page; give at most {MOST_RUNS}", dirs.len())));
    }
    let runs = dirs.iter().map(|dir| Known::of(dir)).collect::<Result<Vec<_>, _>>()?;
    page_of(&named_apart(runs), None)
}

/// The state of a page that is served while its run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Seconds after which a browser without scripts reloads the page.
    pub again: u64,
    /// Logged lines that came too fast and are missing from the page.
    pub lost: u64,
    /// Whether the run has ended.
    pub ended: bool,
}

/// The page of `runs`, of at most [`MOST_BYTES`]; a page with `served` loads a script and renews itself.
///
/// # Errors
/// A page that is too large.
pub fn page_of(runs: &[Known], served: Option<Served>) -> Result<String, ConfigError> {
    let mut html = String::new();
    for detail in page::DETAILS {
        html = page::html(runs, served, detail).map_err(|e| ConfigError(format!("the page cannot be made: {e}")))?;
        if html.len() <= MOST_BYTES {
            return Ok(html);
        }
    }
    Err(ConfigError(format!("the page would have {} bytes, more than {MOST_BYTES}; give fewer runs", html.len())))
}

/// Replaces the names of runs whose directories have the same name by their paths.
fn named_apart(mut runs: Vec<Known>) -> Vec<Known> {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for run in &mut runs {
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = run.dir.display().to_string();
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::config::{Config, RawConfig, sealed};
    use crate::data::sequences::mixture::BySource;
    use crate::plan::{Machine, Plan};
    use crate::run::Speed;
    use crate::run::directory::{CONFIG, PLAN};
    use crate::run::metrics::{EvalMetrics, LINES, StepMetrics};
    use crate::run::sessions::{self, Ended, Event};

    /// Writes a run of `steps` steps to `dir`, as a training run does, with each step logged and every hundredth
    /// evaluated.
    fn write(dir: &Path, preset: &str, steps: u64, gauges: &[&'static str]) {
        fs::create_dir_all(dir).unwrap();
        let text = format!("preset = '{preset}'\nsteps = {steps}\nwarmup = 1");
        let config = Config::resolve(toml::from_str::<RawConfig>(&text).unwrap()).unwrap();
        fs::write(dir.join(CONFIG), sealed(&toml::to_string(&config).unwrap())).unwrap();
        let plan = Plan::of(&config, &Machine::of(&config).unwrap()).unwrap();
        fs::write(dir.join(PLAN), serde_json::to_string(&plan).unwrap()).unwrap();
        let mut text = String::new();
        for step in 1..=steps {
            let noise = (step.wrapping_mul(6_364_136_223_846_793_005) >> 40) as f64 / (1 << 24) as f64;
            let metrics = StepMetrics {
                step,
                stage: 1,
                loss: if step == 777 { 50.0 } else { 1.0 + 5.0 / (1.0 + step as f64 / 300.0) + 0.1 * noise },
                lr: 1e-3 * (1.0 - step as f64 / steps as f64),
                norm: 0.5 + noise,
                skipped: 0,
                tokens: 2048 * step,
                drawn: BySource::NONE,
                speed: Speed { tokens_per_s: 1e4 + 1e3 * noise, cpu: Some(1.0), gpu: None, waited: 0.0 },
                gauges: gauges.iter().map(|name| (*name, noise)).collect(),
            };
            text.push_str(&metrics.json());
            if step.is_multiple_of(100) {
                let metrics = EvalMetrics {
                    step,
                    val_loss: 1.1 + noise,
                    val_loss_se: Some(0.01),
                    val_tokens: 65_536,
                    val_bits_per_byte: Some(1.0),
                    val_by_source: BySource::NONE,
                    val_loss_averaged: Some(1.0),
                    train_loss: Some(1.0),
                    rose: 0,
                    expected_end: None,
                };
                text.push_str(&metrics.json());
            }
        }
        fs::write(dir.join(LINES), text).unwrap();
    }

    const FIRING: [&str; 8] = [
        "modules.thalamus.firing",
        "modules.wernicke.firing",
        "modules.broca.firing",
        "modules.hippocampus.firing",
        "modules.pfc.firing",
        "modules.basal_ganglia.firing",
        "gate",
        "expected_reward",
    ];

    #[test]
    fn a_page_does_not_grow_with_its_run_and_a_spike_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let [short, long] = [20_000, 100_000].map(|steps| {
            let run = dir.path().join(steps.to_string());
            write(&run, "neurogen-tiny", steps, &FIRING);
            page(&[run]).unwrap()
        });
        assert!(long.len() <= MOST_BYTES && long.len() < short.len() * 5 / 4, "{} {}", short.len(), long.len());
        for html in [&short, &long] {
            assert!(html.contains("data-high=\"50\""), "the spike");
        }
        assert!(long.contains("data-count=\"100000\"") && long.contains("data-key=\"steps\" data-value=\"100000\""));
    }

    #[test]
    fn as_many_runs_as_there_may_be_make_a_page_of_no_more_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let runs: Vec<PathBuf> = (0..=MOST_RUNS).map(|n| dir.path().join(format!("run-{n}"))).collect();
        for (n, run) in runs.iter().enumerate() {
            write(run, if n % 2 == 0 { "neurogen-tiny" } else { "yxanul-tiny" }, 3_000, &FIRING);
        }
        let html = page(&runs[..MOST_RUNS]).unwrap();
        assert!(html.len() <= MOST_BYTES, "{}", html.len());
        assert!(html.contains("12 runs of capful side by side") && html.contains("model.family"));
        let said = page(&runs).unwrap_err().to_string();
        assert!(said.contains("13 runs are too many") && said.contains("12"), "{said}");
    }

    /// Everything that a run has written is escaped as text.
    #[test]
    fn nothing_of_a_run_is_taken_for_markup() {
        const HOSTILE: &str = "</pre><script>alert(1)</script>\"'><img src=x onerror=alert(2)> ]]> <!-- {{ 7 * 7 }}";
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("a<b>\"c\" ]]>");
        write(&run, "quick-tiny", 20, &[]);
        let config = fs::read_to_string(run.join(CONFIG)).unwrap();
        let written = toml::Value::String(HOSTILE.to_owned()).to_string();
        let config = config.split_once('\n').unwrap().1.replace("data = \"tales\"", &format!("data = {written}"));
        fs::write(run.join(CONFIG), sealed(&config)).unwrap();
        let mut lines = fs::read_to_string(run.join(LINES)).unwrap();
        let key = serde_json::to_string(HOSTILE).unwrap();
        let _ = writeln!(lines, "{{\"step\":21,\"loss\":1.0,\"tokens\":9,{key}:1.5}}");
        fs::write(run.join(LINES), lines).unwrap();
        let result = serde_json::json!({ "baselines": { "unigram": HOSTILE } });
        let (sample, flaws) = (Some(HOSTILE.to_owned()), vec![HOSTILE.to_owned()]);
        let ended = Ended { step: 21, at: 0, result, sample, documents: None, source_tokens: None, flaws };
        sessions::add(&run, &Event::Ended(ended)).unwrap();
        let html = page(std::slice::from_ref(&run)).unwrap();
        for raw in ["<script", "<img", "]]>", "<!-- ", "onerror=alert(2)>", "a<b>"] {
            assert!(!html.contains(raw), "{raw}");
        }
        let escaped =
            "&lt;script&gt;alert(1)&lt;&#x2f;script&gt;&quot;&#x27;&gt;&lt;img src=x onerror=alert(2)&gt; ]]&gt;";
        assert!(html.matches(escaped).count() >= 4, "{}", html.matches(escaped).count());
        assert!(html.contains("{{ 7 * 7 }}"), "a template within is none");
    }

    #[test]
    fn what_is_no_run_or_is_of_another_version_is_named_in_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let refused = |dir: &Path, says: &[&str]| {
            let said = page(&[dir.to_owned()]).unwrap_err().to_string();
            assert!(!said.contains('\n') && says.iter().all(|what| said.contains(what)), "{said}");
        };
        refused(&run, &["run: no such directory"]);
        write(&run, "quick-tiny", 20, &[]);
        page(std::slice::from_ref(&run)).unwrap();
        refused(dir.path(), &["it holds no run", "config.toml"]);
        refused(&run.join(LINES), &["it is no directory"]);
        let plan = fs::read(run.join(PLAN)).unwrap();
        for other in ["{\"params\": 3}", "{", ""] {
            fs::write(run.join(PLAN), other).unwrap();
            refused(&run, &[PLAN, "another version"]);
        }
        fs::write(run.join(PLAN), plan).unwrap();
        fs::write(run.join("profile.json"), "{\"profile\": null}").unwrap();
        refused(&run, &["profile.json", "another version"]);
        fs::remove_file(run.join("profile.json")).unwrap();
        let lines = fs::read_to_string(run.join(LINES)).unwrap();
        fs::write(run.join(LINES), lines.replacen("{\"step\":7,", "{\"step\"7,", 1)).unwrap();
        refused(&run, &[LINES, "line 7 is no object"]);
        fs::write(run.join(LINES), &lines[..lines.len() - 9]).unwrap();
        assert!(page(std::slice::from_ref(&run)).unwrap().contains("The last line of metrics.jsonl is cut"));
        let config = fs::read_to_string(run.join(CONFIG)).unwrap().split_once('\n').unwrap().1.to_owned();
        fs::write(run.join(CONFIG), format!("of_a_newer_version = 3\n{config}")).unwrap();
        refused(&run, &[CONFIG, "of_a_newer_version"]);
    }
}
