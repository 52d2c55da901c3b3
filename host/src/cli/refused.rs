//! The errors of a command line, in one line each.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::nearest;

/// The error of the command line, without the usage that `--help` shows, and with the name that may have been meant.
pub(super) fn one_line(error: &clap::Error, arguments: &[String]) -> String {
    let text = error.render().to_string();
    let first = text.split("\n\n").take_while(|part| !part.starts_with("Usage:") && !part.starts_with("For more"));
    // clap's own suggestions are names that have little in common with the written one.
    let named = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
    let lines = first.flat_map(str::lines).filter(|line| !(named && line.trim_start().starts_with("tip:")));
    let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    let words = words.join(" ");
    let near = meant(error, arguments).map(|near| format!("; did you mean {near}?"));
    format!("{}{}; see --help", words.strip_prefix("error: ").unwrap_or(&words), near.unwrap_or_default())
}

/// The flag or command that may have been meant by an unknown one.
fn meant(error: &clap::Error, arguments: &[String]) -> Option<String> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let command = super::command();
    if error.kind() == ErrorKind::InvalidSubcommand {
        let known = command.get_subcommands().map(clap::Command::get_name);
        return nearest(word(ContextKind::InvalidSubcommand)?, known).map(str::to_owned);
    }
    let flag = word(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let flag = flag.strip_prefix("--")?;
    let command = arguments.iter().find_map(|word| command.find_subcommand(word))?;
    let known = command.get_arguments().filter_map(|arg| arg.get_long()).chain(["help"]);
    nearest(flag, known).map(|name| format!("--{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        one_line(&super::super::command().try_get_matches_from(&arguments).unwrap_err(), &arguments)
    }

    #[test]
    fn a_near_name_is_suggested_and_no_other() {
        for (line, expected) in [
            ("host train --label-smoothing 0.1", "unexpected argument '--label-smoothing' found; see --help"),
            (
                "host train --batchsize 4",
                "unexpected argument '--batchsize' found; did you mean --batch-size?; see --help",
            ),
            ("host plan --max-steps=4", "unexpected argument '--max-steps' found; did you mean --steps?; see --help"),
            ("host tain", "unrecognized subcommand 'tain'; did you mean train?; see --help"),
            ("host serve", "unrecognized subcommand 'serve'; see --help"),
        ] {
            assert_eq!(refused(line), expected);
        }
        let fraction = refused("host train --steps 1.5");
        assert!(fraction.contains("'1.5' has a fraction") && !fraction.contains('\n'), "{fraction}");
    }
}
