//! `host presets`.

use capful_base::human_bytes;
use serde::Serialize;
use serde_json::json;

use super::output::say;
use super::{Failure, work};
use crate::config::{Key, RawConfig, keys, presets};
use crate::data::found;
use crate::plan::{Machine, Plan};

/// Flags of `host presets`.
#[derive(Debug, clap::Args)]
pub struct Presets {
    /// The --set keys of this preset instead: what each takes, its default and what it means
    #[arg(long, value_name = "PRESET")]
    keys: Option<String>,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

/// A preset, resolved.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    family: &'static str,
    params: u64,
    context: u32,
    vocab_size: u32,
    needed_bytes: u64,
    about: &'static str,
}

impl Presets {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.keys {
            Some(preset) => list_keys(preset, self.json),
            None => list(self.json),
        }
    }
}

fn list(json: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for preset in presets() {
        let config = found::resolve(RawConfig { preset: Some(preset.name.to_owned()), ..RawConfig::default() })?;
        let plan = Plan::of(&config, &Machine::of(&config)?)?;
        rows.push(Row {
            name: preset.name,
            family: config.model.name(),
            params: plan.params,
            context: config.context(),
            vocab_size: config.vocab_size(),
            needed_bytes: plan.needed_bytes,
            about: preset.about,
        });
    }
    if json {
        return say!("{}", serde_json::to_string_pretty(&rows).map_err(work)?);
    }
    say!("  preset              family    parameters  vocabulary  context      memory")?;
    for Row { name, family, params, context, vocab_size, needed_bytes, about, .. } in rows {
        let memory = human_bytes(needed_bytes);
        say!("  {name:<18}  {family:<8}  {params:>10}  {vocab_size:>10}  {context:>7}  {memory:>10}")?;
        say!("      {about}")?;
    }
    let memory = "memory: training on the CPU in f32 at the preset's own batch; see `host plan --preset NAME`";
    say!("{}", crate::name::spelled(memory))
}

fn list_keys(preset: String, json: bool) -> Result<(), Failure> {
    let config = found::resolve(RawConfig { preset: Some(preset), ..RawConfig::default() })?;
    let defaults = toml::Table::try_from(config.model).map_err(work)?;
    // Numbers are f32: as f64 they would show digits that nobody wrote.
    let default = |key: &Key| match defaults.get(key.name) {
        Some(toml::Value::Float(x)) => (*x as f32).to_string(),
        Some(toml::Value::String(word)) => word.clone(),
        other => other.map(ToString::to_string).unwrap_or_default(),
    };
    if json {
        let row = |key: &Key| json!({ "key": key.name, "values": key.values.shown(), "default": defaults.get(key.name), "about": key.about });
        let rows: Vec<_> = keys(config.model.name()).iter().map(row).collect();
        return say!("{}", serde_json::to_string_pretty(&rows).map_err(work)?);
    }
    say!("  --set key              values                             default     meaning")?;
    for key in keys(config.model.name()) {
        say!("  {:<21}  {:<33}  {:<10}  {}", key.name, key.values.shown(), default(key), key.about)?;
    }
    Ok(())
}
