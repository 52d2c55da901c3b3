//! The output of the commands: results on standard output, everything else on standard error.
//!
//! The standard library's own macros panic if they cannot write.

use std::fmt::Arguments;
use std::io::{self, Write as _};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::adapter::strip_str;
use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use terminal_size::{Height, Width, terminal_size_of};

use super::{Failure, work};
use crate::run::status::wrapped;

/// Writes a line to standard output; if that fails, the command has failed.
macro_rules! say {
    ($($argument:tt)*) => { $crate::cli::output::result(format_args!($($argument)*)) };
}

/// Writes a line to standard error, for people who watch: if that fails, the work continues.
macro_rules! tell {
    ($($argument:tt)*) => { $crate::cli::output::aside(format_args!($($argument)*)) };
}

pub(super) use {say, tell};

/// Whether another rank writes the output for this one.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Silences this process: another rank writes the output.
pub(super) fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// See [`say`].
pub(super) fn result(line: Arguments<'_>) -> Result<(), Failure> {
    if SILENT.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(lost)
}

/// Writes a part of a line to standard output, and flushes it.
pub(super) fn part(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(lost)
}

/// See [`tell`].
pub(super) fn aside(line: Arguments<'_>) {
    if !SILENT.load(Ordering::Relaxed) {
        urgent(line);
    }
}

/// Writes a line to standard error even in a silent process: a message that no other rank can write.
pub(super) fn urgent(line: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// `text` in the form for `stream`: with colours only for terminals, and unless the user turned them off with NO_COLOR.
pub(super) fn fitting(text: &str, stream: &impl RawStream) -> String {
    let coloured = stream.is_terminal() && AutoStream::choice(stream) != ColorChoice::Never;
    if coloured { text.to_owned() } else { strip_str(text).to_string() }
}

/// A stream that may be a terminal.
pub(super) trait Screen: io::IsTerminal {
    /// The size of the terminal.
    fn size(&self) -> Option<(Width, Height)>;
}

impl Screen for io::Stdout {
    fn size(&self) -> Option<(Width, Height)> {
        terminal_size_of(self)
    }
}

impl Screen for io::Stderr {
    fn size(&self) -> Option<(Width, Height)> {
        terminal_size_of(self)
    }
}

/// Writes a line that may be wider than a terminal to standard error.
pub(super) fn tell_within(line: &str) {
    tell!("{}", within(line, &io::stderr()));
}

/// `text` broken into lines that fit in the terminal of `stream`, without control sequences; unchanged if `stream` is
/// no terminal.
pub(super) fn within(text: &str, stream: &impl Screen) -> String {
    match stream.size().filter(|_| stream.is_terminal()) {
        Some((Width(columns), _)) => {
            let seen: String = text.chars().filter(|c| *c == '\n' || !c.is_control()).collect();
            wrapped(&seen, columns.into())
        }
        None => text.to_owned(),
    }
}

/// Rows in columns: columns in `numbers` are right-aligned, others left-aligned, and the last column is not padded.
pub(super) fn in_columns<const N: usize>(rows: &[[String; N]], numbers: RangeInclusive<usize>) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            _ if numbers.contains(&column) => format!("{cell:>width$}"),
            _ if column + 1 == N => cell.clone(),
            _ => format!("{cell:<width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect()
}

/// The failure to write standard output.
pub(super) fn lost(error: io::Error) -> Failure {
    work(format_args!("standard output cannot be written: {error}"))
}
