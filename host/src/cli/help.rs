//! How the flags of a run are shown by `--help`: in groups, with their defaults.

use clap::{Arg, Command};

const MODEL: &str = "Model";
const DATA: &str = "Data";
const TRAINING: &str = "Training";
const MEMORY: &str = "Memory";
const DEVICE: &str = "Device";
const OUTPUT: &str = "Output";

/// What a preset decides.
const PRESET: &str = "the preset's";

/// Every flag of train, plan and bench that is of a group: its id, and its default where a word says it.
const GROUPS: [(&str, &[(&str, &str)]); 6] = [
    (
        MODEL,
        &[
            ("preset", "pythia-tiny"),
            ("init_from", ""),
            ("set", ""),
            ("vocab_size", PRESET),
            ("attention", "dense"),
            ("block", "64"),
            ("window", "1"),
            ("stride", "2; 4 for mixed"),
            ("weights", ""),
            ("chip", ""),
            ("run", ""),
            ("context", ""),
        ],
    ),
    (
        DATA,
        &[
            ("data", "tales"),
            ("validation", ""),
            ("text_field", "text"),
            ("invalid_utf8", "refuse"),
            ("skip_bad_lines", ""),
            ("shuffle", PRESET),
            ("order", ""),
            ("cache", ""),
            ("pool", "128MiB"),
            ("tokenizer", PRESET),
        ],
    ),
    (
        TRAINING,
        &[
            ("batch_size", PRESET),
            ("seq_len", PRESET),
            ("accumulate", "1, or the preset's"),
            ("tokens_per_step", ""),
            ("stage_scale", "1"),
            ("steps", PRESET),
            ("epochs", ""),
            ("lr", PRESET),
            ("schedule", "cosine"),
            ("warmup", ""),
            ("weight_decay", PRESET),
            ("clip", "1"),
            ("beta1", "0.9"),
            ("beta2", PRESET),
            ("seed", "0"),
            ("skip_non_finite", ""),
            ("exact_ranks", "false"),
            ("zero", ""),
            ("warm", ""),
            ("stage", ""),
        ],
    ),
    (
        MEMORY,
        &[
            ("recompute", PRESET),
            ("chunk", "512, on a GPU 4096 or more, or the preset's"),
            ("budget", "what is free"),
            ("gpu", ""),
            ("sweep", ""),
        ],
    ),
    (
        DEVICE,
        &[
            ("device", "cpu; with --gpu, cuda"),
            ("threads", ""),
            ("precision", "f32, or what the preset needs on a GPU"),
            ("gradients", "f32"),
            ("algorithms", ""),
            ("ranks", ""),
            ("link", ""),
        ],
    ),
    (
        OUTPUT,
        &[
            ("out", ""),
            ("resume", ""),
            ("log_every", ""),
            ("eval_every", PRESET),
            ("eval_tokens", "65536"),
            ("baseline_tokens", ""),
            ("save_every", PRESET),
            ("save_minutes", ""),
            ("keep", "2"),
            ("program", ""),
            ("regions", ""),
            ("profile", ""),
            ("trace", ""),
            ("json", ""),
        ],
    ),
];

/// The commands that share the flags of a run.
const OF_A_RUN: [&str; 3] = ["train", "plan", "bench"];

/// The command line with the flags of [`OF_A_RUN`] in groups.
pub(super) fn grouped(command: Command) -> Command {
    OF_A_RUN.iter().fold(command, |command, name| command.mut_subcommand(name, |command| command.mut_args(in_group)))
}

fn in_group(arg: Arg) -> Arg {
    let id = arg.get_id().clone();
    let mut flags =
        GROUPS.iter().flat_map(|(group, flags)| flags.iter().map(move |(flag, default)| (group, flag, default)));
    let Some((group, _, default)) = flags.find(|(_, flag, _)| id == **flag) else { return arg };
    let help = arg.get_help().map(ToString::to_string).filter(|_| !default.is_empty());
    let arg = arg.help_heading(*group);
    match help {
        Some(help) => arg.help(format!("{help} [default: {default}]")),
        None => arg,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::config::{Config, RawConfig, presets};

    #[test]
    fn every_flag_of_a_run_is_in_a_group_and_every_group_has_its_flags() {
        let command = grouped(super::super::Arguments::command());
        let mut seen = BTreeSet::new();
        for name in OF_A_RUN {
            for arg in command.find_subcommand(name).unwrap().get_arguments() {
                let id = arg.get_id().as_str();
                seen.insert(id.to_owned());
                assert_eq!(arg.get_help_heading().is_some(), !["help", "config"].contains(&id), "{name} --{id}");
            }
        }
        for (group, flags) in GROUPS {
            for (flag, _) in flags {
                assert!(seen.contains(*flag), "{group}: there is no {flag}");
            }
        }
    }

    /// What the help says is what a run gets that says nothing.
    #[test]
    fn the_defaults_are_those_of_the_configuration() {
        let raw = |preset: &str| RawConfig { preset: Some(preset.to_owned()), ..RawConfig::default() };
        let table = |preset: &str| toml::Table::try_from(Config::resolve(raw(preset)).unwrap()).unwrap();
        let tables: Vec<toml::Table> = presets().iter().map(|preset| table(preset.name)).collect();
        let mut said = 0;
        for (flag, default) in
            GROUPS.iter().flat_map(|(_, flags)| flags.iter()).filter(|(_, default)| !default.is_empty())
        {
            let text = |value: &toml::Value| match value {
                toml::Value::Float(x) => (*x as f32).to_string(),
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let values: BTreeSet<String> = tables.iter().filter_map(|table| table.get(*flag)).map(text).collect();
            let sized = default.parse().map(|crate::config::ByteSize(bytes)| bytes.to_string());
            let beginning = default.split([',', ';']).next().unwrap_or_default();
            match values.first() {
                Some(value) if values.len() == 1 && *flag != "preset" => {
                    let same = beginning == value || *flag == "pool" && sized.as_ref() == Ok(value);
                    assert!(same, "--{flag}: {value} and not {default}");
                    said += 1;
                }
                Some(_) => {
                    assert!(*flag == "preset" || default.contains("preset"), "--{flag}: {values:?}, not {default}")
                }
                None => {}
            }
        }
        assert!(said > 8, "{said}");
    }
}
