//! The commands, one file for each.

mod bench;
mod calibrate;
mod card;
mod chat;
mod completions;
mod data;
mod doctor;
mod eval;
mod export;
mod generate;
mod import;
mod logits;
mod opened;
mod output;
mod page;
mod plan;
mod presets;
mod reading;
mod record;
mod refused;
mod report;
mod runs;
mod sampling;
mod shown;
mod start;
mod suggest;
mod sweep;
mod tales;
mod team;
mod train;
mod trained;
mod usage;
mod vary;
mod verify;
mod vocab;
mod watched;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::error::ErrorKind;
use clap::{Arg, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::output::{lost, tell};
use self::refused::one_line;
use self::shown::shown;
use crate::config::{Config, ConfigError, RawConfig};
use crate::device::DeviceError;
use crate::name;
use crate::plan::{Machine, Settled};
use crate::regular;
use crate::run::Session;
use crate::run::directory::DirectoryError;
use crate::run::origin;

/// Why a command failed; determines its exit status.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A failure during the work: 1.
    #[error("{0}")]
    Work(String),
    /// A wrong request: 2.
    #[error("{0}")]
    Request(String),
    /// Interrupted after saving: 130.
    #[error("{0}")]
    Interrupted(String),
    /// Rank 0 reports the reason, with this status.
    #[error("rank 0 says why")]
    Elsewhere(u8),
}

impl Failure {
    /// The exit status.
    fn status(&self) -> u8 {
        match self {
            Failure::Work(_) => 1,
            Failure::Request(_) => 2,
            Failure::Interrupted(_) => 130,
            Failure::Elsewhere(status) => *status,
        }
    }

    /// A failure with this exit status.
    fn of(status: u8, line: String) -> Failure {
        match status {
            2 => Failure::Request(line),
            130 => Failure::Interrupted(line),
            _ => Failure::Work(line),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Request(error.0)
    }
}

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Self {
        match error {
            DirectoryError::Refused(text) => Failure::Request(text),
            DirectoryError::Failed(text) => Failure::Work(text),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Refused(text) => Failure::Request(text),
            DeviceError::Failed(text) => Failure::Work(text),
        }
    }
}

/// Prints the warnings of a GPU about missing parts, one line each.
fn say_warnings(session: &mut Session) {
    if let Some(gpu) = session.device.gpu() {
        gpu.warnings().iter().for_each(|warning| tell!("{}: {warning}", name::called()));
    }
}

/// A wrong request of any kind.
fn request(error: impl std::fmt::Display) -> Failure {
    Failure::Request(error.to_string())
}

/// A failure during the work, of any kind.
fn work(error: impl std::fmt::Display) -> Failure {
    Failure::Work(error.to_string())
}

/// Trains small language models inside a memory budget that is known to the byte before the first step
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains a model; without flags: quick-tiny on the built-in tales, under a minute on two cores
    Train(train::Train),
    /// What the run that `train` would start takes of memory, whether it fits, and how fast it could be
    Plan(plan::Plan),
    /// Trains many runs on one device, as many at once as their plans say fit, and compares them
    Sweep(sweep::Sweep),
    /// From a text to a model, for who has nothing else: looks at it, chooses, trains, and says how to go on
    Start(start::Start),
    /// What to train with the memory, the time and the text there are, and what will come of it
    Suggest(suggest::Suggest),
    /// The loss of a trained model on held-out documents
    Eval(eval::Eval),
    /// Continues a prompt
    Generate(generate::Generate),
    /// Talks to a trained model
    Chat(chat::Chat),
    /// The logits at every position of a sequence
    Logits(logits::Logits),
    /// Builds and shows a capped vocabulary, or encodes and decodes with a tokenizer
    Vocab(vocab::Vocab),
    /// Encodes text once into token shards that train, plan and eval read with --data
    Data(data::Data),
    /// Writes the built-in tales, or questions about them with their answers, as a file
    Tales(tales::WriteTales),
    /// Makes a run of a model that was trained elsewhere
    Import(import::Import),
    /// Writes a trained model for other programs: Hugging Face's transformers, llama.cpp
    Export(export::Export),
    /// Compares the files of a run with what was written
    Verify(verify::Verify),
    /// Times steps of a plan on synthetic tokens
    Bench(bench::Bench),
    /// Lists the runs in a directory: their models, steps, losses, sizes, and how they stand
    Runs(runs::Runs),
    /// Writes one page of HTML about a run, or about several side by side
    Report(page::Report),
    /// What this machine offers, and what is missing for each device
    Doctor(doctor::Doctor),
    /// Lists the presets, or the --set keys of one
    Presets(presets::Presets),
    /// Prints a shell's completion script
    Completions(completions::Completions),
}

/// The flags that describe a run, shared by train, sweep, plan and bench.
#[derive(Debug, clap::Args)]
struct RunFlags {
    /// A configuration file in TOML; flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    raw: RawConfig,
}

impl RunFlags {
    fn written(&self) -> Result<RawConfig, ConfigError> {
        match &self.config {
            Some(path) => Ok(RawConfig::read(path)?.overlaid(self.raw.clone())),
            None => Ok(self.raw.clone()),
        }
    }
}

/// Resolves all written settings, for the machine that is returned too, and reports what the budget determined.
fn settle(written: RawConfig) -> Result<(Config, Machine), ConfigError> {
    settle_beside(written, 0)
}

/// As [`settle`], next to a live page of `live` bytes.
fn settle_beside(written: RawConfig, live: u64) -> Result<(Config, Machine), ConfigError> {
    let Settled { config, machine, lines } = origin::settle(written, live)?;
    for line in lines {
        tell!("{line}");
    }
    Ok((config, machine))
}

/// A flag that a signal sets; the second signal ends the program at once.
fn stop() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    raise(&stop)?;
    Ok(stop)
}

/// Makes a signal set `stop`; the second one ends the program at once.
fn raise(stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(stop)).map_err(work)?;
        signal_hook::flag::register(signal, Arc::clone(stop)).map_err(work)?;
    }
    // A closing terminal sends it, often twice: the second one has no effect.
    #[cfg(unix)]
    if !hangup_ignored() {
        signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(stop)).map_err(work)?;
    }
    Ok(())
}

/// The command line, under the name that the user called.
fn command() -> clap::Command {
    let help = |arg: Arg| match arg.get_help().map(ToString::to_string) {
        Some(text) => arg.help(name::spelled(&text).into_owned()),
        None => arg,
    };
    let spelled = |command: clap::Command| command.mut_args(help);
    let named = Arguments::command().name(name::called()).bin_name(name::called());
    named.mut_subcommands(spelled)
}

/// Whether this program was started to survive its terminal, as with nohup. If the system does not tell, the answer is
/// yes.
#[cfg(unix)]
fn hangup_ignored() -> bool {
    let status = regular::read_to_string(Path::new("/proc/self/status")).unwrap_or_default();
    ignores(&status, signal_hook::consts::SIGHUP).unwrap_or(true)
}

/// Whether the process with this `status` ignores a signal, according to the kernel's mask in hexadecimal digits.
#[cfg(unix)]
fn ignores(status: &str, signal: i32) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask >> (signal - 1) & 1 == 1)
}

/// When the reader of standard output goes away, the command ends quietly, like other programs; 141 is the shells'
/// status for this.
fn end_with_the_reader() -> Result<(), Failure> {
    #[cfg(unix)]
    signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGPIPE, 141, Arc::new(true.into()))
        .map_err(work)?;
    Ok(())
}

/// A command whose flags accept values that begin with a minus and a digit, so that the error message can be about the
/// value.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let allow = |arg: Arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
    command.mut_args(allow).mut_subcommands(with_negative_numbers)
}

/// The words of the command line.
fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

fn parse() -> Result<Arguments, clap::Error> {
    Arguments::from_arg_matches(&with_negative_numbers(command()).try_get_matches()?)
}

/// Reads the command line, runs the command and returns its exit status.
pub fn main() -> ExitCode {
    let begun = Instant::now();
    if team::follows() {
        output::silence();
    }
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(e) => {
            if !e.use_stderr() || e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                // Help and version: printed to standard output, and no failure, if they were requested.
                return match e.print().and_then(|()| io::stdout().flush()) {
                    _ if e.use_stderr() => ExitCode::from(2),
                    Err(error) if error.kind() != io::ErrorKind::BrokenPipe => end(&lost(error)),
                    _ => ExitCode::SUCCESS,
                };
            }
            tell!("{}: {}", name::called(), shown(&one_line(&e, &words())));
            return ExitCode::from(2);
        }
    };
    // Training continues without a reader; it handles this case once it has saved.
    let trains = matches!(arguments.command, Command::Train(_) | Command::Sweep(_) | Command::Start(_));
    let ready = if trains { Ok(()) } else { end_with_the_reader() };
    let done = ready.and_then(|()| match arguments.command {
        Command::Train(c) => c.run(begun),
        Command::Plan(c) => c.run(),
        Command::Sweep(c) => c.run(),
        Command::Start(c) => c.run(),
        Command::Suggest(c) => c.run(),
        Command::Eval(c) => c.run(),
        Command::Generate(c) => c.run(),
        Command::Chat(c) => c.run(),
        Command::Logits(c) => c.run(),
        Command::Vocab(c) => c.run(),
        Command::Data(c) => c.run(),
        Command::Tales(c) => c.run(),
        Command::Import(c) => c.run(),
        Command::Export(c) => c.run(),
        Command::Verify(c) => c.run(),
        Command::Bench(c) => c.run(),
        Command::Runs(c) => c.run(),
        Command::Report(c) => c.run(),
        Command::Doctor(c) => c.run(),
        Command::Presets(c) => c.run(),
        Command::Completions(c) => c.run(),
    });
    done.map_or_else(|failure| end(&failure), |()| ExitCode::SUCCESS)
}

/// Prints why a command failed, and returns its exit status.
fn end(failure: &Failure) -> ExitCode {
    if !matches!(failure, Failure::Elsewhere(_)) {
        tell!("{}: {}", name::called(), shown(&failure.to_string()));
    }
    ExitCode::from(failure.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_a_run_is_in_a_group() {
        for name in ["train", "sweep", "plan", "bench"] {
            let command = Arguments::command();
            for arg in command.find_subcommand(name).unwrap().get_arguments() {
                let id = arg.get_id().as_str();
                assert_eq!(
                    arg.get_help_heading().is_some(),
                    !["help", "config", "file"].contains(&id),
                    "{name} --{id}"
                );
            }
        }
    }

    #[test]
    #[cfg(unix)]
    fn the_kernel_s_mask_says_what_is_ignored() {
        let status = |mask: &str| format!("Name:\thost\nSigBlk:\t0000000000000000\nSigIgn:\t{mask}\nSigCgt:\tff\n");
        for (mask, signal, ignored) in
            [("0000000000000001", 1, true), ("0000000000001006", 1, false), ("1000", 13, true)]
        {
            assert_eq!(ignores(&status(mask), signal), Some(ignored), "{mask} {signal}");
        }
        assert_eq!((ignores("", 1), ignores(&status("g"), 1)), (None, None));
    }
}
