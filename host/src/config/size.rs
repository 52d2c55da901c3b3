//! Sizes in bytes, as users write and read them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, written as `4GiB`, `512MiB`, `3.6GB` or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human_bytes(self.0))
    }
}

/// Bytes for people: three digits and a binary unit.
pub fn human_bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.95 && unit < 5 {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit])
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
    fn bytes_are_shown_in_binary_units() {
        assert_eq!(human_bytes(1000), "1000 B");
        assert_eq!(human_bytes(116_621_312), "111.2 MiB");
        assert_eq!(human_bytes(1 << 30), "1.0 GiB");
    }
}
