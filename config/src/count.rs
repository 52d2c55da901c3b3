//! Counts in the form that users write.

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};

/// The most digits of a count, including all of its zeros.
const MOST_DIGITS: i64 = 20;

/// Parses a whole number, written as `1000`, `1_000`, `10k`, `2M`, `1G`, `1e3` or `1.5e6`.
///
/// # Errors
/// Other text, a number with a fraction, or one that is too large for the type.
pub fn count<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let other = || format!("'{text}' is no whole number; write for example 1000, 1_000, 10k or 1e6");
    let (number, power) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 3),
        Some((at, 'M')) => (&text[..at], 6),
        Some((at, 'G')) => (&text[..at], 9),
        _ => match text.split_once(['e', 'E']) {
            Some((number, power)) => (number, power.parse::<i8>().map_err(|_| other())?.into()),
            None => (text, 0),
        },
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let grouped =
        |text: &str| text.split('_').all(|group| group.bytes().all(|b| b.is_ascii_digit()) && !group.is_empty());
    if !grouped(whole) || !(grouped(fraction) || fraction.is_empty() && !number.ends_with('.')) {
        return Err(other());
    }
    let fraction = fraction.trim_end_matches('0');
    let digits: String = [whole, fraction].concat().replace('_', "");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return T::try_from(0).map_err(|_| other());
    }
    // The number of zeros to append, or of digits after the point.
    let zeros = power - fraction.replace('_', "").len() as i64;
    let few = digits.trim_end_matches('0');
    let zeros = zeros + (digits.len() - few.len()) as i64;
    if zeros < 0 {
        return Err(format!("'{text}' has a fraction; a whole number is needed"));
    }
    let large = || format!("'{text}' is too large");
    if few.len() as i64 + zeros > MOST_DIGITS {
        return Err(large());
    }
    let value = few.parse::<u64>().ok().and_then(|value| value.checked_mul(10u64.checked_pow(zeros as u32)?));
    value.and_then(|value| T::try_from(value).ok()).ok_or_else(large)
}

/// Parses the most tokens to score: a token is scored if another one precedes it, so at least two are needed.
///
/// # Errors
/// As [`count`]; also for fewer than two.
pub fn scored_tokens(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 | 1 => Err("it must be at least 2".to_owned()),
        tokens => Ok(tokens),
    }
}

/// Deserializes a count from a file: a number, or text as on the command line.
pub(super) fn one_in_file<'de, T: TryFrom<u64>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = match toml::Value::deserialize(from)? {
        toml::Value::String(text) => text,
        toml::Value::Float(number) => number.to_string(),
        other => other.to_string(),
    };
    count(&text).map_err(D::Error::custom)
}

/// Reads an optional count from a file.
pub(super) fn in_file<'de, T: TryFrom<u64>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    one_in_file(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_token_is_not_scored() {
        assert_eq!(scored_tokens("2"), Ok(2));
        assert_eq!(scored_tokens("1").unwrap_err(), "it must be at least 2");
        assert!(scored_tokens("0").is_err() && scored_tokens("x").is_err());
    }

    #[test]
    fn counts_are_read_as_written() {
        for (text, expected) in [
            ("0", 0),
            ("17", 17),
            ("007", 7),
            ("1_000", 1000),
            ("10k", 10_000),
            ("10K", 10_000),
            ("2M", 2_000_000),
            ("1G", 1_000_000_000),
            ("1e3", 1000),
            ("1E+6", 1_000_000),
            ("1.5e6", 1_500_000),
            ("2.5k", 2500),
            ("3.0", 3),
            ("1200e-2", 12),
            ("0e99", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(count::<u64>(text), Ok(expected), "{text}");
        }
        assert_eq!((count::<u32>("4294967295"), count::<u32>("4.294967296e9").is_err()), (Ok(u32::MAX), true));
    }

    #[test]
    fn what_is_no_whole_number_is_refused() {
        for text in [
            "", "k", "e3", "1e", "1.e3", ".5", "1__0", "_1", "1_", "-1", "+1", "1 000", "0x10", "1m", "ten", "1e3k",
            "٣",
        ] {
            let refused = count::<u64>(text).unwrap_err();
            assert!(refused.contains("no whole number"), "{text}: {refused}");
        }
        for text in ["0.5", "1.5", "1.0005k", "1e-1", "15e-1"] {
            assert!(count::<u64>(text).unwrap_err().contains("fraction"), "{text}");
        }
        for text in ["18446744073709551616", "1e20", "1e127", "99999999999999999999999"] {
            assert!(count::<u64>(text).unwrap_err().contains("too large"), "{text}");
        }
    }
}
