//! Spans of time, in the form that users write and read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A span of time in seconds, written as `90s`, `30m`, `8h`, `2d` or `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub f64);

/// From the longest unit to the shortest.
const UNITS: [(char, f64); 4] = [('d', 86_400.0), ('h', 3600.0), ('m', 60.0), ('s', 1.0)];
/// The longest span, in seconds: about a hundred years.
const MOST: f64 = 3.2e9;

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let other = || format!("'{text}' is no span of time; write for example 90s, 30m, 8h or 1h30m");
        let (mut rest, mut seconds, mut units) = (text.trim(), 0.0, &UNITS[..]);
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(other)?;
            let (number, behind) = rest.split_at(end);
            let unit = behind.chars().next().ok_or_else(other)?;
            // Each unit at most once, from the longest to the shortest.
            let at = units.iter().position(|(name, _)| *name == unit).ok_or_else(other)?;
            seconds += number.parse::<f64>().map_err(|_| other())? * units[at].1;
            (rest, units) = (&behind[unit.len_utf8()..], &units[at + 1..]);
        }
        if seconds > 0.0 && seconds <= MOST { Ok(Span(seconds)) } else { Err(other()) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        for (unit, size) in &UNITS[..3] {
            let whole = (rest / size).floor();
            if whole > 0.0 {
                write!(f, "{whole}{unit}")?;
                rest -= whole * size;
            }
        }
        if rest > 0.0 { write!(f, "{rest}s") } else { Ok(()) }
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> String {
        span.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_read_and_written_back() {
        for (text, seconds, shown) in [
            ("90s", 90.0, "1m30s"),
            ("30m", 1800.0, "30m"),
            (" 8h ", 28_800.0, "8h"),
            ("1h30m", 5400.0, "1h30m"),
            ("2d0.5s", 172_800.5, "2d0.5s"),
            ("1.5h", 5400.0, "1h30m"),
            ("0.25s", 0.25, "0.25s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.0, span.to_string().as_str()), (seconds, shown), "{text}");
            assert_eq!(shown.parse(), Ok(span));
        }
        for text in ["", "30", "m", "30 min", "1m1h", "5s5s", "-3s", "0s", "1e3s", "99999999d", "3é"] {
            let refused = text.parse::<Span>().unwrap_err();
            assert!(refused.contains("is no span of time; write for example 90s"), "{text}: {refused}");
        }
    }
}
