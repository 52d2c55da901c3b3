//! The plan in a terminal: at most twelve lines of a hundred columns, with colours if the terminal supports them.

use capful_base::human_bytes;
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use capful_core::memory::Role;
use indicatif::{HumanCount, HumanFloatCount};

use super::course::Course;
use super::{Estimates, Line, Plan, StagePlan, outside};
use crate::config::{Config, Span};
use capful_base::words::{counted, duration};

const NAME: Style = Style::new().bold();
const BAR: Style = AnsiColor::Cyan.on_default();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Columns of the longest bar.
const BAR_COLUMNS: u64 = 22;

/// A part of the memory with one purpose, and a remark about it.
struct PurposeBytes {
    name: &'static str,
    bytes: u64,
    detail: String,
}

impl Plan {
    /// The run of `config` in a few lines. They contain escape codes, which must be removed for outputs other than
    /// terminals.
    pub fn summary(&self, config: &Config) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "{}", self.model(config));
        if self.stages.len() > 1 {
            let _ = writeln!(out, "{}", self.curriculum());
        }
        let shares: Vec<PurposeBytes> = self.arena().into_iter().chain([self.beside()]).collect();
        let all: u64 = shares.iter().fold(0, |sum, share| sum.saturating_add(share.bytes));
        for PurposeBytes { name, bytes, detail } in shares.iter().filter(|share| share.bytes > 0) {
            let (bar, bytes) = (bar(*bytes, all), human_bytes(*bytes));
            let row = format!("  {name:<20} {bytes:>10}  {BAR}{bar:<22}{BAR:#} {detail}");
            let _ = writeln!(out, "{}", row.trim_end());
        }
        if let Some(line) = config.optimizer_line() {
            let _ = writeln!(out, "{line}");
        }
        let _ = writeln!(out, "{}", self.fit());
        if config.ranks > 1 {
            let _ = writeln!(out, "{}", self.ranks(config));
        }
        out.push_str(&self.speed(config));
        out
    }

    fn model(&self, config: &Config) -> String {
        let (preset, mut parameters) = (config.begun_as(), format!("{} parameters", HumanCount(self.params)));
        if config.adapters().is_some() {
            let learning = self.regions.iter().filter(|line| line.role == Role::Gradient.name()).map(Line::elements);
            let _ = write!(parameters, ", of which {} learn", HumanCount(learning.sum()));
        }
        match &self.stages[..] {
            [stage] => format!("{NAME}{preset}{NAME:#}: {parameters}, {}", shape(stage)),
            _ => format!("{NAME}{preset}{NAME:#}: {parameters}"),
        }
    }

    /// The length of the run, and its minimum time, if the roofline's speed applied to all of its steps.
    fn length(&self, config: &Config) -> String {
        if let Some(time) = config.time {
            return format!("as many steps as {} holds; ", Span(time));
        }
        match (config.steps, config.epochs) {
            (0, Some(epochs)) => return format!("{} of the training text; ", counted(epochs.into(), "epoch")),
            (0, None) => return String::new(),
            _ => {}
        }
        let course = Course { steps: config.steps, first: 0, stages: config.stages(), epoch: None };
        let seconds = |of: &dyn Fn(&StagePlan) -> Option<f64>| -> Option<f64> {
            let ends = self.stages.iter().skip(1).map(|stage| stage.from).chain([config.steps]);
            self.stages.iter().zip(ends).map(|(s, end)| Some(end.saturating_sub(s.from) as f64 * of(s)?)).sum()
        };
        let alone = (self.stages.len() == 1).then_some(self.estimates.seconds_per_step);
        let least = seconds(&|stage| Some(alone.unwrap_or(stage.roofline_seconds))).unwrap_or(0.0);
        match seconds(&|stage| stage.expected_seconds) {
            Some(expected) => format!("{} in {}; ", course.length(), duration(expected)),
            None => format!("{} in {} or more; ", course.length(), duration(least)),
        }
    }

    /// The number of stages, and the one that takes the most memory.
    fn curriculum(&self) -> String {
        let numbered = (1..).zip(&self.stages);
        let largest = numbered.max_by_key(|(number, stage)| (stage.arena_bytes, std::cmp::Reverse(*number)));
        let largest = largest.map_or(String::new(), |(number, stage): (u32, _)| {
            format!("; the largest is stage {number}: {}, arena {}", shape(stage), human_bytes(stage.arena_bytes))
        });
        format!("{} stages{largest}", self.stages.len())
    }

    /// The arena by purpose: the bytes of all shares add up to its size.
    fn arena(&self) -> [PurposeBytes; 7] {
        let sum = |of: &dyn Fn(&&Line) -> bool| -> u64 {
            self.regions.iter().filter(of).map(|line| line.bytes + line.padding).sum()
        };
        let of = |role: Role| sum(&|line| line.role == role.name());
        let logits = sum(&|line| line.role == Role::Work.name() && line.name.contains("logits"));
        let [masters, moments, work] = [Role::Master, Role::Moment, Role::Work].map(of);
        let [state, tables] = [Role::State, Role::Constant].map(of);
        let inputs = of(Role::Batch) + of(Role::Control);
        let parts = |parts: &[(&str, u64)]| {
            let there = parts.iter().filter(|(_, bytes)| *bytes > 0);
            let parts: Vec<_> = there.map(|(name, bytes)| format!("{name} {}", human_bytes(*bytes))).collect();
            parts.join(", ")
        };
        let share = |name, bytes, detail| PurposeBytes { name, bytes, detail };
        let types = |role| self.types(role);
        [
            share("weights", of(Role::Weight), types(Role::Weight)),
            share("gradients", of(Role::Gradient), types(Role::Gradient)),
            share("optimizer state", masters + moments, parts(&[("masters", masters), ("moments", moments)])),
            share("averaged weights", of(Role::Average), types(Role::Average)),
            share("activations", of(Role::Saved), "kept for the backward pass".to_owned()),
            share("scratch", work, parts(&[("work", work - logits), ("logits", logits)])),
            share("state, tables, batch", state + tables + inputs, parts(&[("state", state), ("tables", tables)])),
        ]
    }

    /// The element types of a role's regions.
    fn types(&self, role: Role) -> String {
        let mut types: Vec<_> = self.regions.iter().filter(|l| l.role == role.name()).map(|l| l.dtype).collect();
        types.sort_unstable();
        types.dedup();
        types.join(", ")
    }

    /// All memory outside the arena that exists at the same time.
    fn beside(&self) -> PurposeBytes {
        let largest = self.outside.iter().max_by_key(|line| line.bytes);
        let name = largest.map_or("", |line| line.name.trim_end_matches(", at most"));
        let mostly = if self.outside.len() > 1 { "mostly " } else { "" };
        PurposeBytes {
            name: "outside the arena",
            bytes: outside::sum(&self.outside),
            detail: format!("{mostly}{name}"),
        }
    }

    /// The needed bytes, their consumer, and whether they are available. If a moment without the arena takes the most,
    /// it is named.
    fn fit(&self) -> String {
        let needed = human_bytes(self.needed_bytes);
        let moment = self.moments.iter().find(|moment| {
            moment.bytes == self.needed_bytes && self.needed_bytes > self.arena_bytes + self.outside_arena_bytes
        });
        let (Some(budget), Some(fits)) = (self.budget_bytes.map(human_bytes), self.fits) else {
            return format!("needed at once {needed}: {}", self.budget_from);
        };
        let needed = match moment {
            Some(moment) => format!("needed {needed} ({}) of {budget}", moment.name),
            None => format!("needed at once {needed} of {budget} ({})", self.budget_from),
        };
        match fits {
            true => format!("{needed}: {GOOD}fits{GOOD:#}"),
            false => format!("{needed}: {BAD}does not fit{BAD:#}"),
        }
    }

    /// The communication between ranks.
    fn ranks(&self, config: &Config) -> String {
        let Some(stage) = self.stages.last() else { return String::new() };
        let link = match (config.link, self.estimates.link_seconds_per_step) {
            (Some(link), Some(seconds)) => format!("over {link} that adds {}", of_step(seconds)),
            _ => "not in the estimates; --link says over what".to_owned(),
        };
        format!("rank 0 of {}: sends {} a step ({link})", config.ranks, human_bytes(stage.sent_per_step))
    }

    /// The speed of the roofline, which no run exceeds; and the expected speed from measurements.
    fn speed(&self, config: &Config) -> String {
        let Estimates { seconds_per_step, tokens_per_s, hours_per_billion_tokens, generation, .. } = self.estimates;
        let of = if self.stages.len() > 1 { "roofline, last stage" } else { "roofline" };
        let (step, tokens) = (of_step(seconds_per_step), HumanCount(tokens_per_s as u64));
        let generation = generation
            .map_or(String::new(), |token| format!("; generation {} tokens/s", HumanCount(token.tokens_per_s as u64)));
        let expected =
            self.stages.last().and_then(|stage| Some(stage.tokens_per_step as f64 / stage.expected_seconds?));
        let about = expected.map_or(String::new(), |speed| format!("about {} tokens/s: ", HumanCount(speed as u64)));
        let hours = expected.map_or(hours_per_billion_tokens, |speed| 1e9 / speed / 3600.0);
        format!(
            "at most {tokens} tokens/s ({of}): {step} a step{generation}\n  {about}{}{} hours for a billion tokens\n",
            self.length(config),
            rounded(hours)
        )
    }
}

/// Tokens of a step: sequences × tokens × micro-batches.
fn shape(stage: &StagePlan) -> String {
    let StagePlan { batch_size, seq_len, accumulate, tokens_per_step, .. } = stage;
    format!("{batch_size} × {seq_len} × {accumulate} = {} tokens a step", HumanCount(*tokens_per_step))
}

/// A bar for `bytes` of `all`, in eighths of a column; at least one eighth.
fn bar(bytes: u64, all: u64) -> String {
    let eighths = (8.0 * BAR_COLUMNS as f64 * bytes as f64 / all.max(1) as f64).round().max(1.0) as usize;
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + rest
}

fn of_step(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.3} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

/// A number for people: small numbers keep more digits.
fn rounded(number: f64) -> String {
    match number {
        n if n < 10.0 => format!("{n:.2}"),
        n => HumanFloatCount((n * 10.0).round() / 10.0).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;
    use crate::config::{RawConfig, presets};
    use crate::plan::Machine;

    fn planned(text: &str) -> (Config, Plan) {
        let config = Config::resolve(toml::from_str::<RawConfig>(text).unwrap()).unwrap();
        let plan = Plan::of(&config, &Machine::of(&config).unwrap()).unwrap();
        (config, plan)
    }

    fn assert_small(plan: &Plan, config: &Config) {
        let shown = strip_str(&plan.summary(config)).to_string();
        assert!(shown.lines().count() <= 12, "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    }

    #[test]
    fn the_bytes_of_every_preset_add_up_to_the_arena() {
        for preset in presets() {
            for place in ["", "gpu = 'h200'"] {
                let (config, plan) = planned(&format!("preset = '{}'\n{place}", preset.name));
                assert_eq!(
                    plan.arena().iter().map(|share| share.bytes).sum::<u64>(),
                    plan.arena_bytes,
                    "{}",
                    preset.name
                );
                assert_small(&plan, &config);
            }
        }
    }

    #[test]
    fn the_speed_is_a_bound_and_so_is_the_time_of_the_run() {
        let (config, mut plan) = planned("steps = 600\nseq_len = 64\nbatch_size = 4");
        plan.estimates.seconds_per_step = 0.5;
        let shown = plan.summary(&config);
        assert!(shown.contains("at most ") && shown.contains(" tokens/s (roofline)"), "{shown}");
        assert!(shown.contains("\n  600 steps (153.6 k tokens) in 5 min or more; "), "{shown}");
        let (config, plan) = planned("epochs = 3");
        assert!(plan.summary(&config).contains("\n  3 epochs of the training text; "));
        // One second for each step of the first stage, three seconds for each of the second.
        let stages =
            "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2\n[[stage]]\nfrom = 10\nseq_len = 16\nbatch_size = 2";
        let (config, mut plan) = planned(&format!("steps = 30\n{stages}"));
        (plan.stages[0].roofline_seconds, plan.stages[1].roofline_seconds) = (1.0, 3.0);
        assert!(plan.summary(&config).contains("30 steps (800 tokens) in 70 s or more"), "{}", plan.summary(&config));
    }

    #[test]
    fn the_widest_of_everything_is_small() {
        let (config, mut plan) = planned("preset = 'yxanul-197m'");
        let most = 1 << 50;
        plan.params = 999_999_999_999;
        plan.budget_bytes = Some(most - 1);
        for source in ["memory free under this control group's limit", "memory free here"] {
            plan.budget_from = source.to_owned();
            for fits in [true, false] {
                plan.fits = Some(fits);
                (plan.needed_bytes, plan.moments[2].bytes) = (most - 1, 0);
                assert_small(&plan, &config);
                plan.moments[2].bytes = most - 1;
                assert!(plan.summary(&config).contains(&plan.moments[2].name));
                assert_small(&plan, &config);
            }
        }
        (plan.budget_bytes, plan.fits) = (None, None);
        plan.budget_from = "this system does not say how much memory is free; give a --budget".to_owned();
        assert_small(&plan, &config);
    }

    #[test]
    fn bars_are_in_proportion_and_what_is_there_is_seen() {
        for (bytes, all, shown) in [(1, 1, "█".repeat(22)), (1, 2, "█".repeat(11)), (1, 8 * 22, "▏".to_owned())] {
            assert_eq!(bar(bytes, all), shown);
        }
        assert_eq!(bar(1, 1 << 40), "▏");
    }
}
