//! Describes a run in words and numbers.

use capful_base::human_bytes;
use std::collections::BTreeMap;

use serde::Serialize;

use super::known::Known;
use crate::config::Config;
use crate::run::energy;
use crate::run::standing::State;
use capful_base::words::{counted, date, duration, grouped, short};

/// A labelled number or word.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fact {
    /// Its name, for programs.
    pub key: &'static str,
    /// Its name, for people.
    pub label: &'static str,
    /// The value, for people.
    pub text: String,
    /// The value, as it was written.
    pub value: String,
}

/// The most characters: of a configuration value, of a line, and of a sample.
const VALUE: usize = 160;
const LINE: usize = 1000;
const SAMPLE: usize = 1500;
/// The most samples and lines.
const SAMPLES: usize = 8;
const LINES: usize = 12;

/// The first `most` characters of `text`, with a mark if it was longer.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

impl Known {
    /// The run in a sentence or two.
    pub fn sentence(&self) -> String {
        let Known { config, curves, .. } = self;
        let parameters = self.plan.as_ref().map_or(String::new(), |plan| format!(" of {}", parameters(plan.params)));
        let (done, steps) = (self.steps_done(), config.steps);
        let trained = match steps {
            _ if self.state == State::Imported => "imported, not trained here".to_owned(),
            0 => format!("trained for {}", counted(done, "step")),
            _ => format!("trained for {} of {}", grouped(done), counted(steps, "step")),
        };
        let tokens = if curves.tokens > 0 { format!(", {} tokens", short(curves.tokens)) } else { String::new() };
        let loss = curves.last.map_or(String::new(), |last| {
            let error = last.error.map_or(String::new(), |error| format!(" ± {error:.4}"));
            let bits = last.bits.map_or(String::new(), |bits| format!(", {bits:.3} bits a byte"));
            format!(" Validation loss {:.4}{error} nats a token{bits}, after step {}.", last.loss, grouped(last.step))
        });
        format!(
            "{}: a {}{parameters}, {trained}{tokens} of {}, on {}.{loss} {}",
            cut(&config.begun_as(), VALUE),
            config.model.name(),
            cut(&config.data.to_string(), VALUE),
            self.device(),
            self.how_it_ended()
        )
    }

    /// Number of steps done, from the last checkpoint or the metrics.
    pub fn steps_done(&self) -> u64 {
        self.saved.as_ref().map_or(0, |saved| saved.step).max(self.curves.step)
    }

    fn device(&self) -> String {
        let threads = if self.config.device == "cpu" {
            format!(", {}", counted(self.config.threads.into(), "thread"))
        } else {
            String::new()
        };
        let own = || format!("{}{threads}", self.config.device);
        self.began.last().map_or_else(own, |began| cut(&began.device, VALUE))
    }

    /// How the run ended, or its present state.
    pub fn how_it_ended(&self) -> String {
        let (done, steps) = (self.steps_done(), self.config.steps);
        match self.state {
            State::Done if steps > 0 && done < steps => format!(
                "It ended before its last step: {} in a row were not lower.",
                counted(self.config.patience.into(), "evaluation")
            ),
            State::Done => "It is done.".to_owned(),
            State::Running => "It is running.".to_owned(),
            State::Imported => "It was not trained here.".to_owned(),
            _ => match self.saved.as_ref() {
                Some(saved) => {
                    format!("It was interrupted; its last checkpoint is that of step {}.", grouped(saved.step))
                }
                None => "It was interrupted, and has no checkpoint.".to_owned(),
            },
        }
    }

    /// The run's results and sizes.
    pub fn facts(&self) -> Vec<Fact> {
        let Known { config, curves, plan, .. } = self;
        let (last, best) = (curves.last, curves.best);
        let mut facts = Vec::new();
        let mut add = |key, label, value: Option<(String, String)>| {
            facts.extend(value.map(|(text, value)| Fact { key, label, text, value }));
        };
        let plain = |text: String| Some((text.clone(), text));
        let number = |value: f64, text: String| (text, value.to_string());
        let bytes = |bytes: f64| number(bytes, human_bytes(bytes as u64));
        let with_error = |loss: f64, error: Option<f64>| match error {
            Some(error) => format!("{loss:.4} ± {error:.4}"),
            None => format!("{loss:.4}"),
        };
        add("state", "state", plain(self.state.name().to_owned()));
        add("model", "model", plain(format!("{} ({})", cut(&config.begun_as(), VALUE), config.model.name())));
        add("params", "parameters", plan.as_ref().map(|plan| (grouped(plan.params), plan.params.to_string())));
        add("device", "device", plain(format!("{}, {}", self.device(), word(&config.precision))));
        let of = if config.steps > 0 { format!(" of {}", grouped(config.steps)) } else { String::new() };
        let done = self.steps_done();
        add("steps", "steps", Some((format!("{}{of}", grouped(done)), done.to_string())));
        add("tokens", "tokens trained on", Some((grouped(curves.tokens), curves.tokens.to_string())));
        add("val_loss", "last validation loss", last.map(|one| number(one.loss, with_error(one.loss, one.error))));
        let step =
            |one: &super::read::Evaluation| format!("{}, step {}", with_error(one.loss, one.error), grouped(one.step));
        add("best_val_loss", "best validation loss", best.map(|one| number(one.loss, step(&one))));
        let bits = last.and_then(|one| one.bits);
        add("bits_per_byte", "bits a byte", bits.map(|bits| number(bits, format!("{bits:.4}"))));
        let averaged = last.and_then(|one| one.averaged);
        add("averaged", "of the averaged weights", averaged.map(|loss| number(loss, format!("{loss:.4}"))));
        add("loss", "last training loss", curves.loss.last.map(|(_, loss)| number(loss, format!("{loss:.4}"))));
        let floor = self.result("floor");
        add("floor", "the corpus's own floor", floor.map(|floor| number(floor, format!("{floor:.4}"))));
        let speed = curves.tokens_per_s();
        add("tokens_per_s", "tokens a second, in steps", speed.map(|speed| number(speed, grouped(speed as u64))));
        let (seconds, _) = curves.trained;
        add("seconds", "time in logged steps", (seconds > 0.0).then(|| number(seconds, duration(seconds))));
        let waited = (curves.waited >= 0.05).then_some(curves.waited);
        add("waited", "of it waiting for text", waited.map(|seconds| number(seconds, duration(seconds))));
        let fit = |plan: &super::known::Planned| {
            let of = plan.budget_bytes.map_or(String::new(), |budget| format!(" of {}", human_bytes(budget)));
            (format!("{}{of}", human_bytes(plan.needed_bytes)), plan.needed_bytes.to_string())
        };
        add("planned_bytes", "memory planned", plan.as_ref().map(fit));
        let used = self.result("device_bytes").or_else(|| self.result("training_peak_rss_bytes"));
        add("used_bytes", "memory used at most", used.map(bytes));
        add(
            "joules",
            "energy, last session",
            self.result("joules").map(|joules| number(joules, energy::shown(joules))),
        );
        let skipped = (curves.skipped > 0).then(|| (grouped(curves.skipped), curves.skipped.to_string()));
        add("skipped", "steps that changed nothing", skipped);
        let lost = (curves.loss.lost > 0).then(|| (grouped(curves.loss.lost), curves.loss.lost.to_string()));
        add("lost", "logged losses that are no number", lost);
        facts
    }

    /// The data that the run read.
    pub fn data(&self) -> Vec<Fact> {
        let (config, ended) = (&self.config, self.ended.last());
        let mut facts = Vec::new();
        let mut add = |key, label, text: Option<String>| {
            facts.extend(text.map(|text| Fact { key, label, value: text.clone(), text: cut(&text, LINE) }));
        };
        add("data", "source", Some(config.data.to_string()));
        add("validation", "validation", config.validation.as_ref().map(ToString::to_string));
        add("tokenizer", "tokenizer", Some(config.tokenizer.clone()));
        add("tokens_read", "tokens trained on", Some(grouped(self.curves.tokens)));
        add("documents", "documents of the source", ended.and_then(|ended| ended.documents).map(grouped));
        add("source_tokens", "tokens of the source", ended.and_then(|ended| ended.source_tokens).map(grouped));
        let position = self.saved.as_ref().map(|saved| saved.position);
        add("epochs", "times read through", position.map(|position| grouped(position.epoch.into())));
        let of_epoch = position.map(|position| position.epoch_tokens).filter(|tokens| *tokens > 0);
        add("epoch_tokens", "tokens of the pass under way", of_epoch.map(grouped));
        for line in self.began.last().map_or(&[][..], |began| &began.data).iter().take(LINES) {
            add("said", "said as it began", Some(line.clone()));
        }
        match ended.map(|ended| &ended.flaws[..]) {
            None => add(
                "flaws",
                "passed over or mended",
                Some("not recorded: no command of this run came to its end with a version that records it".to_owned()),
            ),
            Some([]) => add("flaws", "passed over or mended", Some("nothing".to_owned())),
            Some(lines) => {
                lines.iter().take(LINES).for_each(|line| add("flaws", "passed over or mended", Some(line.clone())))
            }
        }
        facts
    }

    /// The machine that it ran on, and the command that started it.
    pub fn machine(&self) -> Vec<Fact> {
        let mut facts = Vec::new();
        let mut add = |key, label, text: Option<String>| {
            facts.extend(text.map(|text| Fact { key, label, value: cut(&text, LINE), text: cut(&text, LINE) }));
        };
        let began = self.began.last();
        add("command", "command", began.map(|began| command(&began.command)));
        add("began", "begun (UTC)", began.map(|began| date(began.at)));
        let sessions = self.began.len() as u64;
        add("sessions", "commands that trained it", (sessions > 1).then(|| grouped(sessions)));
        add(
            "system",
            "system",
            began.map(|began| format!("{}, {}", began.system, counted(began.cores as u64, "core"))),
        );
        add("device", "device", Some(self.device()));
        let budget = self
            .plan
            .as_ref()
            .and_then(|plan| Some(format!("{}, {}", human_bytes(plan.budget_bytes?), plan.budget_from)));
        add("budget", "memory there was", budget);
        let version = began.map(|began| &began.version).or(self.saved.as_ref().map(|saved| &saved.version));
        add("version", "capful", version.cloned());
        add("directory", "directory", Some(self.dir.display().to_string()));
        facts
    }

    /// The model's samples, each after its step.
    pub fn samples(&self) -> Vec<(u64, String)> {
        let ended = self.ended.iter().filter_map(|ended| Some((ended.step, ended.sample.as_ref()?)));
        let on_the_way = self.sampled.iter().map(|sampled| (sampled.step, &sampled.sample));
        let mut all: Vec<_> = ended.chain(on_the_way).map(|(step, said)| (step, cut(said, SAMPLE))).collect();
        all.sort_by_key(|(step, _)| *step);
        all.dedup_by_key(|(step, _)| *step);
        // The first sample, and the last ones.
        if all.len() > SAMPLES {
            all.drain(1..=all.len() - SAMPLES);
        }
        all
    }

    /// The configuration's keys and values, in the order in which a run saves them.
    pub fn settings(&self) -> Vec<(String, String)> {
        settings(&self.config)
    }

    /// The keys whose values differ from the preset's, each with its value and the preset's.
    pub fn differs(&self) -> Option<Vec<[String; 3]>> {
        let preset = self.preset.as_ref()?;
        Some(
            differing(&[&settings(preset), &self.settings()])
                .into_iter()
                .filter_map(|(key, values)| {
                    let [preset, own] = <[String; 2]>::try_from(values).ok()?;
                    // By default there are as many threads as the machine has cores.
                    (key != "threads").then_some([key, own, preset])
                })
                .collect(),
        )
    }
}

/// A number of parameters in words.
fn parameters(count: u64) -> String {
    format!("{} parameters", grouped(count))
}

/// A choice as it is written in a configuration.
fn word(value: &impl Serialize) -> String {
    toml::Value::try_from(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A command line, quoted for a shell.
fn command(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=,:+@%".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Keys and values; the keys of a table are prefixed with its name.
fn settings(config: &Config) -> Vec<(String, String)> {
    fn add(to: &mut Vec<(String, String)>, key: String, value: &toml::Value) {
        match value {
            toml::Value::Table(table) => table.iter().for_each(|(name, value)| add(to, format!("{key}.{name}"), value)),
            toml::Value::Array(all) if all.iter().any(toml::Value::is_table) => {
                (1..).zip(all).for_each(|(number, value)| add(to, format!("{key}.{number}"), value));
            }
            toml::Value::String(text) => to.push((key, cut(text, VALUE))),
            value => to.push((key, cut(&value.to_string(), VALUE))),
        }
    }
    let mut all = Vec::new();
    // Through the TOML text, where an f32 has the digits that were written.
    let table = toml::to_string(config).ok().and_then(|text| text.parse::<toml::Table>().ok());
    for (key, value) in table.unwrap_or_default() {
        add(&mut all, key, &value);
    }
    all
}

/// The keys whose values differ between the runs, with the values; `–` for a run without one.
pub fn differing(all: &[&[(String, String)]]) -> Vec<(String, Vec<String>)> {
    let tables: Vec<BTreeMap<&str, &str>> =
        all.iter().map(|one| one.iter().map(|(key, value)| (&**key, &**value)).collect()).collect();
    let mut keys: Vec<&str> = Vec::new();
    for (key, _) in all.iter().flat_map(|one| one.iter()) {
        if !keys.contains(&&**key) {
            keys.push(key);
        }
    }
    let values = |key: &str| tables.iter().map(|table| table.get(key).copied().unwrap_or("–").to_owned()).collect();
    let rows = keys.into_iter().map(|key| (key.to_owned(), values(key)));
    rows.filter(|(_, values): &(String, Vec<String>)| values.windows(2).any(|two| two[0] != two[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_found_whoever_lacks_it() {
        let table = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let (a, b) = (table(&[("lr", "1"), ("seed", "0")]), table(&[("lr", "2"), ("seed", "0"), ("ema", "0.9")]));
        let shown: Vec<_> =
            differing(&[&a, &b]).into_iter().map(|(key, values)| format!("{key} {}", values.join(" "))).collect();
        assert_eq!(shown, ["lr 1 2", "ema – 0.9"]);
        assert!(differing(&[&a]).is_empty());
    }

    #[test]
    fn a_command_is_quoted_where_it_must_be() {
        let words = ["host", "train", "--data", "a b", "it's", ""].map(str::to_owned);
        assert_eq!(command(&words), "host train --data 'a b' 'it'\\''s' ''");
        assert_eq!((cut("abc", 3), cut("abcd", 3)), ("abc".to_owned(), "abc…".to_owned()));
    }

    #[test]
    fn a_configuration_is_keys_and_values() {
        let text = "preset = 'quick-tiny'\nlr = 0.5\n[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 2";
        let config = Config::resolve(toml::from_str(text).unwrap()).unwrap();
        let all = settings(&config);
        for (key, value) in
            [("lr", "0.5"), ("beta1", "0.8"), ("preset", "quick-tiny"), ("stage.1.seq_len", "8"), ("model.layers", "4")]
        {
            assert!(all.iter().any(|one| one.0 == key && one.1 == value), "{key}: {all:?}");
        }
    }
}
