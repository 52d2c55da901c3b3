//! `host start`: for users with a text and nothing else.

use capful_base::human_bytes;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::output::{say, tell, tell_within};
use super::suggest::{self, Suggestion};
use super::train::Train;
use super::{Failure, request, work};
use crate::config::{ByteSize, RawConfig, Span};
use crate::data::files::Files;
use crate::data::found;
use crate::data::portrait::{LOOKED_AT, Portrait};
use crate::data::source::{Documents as _, SourceOptions};
use crate::device::cuda::gpus;
use crate::name;
use crate::run::metrics;
use capful_base::words::{duration, grouped, short};

/// Flags of `host start`.
#[derive(Debug, clap::Args)]
pub struct Start {
    /// What to learn from: a file (.txt .jsonl .json .csv, each also .gz or .zst, .parquet) or a directory of such
    #[arg(value_name = "FILE|DIR")]
    source: PathBuf,
    /// How long it may take, for example 10m [default: 1h]
    #[arg(long, value_name = "SPAN")]
    time: Option<Span>,
    /// The memory that it may take, for example 2GiB [default: what is free, or all of the GPU]
    #[arg(long, value_name = "SIZE")]
    budget: Option<ByteSize>,
    /// cpu, cuda or cuda:N [default: a GPU where there is one]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// The run's directory; without it runs/NAME, of the text's name
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Begins without asking
    #[arg(long, short)]
    yes: bool,
}

/// Columns of the loss curve.
const COLUMNS: usize = 60;

impl Start {
    pub(super) fn run(self) -> Result<(), Failure> {
        let text = self.text()?;
        let device = self.device.clone().or_else(|| (!gpus().is_empty()).then(|| "cuda".to_owned()));
        let data = self.source.to_str().ok_or_else(|| request("the path of the text is not UTF-8; rename it"))?;
        let raw = RawConfig {
            data: Some(data.into()),
            device,
            budget: self.budget,
            time: self.time.or(Some(Span(3600.0))),
            ..RawConfig::default()
        };
        tell_within(&text);
        let found = suggest::find(raw, 0)?;
        let dir = self.out.clone().unwrap_or_else(|| free(&self.source));
        expect(&found, &dir);
        self.ask()?;
        Train::of(found.raw(), dir.clone()).run(Instant::now())?;
        after(&dir)
    }

    /// A description of the text.
    fn text(&self) -> Result<String, Failure> {
        let options = SourceOptions::of(&found::resolve(RawConfig::default())?);
        let mut files = Files::open(&self.source, &options).map_err(request)?;
        let bytes = files.text_bytes();
        let portrait = Portrait::of(&mut files).map_err(request)?;
        let all = bytes.map_or_else(|| "a text".to_owned(), human_bytes);
        let part = if portrait.bytes >= LOOKED_AT {
            format!(", of which the first {} are", human_bytes(LOOKED_AT))
        } else {
            ":".to_owned()
        };
        Ok(format!(
            "{}: {all}{part} {} documents; {}",
            self.source.display(),
            grouped(portrait.documents),
            portrait.line()
        ))
    }

    /// Asks once whether to begin.
    fn ask(&self) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(request("nobody is there to ask whether to begin; give --yes"));
        }
        let mut error = io::stderr().lock();
        write!(error, "begin? [Y/n] ").and_then(|()| error.flush()).map_err(work)?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map_err(work)?;
        match answer.trim().to_lowercase().as_str() {
            "" | "y" | "yes" => Ok(()),
            _ => Err(request("not begun; the flags of `host train --help` change what is trained")),
        }
    }
}

/// A directory that does not exist yet, with the text's name.
fn free(source: &Path) -> PathBuf {
    let stem =
        source.file_stem().map_or("text".into(), |stem| stem.to_string_lossy().replace(char::is_whitespace, "-"));
    let named =
        |number: u32| Path::new("runs").join(if number > 1 { format!("{stem}-{number}") } else { stem.clone() });
    (1..).map(named).find(|dir| !dir.exists()).unwrap_or_else(|| named(1))
}

/// Reports what will be trained and what to expect of it.
fn expect(found: &Suggestion, dir: &Path) {
    let best = found.best();
    let seconds = best.steps as f64 * best.step_seconds;
    tell_within(&format!(
        "a model of {} parameters, {} layers of {}: {} steps of {} tokens, the text {:.1} times, about {} and {}, in {}",
        short(best.params),
        best.shape.layers,
        best.shape.width,
        grouped(best.steps),
        grouped(best.config.tokens_per_step()),
        best.passes(),
        duration(seconds),
        human_bytes(best.bytes),
        dir.display()
    ));
    tell_within(&format!(
        "expect about {:.1} bits a byte of a text like English technical prose, of others 0.6 to 1.3 times that; a model of this \
         size writes in the manner of its text and knows little",
        best.bits
    ));
    found.enough().iter().for_each(|line| tell_within(line));
}

/// Reports how the training went, and what can be done with the model.
fn after(dir: &Path) -> Result<(), Failure> {
    if let Some(line) = curve(&metrics::losses(dir).map_err(work)?) {
        say!("\n{line}")?;
    }
    let (called, dir) = (name::called(), dir.display());
    say!(
        "\n  {called} chat --run {dir}\n  {called} generate --run {dir} --prompt \"...\"\n  {called} train --resume --out {dir} --time 2h   \
         goes on from before its rate fell\n  {called} export --run {dir} --to hf exported"
    )?;
    tell!("runs so far: {called} runs");
    Ok(())
}

/// Losses as a line of block characters, with the first and the last value.
fn curve(losses: &[f64]) -> Option<String> {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (first, last) = (losses.first()?, losses.last()?);
    let columns = COLUMNS.min(losses.len());
    let mean = |column: usize| {
        let part = &losses[column * losses.len() / columns..(column + 1) * losses.len() / columns];
        part.iter().sum::<f64>() / part.len() as f64
    };
    let means: Vec<f64> = (0..columns).map(mean).collect();
    let (low, high) = means.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(*x), b.max(*x)));
    let block = |x: &f64| BLOCKS[((x - low) / (high - low).max(1e-9) * 7.0).round() as usize];
    Some(format!("training loss {first:.2} {} {last:.2}", means.iter().map(block).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_down_as_the_losses_do() {
        assert_eq!(curve(&[8.0, 4.5, 1.0]).unwrap(), "training loss 8.00 █▅▁ 1.00");
        assert_eq!(curve(&[]), None);
        let long: Vec<f64> = (0..600).map(|i| 600.0 - f64::from(i)).collect();
        let line = curve(&long).unwrap();
        assert_eq!(line.chars().filter(|c| "▁▂▃▄▅▆▇█".contains(*c)).count(), COLUMNS);
        assert_eq!(curve(&[2.0, 2.0]).unwrap(), "training loss 2.00 ▁▁ 2.00");
    }
}
