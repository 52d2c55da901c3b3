//! Sizes in bytes, in the form that users write and read.

use std::fmt;
use std::str::FromStr;

use capful_base::human_bytes;
use serde::{Deserialize, Serialize};

/// A number of bytes, written as `4GiB`, `512MiB`, `3.6GB` or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value", into = "toml::Value")]
pub struct ByteSize(pub u64);

const UNITS: [(&str, f64); 9] = [
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let lower = text.to_ascii_lowercase();
        let found = UNITS.iter().find(|(unit, _)| lower.ends_with(&unit.to_ascii_lowercase()));
        let (number, factor) = found.map_or((text, 1.0), |(unit, f)| (&text[..text.len() - unit.len()], *f));
        match number.trim().parse::<f64>() {
            Ok(n) if n.is_finite() && n >= 0.0 && n * factor < 9e18 => Ok(ByteSize((n * factor) as u64)),
            _ => Err(format!("'{text}' is no size; write for example 4GiB, 512MiB or 3.6GB")),
        }
    }
}

impl TryFrom<toml::Value> for ByteSize {
    type Error = String;

    /// A number, as runs save it, or text as users write it.
    fn try_from(value: toml::Value) -> Result<Self, String> {
        match &value {
            toml::Value::Integer(n) => u64::try_from(*n).map(ByteSize).map_err(|_| format!("{n} is no size")),
            toml::Value::String(text) => text.parse(),
            other => other.to_string().parse(),
        }
    }
}

impl From<ByteSize> for toml::Value {
    fn from(ByteSize(bytes): ByteSize) -> toml::Value {
        // Larger sizes cannot be written in a file.
        i64::try_from(bytes).unwrap_or(i64::MAX).into()
    }
}

/// A name, or a size, which may be a number in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct NameOrSize(pub String);

impl From<&str> for NameOrSize {
    fn from(text: &str) -> Self {
        NameOrSize(text.to_owned())
    }
}

impl TryFrom<toml::Value> for NameOrSize {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        match value {
            toml::Value::String(text) => Ok(NameOrSize(text)),
            toml::Value::Integer(_) | toml::Value::Float(_) => Ok(NameOrSize(value.to_string())),
            _ => Err(format!("{value} is neither a name nor a size")),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        let cases = [("4GiB", 4 << 30), ("512 MiB", 512 << 20), ("3.6GB", 3_600_000_000), ("17", 17), ("2kib", 2048)];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1GiB", "4 GiBs", "nan", "1e30TB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_has_sizes_as_numbers_and_as_text() {
        let of = |text: &str| toml::from_str::<crate::RawConfig>(text).map(|raw| raw.budget);
        for text in ["budget = 4294967296", "budget = '4GiB'", "budget = '4294967296'", "budget = 4294967296.0"] {
            assert_eq!(of(text), Ok(Some(ByteSize(4 << 30))), "{text}");
        }
        let gpu = |text: &str| toml::from_str::<crate::RawConfig>(text).map(|raw| raw.gpu);
        for (text, says) in [("gpu = 't4'", "t4"), ("gpu = '22GiB'", "22GiB"), ("gpu = 23622320128", "23622320128")] {
            assert_eq!(gpu(text), Ok(Some(NameOrSize(says.to_owned()))), "{text}");
        }
        assert!(gpu("gpu = true").unwrap_err().message().contains("neither a name nor a size"));
        // A number keeps more digits than a double would.
        assert_eq!(of("budget = 9007199254740993"), Ok(Some(ByteSize(9_007_199_254_740_993))));
        for text in ["budget = -1", "budget = true", "budget = '4 gigs'", "budget = [1]"] {
            assert!(of(text).unwrap_err().message().contains("is no size"), "{text}");
        }
    }
}
