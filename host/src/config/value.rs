//! What keys hold: as it is written, and decided.

use clap::builder::{EnumValueParser, ValueParser};
use clap::value_parser;
use serde::{Deserialize, Deserializer, Serialize};

use super::count::{count, in_file};
use super::{
    Attention, BatchSize, ByteSize, Gradients, InvalidUtf8, LrSchedule, NameOrSize, Order, Precision, Recompute,
    RecomputeChoice, RuleName,
};

/// A value as it is written, on the command line or in a file.
pub(super) trait Value: Sized + Serialize + for<'de> Deserialize<'de> {
    /// Whether its flag alone says yes.
    const SWITCH: bool = false;

    /// Reads it on the command line.
    fn parser() -> ValueParser;

    /// Reads it in a file that has it.
    ///
    /// # Errors
    /// What is none.
    fn in_file<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        Self::deserialize(from).map(Some)
    }

    /// As people write it.
    fn text(&self) -> String {
        match toml::Value::try_from(self) {
            Ok(toml::Value::String(text)) => text,
            value => value.map(|value| value.to_string()).unwrap_or_default(),
        }
    }

    /// As a number, where it is one.
    fn number(&self) -> Option<f64> {
        None
    }
}

macro_rules! counts {
    ($($number:ty),*) => { $(
        impl Value for $number {
            fn parser() -> ValueParser {
                ValueParser::new(count::<$number>)
            }

            fn in_file<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
                in_file(from)
            }

            fn number(&self) -> Option<f64> {
                Some(*self as f64)
            }
        }
    )* };
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl Value for $number {
            fn parser() -> ValueParser {
                value_parser!($number).into()
            }

            fn text(&self) -> String {
                if *self > 0.0 && *self < 1e-4 { format!("{self:e}") } else { self.to_string() }
            }

            fn number(&self) -> Option<f64> {
                Some((*self).into())
            }
        }
    )* };
}

macro_rules! words {
    ($($choice:ty),*) => { $(
        impl Value for $choice {
            fn parser() -> ValueParser {
                EnumValueParser::<$choice>::new().into()
            }
        }
    )* };
}

macro_rules! parsed {
    ($($kind:ty),*) => { $(
        impl Value for $kind {
            fn parser() -> ValueParser {
                ValueParser::new(<$kind as std::str::FromStr>::from_str)
            }
        }
    )* };
}

counts!(u32, u64);
numbers!(f32, f64);
words!(Attention, Gradients, InvalidUtf8, LrSchedule, Order, Precision);
parsed!(BatchSize, RecomputeChoice, RuleName);

impl Value for bool {
    const SWITCH: bool = true;

    fn parser() -> ValueParser {
        value_parser!(bool).into()
    }
}

impl Value for String {
    fn parser() -> ValueParser {
        ValueParser::string()
    }
}

impl Value for ByteSize {
    fn parser() -> ValueParser {
        ValueParser::new(<ByteSize as std::str::FromStr>::from_str)
    }

    fn text(&self) -> String {
        let ByteSize(bytes) = *self;
        if bytes.is_multiple_of(1 << 20) { format!("{}MiB", bytes >> 20) } else { bytes.to_string() }
    }
}

impl Value for NameOrSize {
    fn parser() -> ValueParser {
        ValueParser::new(|text: &str| Ok::<_, std::convert::Infallible>(NameOrSize(text.to_owned())))
    }
}

/// What a key is once it is decided, where it is written as a `W`.
pub(super) trait Decided<W>: Sized {
    /// Whether it may be nothing.
    const OPTIONAL: bool = false;

    /// What it is where nothing says it, if that is nothing.
    fn unsaid() -> Option<Self> {
        None
    }

    /// What is written, decided.
    ///
    /// # Errors
    /// What only a plan decides.
    fn of(written: W) -> Result<Self, String>;

    /// As it would be written.
    fn written(&self) -> Option<W>;
}

impl<T: Clone> Decided<T> for T {
    fn of(written: T) -> Result<T, String> {
        Ok(written)
    }

    fn written(&self) -> Option<T> {
        Some(self.clone())
    }
}

impl<T: Clone> Decided<T> for Option<T> {
    const OPTIONAL: bool = true;

    fn unsaid() -> Option<Self> {
        Some(None)
    }

    fn of(written: T) -> Result<Option<T>, String> {
        Ok(Some(written))
    }

    fn written(&self) -> Option<T> {
        self.clone()
    }
}

impl Decided<ByteSize> for u64 {
    fn of(ByteSize(bytes): ByteSize) -> Result<u64, String> {
        Ok(bytes)
    }

    fn written(&self) -> Option<ByteSize> {
        Some(ByteSize(*self))
    }
}

impl Decided<ByteSize> for Option<u64> {
    const OPTIONAL: bool = true;

    fn unsaid() -> Option<Self> {
        Some(None)
    }

    fn of(ByteSize(bytes): ByteSize) -> Result<Option<u64>, String> {
        Ok(Some(bytes))
    }

    fn written(&self) -> Option<ByteSize> {
        self.map(ByteSize)
    }
}

impl Decided<NameOrSize> for Option<String> {
    const OPTIONAL: bool = true;

    fn unsaid() -> Option<Self> {
        Some(None)
    }

    fn of(NameOrSize(text): NameOrSize) -> Result<Option<String>, String> {
        Ok(Some(text))
    }

    fn written(&self) -> Option<NameOrSize> {
        self.clone().map(NameOrSize)
    }
}

impl Decided<BatchSize> for u32 {
    fn of(written: BatchSize) -> Result<u32, String> {
        match written {
            BatchSize::Sequences(n) => Ok(n),
            BatchSize::Auto => Err("--batch-size auto is for train, plan and bench".to_owned()),
        }
    }

    fn written(&self) -> Option<BatchSize> {
        Some(BatchSize::Sequences(*self))
    }
}

impl Decided<RecomputeChoice> for Recompute {
    fn of(written: RecomputeChoice) -> Result<Recompute, String> {
        match written {
            RecomputeChoice::Set(set) => Ok(set),
            RecomputeChoice::Fit(_) => Err("--recompute fit:SIZE is for train, plan and bench".to_owned()),
        }
    }

    fn written(&self) -> Option<RecomputeChoice> {
        Some(RecomputeChoice::Set(*self))
    }
}
