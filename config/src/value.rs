//! The values of keys: in written form, and resolved.

use clap::builder::{EnumValueParser, ValueParser};
use clap::{ArgMatches, value_parser};
use serde::{Deserialize, Deserializer, Serialize};

use super::count::{count, in_file};
use super::{
    Attention, BaseType, BatchSize, ByteSize, DecayShape, Gradients, InvalidUtf8, LoraTargets, LrSchedule, Masters,
    NameOrSize, Names, Order, Overflow, Precision, Recompute, RecomputeChoice, RuleName, Sources, Span, States,
    StatesChoice,
};

/// A value in written form, from the command line or a file.
pub(super) trait Value: Sized + Serialize + for<'de> Deserialize<'de> {
    /// Whether the command line may contain it several times.
    const SEVERAL: bool = false;

    /// The parser for the command line.
    fn parser() -> ValueParser;

    /// The value of a key on the command line; `None` for a key that is not a flag.
    fn said(matches: &ArgMatches, key: &str) -> Option<Self>
    where
        Self: Clone + Send + Sync + 'static,
    {
        matches.try_get_one(key).ok().flatten().cloned()
    }

    /// Deserializes it from a file that contains it.
    ///
    /// # Errors
    /// An invalid value.
    fn in_file<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
        Self::deserialize(from).map(Some)
    }

    /// The text that people write.
    fn text(&self) -> String {
        match toml::Value::try_from(self) {
            Ok(toml::Value::String(text)) => text,
            value => value.map(|value| value.to_string()).unwrap_or_default(),
        }
    }

    /// The texts for the command line, one for each occurrence of the flag.
    fn texts(&self) -> Vec<String> {
        vec![self.text()]
    }
}

/// The value of a key in a run; `W` is its written form.
pub(super) trait Decided<W>: Sized {
    /// Resolves the written value.
    ///
    /// # Errors
    /// A value that only a plan can resolve.
    fn of(written: W) -> Result<Self, String>;

    /// The value if nothing is written, provided that a missing value is permitted.
    fn unsaid() -> Option<Self> {
        None
    }

    /// The written form.
    fn written(&self) -> Option<W>;
}

impl<W, D: Decided<W>> Decided<W> for Option<D> {
    fn of(written: W) -> Result<Self, String> {
        D::of(written).map(Some)
    }

    fn unsaid() -> Option<Self> {
        Some(None)
    }

    fn written(&self) -> Option<W> {
        self.as_ref().and_then(D::written)
    }
}

/// Types with their parsers and deviations from the defaults. A run has a value of the written type, or of the type
/// after `=>`.
macro_rules! values {
    ($( $type:ty $(=> $decided:ty, $of:expr, $written:expr)?; $parser:expr; { $($more:tt)* } )*) => { $(
        values!(@decided $type $(=> $decided, $of, $written)?);
        impl Value for $type {
            fn parser() -> ValueParser {
                $parser
            }
            $($more)*
        }
    )* };
    (@decided $type:ty) => { values!(@decided $type => $type, Ok, <$type>::clone); };
    (@decided $type:ty => $decided:ty, $of:expr, $written:expr) => {
        impl Decided<$type> for $decided {
            fn of(written: $type) -> Result<$decided, String> {
                $of(written)
            }

            fn written(&self) -> Option<$type> {
                Some($written(self))
            }
        }
    };
}

/// The common parts of both kinds of counts, and of both kinds of numbers.
macro_rules! alike {
    (counts $($type:ty),+) => { values! { $(
        $type; ValueParser::new(count::<$type>); {
            fn in_file<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Self>, D::Error> {
                in_file(from)
            }
        }
    )+ } };
    (numbers $($type:ty),+) => { values! { $(
        $type; value_parser!($type).into(); {
            // With the digits of its own type.
            fn text(&self) -> String {
                format!("{self:?}").trim_end_matches(".0").to_owned()
            }
        }
    )+ } };
    (words $($type:ty),+) => { values! { $( $type; EnumValueParser::<$type>::new().into(); {} )+ } };
}

alike!(counts u32, u64);
alike!(numbers f32, f64);
alike!(words Attention, BaseType, DecayShape, Gradients, InvalidUtf8, LrSchedule, Masters, Order, Overflow, Precision);
values! {
    bool; value_parser!(bool); {}
    String; ValueParser::string(); {}
    RuleName; value_parser!(RuleName).into(); {}
    Names; ValueParser::string(); {
        const SEVERAL: bool = true;

        fn said(matches: &ArgMatches, key: &str) -> Option<Self> {
            Names::of(matches.try_get_many(key).ok().flatten().into_iter().flatten().cloned().collect())
        }

        fn texts(&self) -> Vec<String> {
            self.iter().map(str::to_owned).collect()
        }
    }
    LoraTargets; value_parser!(LoraTargets).into(); {}
    NameOrSize => String, |NameOrSize(text)| Ok(text), |text: &String| NameOrSize(text.clone());
        value_parser!(NameOrSize).into(); {}
    ByteSize => u64, |ByteSize(bytes)| Ok(bytes), |bytes: &u64| ByteSize(*bytes);
        value_parser!(ByteSize).into(); {
            fn text(&self) -> String {
                let ByteSize(bytes) = *self;
                if bytes.is_multiple_of(1 << 20) { format!("{}MiB", bytes >> 20) } else { bytes.to_string() }
            }
        }
    Span => f64, |Span(seconds)| Ok(seconds), |seconds: &f64| Span(*seconds);
        value_parser!(Span).into(); {}
    BatchSize => u32, sequences, |n: &u32| BatchSize::Sequences(*n);
        value_parser!(BatchSize).into(); {}
    RecomputeChoice => Recompute, set, |set: &Recompute| RecomputeChoice::Set(*set);
        value_parser!(RecomputeChoice).into(); {}
    StatesChoice => States, states, |states: &States| StatesChoice::from(*states);
        EnumValueParser::<StatesChoice>::new().into(); {}
}

impl Decided<Names> for Sources {
    fn of(written: Names) -> Result<Sources, String> {
        Sources::read(&written)
    }

    fn written(&self) -> Option<Names> {
        Some(self.as_names())
    }
}

fn sequences(written: BatchSize) -> Result<u32, String> {
    match written {
        BatchSize::Sequences(n) => Ok(n),
        BatchSize::Auto => Err("--batch-size auto is for train, plan and bench".to_owned()),
    }
}

fn set(written: RecomputeChoice) -> Result<Recompute, String> {
    match written {
        RecomputeChoice::Set(set) => Ok(set),
        RecomputeChoice::Fit(_) => Err("--recompute fit:SIZE is for train, plan and bench".to_owned()),
    }
}

fn states(written: StatesChoice) -> Result<States, String> {
    match written {
        StatesChoice::F32 => Ok(States::F32),
        StatesChoice::EightBits => Ok(States::EightBits),
        StatesChoice::Auto => Err("--states auto is for train, plan and bench".to_owned()),
    }
}
